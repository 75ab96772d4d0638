"""Backends side by side: what each is served for, what each reached on a problem, and how they compare over many."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .....db.dashboard.backends import Candidates, Measured
from .....db.dashboard.scopes import Scope
from .....db.records import TrialStatus
from .....kernels.backend import Backend, can_serve, config_key, load_backends
from .....kernels.problem import Problem
from ....results.figures import geometric_mean
from ...model import Cell, Column, Kind, Mark, Row, Table
from ..roof.sections import problem_cell

MAX_ROWS = 50
"""Backends that have a row of their own: there are some seventeen."""

MAX_COLUMNS = 12
"""Backends that have a column of their own: those with most problems."""

SEARCH_NOTE = (
    "* of the search, and not measured in the finals' rounds: of many configs the fastest of a search looks a little "
    "faster than it is."
)
BASELINE = "baseline"


@functools.cache
def _registered() -> Mapping[str, Backend]:
    """The backends that are installed: reading their entry points takes a tenth of a second."""
    return load_backends()


def serves(backend: str, problem: Problem) -> bool:
    """Whether a backend may be served for a problem, or is measured beside it only; one that is not known may."""
    known = _registered().get(backend)
    return known is None or can_serve(known, problem)


def best_of(one: Candidates, backend: str) -> Measured | None:
    """A backend's fastest config. Of a baseline it is that of the finals, if it was there, as on a results page."""
    if not serves(backend, one.problem) and backend in one.finals:
        return one.finals[backend]
    return one.bests.get(backend)


def baseline_of(one: Candidates) -> Measured | None:
    """The fastest that was measured beside the others and cannot be served: BF16 cuBLAS; None without one."""
    names = [name for name in {**one.bests, **one.finals} if not serves(name, one.problem)]
    found = [best for name in names if (best := best_of(one, name)) is not None and best.time_us]
    return min(found, key=lambda best: (not best.is_final, best.time_us or 0.0), default=None)


def times_served(one: Candidates, measured: Measured | None) -> float | None:
    """How many times as fast as what is served; None if it is not known."""
    time_us = measured.time_us if measured else None
    return one.time_us / time_us if time_us and time_us > 0 and one.time_us > 0 else None


# Who wins


def wins_table(wins: Mapping[str, int]) -> Table:
    """How many problems each backend is served for, most first."""
    total = sum(wins.values())
    most = sorted(wins.items(), key=lambda item: (-item[1], item[0]))
    rows = [(name, n, n / total) for name, n in most[:MAX_ROWS]]
    return Table(
        "wins",
        "Problems that each backend is served for",
        (
            Column("backend", "backend", Kind.CODE),
            Column("n_problems", "problems", Kind.INTEGER),
            Column("share", "of all", Kind.SHARE),
        ),
        rows,
        note=f"{len(most) - MAX_ROWS:,} more backends have less." if len(most) > MAX_ROWS else "",
        empty="No problem is served here.",
    )


# Over many problems


@dataclass(frozen=True, slots=True)
class Mean:
    """A backend over the problems of a page.

    Attributes:
        best, default: how many times as fast as what is served its best and its default are, geometric mean; None if
            it ran none. n_best, n_default: over how many problems.
    """

    best: float | None
    n_best: int
    default: float | None
    n_default: int


