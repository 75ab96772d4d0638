"""The executor over workers with the real workbench, on the CPU: kernels compute, the gate looks, clocks tick."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import worker_faults
from fp4tune.db.records import Origin, RunProblem, RunStatus, TrialFilter, TrialStatus, WinnerFilter
from fp4tune.db.store import Store
from fp4tune.kernels.backend import Backend
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.device import Device, current_environment, detect
from fp4tune.kernels.problem import parse_shape
from fp4tune.tuner.context import JobContext, JobSettings
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.job import TuningJob
from fp4tune.tuner.measure import Effort
from fp4tune.tuner.workers.executor import WorkerExecutor
from fp4tune.tuner.workers.family import Deadlines
from worker_faults import Faulty, FaultyCompiler, Searched

DENSE = parse_shape("3x48x64")
GROUPED = parse_shape("e4k2:5x32x48")
QUICK = Effort(warmup_s=0.0, budget_s=0.02)
SHORT = Deadlines(check=3.0, sample=3.0)


@pytest.fixture(scope="module")
def cpu() -> Device:
    return detect("cpu")


@pytest.fixture
def executor(cpu: Device) -> Iterator[WorkerExecutor]:
    before = set(worker_faults.processes())
    backends: dict[str, Backend] = {b.name: b for b in (CpuDequant(), Faulty(), Searched(), FaultyCompiler())}
    made = WorkerExecutor(cpu, backends, policy="cpu.warm", deadlines=SHORT, compile_workers=1, spare=True)
    yield made
    made.shutdown()
    left = {pid: command for pid, command in worker_faults.processes().items() if pid not in before}
    assert not left, left


def test_each_fault_has_its_status_and_the_others_are_measured(executor: WorkerExecutor, cpu: Device):
    default = Candidate("cpu.dequant", CpuDequant().default(DENSE, cpu))

    def bad(fault: str) -> Candidate:
        return Candidate("bad.kernel", {"fault": fault})

    expected = {
        default.backend: TrialStatus.OK,
        "none": TrialStatus.OK,
        "wrong": TrialStatus.WRONG,
        "sticky": TrialStatus.CRASHED,
        "hangs": TrialStatus.TIMEOUT,
        "late": TrialStatus.OK,
        "sigkill": TrialStatus.CRASHED,
        "fine": TrialStatus.OK,
        "refuses": TrialStatus.UNSUPPORTED,
    }
    executor.open(DENSE, 3)
    compiled = [Candidate("compiled.kernel", {"compiler": name}) for name in ("fine", "refuses")]
    faulty = [bad(name) for name in ("none", "wrong", "sticky", "hangs", "late", "sigkill")]
    seen = {}
    for candidate in (default, *compiled, *faulty):
        executor.submit(candidate)
    for _ in range(len(compiled) + len(faulty) + 1):
        candidate, evaluation = executor.collect(QUICK)
        seen[next(iter(candidate.config.values())) if candidate != default else default.backend] = evaluation
    assert {name: evaluation.status for name, evaluation in seen.items()} == expected
    assert "ended its worker 2 times" in seen["sticky"].error
    assert seen["fine"].facts.registers == 128
    assert 0 < seen[default.backend].rel_error < 0.01
    finals = executor.rounds([default, bad("none"), bad("late"), bad("dies_later")], n_rounds=20, budget_s=60, seed=1)
    assert [f.status for f in finals] == [TrialStatus.OK, TrialStatus.OK, TrialStatus.CRASHED, TrialStatus.CRASHED]
    assert {len(f.timing.samples_us) for f in finals if f.timing} == {20}
    executor.open(GROUPED, 3)
    executor.submit(Candidate("cpu.dequant", CpuDequant().default(GROUPED, cpu)))
    assert executor.collect(QUICK)[1].status is TrialStatus.OK


def test_a_run_over_workers_ends_with_winners_whatever_its_configs_did(
    executor: WorkerExecutor, cpu: Device, tmp_path: Path
):
    backends: dict[str, Backend] = {b.name: b for b in (CpuDequant(), Searched())}
    settings = JobSettings(trials=12, budget_s=120.0, finals_s=0.2, finals_rounds=8, seed=3, effort=QUICK)
    with Store.open(tmp_path / "t.db") as store:
        context = JobContext(current_environment(cpu, list(backends.values())), backends, executor, settings)
        result = TuningJob(store, context).start([RunProblem(DENSE)])
        assert result.status is RunStatus.FINISHED
        trials = store.trials(TrialFilter(run_id=result.run_id), limit=1000).items
        assert len(store.winners(WinnerFilter(run_id=result.run_id)).items) == 1
    statuses = {
        t.config["fault"]: t.status for t in trials if t.backend == "searched.kernel" and t.origin is not Origin.FINAL
    }
    assert set(statuses) == set(Searched.faults), "every config was tried"
    assert statuses["none"] is TrialStatus.OK
    assert statuses["wrong"] is TrialStatus.WRONG
    assert statuses["sigkill"] is statuses["sticky"] is TrialStatus.CRASHED
