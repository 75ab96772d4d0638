"""The heatmap of gains: a row a GEMM, a column an M, and the same problems as a list."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from .....tuner.reference.answer import framework_name, precision_name
from ....results.figures import gemm_text, shape_text
from ...formatting import format_value
from ...model import Cell, Column, Kind, Layout, Mark, Row, Table, heat
from ...page import address
from .cells import GemmRow, Place, State

EDGES = (1.005, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0)
"""Speed-ups at which the colour changes: most gains over a backend's own heuristic lie below 1.2."""

MAX_COLUMNS = 100
"""Most M of the heatmap."""

MAX_CELLS = 800
"""Most cells of the heatmap on one page, so that it stays well below a megabyte."""

M_IS = {
    "decode": "decode: a batch of {m} sequences, one token each",
    "verify": "verify: {batch} sequences of 4 draft tokens, the bonus token included",
    "draft_extend": "draft_extend: the MTP layers on {batch} sequences of 4 verified tokens",
    "draft_decode": "draft_decode: the MTP layers on a batch of {m} sequences",
    "prefill": "prefill: a chunk of {m} tokens of prompts",
}
"""What M counts in each phase, with 4 draft tokens a sequence (`tuner/token_counts.py`)."""

LEGEND: tuple[tuple[tuple[Mark, ...], str], ...] = (
    ((Mark.HEAT_0,), f"below {EDGES[0]:g}x"),
    *(((Mark(f"heat-{i + 1}"),), f"{low:g}x to {high:g}x") for i, (low, high) in enumerate(pairwise(EDGES))),
    ((Mark.HEAT_8,), f"{EDGES[-1]:g}x and more"),
    ((Mark.TIE,), "tie: the default cannot be told apart from the fastest, or is it"),
    ((Mark.UNSURE,), "the time is doubted, or no default ran to compare with"),
    ((Mark.UNTUNED,), "none: the model runs it, and nothing is served here"),
    ((Mark.REFERENCE,), "nothing is measured here; somebody else published this time"),
    ((), "a dash: the model does not run this GEMM at this M"),
)


def grid(
    rows: Sequence[GemmRow], tokens: Sequence[int], environment: str, policy: str, *, more: str = "", note: str = ""
) -> Table:
    """The heatmap of speed-ups over the fastest default.

    Args:
        rows: the GEMMs.
        tokens: the M that it has columns for.
        environment: of the pages of problems that its cells lead to.
        policy: of the same.
        more: address of the next GEMMs.
        note: a sentence below.
    """
    heading = Column(
        "gemm", "GEMM", help="Role and layers in the model; N x K on one rank, experts and top k before it."
    )
    columns = [Column(f"speedup_m{m}", f"M {m}", Kind.FACTOR, _help(m, rows)) for m in tokens]
    lines: list[Row] = [
        [_heading(row), *(_cell(row.places.get(m), environment, policy) for m in tokens)] for row in rows
    ]
    return Table(
        "gains",
        "Speed-up of what is served over the fastest default of any backend, by GEMM and M",
        (heading, *columns),
        lines,
        Layout.GRID,
        LEGEND,
        more,
        note,
        empty="No GEMM of this model is known.",
    )


def problem_list(rows: Sequence[GemmRow], tokens: Sequence[int], environment: str, policy: str) -> Table:
    """The measured problems of the heatmap, one a row, with their times."""
    columns = (
        Column("role", "role"),
        Column("layers", "layers", Kind.INTEGER, "How many layers of the model run it, over all phases."),
        Column("shape", "shape", Kind.CODE),
        Column("phases", "phases"),
        Column("backend", "served by", Kind.CODE),
        Column("time_us", "served µs", Kind.TIME_US, "Median; the 95 % interval is beside it."),
        Column("default_us", "default µs", Kind.TIME_US, "The fastest default of any backend, in the same rounds."),
        Column("speedup", "speed-up", Kind.FACTOR),
        Column("tied", "tied", Kind.INTEGER, "Configs that cannot be told apart from the fastest, with it."),
        Column("state", "state"),
    )
    wanted = set(tokens)
    found = [
        (row, place)
        for row in rows
        for m, place in sorted(row.places.items())
        if m in wanted and place.served is not None
    ]
    return Table(
        "problems",
        "The measured problems one by one",
        columns,
        [_line(row, place, environment, policy) for row, place in found],
        empty="Nothing is measured yet.",
    )


