"""Devices, environments and winners for tests: valid records with figures that follow from their arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from fp4tune.db.records import (
    Choice,
    NewRun,
    NewTrial,
    NewWinner,
    Origin,
    RunProblem,
    Source,
    Timing,
    TrialStatus,
    WinnerEntry,
)
from fp4tune.kernels.backend import config_key
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.problem import Problem, parse_shape

START = datetime(2026, 11, 2, 12, tzinfo=UTC)
VERSIONS = {"driver": "580.95", "torch": "2.11.0", "triton": "3.6.0"}
DEPENDS_ON = ("torch", "triton")


def device(name: str = "Test Card", *, sms: int = 188) -> Device:
    """A card of compute capability 12.0."""
    return Device("cuda", name, "12.0", sms, 96 << 30, 128 << 20, 600.0)


def environment(on: Device | None = None, **versions: str) -> Environment:
    """An environment with the usual versions, some of them replaced."""
    return Environment(on or device(), VERSIONS | versions)


def problem(shape: str | Problem) -> Problem:
    return parse_shape(shape) if isinstance(shape, str) else shape


def choice(time_us: float = 10.0, **config: int) -> Choice:
    return Choice("triton.native", {"block_m": 64, "stages": 3} | config, time_us, time_us * 0.98, time_us * 1.03)


def entry(
    shape: str | Problem,
    at: Environment | None = None,
    *,
    number: int = 1,
    day: int = 0,
    time_us: float = 10.0,
    depends_on: Sequence[str] = DEPENDS_ON,
    policy: str = "cuda.eager",
) -> WinnerEntry:
    """A current winner as an index sees it: id `number`, `day` days after START."""
    at = at or environment()
    served, default = choice(time_us), choice(time_us * 1.5, block_m=128)
    return WinnerEntry(
        id=number,
        problem=problem(shape),
        problem_key=problem(shape).key,
        device_fingerprint=at.device.fingerprint,
        environment_fingerprint=at.fingerprint,
        run_id="01JBTESTRUN000000000000000",
        backend=served.backend,
        config_json=config_key(served.config),
        time_us=served.time_us,
        time_us_low=served.time_us_low,
        time_us_high=served.time_us_high,
        default_backend=default.backend,
        default_config_json=config_key(default.config),
        default_time_us=default.time_us,
        default_time_us_low=default.time_us_low,
        default_time_us_high=default.time_us_high,
        n_ties=2,
        depends_on_json=json.dumps(list(depends_on)),
        n_trials=24,
        policy=policy,
        source=Source.MEASURED.value,
        created_at=START + timedelta(days=day),
    )


def new_run(at: Environment, shapes: Sequence[str | Problem], settings: Mapping[str, object] | None = None) -> NewRun:
    return NewRun(
        environment=at,
        problems=[RunProblem(problem(shape)) for shape in shapes],
        checkpoint="",
        settings=dict(settings or {"budget_s": 1.0}),
        seed=0,
        host="testhost",
        pid=1,
        version="0.1.0",
    )


def new_winner(
    run_id: str,
    shape: str | Problem,
    at: Environment,
    *,
    time_us: float = 10.0,
    depends_on: Sequence[str] = DEPENDS_ON,
    policy: str = "cuda.eager",
) -> NewWinner:
    return NewWinner(
        run_id=run_id,
        problem=problem(shape),
        environment=at,
        choice=choice(time_us),
        default=choice(time_us * 1.5, block_m=128),
        tie_set=(choice(time_us), choice(time_us, stages=4)),
        depends_on=tuple(depends_on),
        trial_number=7,
        n_trials=24,
        policy=policy,
    )


def new_trial(
    run_id: str, shape: str | Problem, at: Environment, number: int, *, status: TrialStatus = TrialStatus.OK
) -> NewTrial:
    ok = status is TrialStatus.OK
    return NewTrial(
        run_id=run_id,
        problem=problem(shape),
        environment=at,
        number=number,
        backend="triton.native",
        config={"block_m": 64, "stages": number},
        origin=Origin.SAMPLER,
        status=status,
        timing=Timing(10.0, 9.9, 10.1, [9.9, 10.0, 10.1], 3) if ok else None,
        error="" if ok else f"it {status}",
        rel_error=0.001,
        seed=number,
        optimizer="optuna.tpe",
        optimizer_version="4.0.0",
        started_at=START,
        wall_s=0.5,
        policy="cuda.eager",
    )
