"""The picture of two environments: how many times as long each problem takes in the second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...model import Cell, Figure, Table
from ...table_values import link_of, number_of, records, value_of
from ...verdicts import Verdict

_LABELLED = 40
"""Most problems whose names fit below the axis."""

_LOOKS = {
    Verdict.REGRESSED: ("@bad", "triangle-up"),
    Verdict.NOT_ENOUGH: ("@muted", "circle-open"),
    Verdict.IMPROVED: ("@good", "triangle-down"),
    Verdict.UNCHANGED: ("@1", "circle"),
}


def ratio_figure(table: Table, counts: float) -> Figure:
    """Ratios with their intervals around 1, of a table with columns problem, verdict, change, change_low, change_high.

    Args:
        table: rows in the order in which they are drawn.
        counts: what counts, 0.01 for 1 %: a band around 1.
    """
    rows = records(table)
    names = [_text(row["problem"]) for row in rows]
    verdicts = [value_of(row["verdict"]) for row in rows]
    middle, low, high = (
        [_ratio(number_of(row[name])) for row in rows] for name in ("change", "change_low", "change_high")
    )
    links = [link_of(row["problem"]) for row in rows]
    traces = []
    for verdict, (colour, symbol) in _LOOKS.items():
        mine = [i for i, one in enumerate(verdicts) if one == verdict.value and middle[i] is not None]
        if mine:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": verdict.value,
                    "x": [i + 1 for i in mine],
                    "y": [middle[i] for i in mine],
                    "text": [names[i] for i in mine],
                    "customdata": [links[i] for i in mine],
                    "error_y": {
                        "type": "data",
                        "symmetric": False,
                        "array": [_distance(middle[i], high[i]) for i in mine],
                        "arrayminus": [_distance(low[i], middle[i]) for i in mine],
                        "color": colour,
                    },
                    "marker": {"color": colour, "symbol": symbol, "size": 8},
                    "hovertemplate": "%{text}<br>x%{y:.4f}<extra>" + verdict.value + "</extra>",
                }
            )
    alt = (
        f"How many times as long {len(names)} problems take in B as in A, the worst first, with 95 % intervals; a band "
        f"marks what does not count, {100 * counts:.0f} % either way."
    )
    return Figure("ratios", alt, traces, _layout(names, counts), 420)


def _layout(names: Sequence[str], counts: float) -> dict[str, Any]:
    x: dict[str, Any] = {"title": {"text": "problem, the worst first"}, "range": [0.5, len(names) + 0.5]}
    if len(names) <= _LABELLED:
        x |= {
            "tickmode": "array",
            "tickvals": list(range(1, len(names) + 1)),
            "ticktext": list(names),
            "tickangle": -60,
        }
    whole = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "layer": "below"}
    return {
        "xaxis": x,
        "yaxis": {"title": {"text": "time in B over time in A"}, "type": "log"},
        "shapes": [  # on a log axis a shape is placed by its values, not by their logs
            {
                **whole, "type": "rect", "y0": 1 / (1 + counts), "y1": 1 + counts, "fillcolor": "@band",
                "line": {"width": 0},
            },
            {**whole, "type": "line", "y0": 1, "y1": 1, "line": {"color": "@muted", "width": 1}},
        ],
    }  # fmt: skip


def _text(cell: Any) -> str:
    return str((cell.text or cell.value) if isinstance(cell, Cell) else cell)[:80]


def _ratio(change: float | None) -> float | None:
    """1 + change; None for what is no place on a log axis."""
    return 1 + change if change is not None and math.isfinite(change) and change > -1 else None


def _distance(from_: float | None, to: float | None) -> float | None:
    return None if from_ is None or to is None else max(to - from_, 0.0)
