"""Figures in sentences, as the tables write them."""

from __future__ import annotations

import math

from .formatting import format_value
from .model import Kind


def share_text(share: float) -> str:
    """`0.3 %`; a whole percent without a digit after the point."""
    text = format_value(share, Kind.SHARE)
    return text.replace(".0 %", " %")


def time_text(time_us: float) -> str:
    """`12.34 µs`."""
    return f"{format_value(time_us, Kind.TIME_US)} µs"


def half_width(time_us: float, low_us: float, high_us: float) -> float:
    """Half of an interval, relative to the median; NaN of times that are none, which is written as a dash."""
    if not (0 < time_us < math.inf and math.isfinite(low_us) and math.isfinite(high_us)):
        return math.nan
    return (high_us - low_us) / 2 / time_us
