"""Runs that tune again what a store of an H200 serves, so many times as slow, in the same or in another environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from fp4tune.db import Store
from fp4tune.db.records import (
    Choice,
    Conditions,
    NewRun,
    NewTrial,
    NewWinner,
    Origin,
    RunProblem,
    RunStatus,
    Timing,
    TrialStatus,
    WinnerFilter,
)
from fp4tune.kernels.device import Device, Environment

_NOISE = Path(__file__).resolve().parents[1] / "docs" / "results" / "h200-noise.json"

HOST = "host-of-a-test"
"""Where these runs run."""

H200 = Environment(
    Device(**json.loads(_NOISE.read_text())["device"]),
    {
        "cublas": "13.1.0", "cuda": "13.0", "driver": "580.159.04", "humming": "0.1.20",
        "humming_compiler": "nvrtc 13.0", "torch": "2.11.0+cu130", "triton": "3.6.0",
    },
)  # fmt: skip
"""Where the runs of docs/results were made."""

UPDATED = Environment(H200.device, {**H200.versions, "driver": "590.12"})
"""The same card with a newer driver."""


def tune_again(
    store: Store,
    at: Environment,
    *,
    served: float,
    default: float,
    throttled: int = 0,
    only: Callable[[int], bool] = lambda _: True,
) -> str:
    """A run that finds the same configs as those that the H200's first environment serves, so many times as slow.

    Args:
        store: a copy of the H200's runs.
        at: where it runs.
        served: factor on the time of what is served.
        default: factor on that of the default, if the default is not what is served.
        throttled: how many of the 40 samples were throttled.
        only: which of the problems, by their place.

    Returns:
        The run's id.
    """
    real = {run.id for run in store.runs(limit=1000) if run.host != HOST}
    stored = store.winners(WinnerFilter(environment_fingerprint=H200.fingerprint, current=None), limit=1000).items
    originals = {one.problem.key: one for one in stored if one.run_id in real}  # of several the last
    again = [one for i, one in enumerate(originals.values()) if only(i)]
    run = store.create_run(
        NewRun(at, [RunProblem(one.problem) for one in again], "", {"policy": "cuda.graph"}, 0, HOST, 1, "0.1.0")
    )
    trials, winners = [], []
    for one in again:
        choice = _slower(one.choice, served)
        is_default = (one.choice.backend, one.choice.config) == (one.default.backend, one.default.config)
        timing = Timing(choice.time_us, choice.time_us_low, choice.time_us_high, [choice.time_us] * 40, 40)
        seen = Conditions(
            (1890, 1980), (3201, 3201), 60, 650.0, ("sw_power_cap",) * bool(throttled), tuple(range(throttled))
        )
        trials.append(
            NewTrial(
                run_id=run, problem=one.problem, environment=at, number=0, backend=choice.backend, config=choice.config,
                origin=Origin.FINAL, status=TrialStatus.OK, timing=timing, error="", rel_error=0.001, seed=0,
                optimizer="enumeration", optimizer_version="1", started_at=datetime.now(UTC), wall_s=1.0,
                policy="cuda.graph", conditions=seen,
            )
        )  # fmt: skip
        winners.append(
            NewWinner(
                run_id=run, problem=one.problem, environment=at, choice=choice,
                default=choice if is_default else _slower(one.default, default),
                tie_set=[choice], depends_on=one.depends_on, trial_number=0, n_trials=1, policy="cuda.graph",
            )
        )  # fmt: skip
    store.add_trials(trials)
    store.add_winners(winners)
    store.finish_run(run, RunStatus.FINISHED)
    return run


def _slower(choice: Choice, factor: float) -> Choice:
    return replace(
        choice, time_us=choice.time_us * factor, time_us_low=choice.time_us_low * factor,
        time_us_high=choice.time_us_high * factor,
    )  # fmt: skip
