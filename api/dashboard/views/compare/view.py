"""What changed? Two environments side by side: what they are, and what they serve."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .....db.dashboard.compare import MAX_LONELY, MAX_SHARED, Comparison, ComparisonOf, ServedOnlyIn
from .....db.dashboard.history import Served
from .....db.dashboard.scopes import Scope, ScopesOf
from .....db.records import Roofs
from .....kernels.device import Environment
from .....kernels.errors import NotFoundError
from ....dashboard import changes as of
from ...choices import MAX_OPTIONS, TUNE_FIRST, environment_label
from ...links import link
from ...model import Column, Filter, Kind, NextStep, Option, Row, Section, Table, View
from ...page import CURSOR, ENVIRONMENT, POLICY, Asked, Context, Page, Parameter, address
from ...place_filters import device_label
from ...verdicts import LEGEND, band, longer
from .figure import ratio_figure

A = Parameter("a", ENVIRONMENT.pattern, ENVIRONMENT.meaning)
B = Parameter("b", ENVIRONMENT.pattern, ENVIRONMENT.meaning)

ROWS = 200
"""Rows of a page: as many as are shown of a table."""

_AGAIN = 20
"""Most problems in one command."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two environments and the policy by which both were measured."""

    a: Scope
    b: Scope

    @property
    def policy(self) -> str:
        """The measuring policy."""
        return self.b.policy

    @property
    def fingerprints(self) -> tuple[str, str]:
        """Of A and of B."""
        return self.a.environment.fingerprint, self.b.environment.fingerprint


def view(context: Context, asked: Asked) -> View:
    """The page."""
    scopes = context.store.ask(ScopesOf())
    if not scopes:
        return View(_NO_TITLE, next_steps=(TUNE_FIRST,))
    pair = _pair(scopes, asked)
    filters = _filters(scopes, asked, pair)
    if pair is None:
        return View(_NO_TITLE, filters=filters, next_steps=_no_pair(scopes, asked))
    found = context.store.ask(ComparisonOf(*pair.fingerprints, pair.policy))
    changes = of.ordered(of.change_between(before, after, pair.policy) for before, after in found.pairs)
    before, after = pair.a.environment, pair.b.environment
    roofs = (context.store.roofs(before), context.store.roofs(after))
    lonely = _lonely(context, pair, found)
    differing, alike = _facts(before, after)
    sections = (
        differing,
        _problems(context, asked, pair, changes),
        Section("Measured there", table=_measured_table(roofs, found.pairs), anchor="measured"),
        *(_lonely_section(name, served) for name, served in lonely),
        alike,
    )
    return View(
        _title(before, after), sections, filters, _next_steps(found, lonely, pair), _lead(found, changes),
        tuple(_warnings(found, before, after)),
    )  # fmt: skip


_NO_TITLE = "Two environments"


def _title(before: Environment, after: Environment) -> str:
    """What differs, in a few words."""
    return f"{after.device.name}: {of.environment_change(before, after)}"


# Which two


def _pair(scopes: Sequence[Scope], asked: Asked) -> Pair | None:
    """The two that the address names, completed by the newest that fit; None if nothing fits.

    Raises:
        NotFoundError: it names an environment or a policy in which nothing is served.
    """
    policy = asked.get(POLICY)
    fitting = [one for one in scopes if policy in ("", one.policy)]
    if not fitting:
        raise NotFoundError(f"Nothing is served for policy {policy}.")
    for wanted in filter(None, (asked.get(A), asked.get(B))):
        if all(one.environment.fingerprint != wanted for one in fitting):
            by = f" by policy {policy}" if policy else ""
            raise NotFoundError(f"Nothing is served in environment {wanted}{by}.")
    for after in _of(fitting, asked.get(B)):
        for before in _of(fitting, asked.get(A)):
            if before.policy != after.policy or before.environment.fingerprint == after.environment.fingerprint:
                continue
            both_named = asked.get(A) and asked.get(B)
            if both_named or before.environment.device.fingerprint == after.environment.device.fingerprint:
                return Pair(before, after)
    return None


def _of(scopes: Iterable[Scope], fingerprint: str) -> list[Scope]:
    return [one for one in scopes if fingerprint in ("", one.environment.fingerprint)]


def _filters(scopes: Sequence[Scope], asked: Asked, pair: Pair | None) -> tuple[Filter, ...]:
    environments = {one.environment.fingerprint: one.environment for one in scopes}
    chosen = pair.fingerprints if pair else (asked.get(A), asked.get(B))
    filters = []
    for name, label, value in ((A.name, "A, before", chosen[0]), (B.name, "B, after", chosen[1])):
        keys = [key for key in environments if key != value][: MAX_OPTIONS - 1]
        options = [Option(value, environment_label(environments[value]) if value else "choose one")]
        filters.append(
            Filter(name, label, value, (*options, *(Option(key, environment_label(environments[key])) for key in keys)))
        )
    policies = sorted({one.policy for one in scopes})
    value = pair.policy if pair else asked.get(POLICY)
    options = [Option("", "any")] * (not value) + [Option(one, one) for one in policies]
    return (*filters, Filter(POLICY.name, "Measured by", value, tuple(options)))


