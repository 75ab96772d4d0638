"""Query strings, read into what a page may be asked. What is no value is left out, and told."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from .formatting import clip, quoted
from .page import Asked, Page, Parameter

MAX_FIELDS = 32
"""Most parameters that are looked at."""

MAX_FAULTS = 5
"""Most faults of an address that are told, a sentence each."""

TABLE = Parameter("table", "[a-z0-9_-]{1,64}", "the name of one of the page's tables")
"""Which table a CSV or JSON is of."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An address, read.

    Attributes:
        asked: what is left when what is no value is left out.
        faults: what was left out and why, a sentence each; empty if nothing was.
        table: the table that is asked for; empty if none is named.
    """

    asked: Asked
    faults: tuple[str, ...] = ()
    table: str = ""


def read(page: Page, query: bytes, *, data: bool = False) -> Reading:
    """Read a query string by the parameters of a page.

    A parameter that is unknown, given more than once, or not of its pattern is left out as a whole: none of its values
    is taken for what was meant.

    Args:
        page: whose parameters.
        query: the query string, undecoded.
        data: whether `table` is a parameter too.
    """
    known = {one.name: one for one in [*page.parameters, *([TABLE] if data else [])]}
    given, faults = _fields(query)
    values: dict[str, str] = {}
    for name, texts in given.items():
        fault = _fault(known, name, texts)
        if fault:
            faults.append(fault)
        elif texts[0]:
            values[name] = texts[0]
    table = values.pop(TABLE.name, "") if data else ""
    if len(faults) > MAX_FAULTS:
        faults[MAX_FAULTS:] = [f"And {len(faults) - MAX_FAULTS} more parameters are left out for such reasons."]
    return Reading(Asked(page.slug, values), tuple(faults), table)


def _fields(query: bytes) -> tuple[dict[str, list[str]], list[str]]:
    """Every parameter's values by name, in order; and what is wrong with the query as a whole."""
    parts = [part for part in query.split(b"&") if part]
    faults = []
    if len(parts) > MAX_FIELDS:
        faults.append(f"The address has {len(parts)} parameters; only the first {MAX_FIELDS} are read.")
    given: dict[str, list[str]] = {}
    for part in parts[:MAX_FIELDS]:
        name, _, value = part.partition(b"=")
        given.setdefault(_text(name), []).append(_text(value))
    return given, faults


def _text(raw: bytes) -> str:
    """Percent-encoded UTF-8; what is not UTF-8 becomes U+FFFD, which no pattern takes."""
    return unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8", "replace")


def _fault(known: Mapping[str, Parameter], name: str, texts: Sequence[str]) -> str:
    """Why a parameter cannot be used; empty if it can."""
    parameter = known.get(name)
    if parameter is None:
        there = f"there are {', '.join(known)}" if known else "this page takes none"
        return f"There is no parameter {quoted(name)}; {there}. It is left out."
    if len(texts) > 1:
        return f"{name} is given {len(texts)} times; give it once. It is left out."
    if texts[0] and not re.fullmatch(parameter.pattern, texts[0]):
        return f"{name} must be {parameter.meaning}, and is {quoted(clip(texts[0], 60))}. It is left out."
    return ""
