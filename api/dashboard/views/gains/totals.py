"""What the GEMMs of a step take together, weighted by layers: of what is served, and of the defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .....kernels.problem import Op, OutDtype, Problem, Routing
from .....tuner.token_counts import PREFILL_FROM, Phase
from ....results.figures import gemm_text
from ...model import Column, Figure, Kind, Row, Table
from .cells import GemmRow, Place, State, ratio

STEPS = {
    Phase.DECODE.value: ("decode step", "M is the batch: every sequence adds one token."),
    Phase.VERIFY.value: (
        "verify step",
        "M is the batch times the draft tokens of a sequence, with the bonus token: of 4 each, M 64 is a batch of 16.",
    ),
    Phase.DRAFT_EXTEND.value: (
        "draft-extend step",
        "The MTP layers alone. M is the batch times the verified tokens of a sequence.",
    ),
    Phase.DRAFT_DECODE.value: ("draft step", "The MTP layers alone, one of the steps that draft. M is the batch."),
    Phase.PREFILL.value: ("prefill chunk", "M is the tokens of the chunk, whatever sequences they are of."),
}
"""What a phase runs once, and what M counts in it."""

_LOG_FROM = 50.0
"""Times that differ by more than this factor are drawn on a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Total:
    """The GEMMs of one step at one M, on one rank.

    Attributes:
        phase: of the server. m: tokens.
        served_us, default_us: times of those that are covered, each times its layers, microseconds.
        n_covered: GEMMs that something is served for. missing: names of the others that the phase runs.
        n_launches: GEMM launches that are added up: layers, over the covered GEMMs.
        n_ties: covered GEMMs whose default is a tie. n_without_default: those of which no default ran.
    """

    phase: str
    m: int
    served_us: float
    default_us: float
    n_covered: int
    missing: tuple[str, ...]
    n_launches: int
    n_ties: int
    n_without_default: int

    @property
    def is_complete(self) -> bool:
        """Whether something is served for every GEMM that the phase runs."""
        return not self.missing

    @property
    def covers(self) -> str:
        """`2 of 2 GEMMs`."""
        return f"{self.n_covered} of {self.n_covered + len(self.missing)} GEMMs"


@dataclass(frozen=True, slots=True)
class Totals:
    """Every total of a model.

    Attributes:
        totals: by phase, then by M; those that cover nothing are left out.
        left_out: sentences about GEMMs that no total counts.
    """

    totals: tuple[Total, ...]
    left_out: tuple[str, ...]


def totals_of(rows: Sequence[GemmRow]) -> Totals:
    """Add up the GEMMs of each phase at each M.

    A layer's GEMM counts once: of several routings or output dtypes of it the usual one, and no fused layer beside
    the grouped GEMMs that it is made of.
    """
    counted, left_out = _counted(rows)
    found: list[Total] = []
    for phase in STEPS:
        mine = [row for row in counted if any(phase in place.use.layers for place in row.places.values())]
        for m in sorted({m for row in mine for m in row.places if _is_step(phase, m, counted)}):
            total = _total(phase, m, mine)
            found += [total] if total.n_covered else []
    return Totals(tuple(found), left_out)


def _is_step(phase: str, m: int, rows: Sequence[GemmRow]) -> bool:
    """Whether a phase has steps of M tokens.

    A small M is a chunk of prompts only where no other phase runs at it: a workload counts every M as prefill for what
    runs in prefill alone, such as MLA's kv_b.
    """
    phases = {phase for row in rows if m in row.places for phase in row.places[m].use.layers}
    return phase in phases and (phase != Phase.PREFILL or m >= PREFILL_FROM or phases == {phase})


def _total(phase: str, m: int, rows: Sequence[GemmRow]) -> Total:
    served_us = default_us = 0.0
    n_covered = n_launches = n_ties = n_without_default = 0
    missing: list[str] = []
    for row in rows:
        place = row.places.get(m)
        if place is None or phase not in place.use.layers or (times := _times(place)) is None:
            missing.append(gemm_name(row))
            continue
        layers = place.use.layers[phase]
        served_us += layers * times[0]
        default_us += layers * times[1]
        n_covered += 1
        n_launches += layers
        n_ties += place.state is State.TIE
        n_without_default += place.state is State.NO_DEFAULT
    return Total(phase, m, served_us, default_us, n_covered, tuple(missing), n_launches, n_ties, n_without_default)


def _times(place: Place) -> tuple[float, float] | None:
    """(served, default) in microseconds; what is served counts for a default that did not run."""
    served = place.served
    if served is None or ratio(served.default_us, served.time_us) is None:
        return None
    return served.time_us, served.time_us if place.state is State.NO_DEFAULT else served.default_us


