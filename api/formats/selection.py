"""What of the store goes into an engine's file: one environment, one measuring policy, one config a problem."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ...db.records import Origin, Page, Policy, Trial, TrialFilter, TrialStatus, Winner, WinnerFilter
from ...kernels.backend import Config, config_key
from ...kernels.errors import InvalidInputError, NotFoundError
from ...kernels.problem import Problem

if TYPE_CHECKING:
    from ...db.records import Run, StoredEnvironment
    from ...db.store import Store
    from ...kernels.device import Environment

T = TypeVar("T")

POLICY = Policy.CUDA_GRAPH.value
"""Engines run these kernels in CUDA graphs; what was measured otherwise is not exported."""

LATEST = "latest"
"""Stands for the environment that was first seen last."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A config that an engine's file is to carry.

    Attributes:
        problem: for what. backend: whose config. config: decoded.
        time_us: its median, microseconds.
        is_winner: whether it is what fp4tune serves; else the best of the engine's own backends, which another backend
            of fp4tune beats.
    """

    problem: Problem
    backend: str
    config: Config
    time_us: float
    is_winner: bool


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A problem that the file says nothing about.

    Attributes:
        problem: which. why: one sentence.
    """

    problem: Problem
    why: str


def environment_called(store: Store, wanted: str | None) -> Environment:
    """The environment to export: the only one with winners of a GPU, or the one that was named.

    Args:
        store: where.
        wanted: its fingerprint or the beginning of it, or `latest`; None if there is only one.

    Raises:
        NotFoundError: the store has no such environment, or no winner of a GPU at all.
        InvalidInputError: several would do; the sentence lists them.
    """
    known = [e for e in store.environments() if e.n_winners and e.environment.device.kind == "cuda"]
    if not known:
        raise NotFoundError("There is nothing to export: the database has no winner that was measured on a GPU.")
    if wanted == LATEST:
        return max(known, key=lambda one: one.created_at).environment
    found = [e for e in known if wanted is None or e.environment.fingerprint.startswith(wanted)]
    if not found:
        raise NotFoundError(f"There is no environment {wanted!r} with winners of a GPU; there is {_listed(known)}.")
    if len(found) > 1:
        raise InvalidInputError(
            "Winners of several environments are never mixed, so one must be named with --environment (or `latest`): "
            f"{_listed(found)}."
        )
    return found[0].environment


def runs_called(store: Store, run: Sequence[str], model: str | None) -> list[Run]:
    """The runs whose problems are to be exported; none for every problem.

    Args:
        store: where.
        run: ids or unique beginnings of ids.
        model: the checkpoint or preset as `fp4tune tune` was given it.

    Raises:
        NotFoundError: there is no such run, or no run of that checkpoint.
    """
    found = [store.run(one) for one in dict.fromkeys(run)]
    if model is not None:
        every = list(_runs(store))
        of_model = [one for one in every if one.checkpoint == model]
        if not of_model:
            named = ", ".join(sorted({one.checkpoint for one in every if one.checkpoint})) or "none"
            raise NotFoundError(f"No run tuned a checkpoint called {model!r}; runs tuned: {named}.")
        found += of_model
    return found


def winners_of(store: Store, environment: Environment, runs: Sequence[Run]) -> list[Winner]:
    """What is served now in an environment, by problem key; of the problems of `runs` alone, if there are any.

    Raises:
        NotFoundError: nothing is.
    """
    where = WinnerFilter(environment_fingerprint=environment.fingerprint, policy=POLICY)
    found = list(_all(lambda after: store.winners(where, limit=1000, after=after)))
    if runs:
        wanted = {state.item.problem.key for run in runs for state in store.run_problems(run.id)}
        found = [winner for winner in found if winner.problem.key in wanted]
    if not found:
        what = "of these runs' problems " if runs else ""
        raise NotFoundError(
            f"There is nothing to export: no winner {what}was measured by policy {POLICY} in environment "
            f"{environment.fingerprint} ({environment.device.name})."
        )
    return sorted(found, key=lambda winner: winner.problem.key)


