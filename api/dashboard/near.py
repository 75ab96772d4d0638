"""Which times a picture shows: those near what is served, because one that is 40 times as long hides the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .formatting import format_value
from .model import Cell, Kind, Value
from .table_values import number_of

FAR = 4.0
"""Times that are more than so often the served one are left out of a picture; its table has them."""

MAX_NAMED = 6
"""Most of those that are named below the picture."""

Record = dict[str, Value | Cell]


def split(rows: Sequence[Record], name: str, served_us: float | None) -> tuple[list[Record], list[Record]]:
    """(rows near what is served, rows far from it).

    Args:
        rows: of a table.
        name: of its column of times.
        served_us: what is served, microseconds. None, or a figure that is no time, for none: then all are near.
    """
    if served_us is None or not 0 < served_us < math.inf:
        return list(rows), []
    far = [row for row in rows if (number_of(row[name]) or 0.0) > FAR * served_us]
    return [row for row in rows if row not in far], far


def left_out(far: Sequence[Record], name: str, served_us: float | None, label: Callable[[Record], str]) -> str:
    """A sentence about the rows that a picture leaves out, with a space before it; empty if there are none."""
    if not far or not served_us:
        return ""
    times = [format_value((number_of(row[name]) or 0.0) / served_us, Kind.FACTOR) for row in far[:MAX_NAMED]]
    named = [f"{label(row)[:60]} ({factor})" for row, factor in zip(far, times, strict=False)]
    named += [f"and {len(far) - MAX_NAMED} more"] if len(far) > MAX_NAMED else []
    return f" Not drawn, as more than {FAR:g} times what is served: {', '.join(named)}."
