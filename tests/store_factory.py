"""Records for tests of the store: valid ones, every field of which can be replaced by name."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fp4tune.db.records import (
    Choice,
    CompileStatus,
    Conditions,
    Miss,
    NewRun,
    NewStaticFacts,
    NewTrial,
    NewWinner,
    Origin,
    Roofs,
    RunProblem,
    Timing,
    TrialStatus,
)
from fp4tune.kernels.backend import StaticFacts
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.problem import Op, Problem

START = datetime(2026, 11, 2, 12, tzinfo=UTC)
HOST = "testhost"


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


CPU = Device("cpu", "Test CPU", "", 8, 32 << 30, 32 << 20, 0.0)
CARD = Device("cuda", "Test Card", "12.0", 188, 96 << 30, 128 << 20, 600.0)
ON_CPU = Environment(CPU, {"torch": "2.13.0"})
ON_CARD = Environment(CARD, {"driver": "580.95", "torch": "2.11.0", "triton": "3.6.0"})

SMALL = Problem(16, 2048, 4096)
LARGE = Problem(512, 2048, 4096)
GROUPED = Problem(16, 256, 4096, Op.GROUPED, 64, 512, 10)


def new_run(**fields: Any) -> NewRun:
    run = NewRun(
        environment=ON_CARD,
        problems=(RunProblem(SMALL, "attn.qkv", ("decode", "verify"), 60), RunProblem(GROUPED, "moe.w13", ("decode",), 3)),
        checkpoint="Qwen3.5-397B-A17B-NVFP4",
        settings={"budget_s": 3.0, "backends": ["triton.native"], "trials": None},
        seed=7,
        host=HOST,
        pid=4242,
        version="0.1.0",
    )  # fmt: skip
    return replace(run, **fields)


def timing(time_us: float = 10.0, n: int = 30) -> Timing:
    """Samples that float32 holds exactly."""
    return Timing(time_us, time_us * 0.98, time_us * 1.03, tuple(time_us + i / 64 for i in range(n)), n)


def new_trial(run_id: str, number: int = 0, **fields: Any) -> NewTrial:
    trial = NewTrial(
        run_id=run_id,
        problem=SMALL,
        environment=ON_CARD,
        number=number,
        backend="triton.native",
        config={"block_m": 64, "num_stages": number, "split_k": False, "schedule": "persistent"},
        origin=Origin.SAMPLER,
        status=TrialStatus.OK,
        timing=timing(),
        error="",
        rel_error=1.5e-3,
        seed=7,
        optimizer="optuna.tpe",
        optimizer_version="5.0.0",
        started_at=START,
        wall_s=0.75,
        policy="cuda.eager",
    )
    return replace(trial, **fields)


def failed_trial(run_id: str, number: int = 0, status: TrialStatus = TrialStatus.CRASHED, **fields: Any) -> NewTrial:
    failure: dict[str, Any] = {"status": status, "timing": None, "error": "illegal memory access", "rel_error": None}
    return new_trial(run_id, number, **(failure | fields))


def choice(time_us: float = 10.0, backend: str = "triton.native", **config: int) -> Choice:
    return Choice(backend, {"block_m": 64, "stages": 3} | config, time_us, time_us * 0.98, time_us * 1.03)


def new_winner(run_id: str, **fields: Any) -> NewWinner:
    winner = NewWinner(
        run_id=run_id,
        problem=SMALL,
        environment=ON_CARD,
        choice=choice(),
        default=choice(15.0, block_m=128),
        tie_set=(choice(), choice(10.1, stages=4)),
        depends_on=("torch", "triton"),
        trial_number=7,
        n_trials=24,
        policy="cuda.eager",
    )
    return replace(winner, **fields)


def miss(problem: Problem = SMALL, **fields: Any) -> Miss:
    return replace(Miss(problem, CARD.fingerprint, ON_CARD.fingerprint, 1, START, START), **fields)


CONDITIONS = Conditions((1755, 1980), (3201, 3201), 61, 512.25, ("sw_power_cap",), (0, 7, 29))
FACTS = StaticFacts("sm_120a", 168, 0, 98_304, {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": 64})
ROOFS = Roofs(3.9e12, 7.5e14, START)


def measured_on_a_card(run_id: str, number: int = 0, **fields: Any) -> NewTrial:
    """A trial with everything that a trial can have."""
    more = {"compile_s": 2.5, "conditions": CONDITIONS, "roof_share": 0.625, "facts": FACTS, "policy": "cuda.graph"}
    return new_trial(run_id, number, **(more | fields))


def new_static_facts(**fields: Any) -> NewStaticFacts:
    entry = NewStaticFacts(
        problem=SMALL,
        backend="triton.native",
        config={"block_m": 64, "stages": 3},
        target="sm_120a",
        versions={"triton": "3.9.0"},
        status=CompileStatus.OK,
        facts=FACTS,
        compile_s=1.25,
    )
    return replace(entry, **fields)