def _counted(rows: Sequence[GemmRow]) -> tuple[list[GemmRow], tuple[str, ...]]:
    """(the GEMMs that totals add up, sentences about the others)."""
    best: dict[Problem, GemmRow] = {}
    for row in rows:
        base = _base(row.gemm)
        known = best.get(base)
        if known is None or _oddity(row.gemm) < _oddity(known.gemm):
            best[base] = row
    kept = [row for row in rows if best[_base(row.gemm)] is row]
    has_grouped = any(row.gemm.op is Op.GROUPED for row in kept)
    counted = [row for row in kept if not (has_grouped and row.gemm.op is Op.MOE)]
    names = [gemm_name(row) for row in rows if row not in counted]
    if not names:
        return counted, ()
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return counted, (f"Not added up, because another row stands for the same work: {listed}.",)


def _base(gemm: Problem) -> Problem:
    """A GEMM in the usual routing and output dtype."""
    return replace(gemm, routing=Routing.UNIFORM, out_dtype=OutDtype.BF16)


def _oddity(gemm: Problem) -> tuple[bool, bool]:
    return gemm.routing is not Routing.UNIFORM, gemm.out_dtype is not OutDtype.BF16


def gemm_name(row: GemmRow) -> str:
    """`moe.w13 e512k10:256x4096`."""
    return f"{row.role} {gemm_text(row.gemm)}".strip()


def total_table(phase: str, totals: Sequence[Total]) -> Table:
    """The complete totals of a phase, by M."""
    step, _ = STEPS[phase]
    columns = (
        Column("m", "M, tokens", Kind.INTEGER),
        Column("served_us", "served µs", Kind.TIME_US, f"All GEMMs of a {step} with what is served, one rank."),
        Column("default_us", "defaults µs", Kind.TIME_US, "The same with the fastest default of each GEMM."),
        Column("saved_us", "saved µs", Kind.TIME_US),
        Column("speedup", "speed-up", Kind.FACTOR),
        Column("covers", "covers"),
        Column("launches", "launches", Kind.INTEGER, "How many GEMMs are added up, each layer's on its own."),
        Column("ties", "ties", Kind.INTEGER, "GEMMs whose default cannot be told apart from the fastest."),
    )
    rows: list[Row] = [
        [
            one.m, one.served_us, one.default_us, one.default_us - one.served_us,
            ratio(one.default_us, one.served_us), one.covers, one.n_launches, one.n_ties,
        ]
        for one in totals if one.phase == phase and one.is_complete
    ]  # fmt: skip
    return Table(
        f"total_{phase}",
        f"All GEMMs of a {step}, one rank",
        columns,
        rows,
        note=_without_default(totals, phase),
        empty="No M is covered by all GEMMs yet.",
    )


def _without_default(totals: Sequence[Total], phase: str) -> str:
    found = [one.m for one in totals if one.phase == phase and one.is_complete and one.n_without_default]
    if not found:
        return ""
    return (
        "Where no default of a GEMM runs, what is served counts in both columns: "
        f"at M {', '.join(map(str, found[:10]))}."
    )


def total_figure(phase: str, table: Table) -> Figure:
    """Bars of a phase's table: defaults and what is served, by M."""
    step, _ = STEPS[phase]
    m = [str(row[0]) for row in table.rows]
    columns = {column.name: at for at, column in enumerate(table.columns)}
    series = (("default_us", "defaults", "@2"), ("served_us", "served", "@1"))
    times: list[float] = [value for row in table.rows for at in (1, 2) if isinstance(value := row[at], float)]
    logarithmic = bool(times) and max(times) > _LOG_FROM * min(times)
    return Figure(
        f"total_{phase}",
        f"Bars of the time that all GEMMs of a {step} take with the defaults and with what is served, by M.",
        [
            {
                "type": "bar",
                "name": name,
                "x": m,
                "y": [row[columns[column]] for row in table.rows],
                "marker": {"color": colour},
            }
            for column, name, colour in series
        ],
        {
            "barmode": "group",
            "xaxis": {"title": {"text": "M, tokens"}, "type": "category"},
            "yaxis": {
                "title": {"text": f"µs a {step}, GEMMs of one rank"},
                "type": "log" if logarithmic else "linear",
            },
        },
    )


def incomplete_table(totals: Sequence[Total]) -> Table | None:
    """What is covered of the totals that are not complete; None if all are."""
    rows = list(_incomplete(totals))
    if not rows:
        return None
    columns = (
        Column("phase", "phase"),
        Column("m", "M, tokens", Kind.INTEGER),
        Column("covers", "covers"),
        Column("part_served_us", "this part, served µs", Kind.TIME_US),
        Column("part_default_us", "this part, defaults µs", Kind.TIME_US),
        Column("missing", "nothing is served for"),
    )
    return Table(
        "incomplete",
        "Incomplete totals: a part of a step, not to be compared with whole ones",
        columns,
        rows,
    )


def _incomplete(totals: Sequence[Total]) -> Iterator[Row]:
    for one in totals:
        if not one.is_complete:
            more = f" and {len(one.missing) - 4} more" if len(one.missing) > 4 else ""
            yield [
                one.phase, one.m, one.covers, one.served_us, one.default_us, ", ".join(one.missing[:4]) + more
            ]  # fmt: skip
