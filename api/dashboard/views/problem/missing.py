"""A problem for which nothing is served here: what is known of it all the same, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .....db import Store
from .....db.dashboard.problem import Attempts, OtherTokens, TunedElsewhere
from .....db.dashboard.scopes import Scope
from .....kernels.problem import Op, Problem
from .....tuner.reference.answer import Reference, framework_name, fused_layers, fused_note, precision_name, sentences
from .....tuner.reference.curves import Estimate, curves
from ....index import BUCKET_MAX_M
from ....results.figures import shape_text
from ...choices import environment_label
from ...links import link
from ...model import Cell, Column, Kind, Mark, NextStep, Row, Section, Table
from ...page import address
from ...tune_commands import tune_shapes
from ..gains.cells import published_for
from .answers import by_hand


def sections(
    store: Store, problem: Problem, scope: Scope | None, attempts: Sequence[Attempts], places: Sequence[TunedElsewhere]
) -> Iterator[Section]:
    """What is known of the problem.

    Args:
        store: where published times and other M are looked up.
        problem: the problem.
        scope: where nothing is served for it; None if nothing is served anywhere.
        attempts: what was tried for it.
        places: where else it is served.
    """
    if attempts:
        yield Section("What was tried", table=attempts_table(attempts), anchor="attempts")
    if scope is not None:
        near = store.ask(OtherTokens(problem, scope.environment.fingerprint, scope.policy))
        yield from _nearest(problem, near, scope)
    if places:
        yield Section("Served elsewhere", table=places_table(places), anchor="elsewhere")
    if scope is not None:
        yield from _published(store, problem, scope)


def next_steps(problem: Problem, scope: Scope | None, attempts: Sequence[Attempts]) -> Iterator[NextStep]:
    """What to do."""
    policy = scope.policy if scope else ""
    where = f" on the machine with the {scope.environment.device.name}" if scope else ""
    if not by_hand(problem):
        yield NextStep("This problem cannot be given by hand as a shape: tune its checkpoint.")
    else:
        failed = any(one.status != "ok" for one in attempts)
        again = "Look at why below, then tune it again" if failed else "Tune it"
        yield NextStep(f"{again}{where}:", command=tune_shapes([problem], policy)[0])
    yield NextStep(
        "A server that asks for a problem without any answer keeps its backend's default, and the question is counted. "
        "This tunes all that was asked for so:",
        command="fp4tune tune --from-misses",
    )


def attempts_table(attempts: Sequence[Attempts]) -> Table:
    """How trials of the problem ended, by run and backend, newest first."""
    columns = (
        Column("backend", "backend", Kind.CODE),
        Column(
            "status", "ended", help="ok means that it ran and was right; nothing is served where no final ended so."
        ),
        Column("trials", "trials", Kind.INTEGER),
        Column("why", "the last of them said"),
        Column("at", "last", Kind.MOMENT),
        Column("run", "run", Kind.CODE),
        Column("environment", "environment", Kind.CODE),
    )
    rows: list[Row] = [
        [
            one.backend,
            Cell(one.status, marks=(Mark.GOOD,) if one.status == "ok" else (Mark.BAD,)),
            one.n,
            one.error.strip().split("\n", 1)[0] or None,
            one.last_at,
            Cell(one.run_id, link=link("run", run=one.run_id) if one.run_id else ""),
            one.environment_fingerprint,
        ]
        for one in attempts
    ]
    return Table("attempts", "How trials of this problem ended", columns, rows)


def places_table(places: Sequence[TunedElsewhere]) -> Table:
    """Where the problem is served. Without times: those of two environments are compared on their own page."""
    columns = (
        Column("environment", "environment"),
        Column("policy", "measured by", Kind.CODE),
        Column("backend", "served by", Kind.CODE),
        Column("since", "since", Kind.MOMENT),
    )
    rows: list[Row] = [
        [
            Cell(
                environment_label(one.environment),
                link=link(
                    "problem", problem=one.problem.key, environment=one.environment.fingerprint, policy=one.policy
                ),
            ),
            one.policy,
            one.backend,
            one.created_at,
        ]
        for one in places
    ]
    return Table("elsewhere", "Environments and policies in which this problem is served", columns, rows)


def _nearest(problem: Problem, near: Sequence[tuple[Problem, float]], scope: Scope) -> Iterator[Section]:
    """The same GEMM at other M, nearest first, and whether a server gets one of them."""
    others = sorted(
        ((one, time_us) for one, time_us in near if one != problem),
        key=lambda pair: (max(pair[0].m, problem.m) / min(pair[0].m, problem.m), pair[0].m),
    )
    if not others:
        return
    bucket = min(
        (one.m for one, _ in others if problem.m < one.m <= min(2 * problem.m, BUCKET_MAX_M)),
        default=None,
    )
    said = (
        f"A server that asks for M {problem.m} is given the config of M {bucket}, the next tuned M above (`bucket`)."
        if bucket is not None
        else f"No tuned M is near enough to stand in: only the next above does, up to M {BUCKET_MAX_M} and twice the M."
    )
    columns = (
        Column("m", "M, tokens", Kind.INTEGER),
        Column("shape", "shape", Kind.CODE),
        Column("time_us", "served µs", Kind.TIME_US),
    )
    here = {"environment": scope.environment.fingerprint, "policy": scope.policy}
    rows: list[Row] = [
        [one.m, Cell(shape_text(one), link=address("problem", problem=one.key, **here)), time_us]
        for one, time_us in others[:20]
    ]
    table = Table("nearest", "The same GEMM at other M, nearest first", columns, rows)
    yield Section("Nearest tuned M", (said,), table=table, anchor="nearest")


def _published(store: Store, problem: Problem, scope: Scope) -> Iterator[Section]:
    """What others published for it."""
    device = scope.environment.device.name
    if problem.op is Op.GROUPED:
        systems = store.reference_systems(device)
        layers = [
            layer for layer in fused_layers(problem) if systems and tuple(layer) in store.reference_layers(systems)
        ]
        notes = [fused_note(problem, layer, curves(store.reference_rows(systems, *layer))) for layer in layers]
        if any(notes):
            yield Section("Published by others", tuple(_sentence(note) for note in notes if note), anchor="published")
        return
    found = published_for(store, device, scope.policy, [problem]).references.get(problem.key)
    if found is not None:
        words = tuple(_sentence(one) for one in sentences(found, device))
        yield Section("Published by others", words, table=published_table(found), anchor="published")


def published_table(reference: Reference) -> Table:
    """Published times of the problem, the fastest of each precision."""
    columns = (
        Column("precision", "precision"),
        Column("published_us", "published µs", Kind.TIME_US, "Somebody else's, not measured here."),
        Column("published_us_low", "likely from", Kind.TIME_US, "Where the time is likely to be: our estimate."),
        Column("published_us_high", "to", Kind.TIME_US),
        Column("framework", "framework"),
        Column("kernel", "kernel", Kind.CODE),
        Column("attribution", "from"),
    )
    rows = [_published_row(one) for one in (reference.fastest, *reference.alternatives)]
    legend: tuple[tuple[tuple[Mark, ...], str], ...] = (((Mark.REFERENCE,), "published by somebody else"),)
    return Table("published", "Published times of this problem", columns, rows, legend=legend)


def _published_row(one: Estimate) -> Row:
    return [
        precision_name(one.curve.precision),
        Cell(one.time_us, marks=(Mark.REFERENCE,)),
        one.time_us_low,
        one.time_us_high,
        framework_name(one.curve.source),
        one.curve.key.kernel_source,
        one.curve.source.attribution,
    ]


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}."
