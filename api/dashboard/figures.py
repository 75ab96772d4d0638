"""Figures as JSON for the script that draws them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..plain import time_text
from .formatting import MAX_TEXT, MAX_WHOLE, clean, clip
from .model import Figure
from .page import ROOT

_MAX_DEPTH = 12
_MARKUP = re.compile(r"<(?!/?(?:b|i|sub|sup|extra)>|br>|br/>)")
"""Everything but plain type, which Plotly would take for markup: in its texts `<a href>` is a link."""

_SCRIPT_ESCAPES = str.maketrans(
    {
        "<": "\\u003c",
        ">": "\\u003e",
        "&": "\\u0026",
        "\N{LINE SEPARATOR}": "\\u2028",
        "\N{PARAGRAPH SEPARATOR}": "\\u2029",
    }
)


def script_json(value: Any) -> str:
    """JSON that can stand in a script element: nothing of it can end the element, or is read as HTML.

    NaN and infinities are null, times ISO 8601. Strings are clean, and clipped like those of cells.
    """
    text = json.dumps(_plain(value, 0), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.translate(_SCRIPT_ESCAPES)


def figure_json(figure: Figure) -> str:
    """What the script draws: traces, layout, height in pixels."""
    return script_json({"traces": figure.traces, "layout": figure.layout, "height": figure.height_px})


def _plain(value: Any, depth: int) -> Any:
    """A value of JSON's own types."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        limit = MAX_WHOLE if value.startswith(ROOT) else MAX_TEXT  # an address that is cut leads nowhere
        return _MARKUP.sub("&lt;", clip(clean(value), limit))
    if isinstance(value, int | float):
        return value if _is_finite(value) else None
    if isinstance(value, datetime):
        return time_text(value)
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {clip(clean(str(key))): _plain(one, depth + 1) for key, one in value.items()}
        if isinstance(value, Sequence):
            return [_plain(one, depth + 1) for one in value]
    return clip(clean(str(value)))


def _is_finite(value: float) -> bool:
    """True for numbers that JSON and JavaScript have."""
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