def select(
    store: Store,
    winner: Winner,
    mine: Collection[str],
    *,
    unfit: Callable[[Problem, Config], str],
    only_winners: bool,
) -> Selected | LeftOut:
    """What an engine's file is to carry for one problem.

    The winner, if it is one of the engine's own backends. Else the fastest config of those backends that was measured
    in the winner's run, if it beats the fastest of their defaults beyond both intervals: the engine cannot run the
    winner, but need not run its default. Figures of the finals are compared with figures of the finals, those of the
    search with those of the search, never across.

    Args:
        store: where the trials are.
        winner: of the problem.
        mine: names of the backends whose configs the file can carry.
        unfit: why the file can carry no such config, as part of a sentence; empty if it can.
        only_winners: carry no other config than winners.
    """
    problem, served = winner.problem, winner.choice
    reason = unfit(problem, served.config)
    if served.backend in mine and not reason:
        return Selected(problem, served.backend, served.config, served.time_us, is_winner=True)
    won = f"{served.backend} won with {served.time_us:,.1f} µs, and "
    if only_winners or unfit(problem, {}):
        return LeftOut(problem, won + (reason or "the file has no entries of it") + ".")
    trials = [
        trial
        for trial in _trials(store, winner)
        if trial.backend in mine and trial.status is TrialStatus.OK and not unfit(problem, trial.config)
    ]
    if not trials:
        return LeftOut(problem, f"{won}no config of {', '.join(sorted(mine))} that the file can carry was measured.")
    best = _better_than_default(trials)
    if best is None:
        return LeftOut(problem, f"{won}no measured config that the file can carry beats the engine's own default.")
    return Selected(problem, best.backend, best.config, best.time_us or 0.0, is_winner=False)


def _better_than_default(trials: Sequence[Trial]) -> Trial | None:
    """The fastest config, if its whole interval lies below that of the fastest default; else None."""
    defaults = {(t.backend, config_key(t.config)) for t in trials if t.origin is Origin.DEFAULT}
    for finals in (True, False):
        own = [t for t in trials if (t.origin is Origin.FINAL) == finals]
        as_default = [t for t in own if (t.backend, config_key(t.config)) in defaults]
        others = [t for t in own if (t.backend, config_key(t.config)) not in defaults]
        if as_default and others:
            best, default = min(others, key=_time_us), min(as_default, key=_time_us)
            return best if (best.time_us_high or 0.0) < (default.time_us_low or 0.0) else None
    return None


def _time_us(trial: Trial) -> float:
    return trial.time_us or float("inf")


def _trials(store: Store, winner: Winner) -> Iterator[Trial]:
    """Every trial of a winner's problem in its run, measured as it was."""
    where = TrialFilter(run_id=winner.run_id, problem_key=winner.problem.key)
    for trial in _all(lambda after: store.trials(where, limit=1000, after=after)):
        if trial.policy == winner.policy and trial.environment_fingerprint == winner.environment.fingerprint:
            yield trial


def _runs(store: Store) -> Iterator[Run]:
    """Every run, newest first."""
    before: str | None = None
    while page := store.runs(limit=1000, before=before):
        yield from page
        before = page[-1].id


def _all(page_after: Callable[[int], Page[T]]) -> Iterator[T]:
    """Every item of a listing, page by page."""
    after: int | None = 0
    while after is not None:
        page = page_after(after)
        yield from page.items
        after = page.next_after


def _listed(environments: Sequence[StoredEnvironment]) -> str:
    """`1f2e... (NVIDIA H200, 12 winners), ...`, the newest first."""
    newest = sorted(environments, key=lambda one: one.created_at, reverse=True)
    return ", ".join(
        f"{one.environment.fingerprint} ({one.environment.device.name}, since {one.created_at:%Y-%m-%d}, "
        f"{one.n_winners} winner{'s' if one.n_winners > 1 else ''})"
        for one in newest
    )
