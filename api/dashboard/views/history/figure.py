"""The picture of a problem's history: times against when they were measured, and where the environment changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...model import Figure, Table
from ...table_values import link_of, records, value_of

MAX_LINES = 40
"""Most changes of the environment that are drawn; only the last MAX_SAID of them are said in the picture."""

MAX_SAID = 8


def history_figure(table: Table, name: str) -> Figure:
    """Times against when they were measured, with a line where the environment changed: of the table `times`."""
    rows = list(reversed(records(table)))

    def column(name: str) -> list[Any]:
        return [value_of(row[name]) for row in rows]

    when = column("created_at")
    leads = [link_of(row["run"]) for row in rows]
    traces = [
        _series("served", "@1", "circle", when, column("time_us"), column("time_us_low"), column("time_us_high")),
        _series(
            "default", "@2", "diamond-open", when, column("default_time_us"), column("default_time_us_low"),
            column("default_time_us_high"),
        ),
    ]  # fmt: skip
    for trace in traces:
        trace["customdata"] = leads
    moved = [(x, text) for x, text in zip(when, column("environment_change"), strict=True) if text][-MAX_LINES:]
    seen = [y for one in traces for y in one["y"] if y is not None]
    spans_a_decade = bool(seen) and min(seen) > 0 and max(seen) / min(seen) > 10
    layout = {
        "xaxis": {"title": {"text": "measured (UTC)"}, "type": "date"},
        "yaxis": {"title": {"text": "time (µs)"}, "type": "log" if spans_a_decade else "linear"},
        "shapes": [_line(x) for x, _ in moved],
        "annotations": [_said(x, text, i) for i, (x, text) in enumerate(moved[-MAX_SAID:])],
    }
    times = "once" if len(moved) == 1 else f"{len(moved)} times"
    alt = (
        f"Time of what was served and of the default for {name}, {len(when)} measurements by when they were made, "
        f"with their 95 % intervals; the environment changed {times}."
    )
    return Figure("history", alt, traces, layout)


def _series(
    name: str, colour: str, symbol: str, when: Sequence[Any], middle: Sequence[Any], low: Sequence[Any],
    high: Sequence[Any],
) -> dict[str, Any]:  # fmt: skip
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(when),
        "y": [y if _is_number(y) else None for y in middle],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_distance(y, end) for y, end in zip(middle, high, strict=True)],
            "arrayminus": [_distance(end, y) for y, end in zip(middle, low, strict=True)],
            "color": colour,
        },
        "line": {"color": colour},
        "marker": {"color": colour, "symbol": symbol, "size": 8},
        "hovertemplate": "%{x}<br>%{y:.4g} µs<extra>" + name + "</extra>",
    }


def _distance(from_: Any, to: Any) -> float | None:
    return max(to - from_, 0.0) if _is_number(from_) and _is_number(to) else None


def _line(x: Any) -> dict[str, Any]:
    return {
        "type": "line", "xref": "x", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": "@muted", "dash": "dot", "width": 1},
    }  # fmt: skip


def _said(x: Any, text: str, i: int) -> dict[str, Any]:
    """What changed, beside its line; in turns at three heights, so that neighbours do not cover each other."""
    return {
        "x": x, "xref": "x", "y": 1 - 0.08 * (i % 3), "yref": "paper", "text": text[:60], "showarrow": False,
        "xanchor": "left", "yanchor": "top", "font": {"color": "@muted"},
    }  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
