"""What a run found, put together from its trials and winners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from ...db.records import (
    Conditions,
    Origin,
    Page,
    Roofs,
    Run,
    RunProblem,
    RunProblemState,
    Trial,
    TrialFilter,
    TrialStatus,
    Winner,
    WinnerFilter,
)
from ...kernels.backend import ConfigValue, can_serve, config_key
from ...kernels.device import Environment
from ...kernels.problem import Problem

if TYPE_CHECKING:
    from ...db.store import Store
    from ...kernels.backend import Backend

T = TypeVar("T")

PAUSE = timedelta(minutes=5)
"""Between two trials of a run nothing but making operands and a first compilation can happen, which takes seconds. A
longer gap is the time between an interruption and its resume, and counts as no work."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A config and what it took in the finals, or in the search if it was not among the finalists.

    Attributes:
        backend: backend name. config: decoded config.
        time_us, time_us_low, time_us_high: median and 95% interval, microseconds; None if it did not run.
        status: how its last trial ended. error: why it did not run; empty if it did.
        final: whether the figures are those of the interleaved finals.
        roof_share: share of the card's roof; None without roofs or timing.
    """

    backend: str
    config: Mapping[str, ConfigValue]
    time_us: float | None
    time_us_low: float | None
    time_us_high: float | None
    status: TrialStatus
    error: str
    final: bool
    roof_share: float | None


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """What a run found for one problem.

    Attributes:
        item: the problem and what it stands for. outcome: the run's sentence about it. done: whether it came to an end.
        winner: what the run stored as served; None if it stored nothing.
        roof_share: of what is served.
        defaults: every backend's default, by backend; those that could not run say why.
        bests: every backend's fastest config, by backend; of those that ran nothing, none.
        baseline: the fastest baseline of the finals, measured beside the others and never served; None without one.
        statuses: how many trials ended how, finals apart.
        n_finals: re-measurements in the finals.
        compile_s: seconds of compiler. wall_s: seconds from the end of the previous problem to the end of this one.
        conditions: the widest ranges over all trials; None if nobody looked.
        n_throttled: samples taken while something held the clocks back. n_samples: all samples that were kept.
    """

    item: RunProblem
    outcome: str
    done: bool
    winner: Winner | None
    roof_share: float | None
    defaults: tuple[Measured, ...]
    bests: tuple[Measured, ...]
    baseline: Measured | None
    statuses: Mapping[TrialStatus, int]
    n_finals: int
    compile_s: float
    wall_s: float
    conditions: Conditions | None
    n_throttled: int
    n_samples: int

    @property
    def problem(self) -> Problem:
        """The GEMM."""
        return self.item.problem


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run with what it found.

    Attributes:
        run: the run. environment: where. roofs: of that environment, if they were measured.
        problems: in the run's order.
    """

    run: Run
    environment: Environment
    roofs: Roofs | None
    problems: tuple[ProblemResult, ...] = field(default=())


def gather(store: Store, run_id: str, backends: Mapping[str, Backend]) -> RunResult:
    """Read a run.

    Args:
        store: where it is.
        run_id: its id, or a unique prefix of it.
        backends: those that are registered here, to tell baselines; one that is not known counts as one that serves.

    Raises:
        NotFoundError: there is no such run.
    """
    run = store.run(run_id)
    trials: dict[str, list[Trial]] = {}
    for trial in _all(lambda after: store.trials(TrialFilter(run_id=run.id), limit=1000, after=after)):
        trials.setdefault(trial.problem.key, []).append(trial)
    found = _all(lambda after: store.winners(WinnerFilter(run_id=run.id, current=None), limit=1000, after=after))
    winners = {winner.problem.key: winner for winner in found}  # of several (a resumed run) the last
    problems: list[ProblemResult] = []
    ended = run.started_at
    for state in store.run_problems(run.id):
        key = state.item.problem.key
        own = sorted(trials.get(key, []), key=lambda trial: trial.number)
        ended, wall_s = _wall_s(own, ended)
        problems.append(_problem(state, own, winners.get(key), backends, wall_s))
    environment = store.environment(run.environment_fingerprint)
    return RunResult(run, environment, store.roofs(environment), tuple(problems))