def means_table(items: Sequence[Candidates]) -> Table:
    """Every backend's best and default against what is served, over the problems that it ran."""
    names = sorted({name for one in items for name in one.n_trials})
    means = {name: _mean(name, items) for name in names}
    rows = []
    for name in sorted(names, key=lambda name: (-(means[name].best or 0.0), name))[:MAX_ROWS]:
        mean, tried = means[name], [one for one in items if name in one.n_trials]
        baseline = tried and not any(serves(name, one.problem) for one in tried)
        rows.append(
            (
                Cell(name, note=f"{BASELINE}, never served" if baseline else ""),
                mean.best,
                mean.n_best,
                mean.default,
                mean.n_default,
                len(tried),
            )
        )
    return Table(
        "means",
        f"Against what is served, over the {len(items):,} problem{'s' * (len(items) != 1)} below",
        (
            Column("backend", "backend", Kind.CODE),
            Column("best", "best", Kind.FACTOR, "Times as fast as what is served, geometric mean: 1 is as fast."),
            Column("n_best", "best, problems", Kind.INTEGER, "Over how many problems: those where it ran."),
            Column("default", "default", Kind.FACTOR, "The same of what it does when nobody tuned it."),
            Column(
                "n_default", "default, problems", Kind.INTEGER, "Over how many problems: those where its default ran."
            ),
            Column("n_tried", "tried on", Kind.INTEGER, "Problems on which any of its configs was tried."),
        ),
        rows,
        note="Backends that ran different problems are compared with what is served there, and not with each other.",
        empty="The trials behind these winners are not in this database.",
    )


def _mean(name: str, items: Sequence[Candidates]) -> Mean:
    best = _factors(items, lambda one: best_of(one, name))
    default = _factors(items, lambda one: one.defaults.get(name))
    return Mean(_geometric(best), len(best), _geometric(default), len(default))


def _factors(items: Iterable[Candidates], pick: Callable[[Candidates], Measured | None]) -> list[float]:
    found = (times_served(one, pick(one)) for one in items)
    return [factor for factor in found if factor is not None and 0 < factor < float("inf")]


def _geometric(factors: Sequence[float]) -> float | None:
    return geometric_mean(factors) if factors else None


def side_by_side(items: Sequence[Candidates], scope: Scope, more: str) -> Table:
    """Problems with each backend's best as columns."""
    ordered = sorted(items, key=lambda one: _order(one.problem))
    tried: dict[str, int] = {}
    for one in items:
        for name in one.bests:
            tried[name] = tried.get(name, 0) + serves(name, one.problem)
    names = sorted(name for name, n in tried.items() if n)
    shown = set(sorted(names, key=lambda name: -tried[name])[:MAX_COLUMNS])
    left_out = [name for name in names if name not in shown]
    names = [name for name in names if name in shown]
    notes = [SEARCH_NOTE, *([f"Without a column for lack of room: {', '.join(left_out)}."] if left_out else [])]
    return Table(
        "backends",
        "Every backend's best, by problem",
        (
            Column("problem", "problem"),
            Column("served", "served", Kind.CODE),
            Column("served_us", "served µs", Kind.TIME_US),
            Column("bf16_us", "BF16 µs", Kind.TIME_US, "The fastest BF16 kernel, cuBLAS among them, measured beside."),
            *(Column(f"{name}_us", f"{name} µs", Kind.TIME_US, "Its best.") for name in names),
            Column("of_search", "of the search *", help="Whose figures were not measured in the finals' rounds."),
        ),
        [
            (
                problem_cell(one.problem, scope, "backends"),
                one.backend,
                one.time_us,
                _time_cell(baseline_of(one)),
                *(
                    _best_cell(one, name, best_of(one, name) if serves(name, one.problem) else None)
                    for name in names
                ),
                ", ".join(name for name in names if name in one.bests and not one.bests[name].is_final),
            )
            for one in ordered
        ],
        legend=(((Mark.SERVED,), "the backend that is served"),),
        more=more,
        note=" ".join(notes),
        empty="No problem is served here.",
    )  # fmt: skip


def _order(problem: Problem) -> tuple[object, ...]:
    return (problem.op.value, problem.experts_total, problem.n, problem.k, problem.m, problem.key)


def _best_cell(one: Candidates, name: str, best: Measured | None) -> Cell:
    """A backend's best of a problem; how it ended if it only failed."""
    if best is None and name in one.n_trials and not one.n_ok.get(name):
        default = one.defaults.get(name)
        return Cell(None, text=default.status.value if default else "failed")
    return _time_cell(best, (Mark.SERVED,) if name == one.backend else ())


