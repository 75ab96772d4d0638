"""Values as text: numbers by the kind of their column, and strings of which nothing is left that could do harm."""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime

from .model import Kind, Value

DASH = "\N{EN DASH}"
"""What stands where there is no value."""

MAX_TEXT = 300
"""Most characters of a cell."""

MAX_WHOLE = 2000
"""Most characters of the whole text of a cell that was clipped, shown when it is pointed at."""

MAX_CODE = 20_000
"""Most characters of a command: more than any, and it is copied, so it is not clipped before."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_PLAIN_BELOW = 1e15
"""Numbers from here on are written with an exponent."""


def clean(text: str) -> str:
    """One line of text that changes nothing around it.

    Every kind of white space is a space. Control characters, marks that turn the direction of writing, invisible ones,
    lone surrogates and unassigned ones are U+FFFD, so that one sees that there is something.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else _harmless(c) for c in text)


def clean_code(text: str) -> str:
    """As `clean`, but lines and tabs stay, because a command may have them."""
    return "".join(c if c.isprintable() or c in "\n\t" else _harmless(c) for c in text[:MAX_CODE])


def _harmless(character: str) -> str:
    """What stands for a character that is not printable."""
    is_space = character in "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85" or unicodedata.category(character) in ("Zs", "Zl", "Zp")
    return " " if is_space else _REPLACEMENT


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """At most `limit` characters, the last an ellipsis if there were more."""
    return text if len(text) <= limit else text[: limit - 1] + _ELLIPSIS


def quoted(text: str) -> str:
    """A string of somebody's in a sentence: in quotes, clean, clipped."""
    return f"'{clip(clean(text[:MAX_TEXT]), 100)}'"


def format_value(value: Value, kind: Kind) -> str:
    """A value as text.

    Args:
        value: in the unit that its column's name says. None, an empty string, NaN and infinities are a dash; a value
            that is not of its kind (text in a column of numbers) is shown as what it is.
        kind: how to write it.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, int | float):
        return _number(value, kind)
    return DASH if value is None or not value else str(value)


def _number(value: float, kind: Kind) -> str:
    """A number by its kind."""
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits, which no column of a database holds
        return DASH
    if not math.isfinite(number):
        return DASH
    if abs(number) >= _PLAIN_BELOW:
        return f"{number:.3e}"
    if kind is Kind.INTEGER or (isinstance(value, int) and kind in (Kind.NUMBER, Kind.TEXT, Kind.CODE)):
        return f"{round(number):,}"
    return _WRITERS.get(kind, significant)(number)


def significant(number: float) -> str:
    """Four significant digits, or all digits before the point: `0.01235`, `12.35`, `1,235`, `123,457`, `1.235e-07`."""
    if number == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(number)))
    if magnitude < -4:
        return f"{number:.3e}"
    return f"{number:,.{max(0, 3 - magnitude)}f}"


def _time_us(number: float) -> str:
    """Microseconds: two digits after the point, fewer from 1,000 on, more below 0.1."""
    if abs(number) >= 1000:
        return f"{number:,.1f}" if abs(number) < 10_000 else f"{number:,.0f}"
    return f"{number:.2f}" if abs(number) >= 0.1 or number == 0 else significant(number)


def _factor(number: float) -> str:
    """`1.05x`; no digits after the point from 100 on."""
    return f"{number:,.0f}x" if abs(number) >= 100 else f"{number:.2f}x"


def _share(number: float) -> str:
    """`56 %`; a digit after the point below ten, and just below a hundred, which would else be shown as all."""
    percent = number * 100
    near_an_end = abs(percent) < 10 or 99 < percent < 100
    return f"{percent:,.1f} %" if near_an_end and percent != 0 else f"{percent:,.0f} %"


def _difference(number: float) -> str:
    """`+1.2 %`, always with its sign; `0.0 %` if nothing is left of it."""
    text = f"{number * 100:+,.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def _seconds(number: float) -> str:
    """`12 ms`, `1.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    sign, rest = ("-", -number) if number < 0 else ("", number)
    if rest == 0:
        return "0 s"
    if rest < 1:
        return f"{sign}{rest * 1000:.0f} ms" if rest >= 0.0095 else f"{sign}{rest * 1000:.2g} ms"
    if rest < 59.95:
        return f"{sign}{rest:.1f} s"
    for size, name, small, small_name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        whole = round(rest / small) * small
        if whole >= size:
            return f"{sign}{whole // size:,} {name} {whole % size // small} {small_name}"
    return f"{sign}{rest:.1f} s"


def _bytes(number: float) -> str:
    """`512 B`, `96.0 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(number) < (1000 if unit == "B" else 1023.95):
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} PiB"


def _moment(value: datetime) -> str:
    """`2026-11-02 12:00:00 UTC`. A naive time is taken as UTC."""
    return f"{_utc(value).isoformat(sep=' ', timespec='seconds')[:19]} UTC"


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError:  # the first or the last day of all
        return value


_WRITERS = {
    Kind.TIME_US: _time_us,
    Kind.FACTOR: _factor,
    Kind.SHARE: _share,
    Kind.DIFFERENCE: _difference,
    Kind.SECONDS: _seconds,
    Kind.BYTES: _bytes,
}
