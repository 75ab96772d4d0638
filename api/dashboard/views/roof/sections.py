"""The parts of the roofline's page: the roofline, what there is to gain, and shares by M."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from .....db.dashboard.scopes import Scope
from .....db.records import Roofs
from .....kernels.backend import family
from .....kernels.problem import Op, Problem
from .....tuner.roofs import bf16_rate_bounds
from ....results.figures import shape_text
from ...links import link
from ...measures import share_text
from ...model import Cell, Column, Figure, Kind, Section, Table
from ...table_values import link_of, number_of, records, value_of
from .roofline import Placed, ridge

MAX_GAINS = 25
"""Rows of what there is to gain: the rest is little, and in the first table."""

_SYMBOLS = {Op.DENSE.value: "circle", Op.GROUPED.value: "square", Op.MOE.value: "diamond"}
_COLOURS = 8


def problem_cell(problem: Problem, scope: Scope, page: str = "problem") -> Cell:
    """A problem that leads to its page."""
    leads = link(page, problem=problem.key, environment=scope.environment.fingerprint, policy=scope.policy)
    return Cell(shape_text(problem), link=leads)


# The roofline


def under_the_roofs(placed: Sequence[Placed], roofs: Roofs, scope: Scope) -> Section:
    """The roofline and its numbers."""
    table = _marks(placed, scope)
    about_roofs = (
        f"Roofs measured on this card: copy bandwidth {roofs.copy_bytes_per_s / 1e12:.3f} TB/s, BF16 matrix rate "
        f"{roofs.bf16_flops_per_s / 1e12:.1f} TFLOP/s ({roofs.measured_at:%Y-%m-%d %H:%M} UTC). They meet at "
        f"{ridge(roofs):.0f} FLOP per byte: left of it memory limits a problem, right of it the matrix units do."
    )
    about_marks = (
        "A mark is the config that is served for a problem. Its share of the roof is the time that the roofs allow at "
        "least over the time that it takes; bytes count once. The higher below its roof, the less is left."
    )
    text = [about_roofs, about_marks]
    if any(not bf16_rate_bounds(one.served.problem, scope.environment.device) for one in placed):
        text.append(
            "This card has FP4 matrix units, whose rate is not measured. The BF16 rate is no bound for two NVFP4 "
            "operands, so only memory counts for them, and marks may stand above the BF16 line."
        )
    return Section("The roofline", tuple(text), _roofline(table, roofs), table, folded=True, anchor="roofline")


def _marks(placed: Sequence[Placed], scope: Scope) -> Table:
    rows = [
        (
            problem_cell(one.served.problem, scope),
            one.served.role,
            one.served.problem.op.value,
            one.served.backend,
            one.served.time_us,
            one.share,
            one.limit.value,
            one.intensity,
            one.flops_per_s / 1e12,
            one.n_flops,
            one.n_bytes,
        )
        for one in placed
    ]
    return Table(
        "roofline",
        "Every problem below its roof",
        (
            Column("problem", "problem"),
            Column("role", "role", help="What the problem is in its model; empty if it was given by hand."),
            Column("op", "kind", help="dense: one GEMM; grouped: one an expert; moe: a whole fused layer."),
            Column("backend", "backend", Kind.CODE),
            Column("time_us", "µs", Kind.TIME_US, "Median of what is served, measured here."),
            Column("roof_share", "of the roof", Kind.SHARE, "Least time that the roofs allow, over the time it takes."),
            Column("limit", "limited by", help="The roof above it: memory bandwidth or the matrix units."),
            Column("flop_per_byte", "FLOP/byte", Kind.NUMBER, "Arithmetic intensity: operations per byte moved."),
            Column("tflop_per_s", "TFLOP/s", Kind.NUMBER, "Operations per second that it reaches."),
            Column("flop", "FLOP", Kind.NUMBER, "Multiply and add operations of one call."),
            Column(
                "bytes", "bytes", Kind.BYTES,
                "What one call reads and writes at least; with experts, of those that tokens were drawn for.",
            ),
        ),
        rows,
        empty="No problem here has both a time and a share of the roof.",
    )  # fmt: skip


def _roofline(table: Table, roofs: Roofs) -> Figure | None:
    """The picture of the table; None if it is empty."""
    rows = records(table)
    if not rows:
        return None
    series: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        series.setdefault((str(value_of(row["op"])), family(str(value_of(row["backend"])))), []).append(row)
    families = sorted({name for _, name in series})
    traces = _roof_lines([number_of(row["flop_per_byte"]) or 0.0 for row in rows], roofs)
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"{op}, {name}",
            "x": [number_of(row["flop_per_byte"]) for row in own],
            "y": [number_of(row["tflop_per_s"]) for row in own],
            "text": [_hover(row) for row in own],
            "customdata": [link_of(row["problem"]) for row in own],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {
                "symbol": _SYMBOLS.get(op, "cross"),
                "color": f"@{families.index(name) % _COLOURS + 1}",
                "size": 9,
            },
        }
        for (op, name), own in sorted(series.items())
    ]
    layout = {
        "xaxis": {"title": {"text": "arithmetic intensity, FLOP per byte"}, "type": "log"},
        "yaxis": {"title": {"text": "reached, TFLOP/s"}, "type": "log"},
        "hovermode": "closest",
    }
    alt = (
        f"Roofline, both axes logarithmic: {len(rows)} problems as marks by kind and family of backends below the "
        "card's measured copy bandwidth and BF16 rate."
    )
    return Figure("roofline", alt, traces, layout, height_px=460)


def _roof_lines(intensities: Sequence[float], roofs: Roofs) -> list[dict[str, Any]]:
    """The two measured roofs, drawn as far as there are marks, and to where they meet."""
    meet = ridge(roofs)
    low, high = min(*intensities, meet) / 2, max(*intensities, meet) * 2
    bandwidth, rate = roofs.copy_bytes_per_s / 1e12, roofs.bf16_flops_per_s / 1e12
    line: dict[str, Any] = {"type": "scatter", "mode": "lines", "hoverinfo": "name"}
    return [
        line
        | {
            "name": f"copy bandwidth, {bandwidth:.3g} TB/s",
            "x": [low, meet],
            "y": [low * bandwidth, rate],
            "line": {"color": "@text", "width": 2},
        },
        line
        | {
            "name": f"BF16 rate, {rate:.3g} TFLOP/s",
            "x": [meet, high],
            "y": [rate, rate],
            "line": {"color": "@text", "width": 2, "dash": "dash"},
        },
    ]


def _hover(row: dict[str, Any]) -> str:
    role = value_of(row["role"])
    return "<br>".join(
        [
            f"{role}: {value_of(row['problem'])}" if role else str(value_of(row["problem"])),
            f"{value_of(row['backend'])}, {number_of(row['time_us']):.2f} µs",
            f"{share_text(number_of(row['roof_share']) or 0.0)} of the roof, limited by {value_of(row['limit'])}",
        ]
    )


# What there is to gain


def to_gain(placed: Sequence[Placed], scope: Scope) -> Section:
    """Which problems have most to gain."""
    ordered = sorted(placed, key=lambda one: (-one.gain_us, one.served.problem.key))
    rows = [
        (
            problem_cell(one.served.problem, scope),
            one.served.role,
            one.served.layers,
            one.served.time_us,
            one.least_us,
            max(0.0, one.served.time_us - one.least_us),
            one.gain_us,
            one.share,
            one.limit.value,
        )
        for one in ordered[:MAX_GAINS]
    ]
    left_out = len(ordered) - len(rows)
    table = Table(
        "to_gain",
        "Most to gain if the roof were reached",
        (
            Column("problem", "problem"),
            Column("role", "role"),
            Column("layers", "layers", Kind.INTEGER, "How many layers of the model run this problem; 1 by hand."),
            Column("time_us", "µs", Kind.TIME_US, "Median of what is served."),
            Column("least_us", "least µs", Kind.TIME_US, "The time that the measured roofs allow at least."),
            Column("gain_us", "above it, µs", Kind.TIME_US, "What one call takes longer than that."),
            Column("gain_layers_us", "µs x layers", Kind.TIME_US, "The same over all layers: what a step would save."),
            Column("roof_share", "of the roof", Kind.SHARE),
            Column("limit", "limited by"),
        ),
        rows,
        note=f"{left_out:,} more have less to gain: they are in the first table." if left_out else "",
        empty="Nothing to compare yet.",
    )
    said = (
        "Microseconds between what is served and the roof, times the layers that run the problem, largest first. "
        "Problems of different M are different steps, so they are not added up. No kernel quite reaches the roof: "
        "short ones are bound by their launch."
    )
    return Section("What is left", (said,), table=table, anchor="left")


# Shares by M


def with_m(placed: Sequence[Placed]) -> Section:
    """How the share of the roof goes with M."""
    by_m: dict[tuple[str, int], list[float]] = {}
    for one in placed:
        by_m.setdefault((one.served.problem.op.value, one.served.problem.m), []).append(one.share)
    rows = [
        (op, m, len(shares), min(shares), statistics.median(shares), max(shares))
        for (op, m), shares in sorted(by_m.items())
    ]
    table = Table(
        "roof_by_m",
        "Share of the roof by M",
        (
            Column("op", "kind"),
            Column("m", "M", Kind.INTEGER, "Rows of A; with experts, tokens before routing."),
            Column("n_problems", "problems", Kind.INTEGER),
            Column("lowest", "lowest", Kind.SHARE),
            Column("median", "median", Kind.SHARE),
            Column("highest", "highest", Kind.SHARE),
        ),
        rows,
        empty="Nothing to compare yet.",
    )
    text = ("The median over the problems of one M, with the lowest and the highest.",)
    return Section("By M", text, _by_m(table), table, folded=True, anchor="by-m")


def _by_m(table: Table) -> Figure | None:
    rows = records(table)
    if not rows:
        return None
    traces = []
    for i, op in enumerate(dict.fromkeys(str(value_of(row["op"])) for row in rows)):
        own = [row for row in rows if value_of(row["op"]) == op]
        medians, lows, highs = (
            [number_of(row[name]) or 0.0 for row in own] for name in ("median", "lowest", "highest")
        )
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": op,
                "x": [number_of(row["m"]) for row in own],
                "y": medians,
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [high - median for high, median in zip(highs, medians, strict=True)],
                    "arrayminus": [median - low for low, median in zip(lows, medians, strict=True)],
                },
                "text": [f"M {value_of(row['m'])}, {value_of(row['n_problems'])} problems" for row in own],
                "hovertemplate": "%{text}: %{y:.0%}<extra></extra>",
                "marker": {"symbol": _SYMBOLS.get(op, "cross"), "color": f"@{i % _COLOURS + 1}", "size": 9},
            }
        )
    layout = {
        "xaxis": {"title": {"text": "M, rows"}, "type": "log"},
        "yaxis": {"title": {"text": "share of the roof"}, "tickformat": ".0%", "rangemode": "tozero"},
    }
    alt = "Share of the roof against M: the median over the problems of one M as a mark, lowest to highest as a bar."
    return Figure("roof_by_m", alt, traces, layout)