def _time_cell(measured: Measured | None, marks: tuple[Mark, ...] = ()) -> Cell:
    """`12.20`, with a star if it was not measured in the finals' rounds."""
    if measured is None or measured.time_us is None:
        return Cell(None)
    text = "" if measured.is_final else f"{measured.time_us:,.2f} *"
    return Cell(measured.time_us, text=text, marks=marks)


# One problem


def candidates_table(one: Candidates) -> Table:
    """Every backend's best and default on one problem, fastest first."""
    rows = [
        (time_us is None, time_us or 0.0, row)
        for name in sorted({*one.n_trials, one.backend})
        for time_us, row in _rows_of(one, name)
    ]  # fmt: skip
    rows.sort(key=lambda row: row[:2])
    return Table(
        "candidates",
        f"What every backend reached on {one.problem.shape}",
        (
            Column("backend", "backend", Kind.CODE),
            Column("what", "what", help="Its best of all that it tried, or what it does when nobody tuned it."),
            Column("time_us", "µs", Kind.TIME_US, "Median, measured here."),
            Column("time_us_low", "from", Kind.TIME_US, "Lower end of the median's 95 % interval."),
            Column("time_us_high", "to", Kind.TIME_US, "Upper end of it."),
            Column("times_served", "x served", Kind.FACTOR, "Times as fast as what is served."),
            Column("rounds", "measured in", help="All finals were measured in the same interleaved rounds."),
            Column("config", "config", Kind.CODE),
            Column("n_trials", "trials", Kind.INTEGER, "Configs of the backend that were measured, finals included."),
            Column("n_ok", "ran", Kind.INTEGER),
        ),
        [row for _, _, row in rows],
        legend=(((Mark.SERVED,), "what is served"),),
        note=SEARCH_NOTE,
        empty="The trials behind what is served are not in this database.",
    )


def _rows_of(one: Candidates, name: str) -> Iterable[tuple[float | None, Row]]:
    """(time, row) of what is served of a backend, its default and its best: one row a config."""
    best, default = best_of(one, name), one.defaults.get(name)
    served = _served(one) if name == one.backend else None
    by_config: dict[str, tuple[list[str], Measured]] = {}
    for word, measured in (("served", served), ("default", default), ("best", best)):
        if measured is not None:
            words, _ = by_config.setdefault(config_key(measured.config), ([], measured))
            words.append(word)
    suffix = [] if serves(name, one.problem) else [BASELINE]
    for words, measured in by_config.values():
        yield measured.time_us, _row(one, measured, ", ".join([*words, *suffix]))
    if not by_config:
        counts = one.n_trials.get(name), one.n_ok.get(name)
        yield None, (name, ", ".join(["nothing ran", *suffix]), None, None, None, None, "", "", *counts)


def _served(one: Candidates) -> Measured:
    """What is served, as the winner has it: a final always."""
    return Measured(
        one.backend, one.config, one.time_us, one.time_us_low, one.time_us_high, TrialStatus.OK, "",
        is_final=True, number=-1,
    )  # fmt: skip


def _row(one: Candidates, measured: Measured, what: str) -> Row:
    name = measured.backend
    counts = one.n_trials.get(name), one.n_ok.get(name)
    config = " ".join(f"{key}={value}" for key, value in sorted(measured.config.items()))
    if measured.time_us is None:
        why = measured.error.split("\n", 1)[0]
        failed = Cell(None, text=measured.status.value, note=why)
        return (name, what, failed, None, None, None, "", config, *counts)
    return (
        name,
        what,
        Cell(
            measured.time_us,
            text="" if measured.is_final else f"{measured.time_us:,.2f} *",
            marks=(Mark.SERVED,) if what.startswith("served") else (),
        ),
        measured.time_us_low,
        measured.time_us_high,
        times_served(one, measured),
        "finals" if measured.is_final else "search *",
        config,
        *counts,
    )