def published_list(rows: Sequence[GemmRow], tokens: Sequence[int], environment: str, policy: str) -> Table | None:
    """What others published where nothing is measured here; None if there is nothing."""
    wanted = set(tokens)
    found = [
        (place.use.problem, place.published)
        for row in rows
        for m, place in sorted(row.places.items())
        if m in wanted and place.published is not None
    ]
    if not found:
        return None
    columns = (
        Column("shape", "shape", Kind.CODE),
        Column("precision", "precision"),
        Column("published_us", "published µs", Kind.TIME_US, "The fastest kernel that was published for it."),
        Column("framework", "framework"),
        Column("kernel", "kernel", Kind.CODE),
        Column("card", "on", help="The card that the publisher measured, which may be another variant of this one."),
        Column("attribution", "from"),
    )
    lines: list[Row] = [
        [
            Cell(shape_text(problem), link=_address(problem.key, environment, policy)),
            precision_name(one.fastest.curve.precision),
            Cell(
                one.fastest.time_us,
                marks=(Mark.REFERENCE,),
                note=f"likely {one.fastest.time_us_low:.1f} to {one.fastest.time_us_high:.1f}",
            ),
            framework_name(one.fastest.curve.source),
            one.fastest.curve.key.kernel_source,
            one.fastest.curve.source.device or one.fastest.curve.source.system,
            one.fastest.curve.source.attribution,
        ]
        for problem, one in found
    ]
    return Table(
        "published", "Published by others for this card; never compared with what is measured here", columns, lines
    )


def _heading(row: GemmRow) -> Cell:
    """`moe.w13, 60 layers: e512k10:256x4096`."""
    counts = sorted({place.use.n_layers for place in row.places.values()})
    if not row.role:
        return Cell(gemm_text(row.gemm))
    layers = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return Cell(f"{row.role}, {layers} layer{'s' * (counts != [1])}: {gemm_text(row.gemm)}")


def _help(m: int, rows: Sequence[GemmRow]) -> str:
    """What M counts in the phases that run it."""
    phases = {phase for row in rows if m in row.places for phase in row.places[m].use.layers}
    return "; ".join(text.format(m=m, batch=f"{m / 4:g}") for phase, text in M_IS.items() if phase in phases)


def _cell(place: Place | None, environment: str, policy: str) -> Cell | None:
    if place is None:
        return None
    link = _address(place.use.problem.key, environment, policy)
    if place.served is None and place.published is not None:
        fastest = place.published.fastest
        return Cell(
            None,
            f"{fastest.time_us:.1f} µs",
            link,
            (Mark.REFERENCE,),
            f"published, {precision_name(fastest.curve.precision)}",
        )
    if place.served is None:
        return Cell(None, "none", link, (Mark.UNTUNED,))
    if place.speedup is None:
        return Cell(None, f"{format_value(place.served.time_us, Kind.TIME_US)} µs", link, (Mark.UNSURE,), "no default")
    marks = [heat(place.speedup, EDGES)]
    marks += [Mark.TIE] if place.state is State.TIE else []
    marks += [Mark.UNSURE] if place.doubt else []
    return Cell(place.speedup, "", link, tuple(marks), "doubtful" if place.doubt else "")


def _line(row: GemmRow, place: Place, environment: str, policy: str) -> Row:
    served = place.served
    assert served is not None  # noqa: S101 - callers look
    problem = place.use.problem
    return [
        row.role,
        place.use.n_layers if row.role else None,
        Cell(shape_text(problem), link=_address(problem.key, environment, policy)),
        ", ".join(place.use.layers),
        served.backend,
        Cell(served.time_us, note=interval(served.time_us_low, served.time_us_high)),
        served.default_us if place.state is not State.NO_DEFAULT else None,
        Cell(place.speedup, marks=(Mark.TIE,) if place.state is State.TIE else ()),
        served.n_ties,
        Cell(place.state.value, note=place.doubt, marks=(Mark.UNSURE,) if place.doubt else ()),
    ]


def interval(low: float | None, high: float | None) -> str:
    """`10.10 to 10.40`; empty if it is not known, or is no interval."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{low:.2f} to {high:.2f}"


def _address(key: str, environment: str, policy: str) -> str:
    return address("problem", problem=key, environment=environment, policy=policy)


def pages(rows: Sequence[GemmRow], n_columns: int) -> Iterator[Sequence[GemmRow]]:
    """The GEMMs in pages of at most MAX_CELLS cells."""
    size = max(1, MAX_CELLS // max(1, n_columns))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
