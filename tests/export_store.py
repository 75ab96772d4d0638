"""A database with winners of FlashInfer's backends on a card that is not here, for tests of file formats.

Nothing of it was measured: configs are real tactics of FlashInfer, times are made up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fp4tune.db.records import Choice, NewRun, NewTrial, NewWinner, Origin, RunProblem, Timing, TrialStatus
from fp4tune.db.store import Store
from fp4tune.kernels.backend import ConfigValue
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.problem import Problem, parse_shape

CARD = CARDS["rtx-pro-6000"]
START = datetime(2026, 11, 30, 8, tzinfo=UTC)
VERSIONS = {"driver": "580.95", "flashinfer": "0.7.4", "cuda": "13.0", "cublas": "13.1.0", "cudnn": "9.15.0"}

Config = Mapping[str, ConfigValue]


def environment(device: Device = CARD, **versions: str) -> Environment:
    return Environment(device, VERSIONS | versions)


@dataclass(frozen=True)
class Ran:
    """One config that was tried: (backend, config, µs) and why; None µs did not run."""

    backend: str
    config: Config
    time_us: float | None
    origin: Origin = Origin.ENUMERATED


@dataclass(frozen=True)
class Tuned:
    """One problem, what was tried, and which of it is served."""

    problem: Problem | str
    served: Ran
    others: Sequence[Ran] = ()

    @property
    def stated(self) -> Problem:
        return parse_shape(self.problem) if isinstance(self.problem, str) else self.problem


def make(
    path: Path | str,
    tuned: Sequence[Tuned],
    where: Environment | None = None,
    *,
    checkpoint: str = "",
    policy: str = "cuda.graph",
    clock: Callable[[], datetime] = lambda: START,
) -> str:
    """Write a run into the database at `path`. Returns its id."""
    at = where or environment()
    with Store.open(path, clock=clock) as store:
        problems = [RunProblem(one.stated) for one in tuned]
        run_id = store.create_run(NewRun(at, problems, checkpoint, {"policy": policy}, 0, "host", 1, "0.2.0"))
        for one in tuned:
            every = [one.served, *one.others]
            store.add_trials([_trial(run_id, at, one.stated, i, ran, policy) for i, ran in enumerate(every)])
            served = _choice(one.served)
            store.add_winner(
                NewWinner(
                    run_id=run_id, problem=one.stated, environment=at, choice=served, default=served,
                    tie_set=[served], depends_on=["flashinfer"], trial_number=0, n_trials=len(every), policy=policy,
                )
            )  # fmt: skip
    return run_id


def _choice(ran: Ran) -> Choice:
    assert ran.time_us is not None
    return Choice(ran.backend, ran.config, ran.time_us, ran.time_us * 0.99, ran.time_us * 1.01)


def _trial(run_id: str, at: Environment, problem: Problem, number: int, ran: Ran, policy: str) -> NewTrial:
    timing = None
    if ran.time_us is not None:
        timing = Timing(ran.time_us, ran.time_us * 0.99, ran.time_us * 1.01, [ran.time_us] * 20, 20)
    return NewTrial(
        run_id=run_id, problem=problem, environment=at, number=number, backend=ran.backend, config=ran.config,
        origin=ran.origin, status=TrialStatus.OK if timing else TrialStatus.CRASHED, timing=timing,
        error="" if timing else "it crashed", rel_error=0.001 if timing else None, seed=0, optimizer="enumeration",
        optimizer_version="1", started_at=START, wall_s=1.0, policy=policy,
    )  # fmt: skip
