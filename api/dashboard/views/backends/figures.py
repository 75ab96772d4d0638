"""Pictures of backends, each made of the values of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...model import Cell, Figure, Table, Value
from ...near import left_out, split
from ...table_values import number_of, records, value_of

_DECADE = 10.0

_SERIES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("served", "finals", {"symbol": "circle", "color": "@good"}),
    ("best", "finals", {"symbol": "triangle-up", "color": "@1"}),
    ("default", "finals", {"symbol": "square", "color": "@2"}),
    ("default, best", "finals", {"symbol": "hexagon", "color": "@3"}),
    ("baseline", "finals", {"symbol": "diamond", "color": "@4"}),
    ("best", "search *", {"symbol": "star", "color": "@1"}),
    ("default", "search *", {"symbol": "star", "color": "@2"}),
    ("default, best", "search *", {"symbol": "star", "color": "@3"}),
    ("baseline", "search *", {"symbol": "star", "color": "@4"}),
)
"""(what, measured in, marker). A star is what was not measured in the same rounds, in pictures as in tables."""

_FEW = 10
_ROW_PX, _REST_PX = 26, 150


def wins_figure(table: Table) -> Figure | None:
    """Wins per backend as bars; None if there are none."""
    rows = records(table)
    if not rows:
        return None
    names = [str(value_of(row["backend"])) for row in rows]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [number_of(row["n_problems"]) for row in rows],
        "text": [str(value_of(row["n_problems"])) for row in rows],
        "hovertemplate": "%{y}: %{x} problems<extra></extra>",
        "marker": {"color": "@1"},
        "showlegend": False,
    }
    layout = {
        "xaxis": {"title": {"text": "problems that it is served for"}, "rangemode": "tozero"} | _whole_ticks(rows),
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
    }
    alt = "Bars: problems that each backend is served for, most first."
    return Figure("wins", alt, [trace], layout, height_px=_height(len(rows)))


def _whole_ticks(rows: Sequence[dict[str, Value | Cell]]) -> dict[str, Any]:
    """A tick a problem where there are few, because Plotly would put some between them."""
    most = max(number_of(row["n_problems"]) or 0.0 for row in rows)
    return {"dtick": 1} if most < _FEW else {}


def candidates_figure(table: Table, published: Table | None = None) -> Figure | None:
    """Every backend's best and default with intervals, and what is published as hollow marks; None if nothing ran.

    What takes many times as long as what is served is left out, and named below.

    Args:
        table: `backend_tables.candidates_table`.
        published: `published`'s table of the problem, if there is one.
    """
    measured = [row for row in records(table) if number_of(row["time_us"]) is not None]
    if not measured:
        return None
    served_us = next((number_of(row["time_us"]) for row in measured if _series_of(row)[0] == "served"), None)
    rows, far = split(measured, "time_us", served_us)
    others, far_others = split(records(published) if published is not None else [], "published_us", served_us)
    traces = []
    for what, rounds, marker in _SERIES:
        own = [row for row in rows if _series_of(row) == (what, rounds)]
        if own:
            traces.append(_measured_trace(own, f"{what}, {rounds}", marker))
    for name in dict.fromkeys(str(value_of(row["publisher"])) for row in others):
        own = [row for row in others if value_of(row["publisher"]) == name]
        traces.append(_published_trace(own, name))
    labels = [*(_label(row) for row in rows), *(_published_label(row) for row in others)]
    times = [number_of(row["time_us"]) or 0.0 for row in rows] + [
        number_of(row["published_us"]) or 0.0 for row in others
    ]
    spans_decade = min(times) > 0 and max(times) > _DECADE * min(times)
    layout = {
        "xaxis": {"title": {"text": "time of one call, µs"}, "type": "log" if spans_decade else "linear"},
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(dict.fromkeys(labels)),
            "autorange": "reversed",
            "automargin": True,
        },
        "hovermode": "closest",
    }
    alt = (
        f"Times of {len(rows)} configs as marks with 95 % intervals, a row a backend, fastest on top; a star was not "
        "measured in the finals' rounds."
    )
    if others:
        alt += f" Below them {len(others)} published times as hollow marks of their own, with their error bands."
    alt += left_out(far, "time_us", served_us, _label)
    alt += left_out(far_others, "published_us", served_us, _published_label)
    return Figure("candidates", alt, traces, layout, height_px=_height(len(set(labels))))


def _series_of(row: dict[str, Value | Cell]) -> tuple[str, str]:
    what, rounds = str(value_of(row["what"])), str(value_of(row["rounds"]))
    words = what.split(", ")
    return next((word for word in ("baseline", "served") if word in words), what), rounds


def _label(row: dict[str, Value | Cell]) -> str:
    return str(value_of(row["backend"]))


def _published_label(row: dict[str, Value | Cell]) -> str:
    return f"published: {value_of(row['precision'])}, {value_of(row['framework'])}"


def _measured_trace(rows: Sequence[dict[str, Value | Cell]], name: str, marker: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [number_of(row["time_us"]) for row in rows],
        "y": [_label(row) for row in rows],
        "error_x": _interval(rows, "time_us"),
        "text": [f"{value_of(row['what'])}: {value_of(row['config'])}" for row in rows],
        "hovertemplate": "%{y}, %{x:.2f} µs<br>%{text}<extra></extra>",
        "marker": {"size": 10, **marker},
    }


def _published_trace(rows: Sequence[dict[str, Value | Cell]], publisher: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"published by {publisher}",
        "x": [number_of(row["published_us"]) for row in rows],
        "y": [_published_label(row) for row in rows],
        "error_x": _interval(rows, "published_us"),
        "text": [f"{value_of(row['kernel'])}, {_caveats(row)}" for row in rows],
        "hovertemplate": "%{y}, %{x:.2f} µs<br>%{text}<extra></extra>",
        "marker": {"size": 10, "symbol": "circle-open", "color": "@reference"},
    }


def _caveats(row: dict[str, Value | Cell]) -> str:
    words = [str(value_of(row["differs"]))]
    words += ["includes quantising"] * bool(value_of(row["includes_act_quant"]))
    words += ["may be L2-hot"] * bool(value_of(row["l2_hot_risk"]))
    return ", ".join(words)


def _interval(rows: Sequence[dict[str, Value | Cell]], name: str) -> dict[str, Any]:
    """Error bars from a time's two ends."""
    middle, low, high = ([number_of(row[f"{name}{end}"]) for row in rows] for end in ("", "_low", "_high"))
    return {
        "type": "data",
        "symmetric": False,
        "array": [_above(b, a) for a, b in zip(middle, high, strict=True)],
        "arrayminus": [_above(a, b) for a, b in zip(middle, low, strict=True)],
    }


def _above(high: float | None, low: float | None) -> float:
    return max(0.0, high - low) if high is not None and low is not None else 0.0


def _height(n_rows: int) -> int:
    return min(900, _REST_PX + _ROW_PX * n_rows)
