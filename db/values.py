"""Checks of what comes from outside, so that both databases accept it, or the user reads one sentence.

What PostgreSQL refuses and SQLite swallows (NUL characters, over-long names, JSON's NaN), and what neither driver can
encode (lone surrogates, 65-bit integers), is settled here, once, before a transaction begins.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from ..kernels.backend import config_key
from ..kernels.errors import InvalidInputError

MAX_NAME = 255
"""Longest name (backend, host, role, version, ...) in characters."""

MAX_PROSE = 16_384
"""Longest stored error or outcome in characters; what is longer loses its middle."""

MAX_JSON = 1 << 20
"""Longest stored JSON text (a config, settings, a tie set) in characters."""

_INT64 = 1 << 63
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def _shown(value: object) -> str:
    """A value for a sentence: short, printable, ASCII."""
    try:
        text = ascii(value)
    except ValueError:  # an integer of more digits than Python prints
        return "too long to show"
    return text if len(text) <= 60 else text[:57] + "..."


def name(value: object, what: str, *, limit: int = MAX_NAME) -> str:
    """A string that identifies something; kept exactly or refused.

    Raises:
        InvalidInputError: it is no string, is too long, or has a NUL character or a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} must be a string, and is {_shown(value)}.")
    if len(value) > limit:
        raise InvalidInputError(f"{what} must have at most {limit} characters, and has {len(value)}.")
    if _UNSTORABLE.search(value):
        raise InvalidInputError(
            f"{what} must be text without NUL characters and lone surrogates, and is {_shown(value)}."
        )
    return value


def prose(value: str) -> str:
    """A text that describes what happened; never refused, because a trial must not be lost for its message.

    NUL characters and lone surrogates become visible escapes, as Python writes them; beyond MAX_PROSE characters the
    middle is left out, and the text says so.
    """
    if len(value) > MAX_PROSE:
        # 64 characters for the note, whose figure has at most 20 digits.
        half = (MAX_PROSE - 64) // 2
        value = f"{value[:half]}\n[{len(value) - 2 * half} characters left out]\n{value[-half:]}"
    if _UNSTORABLE.search(value):
        value = value.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def int64(value: object, what: str, *, least: int = -_INT64) -> int:
    """An integer of at most 64 bits.

    Raises:
        InvalidInputError: it is no integer, or out of range.
    """
    if not isinstance(value, int) or not least <= value < _INT64:
        raise InvalidInputError(f"{what} must be an integer from {least} to {_INT64 - 1}, and is {_shown(value)}.")
    return int(value)


def number(value: float, what: str, *, least: float | None = None) -> float:
    """A finite float.

    Raises:
        InvalidInputError: it is NaN or infinite, or below `least`.
    """
    if not math.isfinite(value):
        raise InvalidInputError(f"{what} must be a finite number, and is {value}.")
    if least is not None and value < least:
        raise InvalidInputError(f"{what} must be at least {least:g}, and is {value}.")
    return float(value)


def times(time_us: float, low: float, high: float, what: str) -> dict[str, float]:
    """A median and its interval, microseconds, as columns.

    Raises:
        InvalidInputError: 0 < low <= median <= high < inf does not hold.
    """
    if not 0 < low <= time_us <= high < math.inf:
        raise InvalidInputError(f"{what} needs 0 < low <= median <= high < inf, not {low}, {time_us}, {high}.")
    return {"time_us": float(time_us), "time_us_low": float(low), "time_us_high": float(high)}


def config(value: Mapping[Any, Any], what: str) -> str:
    """A config as its canonical text, the same as `config_key` gives.

    Raises:
        InvalidInputError: a name is no string, or a value is none of str, int, float and bool, or is NaN or infinite.
    """
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str | int | float):
            raise InvalidInputError(f"{what} must map names to str, int, float or bool, not {_shown({key: item})}.")
        if isinstance(item, float) and not math.isfinite(item):
            raise InvalidInputError(f"{what} must have finite numbers only, and {key!r} is {item}.")
    return _limited(config_key(value), what)


def canonical(value: Any, what: str) -> str:
    """Any JSON value as canonical text: keys sorted, no spaces, ASCII.

    Raises:
        InvalidInputError: it is not JSON (a path, a set, a key that is no string), or has NaN or infinity.
    """
    try:
        _check_keys(value)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{what} cannot be stored as JSON: {_shown(str(error))[1:-1]}.") from None
    return _limited(text, what)


def _check_keys(value: Any) -> None:
    """Refuse keys that `json.dumps` would quietly turn into strings; it takes no other containers than these."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key must be a string, not {key!r}")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def _limited(text: str, what: str) -> str:
    """The text, if it is no longer than MAX_JSON."""
    if len(text) > MAX_JSON:
        raise InvalidInputError(f"{what} must have at most {MAX_JSON} characters as JSON, and has {len(text)}.")
    return text
