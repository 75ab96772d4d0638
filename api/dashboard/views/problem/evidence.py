"""The evidence for a winner: everything that was in the finals beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .....db.dashboard.failures import first_line
from .....db.dashboard.problem import Entrant, Evidence
from .....db.records import Choice, Winner
from .....kernels.problem import Op, OutDtype
from ...model import Cell, Column, Figure, Kind, Mark, Row, Section, Table
from ...near import left_out, split
from ...table_values import number_of, records, value_of
from ..gains.cells import ratio

BOUNDS = {OutDtype.BF16: 5e-3, OutDtype.FP16: 6.25e-4, OutDtype.FP32: 1e-4}
"""Relative Frobenius error that the gate allows a GEMM: `kernels.oracle.BOUNDS`, which cannot be had without torch."""

_ROLES = ("served", "tie", "default", "finalist", "baseline")
_COLOURS = {"served": "@1", "tie": "@3", "default": "@2", "finalist": "@muted", "baseline": "@4"}
_LOG_FROM = 5.0

LEGEND: tuple[tuple[tuple[Mark, ...], str], ...] = (
    ((Mark.SERVED,), "what is served"),
    ((Mark.TIE,), "in the tie set: cannot be told apart from the fastest"),
)


def section(winner: Winner, evidence: Evidence, baselines: Collection[str]) -> Section:
    """The finals of the winner's run.

    Args:
        winner: what is served.
        evidence: of its run.
        baselines: backends that are measured beside the others and never served for this problem.
    """
    finals = [one for one in evidence.finals if one.policy == winner.policy]
    table = finals_table(winner, finals, evidence.defaults, baselines)
    how = (
        "The finals measure the fastest configs of the search again, every backend's default and the fastest kernel "
        "that is no candidate (BF16), all of them in interleaved rounds, in random order. Only these times are set "
        "against each other."
    )
    words = [how]
    if not finals:
        words.append("The trials of these finals are not stored here: their run may have been exported without them.")
    words += _numerics(winner, finals)
    return Section("Evidence", tuple(words), finals_figure(table) if table.rows else None, table, anchor="evidence")


def finals_table(
    winner: Winner, finals: Sequence[Entrant], defaults: Sequence[Entrant], baselines: Collection[str]
) -> Table:
    """Everything of the finals, fastest first; defaults that did not run are at the end."""
    columns = (
        Column("place", "#", Kind.INTEGER),
        Column("role", "what it is", help="A default is what its backend does untuned; a baseline is never served."),
        Column("backend", "backend", Kind.CODE),
        Column("time_us", "µs", Kind.TIME_US, "Median of the finals."),
        Column("time_us_low", "from", Kind.TIME_US, "Lower end of the 95 % interval of the median."),
        Column("time_us_high", "to", Kind.TIME_US, "Upper end of it."),
        Column("over_served", "over served", Kind.FACTOR, "Its time over that of what is served."),
        Column("roof_share", "roof", Kind.SHARE, "Time that the card's measured roofs allow at least, over the time."),
        Column("rel_error", "error", Kind.NUMBER, "Relative Frobenius error against the oracle, the largest seen."),
        Column("samples", "samples", Kind.INTEGER),
        Column("trial", "trial", Kind.INTEGER, "Number of the trial in the run."),
        Column("config", "config", Kind.CODE),
    )
    ties = {_key(tie.backend, tie.config) for tie in winner.tie_set}
    default_keys = {_key(one.backend, one.config) for one in defaults}
    served = _key(winner.choice.backend, winner.choice.config)
    entered = {_key(one.backend, one.config) for one in finals}
    late = [one for one in defaults if one.time_us is None and _key(one.backend, one.config) not in entered]
    rows: list[Row] = []
    for place, one in enumerate([*finals, *late], 1):
        key = _key(one.backend, one.config)
        role = _role(key, served, ties, one.backend in baselines)
        marks = {"served": (Mark.SERVED,), "tie": (Mark.TIE,)}.get(role, ())
        note = "its backend's default" if key in default_keys and role in ("served", "tie") else ""
        note = note if one.time_us is not None else f"{one.status}: {_first_line(one.error)}"
        role = "default" if key in default_keys and role == "finalist" else role
        rows.append(
            [
                place, Cell(role, marks=marks, note=note), one.backend, one.time_us, one.time_us_low,
                one.time_us_high, ratio(one.time_us, winner.choice.time_us), one.roof_share, one.rel_error,
                one.n_samples, one.number, config_text(one.config),
            ]
        )  # fmt: skip
    return Table("finals", "The finals side by side", columns, rows, legend=LEGEND, empty="No finals are stored.")


def finals_figure(table: Table) -> Figure:
    """Medians with their intervals, one line a config, in the table's order from the top; without those far away."""
    measured = [row for row in records(table) if number_of(row["time_us"]) is not None]
    served_us = next((number_of(row["time_us"]) for row in measured if value_of(row["role"]) == "served"), None)
    rows, far = split(measured, "time_us", served_us)
    names = [f"{value_of(row['place'])} · {value_of(row['backend'])}" for row in rows]
    traces: list[Mapping[str, Any]] = []
    for role in _ROLES:
        mine = [(name, row) for name, row in zip(names, rows, strict=True) if value_of(row["role"]) == role]
        if not mine:
            continue
        times = [number_of(row["time_us"]) or 0.0 for _, row in mine]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": role,
                "x": times,
                "y": [name for name, _ in mine],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [
                        _gap(time, number_of(row["time_us_high"])) for time, (_, row) in zip(times, mine, strict=True)
                    ],
                    "arrayminus": [
                        _gap(number_of(row["time_us_low"]), time) for time, (_, row) in zip(times, mine, strict=True)
                    ],
                },
                "marker": {"color": _COLOURS[role], "symbol": "circle" if role != "baseline" else "diamond", "size": 9},
            }
        )
    seen = [time for trace in traces for time in trace["x"] if time > 0]
    logarithmic = bool(seen) and max(seen) > _LOG_FROM * min(seen)
    return Figure(
        "finals",
        "Medians of the finals with their 95 % intervals, a config a line, the fastest at the top."
        + left_out(far, "time_us", served_us, lambda row: f"{value_of(row['place'])} · {value_of(row['backend'])}"),
        traces,
        {
            "xaxis": {"title": {"text": "µs, median and 95 % interval"}, "type": "log" if logarithmic else "linear"},
            "yaxis": {
                "title": {"text": "place and backend"},
                "type": "category",
                "categoryorder": "array",
                "categoryarray": names[::-1],
            },
        },
        height_px=max(260, 120 + 26 * len(names)),
    )


