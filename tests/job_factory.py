"""A tuning job on the CPU, and executors that behave like those of a GPU."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fp4tune.db.records import Roofs, Trial, TrialFilter
from fp4tune.db.store import Store
from fp4tune.kernels.backend import Backend
from fp4tune.kernels.device import Device, current_environment
from fp4tune.kernels.problem import Problem, parse_shape
from fp4tune.tuner.context import JobContext, JobSettings, StopFlag
from fp4tune.tuner.executor import Candidate, LocalExecutor
from fp4tune.tuner.job import TuningJob
from fp4tune.tuner.measure import Effort

QUICK = JobSettings(
    trials=10, budget_s=5.0, finals_s=0.2, finals_rounds=8, seed=3, effort=Effort(warmup_s=0.0, budget_s=0.02)
)
DENSE = parse_shape("3x48x64")
GROUPED = parse_shape("e4k2:5x32x48")


class AheadExecutor(LocalExecutor):
    """Takes several at a time and answers in any order, as one with a pool of compilers does."""

    def __init__(self, device: Device, backends, lookahead: int) -> None:
        super().__init__(device, backends, timeout_s=10)
        self.lookahead = lookahead
        self.most_in_flight = 0
        self.prefetched: list[tuple[Problem, list[Candidate]]] = []
        self.in_flight_then: list[int] = []
        self._draw = random.Random(0)

    def submit(self, candidate: Candidate) -> None:
        super().submit(candidate)
        self.most_in_flight = max(self.most_in_flight, len(self._submitted))

    def collect(self, effort, *, best_us=None):
        self._submitted.rotate(self._draw.randrange(len(self._submitted)))
        return super().collect(effort, best_us=best_us)

    def prefetch(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        self.prefetched.append((problem, list(candidates)))
        self.in_flight_then.append(len(self._submitted))


class OtherPolicy(LocalExecutor):
    """Says that it measures in another way."""

    def __init__(self, device: Device, backends) -> None:
        super().__init__(device, backends, timeout_s=10)
        self.policy = "cpu.other"


def job(
    store: Store,
    device: Device,
    *backends: Backend,
    settings: JobSettings = QUICK,
    stop: StopFlag | None = None,
    tell=None,
    executor: LocalExecutor | None = None,
    roofs: Roofs | None = None,
) -> TuningJob:
    by_name = {backend.name: backend for backend in backends}
    environment = current_environment(device, backends)
    executor = executor or LocalExecutor(device, by_name, timeout_s=10)
    context = JobContext(
        environment, by_name, executor, settings, tell or (lambda _event: None), stop or StopFlag(), roofs
    )
    return TuningJob(store, context)


def ahead(device: Device, lookahead: int, *backends: Backend) -> AheadExecutor:
    return AheadExecutor(device, {backend.name: backend for backend in backends}, lookahead)


def trials_of(store: Store, run_id: str) -> list[Trial]:
    return list(store.trials(TrialFilter(run_id=run_id), limit=1000).items)