def _no_pair(scopes: Sequence[Scope], asked: Asked) -> tuple[NextStep, ...]:
    """What to do where there are no two environments to compare."""
    a, b = asked.get(A), asked.get(B)
    if a and a == b:
        return (NextStep("A and B are the same environment: choose another one."),)
    if a and b:
        return (NextStep("No policy has measured in both of these environments: choose others, or another policy."),)
    text = (
        "One device needs winners in two environments for this. After its driver or a library was updated, tune the "
        "same problems again, into this database:"
    )
    steps = [
        NextStep(text, "fp4tune tune qwen3.5-397b-a17b-nvfp4 --tp 8 --tokens 1,16,64"),
        NextStep("Or bring in what another machine has found:", "fp4tune db import runs.fp4tune.gz"),
    ]
    if len({one.environment.fingerprint for one in scopes}) > 1:
        steps.append(NextStep("Or compare two devices: choose A and B above."))
    return tuple(steps)


# What they are


def _facts(before: Environment, after: Environment) -> tuple[Section, Section]:
    """What differs between two environments, and what does not."""
    facts = of.facts_of(before, after)
    columns = (Column("name", "what"), Column("a", "A", Kind.CODE), Column("b", "B", Kind.CODE))
    differing: list[Row] = [(one.name, one.before, one.after) for one in facts if one.before != one.after]
    alike: list[Row] = [(one.name, one.before) for one in facts if one.before == one.after]
    of_both = (Column("name", "what"), Column("both", "A and B", Kind.CODE))
    text = (f"A: {environment_label(before)}.", f"B: {environment_label(after)}.")
    return (
        Section(
            "What differs", text, anchor="differs",
            table=Table(
                "differences", "Device and versions that differ", columns, differing,
                empty="Nothing that is shown here; the fingerprints differ in what is not.",
            ),
        ),
        Section(
            "What is the same", folded=True, anchor="same",
            table=Table(
                "same", "Device and versions that are the same", of_both, alike, empty="Nothing.",
            ),
        ),
    )  # fmt: skip


_GIGA, _TERA = 1e9, 1e12


def _measured_table(roofs: tuple[Roofs | None, Roofs | None], pairs: Sequence[tuple[Served, Served]]) -> Table:
    """Roofs, and what the cards were like while the winners were measured."""
    sides = ([one for one, _ in pairs], [one for _, one in pairs])
    rows: list[Row] = [
        _measured("copy bandwidth, GB/s", *(one.copy_bytes_per_s / _GIGA if one else None for one in roofs)),
        _measured("BF16 rate, TFLOP/s", *(one.bf16_flops_per_s / _TERA if one else None for one in roofs)),
    ]
    for name, pick, read in _CONDITIONS:
        values = [[v for one in side if one.conditions and (v := read(one)) is not None] for side in sides]
        rows.append(_measured(name, *(pick(one) if one else None for one in values)))
    columns = (
        Column("name", "what"), Column("a", "A", Kind.NUMBER), Column("b", "B", Kind.NUMBER),
        Column("change", "change", Kind.DIFFERENCE, "B against A"),
    )  # fmt: skip
    note = "Clocks, power, temperature and throttling while the winners of the problems above were measured."
    return Table("measured", "Roofs and conditions", columns, rows, note=note)


_CONDITIONS: tuple[tuple[str, Callable[[Any], float], Callable[[Served], float | None]], ...] = (
    ("SM clock, lowest seen, MHz", min, lambda one: _end(one, "sm_clock_mhz", 0)),
    ("SM clock, highest seen, MHz", max, lambda one: _end(one, "sm_clock_mhz", 1)),
    ("memory clock, lowest seen, MHz", min, lambda one: _end(one, "memory_clock_mhz", 0)),
    ("board power, highest seen, W", max, lambda one: _number(getattr(one.conditions, "power_w", None))),
    (
        "GPU temperature, highest seen, degrees C",
        max,
        lambda one: _number(getattr(one.conditions, "temperature_c", None)),
    ),
    ("throttled samples, mean share", statistics.fmean, lambda one: one.throttled_share),
)


def _end(one: Served, name: str, end: int) -> float | None:
    """One end of a span of clocks."""
    span = getattr(one.conditions, name, None)
    return _number(span[end]) if isinstance(span, tuple) and len(span) == 2 else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _measured(name: str, a: float | None, b: float | None) -> Row:
    change = b / a - 1 if a and b is not None and math.isfinite(b / a) else None
    return (name, a, b, change)


# What they serve


