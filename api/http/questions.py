"""Questions as they come in: query strings and JSON, read into problems. What is unclear is refused, never guessed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import unquote_plus

from ...db.records import Policy
from ...kernels.errors import InvalidInputError
from ...kernels.problem import Format, Op, OutDtype, Problem, Routing, parse_shape

MAX_TEXT = 200
"""Longest device, environment or version text accepted: longer than any real one."""

MAX_SHAPE_TEXT = 100
"""Longest shape text accepted: longer than any valid one."""

MAX_FIELDS = 32
"""Most parameters a query string may have."""

_NO_SIZES = (None,) * 6
_INTEGER = re.compile(r"[0-9]{1,9}", re.ASCII)


def read_query(raw: bytes) -> dict[str, str]:
    """The parameters of a query string by name.

    Raises:
        InvalidInputError: not ASCII or not UTF-8 behind the percent signs, too many parameters, or one named twice.
    """
    fields: dict[str, str] = {}
    try:
        parts = raw.decode("ascii").split("&")
        if len(parts) > MAX_FIELDS:
            raise InvalidInputError(f"The query string has {len(parts)} parameters; at most {MAX_FIELDS} are read.")
        for part in parts:
            name, _, value = part.partition("=")
            if "%" in part or "+" in part:  # rarely; urllib's parse_qsl would cost a tenth of a lookup
                name, value = unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict")
            if name in fields:
                raise InvalidInputError(f"Parameter {name[:50]!r} is given more than once.")
            if part:
                fields[name] = value
    except UnicodeDecodeError as error:
        raise InvalidInputError("The query string is not percent-encoded UTF-8.") from error
    return fields


@dataclass(frozen=True, slots=True)
class Question:
    """What GET /best-config was asked.

    Attributes:
        problem: what is to be computed.
        device, environment: where, as the question names them; None if it does not.
        policy: only winners of this policy; None for all.
    """

    problem: Problem
    device: str | None = None
    environment: str | None = None
    policy: Policy | None = None


def ask(fields: Mapping[str, str]) -> Question:
    """The question that the parameters of GET /best-config ask.

    Raises:
        InvalidInputError: a parameter is unknown, wrong, missing, or contradicts another.
    """
    said: dict[str, Any] = {}
    for name, text in fields.items():
        read = _READERS.get(name)
        if read is None:
            raise InvalidInputError(f"There is no parameter {name[:50]!r}; there are {', '.join(PARAMETERS)}.")
        if not text:
            raise InvalidInputError(f"{name} is empty: leave it out, or give it a value.")
        if len(text) > MAX_TEXT:
            raise InvalidInputError(f"{name} is longer than {MAX_TEXT} characters.")
        said[name] = read(name, text)
    place = {name: said.pop(name, None) for name in ("device", "environment", "policy")}
    return Question(build_problem(**said), **place)


def build_problem(
    *,
    shape: str | None = None,
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    op: Op | None = None,
    experts: int | None = None,
    experts_total: int | None = None,
    top_k: int | None = None,
    routing: Routing | None = None,
    format: Format | None = None,  # noqa: A002 - the field's name everywhere
    out_dtype: OutDtype | None = None,
) -> Problem:
    """The problem that the given fields name; what is None was not given.

    Left out: op is dense, format nvfp4, out_dtype bf16, routing uniform, experts_total equals experts.

    Raises:
        InvalidInputError: both or neither of shape and m, n, k; an op that contradicts the shape; no valid problem.
    """
    routing_, format_, out = routing or Routing.UNIFORM, format or Format.NVFP4, out_dtype or OutDtype.BF16
    if shape is not None:
        sizes = (m, n, k, experts, experts_total, top_k)
        if sizes != _NO_SIZES:
            names = ("m", "n", "k", "experts", "experts_total", "top_k")
            both = [name for name, size in zip(names, sizes, strict=True) if size is not None]
            raise InvalidInputError(f"shape already says what {', '.join(both)} would: give one or the other.")
        problem = parse_shape(shape, routing=routing_, format=format_, out_dtype=out)
        if op is not None and op is not problem.op:
            raise InvalidInputError(f"op is {op.value}, and the shape {shape!r} is {problem.op.value}.")
        if problem.routing is not routing_:
            raise InvalidInputError(f"routing is {routing_.value}, and the shape {shape!r} is dense.")
        return problem
    if m is None or n is None or k is None:
        missing = ", ".join(name for name, value in (("m", m), ("n", n), ("k", k)) if value is None)
        raise InvalidInputError(f"Give shape, or all of m, n and k: missing {missing}.")
    if op in (None, Op.DENSE):
        if experts or experts_total or top_k or routing_ is not Routing.UNIFORM:
            raise InvalidInputError("experts, experts_total, top_k and routing need op grouped or moe.")
        return Problem(m, n, k, format=format_, out_dtype=out)
    if experts is None or top_k is None:
        raise InvalidInputError(f"A {op.value} problem needs experts and top_k.")
    total = experts if experts_total is None else experts_total
    return Problem(m, n, k, op, experts, total, top_k, routing_, format_, out)


def _text(name: str, text: str) -> str:
    """A text as it is."""
    del name
    return text


def _integer(name: str, text: str) -> int:
    """A whole number in ASCII digits."""
    if _INTEGER.fullmatch(text) is None:
        raise InvalidInputError(f"{name} must be a whole number of at most nine digits, and is {text[:40]!r}.")
    return int(text)


def _one_of(words: type[StrEnum]) -> Callable[[str, str], StrEnum]:
    """A reader of one of an enumeration's values."""

    def read(name: str, text: str) -> StrEnum:
        try:
            return words(text)
        except ValueError as error:
            listed = ", ".join(words)
            raise InvalidInputError(f"{name} must be one of {listed}, and is {text[:40]!r}.") from error

    return read


_READERS: dict[str, Callable[[str, str], Any]] = {
    "shape": _text,
    "m": _integer,
    "n": _integer,
    "k": _integer,
    "op": _one_of(Op),
    "experts": _integer,
    "experts_total": _integer,
    "top_k": _integer,
    "routing": _one_of(Routing),
    "format": _one_of(Format),
    "out_dtype": _one_of(OutDtype),
    "device": _text,
    "environment": _text,
    "policy": _one_of(Policy),
}

PARAMETERS = tuple(_READERS)
"""What GET /best-config takes."""