def _problem(
    state: RunProblemState,
    trials: Sequence[Trial],
    winner: Winner | None,
    backends: Mapping[str, Backend],
    wall_s: float,
) -> ProblemResult:
    problem = state.item.problem
    serves = {
        name: name not in backends or can_serve(backends[name], problem) for name in {trial.backend for trial in trials}
    }
    finals = {_key(trial): trial for trial in trials if trial.origin is Origin.FINAL}
    defaults = {trial.backend: trial for trial in trials if trial.origin is Origin.DEFAULT}
    baselines = [trial for trial in finals.values() if not serves[trial.backend] and trial.time_us is not None]
    served = finals.get(f"{winner.choice.backend} {config_key(winner.choice.config)}") if winner else None
    throttled = [len(trial.conditions.throttled_samples) for trial in trials if trial.conditions]
    return ProblemResult(
        item=state.item,
        outcome=state.outcome,
        done=state.done,
        winner=winner,
        roof_share=served.roof_share if served else None,
        defaults=tuple(
            _measured(finals.get(_key(trial), trial)) for name, trial in sorted(defaults.items()) if serves[name]
        ),
        bests=_bests([finals.get(_key(trial), trial) for trial in trials if serves[trial.backend]]),
        baseline=_measured(min(baselines, key=lambda trial: trial.time_us or 0.0)) if baselines else None,
        statuses=Counter(trial.status for trial in trials if trial.origin is not Origin.FINAL),
        n_finals=sum(trial.origin is Origin.FINAL for trial in trials),
        compile_s=sum(trial.compile_s for trial in trials),
        wall_s=wall_s,
        conditions=widest([trial.conditions for trial in trials if trial.conditions]),
        n_throttled=sum(throttled),
        n_samples=sum(len(trial.samples_us) for trial in trials),
    )


def _bests(trials: Sequence[Trial]) -> tuple[Measured, ...]:
    """Every backend's fastest of these, by backend."""
    fastest: dict[str, Trial] = {}
    for trial in trials:
        best = fastest.get(trial.backend)
        if trial.time_us is not None and (best is None or best.time_us is None or trial.time_us < best.time_us):
            fastest[trial.backend] = trial
    return tuple(_measured(trial) for _, trial in sorted(fastest.items()))


def widest(conditions: Sequence[Conditions]) -> Conditions | None:
    """The lowest and highest of all; None of none. Without indices of samples, which mean nothing over several."""
    if not conditions:
        return None
    return Conditions(
        sm_clock_mhz=_span([one.sm_clock_mhz for one in conditions]),
        memory_clock_mhz=_span([one.memory_clock_mhz for one in conditions]),
        temperature_c=max((one.temperature_c for one in conditions if one.temperature_c is not None), default=None),
        power_w=max((one.power_w for one in conditions if one.power_w is not None), default=None),
        throttle_reasons=tuple(sorted({reason for one in conditions for reason in one.throttle_reasons})),
    )


def _span(spans: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    there = [span for span in spans if span is not None]
    return (min(low for low, _ in there), max(high for _, high in there)) if there else None


def _wall_s(trials: Sequence[Trial], ended: datetime) -> tuple[datetime, float]:
    """(when the last of these trials ended, seconds from `ended` to then without pauses)."""
    seconds = 0.0
    for begin, end in sorted((one.started_at, one.started_at + timedelta(seconds=one.wall_s)) for one in trials):
        if begin - ended > PAUSE:
            ended = begin
        seconds += max(0.0, (end - ended).total_seconds())
        ended = max(ended, end)
    return ended, seconds


def _measured(trial: Trial) -> Measured:
    return Measured(
        backend=trial.backend,
        config=trial.config,
        time_us=trial.time_us,
        time_us_low=trial.time_us_low,
        time_us_high=trial.time_us_high,
        status=trial.status,
        error=trial.error,
        final=trial.origin is Origin.FINAL,
        roof_share=trial.roof_share,
    )


def _key(trial: Trial) -> str:
    return f"{trial.backend} {config_key(trial.config)}"


def _all(page_after: Callable[[int], Page[T]]) -> Iterator[T]:
    """Every item of a listing, page by page."""
    after: int | None = 0
    while after is not None:
        page = page_after(after)
        yield from page.items
        after = page.next_after
