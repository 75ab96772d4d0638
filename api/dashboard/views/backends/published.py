"""What others published, beside what was measured here: in tables of its own, and as hollow marks with their names.

Only times of the very card: those of another variant of it are a hint where nothing is measured, and no more.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .....db import Store
from .....db.dashboard.roof import Served, ServedIn
from .....db.dashboard.scopes import Scope
from .....db.records import Policy, ReferenceSource
from .....db.reference_systems import CARDS, match
from .....kernels.device import Device
from .....kernels.errors import InvalidInputError
from .....kernels.problem import Format, Op, Problem
from .....tuner.reference.answer import (
    Layer,
    comparable,
    framework_name,
    fused_layers,
    fused_note,
    layer_of,
    precision_name,
    why_not,
)
from .....tuner.reference.beside import caveats, computes_the_same, published_alike
from .....tuner.reference.curves import Curve, Estimate, curves, estimate
from ....results.figures import geometric_mean
from ...model import Cell, Column, Command, Figure, Kind, Mark, Section, Table
from ...table_values import link_of, number_of, records, value_of
from ..roof.sections import problem_cell

MAX_LISTED = 20
"""Published kernels of one problem: the fastest."""

MAX_LAYERS = 12
"""Layers whose published times one page reads: those of the most problems. A layer of 800 times takes 20 ms."""

MAX_LOOKED_AT = 1000
"""Winners that are looked at for those: the newest."""

_COPYRIGHT = re.compile(r"(?:Copyright )?+(?:\(c\) )?+[0-9, -]*+(?P<who>[^;]+)", re.IGNORECASE)

REFERENCE = (((Mark.REFERENCE,), "published by somebody else, not measured here"),)


def publisher(source: ReferenceSource) -> str:
    """Whose measurements these are: `NVIDIA CORPORATION & AFFILIATES` of a line of copyright, or else the package."""
    found = _COPYRIGHT.match(source.attribution)
    return ((found["who"].strip() if found else "") or source.package)[:80]


def systems_of(store: Store, device: Device) -> list[str]:
    """The imported systems that are this very card."""
    return [system for system in _related(store, device) if match(system, device.name) == "exact"]


def _related(store: Store, device: Device) -> list[str]:
    """The imported systems that are this card or another variant of it."""
    try:
        return store.reference_systems(device.name)
    except InvalidInputError:  # a name that no card has, and no database was asked for
        return []


# One problem


def of_problem(store: Store, problem: Problem, scope: Scope) -> Section:
    """What is published for a problem on the card of a scope."""
    device = scope.environment.device
    heading = "Published by others"
    systems = systems_of(store, device)
    if not systems:
        return Section(heading, *_not_imported(store, device), anchor="published")
    if problem.op is Op.GROUPED:
        notes = [
            note
            for layer in fused_layers(problem)
            if (note := fused_note(problem, layer, _curves(store, systems, layer)))
        ]
        said = "Nobody publishes a grouped GEMM alone."
        return Section(heading, (said, *(f"{note[:1].upper()}{note[1:]}." for note in notes)), anchor="published")
    known = _curves(store, systems, layer_of(problem))
    rows = _fastest(problem, known, systems)
    if not rows:
        said = why_not(problem, known)
        return Section(heading, (f"{said[:1].upper()}{said[1:]}.",), anchor="published")
    text = [*_how_published(rows), *_policy_note(scope.policy)]
    return Section(heading, tuple(text), table=_published_table(problem, rows), anchor="published")


def _curves(store: Store, systems: Sequence[str], layer: Layer) -> tuple[Curve, ...]:
    return curves(store.reference_rows(systems, *layer))


def _fastest(problem: Problem, known: Sequence[Curve], systems: Sequence[str]) -> list[Estimate]:
    """The fastest published time of each precision and framework, fastest first, of the first system that has any."""
    found = [one for curve in known if comparable(curve, problem) and (one := estimate(curve, problem.m)) is not None]
    for system in systems:
        best: dict[tuple[str, ...], Estimate] = {}
        for one in sorted(found, key=lambda one: one.time_us):
            source = one.curve.source
            if source.system == system:
                best.setdefault((one.curve.precision, source.framework, source.framework_version), one)
        if best:
            return list(best.values())[:MAX_LISTED]
    return []


def _published_table(problem: Problem, rows: Sequence[Estimate]) -> Table:
    source = rows[0].curve.source
    return Table(
        "published",
        f"Published by {publisher(source)} for {source.device or source.system}: {problem.shape}",
        (
            Column("kernel", "kernel", Kind.CODE),
            Column("framework", "framework"),
            Column("precision", "precision"),
            Column(
                "published_us", "published µs", Kind.TIME_US, "A mean of a few replays, published without variance."
            ),
            Column(
                "published_us_low", "from", Kind.TIME_US, "Where the time is likely to be: our estimate of its error."
            ),
            Column("published_us_high", "to", Kind.TIME_US, "The other end of that."),
            Column("same", "computes the same", help="Whether it is of the operand format of this problem."),
            Column("includes_act_quant", "includes quantising", help="Quantising the activations is part of the time."),
            Column("l2_hot_risk", "may be L2-hot", help="Its weights may have come from L2, where a server's do not."),
            Column("differs", "how it was found"),
            Column("publisher", "publisher"),
        ),
        [
            (
                one.curve.key.kernel_source,
                framework_name(one.curve.source),
                precision_name(one.curve.precision),
                Cell(one.time_us, marks=(Mark.REFERENCE,)),
                one.time_us_low,
                one.time_us_high,
                computes_the_same(one.curve, problem),
                one.curve.includes_act_quant,
                one.l2_hot_risk,
                _found(one),
                publisher(one.curve.source),
            )
            for one in rows
        ],
        legend=REFERENCE,
        note="; ".join(dict.fromkeys(one.curve.source.attribution for one in rows)),
    )


def _found(one: Estimate) -> str:
    """Whether a time was published as it is, and what was not used for it."""
    found = "published" if one.between is None else f"interpolated between M {one.between[0]} and {one.between[1]}"
    return f"{found}; not used, because suspect: {one.suspect}" if one.suspect else found


def _how_published(rows: Sequence[Estimate]) -> list[str]:
    said = (
        "Not measured here, and in another way: these times stand beside yours, never among them. Publishers' dense "
        "times in quantised formats may include quantising the activations, and their kernels were not tuned."
    )
    text = [said]
    if any(one.l2_hot_risk for one in rows):
        text.append("Where a time may be L2-hot, the weights may have come from the cache, and a server is slower.")
    return text


def _policy_note(policy: str) -> list[str]:
    if policy == Policy.CUDA_GRAPH:
        return []
    return [f"Published times are of CUDA graph replays, and yours here are of {policy}: do not compare the two."]


def _not_imported(store: Store, device: Device) -> tuple[tuple[str, ...], None, None, bool, tuple[Command, ...]]:
    """What a section says where nothing is imported for a card: text, no figure, no table, not folded, commands."""
    variants = _related(store, device)
    if variants:
        cards = ", ".join(CARDS[one].devices[0] for one in variants)
        said = f"Published times are imported of {cards}, another variant of this card; they are not set beside yours."
        return (said,), None, None, False, ()
    known = [system for system in CARDS if match(system, device.name) == "exact"]
    if not known:
        return (f"Nothing is imported that others published for {device.name}.",), None, None, False, ()
    said = "NVIDIA publishes times of its frameworks' kernels on this card. They are not imported yet."
    commands = (
        Command("Install what reads them", "pip install 'fp4tune[reference]'"),
        Command("Import them", f"fp4tune import aiconfigurator --system {known[0]}"),
    )
    return (said,), None, None, False, commands


# An environment


@dataclass(frozen=True, slots=True)
class _Pair:
    served: Served
    published: Estimate

    @property
    def ratio(self) -> float:
        """Yours over published."""
        return self.served.time_us / self.published.time_us


def of_environment(store: Store, scope: Scope) -> Section:
    """Yours over published, for every problem that both have, of the newest winners of a scope."""
    heading, anchor = "Yours over published", "over-published"
    device = scope.environment.device
    systems = systems_of(store, device)
    if not systems:
        return Section(heading, *_not_imported(store, device), anchor=anchor)
    if notes := _policy_note(scope.policy):
        return Section(heading, tuple(notes), anchor=anchor)
    served = store.ask(ServedIn(scope.environment.fingerprint, scope.policy, limit=MAX_LOOKED_AT))
    pairs, n_left_out = _pairs(store, served, systems)
    if not pairs:
        said = f"Of the problems that are served here none is published for {device.name} in the same precision."
        return Section(heading, (said,), anchor=anchor)
    text = [*_how_published([pair.published for pair in pairs]), _spread([pair.ratio for pair in pairs])]
    if n_left_out:
        text.append(f"{n_left_out:,} published layers of fewer problems are left out: a problem's own page has them.")
    table = _pairs_table(pairs, scope)
    return Section(heading, tuple(text), _pairs_figure(table), table, folded=True, anchor=anchor)


def _pairs(store: Store, served: Sequence[Served], systems: Sequence[str]) -> tuple[list[_Pair], int]:
    """(the pairs, layers that were left out)."""
    usable = [
        one
        for one in served[:MAX_LOOKED_AT]
        if one.problem.op is not Op.GROUPED and one.problem.format is not Format.NVFP4_W4A16 and one.time_us > 0
    ]
    there = store.reference_layers(systems) if usable else frozenset()
    counts = Counter(layer for one in usable if (layer := layer_of(one.problem)) in there)
    known = {layer: _curves(store, systems, layer) for layer, _ in counts.most_common(MAX_LAYERS)}
    pairs = []
    for one in usable:
        found = published_alike(one.problem, known.get(layer_of(one.problem), ()), systems)
        if found is not None:
            pairs.append(_Pair(one, found))
    pairs.sort(key=lambda pair: (pair.served.problem.op, layer_of(pair.served.problem), pair.served.problem.m))
    return pairs, len(counts) - len(known)


def _spread(ratios: Sequence[float]) -> str:
    """How the ratios lie, in a sentence."""
    if len(ratios) == 1:
        return f"For one problem that both have, yours takes {ratios[0]:.2f}x the published time."
    mean = geometric_mean(ratios)
    faster = sum(ratio < 1 for ratio in ratios)
    return (
        f"Over {len(ratios):,} problems that both have, yours takes {mean:.2f}x the published time in the geometric "
        f"mean; the median is {statistics.median(ratios):.2f}x, the least {min(ratios):.2f}x, the most "
        f"{max(ratios):.2f}x. Yours is below the published time for {faster:,} of them."
    )


def _pairs_table(pairs: Sequence[_Pair], scope: Scope) -> Table:
    return Table(
        "over_published",
        "Yours beside published, measured in different ways",
        (
            Column("problem", "problem"),
            Column("m", "M", Kind.INTEGER),
            Column("backend", "your backend", Kind.CODE),
            Column("time_us", "yours µs", Kind.TIME_US, "Median of what is served, measured here."),
            Column("published_us", "published µs", Kind.TIME_US, "The fastest published in the same precision."),
            Column("published_us_low", "from", Kind.TIME_US, "Where it is likely to be."),
            Column("published_us_high", "to", Kind.TIME_US),
            Column("over_published", "yours / published", Kind.FACTOR, "Below 1: yours takes less time."),
            Column("framework", "framework"),
            Column("kernel", "kernel", Kind.CODE),
            Column("precision", "precision"),
            Column("differs", "how it differs", help="What makes the two no like for like comparison."),
        ),
        [
            (
                problem_cell(pair.served.problem, scope, "backends"),
                pair.served.problem.m,
                pair.served.backend,
                pair.served.time_us,
                Cell(pair.published.time_us, marks=(Mark.REFERENCE,)),
                pair.published.time_us_low,
                pair.published.time_us_high,
                pair.ratio,
                framework_name(pair.published.curve.source),
                pair.published.curve.key.kernel_source,
                precision_name(pair.published.curve.precision),
                ", ".join(caveats(pair.published)) or "not tuned",
            )
            for pair in pairs
        ],
        legend=REFERENCE,
        note="; ".join(dict.fromkeys(pair.published.curve.source.attribution for pair in pairs)),
    )


def _pairs_figure(table: Table) -> Figure:
    rows = records(table)
    frameworks = sorted({str(value_of(row["framework"])) for row in rows})
    traces = []
    for i, name in enumerate(frameworks):
        own = [row for row in rows if value_of(row["framework"]) == name]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"over published, {name}",
                "x": [number_of(row["m"]) for row in own],
                "y": [number_of(row["over_published"]) for row in own],
                "text": [
                    f"{value_of(row['problem'])}<br>yours {number_of(row['time_us']) or 0:.2f} µs, published "
                    f"{number_of(row['published_us']) or 0:.2f} µs<br>{value_of(row['differs'])}"
                    for row in own
                ],
                "customdata": [link_of(row["problem"]) for row in own],
                "hovertemplate": "%{text}<br>%{y:.2f}x<extra></extra>",
                "marker": {"symbol": _HOLLOW[i % len(_HOLLOW)], "color": "@reference", "size": 10},
            }
        )
    layout = {
        "xaxis": {"title": {"text": "M, rows"}, "type": "log"},
        "yaxis": {"title": {"text": "yours over published, times"}, "type": "log"},
        "shapes": [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": 1,
                "y1": 1,
                "line": {"color": "@muted", "dash": "dot"},
            }
        ],
        "hovermode": "closest",
        "showlegend": True,
    }
    alt = f"Time measured here over the published time against M, for {len(rows)} problems, one hollow mark each."
    return Figure("over_published", alt, traces, layout)


_HOLLOW = ("circle-open", "square-open", "diamond-open", "triangle-up-open")