def _problems(context: Context, asked: Asked, pair: Pair, changes: Sequence[of.Change]) -> Section:
    given = {A.name: pair.fingerprints[0], B.name: pair.fingerprints[1], POLICY.name: pair.policy}
    offset = 0
    if cursor := asked.get(CURSOR):
        offset = int(context.cursors.read("compare", asked.filters(), cursor))
    more = ""
    if offset + ROWS < len(changes):
        filters = Asked(asked.page, given).filters()
        more = address("compare", **given, cursor=context.cursors.make("compare", filters, offset + ROWS))
    columns = (
        Column("problem", "problem"),
        *of.VERDICT_COLUMNS,
        Column("time_us_a", "A, µs", Kind.TIME_US, "median of what A serves"),
        Column("time_us_b", "B, µs", Kind.TIME_US, "median of what B serves"),
        Column("config", "config", help="whether B serves the same config as A, or what differs"),
        Column("why", "in words"),
    )
    rows = [_problem_row(one, pair) for one in changes[offset : offset + ROWS]]
    table = Table(
        "problems", f"Problems served in both, the worst first, {pair.policy}", columns, rows, legend=LEGEND, more=more,
        empty="No problem is served in both environments.",
    )  # fmt: skip
    figure = ratio_figure(table, band(pair.policy)) if rows else None
    return Section("Problems served in both", (of.rule_text(pair.policy),), figure, table, anchor="problems")


def _problem_row(one: of.Change, pair: Pair) -> Row:
    key = one.after.problem_key
    device = pair.b.environment.device.fingerprint
    to = link("history", device=device, policy=pair.policy, problem=key) if key else ""
    return (
        of.problem_cell(key, to), *of.verdict_cells(one), one.before.time_us, one.after.time_us,
        of.config_change(one.before, one.after), of.words_cell(one),
    )  # fmt: skip


def _lonely(context: Context, pair: Pair, found: Comparison) -> list[tuple[str, list[Served]]]:
    """What is served in one of the two only; not asked for where the numbers say that there is none."""
    a, b = pair.fingerprints
    sides = (("A", pair.a.n_winners, a, b), ("B", pair.b.n_winners, b, a))
    return [
        (name, context.store.ask(ServedOnlyIn(here, there, pair.policy)) if n > found.n_shared else [])
        for name, n, here, there in sides
    ]


def _lonely_section(name: str, served: Sequence[Served]) -> Section:
    columns = (
        Column("problem", "problem"), Column("time_us", "µs", Kind.TIME_US), Column("backend", "backend"),
        Column("created_at", "measured", Kind.MOMENT),
    )  # fmt: skip
    rows: list[Row] = [
        (of.problem_cell(one.problem_key), one.time_us, one.backend, one.created_at) for one in served[:MAX_LONELY]
    ]
    note = f"There are more; the first {MAX_LONELY} are listed." if len(served) > MAX_LONELY else ""
    title = f"Problems served in {name} only"
    return Section(title, table=Table(f"only_{name.lower()}", title, columns, rows, note=note, empty="None."))


# In sentences


def _lead(found: Comparison, changes: Sequence[of.Change]) -> str:
    if not found.n_shared:
        return "No problem is served in both environments."
    plural = "problem is" if found.n_shared == 1 else "problems are"
    lead = f"{found.n_shared:,} {plural} served in both"
    if len(changes) < found.n_shared:
        lead += f"; of the {len(changes):,} whose times are furthest apart"
    lead += f": {of.counts_text(changes)}."
    if found.mean_ratio is not None:
        moved = longer(found.mean_ratio, "A")
        lead += f" Over all of them B {moved} (geometric mean of the ratios: {found.mean_ratio:.4f})."
    return lead


def _warnings(found: Comparison, before: Environment, after: Environment) -> Iterable[str]:
    if before.device.fingerprint != after.device.fingerprint:
        names = " and ".join(device_label(one, one.fingerprint) for one in (before.device, after.device))
        yield f"A and B are two devices, {names}."
    left = found.n_shared - len(found.pairs)
    if left:
        apart = f"{found.largest_left - 1:.2%}".replace("%", " %") if found.largest_left is not None else "nothing"
        yield (
            f"The {len(found.pairs):,} problems whose two times are furthest apart are judged and listed; the other "
            f"{left:,} differ by at most {apart}."
        )
    if found.clipped:
        yield f"Only {MAX_SHARED:,} problems are compared: those that were tuned first in A."
    if found.n_timed < found.n_shared:
        yield f"{found.n_shared - found.n_timed:,} problems have a time that is no positive number, and are in no mean."


def _next_steps(found: Comparison, lonely: Sequence[tuple[str, Sequence[Served]]], pair: Pair) -> tuple[NextStep, ...]:
    """What to tune in B where nothing is shared."""
    only_a = [one.problem_key for one in lonely[0][1]][:_AGAIN]
    if found.n_shared or not only_a:
        return ()
    text = "Nothing is served in both. Tune in B what is served in A:"
    return (NextStep(text, of.measure_again(only_a, pair.policy)),)


PAGE = Page("compare", "Compare", "What changed?", (A, B, POLICY, CURSOR), view)
