from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from fp4tune.db.records import NewRun, NewTrial, Origin, RunProblem, TrialFilter, TrialStatus
from fp4tune.db.store import Store
from fp4tune.kernels.device import Environment, detect
from fp4tune.kernels.errors import StoreError
from fp4tune.kernels.problem import parse_shape
from fp4tune.tuner import writer as writer_module
from fp4tune.tuner.writer import TrialWriter

PROBLEM = parse_shape("1x16x16")


def test_a_heartbeat_that_fails_ends_the_run_and_loses_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    environment = Environment(detect("cpu"), {"torch": "0"})
    with Store.open(tmp_path / "t.db") as store:
        run_id = store.create_run(NewRun(environment, [RunProblem(PROBLEM)], "", {}, 0, "host", 1, "0"))

        def fail(_run_id: str) -> None:
            raise StoreError("The disk is full.")

        monkeypatch.setattr(store, "heartbeat", fail)
        monkeypatch.setattr(writer_module, "HEARTBEAT_S", 0.01)
        monkeypatch.setattr(writer_module, "FLUSH_S", 3600.0)
        trial = NewTrial(
            run_id=run_id, problem=PROBLEM, environment=environment, number=0, backend="b", config={},
            origin=Origin.DEFAULT, status=TrialStatus.CRASHED, timing=None, error="boom", rel_error=None, seed=0,
            optimizer="o", optimizer_version="0", started_at=datetime.now(UTC), wall_s=0.0, policy="cpu.warm",
        )  # fmt: skip

        def run() -> None:
            with TrialWriter(store, run_id) as writer:
                writer.add(trial)
                writer._thread.join(10)

        with pytest.raises(StoreError, match="disk is full"):
            run()
        assert len(store.trials(TrialFilter(run_id=run_id)).items) == 1