def _numerics(winner: Winner, finals: Sequence[Entrant]) -> list[str]:
    """How it was checked that the results are right, a sentence each."""
    words = (
        "Numerics: before it was timed, and again as it was timed, every config's output was compared with an oracle: "
        "finite, nothing left unwritten, and within a bound of the relative Frobenius error overall and in each tile."
    )
    served = _key(winner.choice.backend, winner.choice.config)
    error = next((one.rel_error for one in finals if _key(one.backend, one.config) == served), None)
    if error is None or not math.isfinite(error):
        return [f"{words} The error of what is served is not stored."]
    bound = BOUNDS.get(winner.problem.out_dtype)
    if winner.problem.op is Op.MOE or bound is None:
        return [f"{words} The largest error of what is served was {error:.2g}."]
    return [f"{words} The largest error of what is served was {error:.2g}, and {bound:g} is allowed."]


def config_text(config: Mapping[str, Any]) -> str:
    """`block_m=64 stages=3`."""
    return " ".join(f"{name}={value}" for name, value in sorted(config.items()))


def choice_label(choice: Choice) -> str:
    """A config with its backend."""
    return f"{choice.backend} {config_text(choice.config)}".strip()


def _role(key: str, served: str, ties: Collection[str], is_baseline: bool) -> str:  # noqa: FBT001 - one of four
    if key == served:
        return "served"
    if is_baseline:
        return "baseline"
    return "tie" if key in ties else "finalist"


def _key(backend: str, config: Mapping[str, Any]) -> str:
    return f"{backend} {json.dumps(config, sort_keys=True, default=str)}"


def _gap(low: float | None, high: float | None) -> float:
    return max(0.0, high - low) if low is not None and high is not None else 0.0


def _first_line(text: str) -> str:
    return first_line(text) or "no reason was given"
