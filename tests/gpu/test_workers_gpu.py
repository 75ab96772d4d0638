"""Worker processes on a real card: kernels that write out of bounds, that loop for ever, workers that are killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator

import pytest
from conformance import available
from fp4tune.db.records import TrialStatus
from fp4tune.kernels.backend import Backend, family
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.errors import OtherKindError
from fp4tune.kernels.problem import parse_shape
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.measure import Effort
from fp4tune.tuner.workers.executor import WorkerExecutor
from fp4tune.tuner.workers.family import Deadlines
from worker_faults import GpuFaulty

pytestmark = pytest.mark.gpu

PROBLEM = parse_shape("16x1024x1024")
QUICK = Effort(budget_s=0.1)


@pytest.fixture
def gpu() -> Device:
    return detect("cuda:0")


@pytest.fixture
def executor(gpu: Device) -> Iterator[WorkerExecutor]:
    backends: dict[str, Backend] = {backend.name: backend for backend in available(gpu)}
    backends["gpufaulty.kernel"] = GpuFaulty()
    made = WorkerExecutor(gpu, backends, policy="cuda.eager", deadlines=Deadlines(check=10.0), compile_workers=2)
    yield made
    made.shutdown()


def faulty(fault: str) -> Candidate:
    return Candidate("gpufaulty.kernel", {"fault": fault})


def run(executor: WorkerExecutor, candidate: Candidate):
    executor.submit(candidate)
    collected, evaluation = executor.collect(QUICK)
    assert collected == candidate
    return evaluation


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("out_of_bounds", "llegal memory access"),
        ("misaligned", "misaligned address"),
        ("trap", "unspecified launch failure|llegal instruction"),
    ],
)
def test_a_kernel_that_does_harm_costs_its_config_alone(executor: WorkerExecutor, fault: str, said: str):
    executor.open(PROBLEM, 0)
    assert run(executor, faulty("none")).status is TrialStatus.OK
    crashed = run(executor, faulty(fault))
    assert crashed.status is TrialStatus.CRASHED
    assert re.search(said, crashed.error), crashed.error
    assert "ended its worker 2 times" in crashed.error
    assert run(executor, faulty("none")).status is TrialStatus.OK


def test_a_kernel_that_loops_for_ever_costs_its_config_alone(executor: WorkerExecutor):
    executor.open(PROBLEM, 0)
    hung = run(executor, faulty("for_ever"))
    assert hung.status is TrialStatus.TIMEOUT
    start = time.monotonic()
    assert run(executor, faulty("none")).status is TrialStatus.OK
    print(f"\na new worker with the problem open and a config measured: {time.monotonic() - start:.1f} s")  # noqa: T201


def test_a_worker_that_is_killed_is_replaced(executor: WorkerExecutor):
    executor.open(PROBLEM, 0)
    assert run(executor, faulty("none")).status is TrialStatus.OK
    os.kill(executor._families["gpufaulty"]._process.pid, signal.SIGKILL)
    assert run(executor, faulty("none")).status is TrialStatus.OK


def test_every_default_runs_in_its_own_familys_worker(executor: WorkerExecutor, gpu: Device):
    import torch

    before = torch.cuda.is_initialized()  # another test in this process may have done so
    executor.open(PROBLEM, 0)
    defaults = []
    for backend in available(gpu):
        with contextlib.suppress(OtherKindError):  # a fused layer's backends
            defaults.append(Candidate(backend.name, backend.default(PROBLEM, gpu)))
    assert len({family(candidate.backend) for candidate in defaults}) > 1
    for candidate in defaults:
        executor.submit(candidate)
    results = [executor.collect(QUICK) for _ in defaults]
    assert {evaluation.status for _, evaluation in results} == {TrialStatus.OK}
    finals = executor.rounds(defaults, n_rounds=8, budget_s=60, seed=0)
    assert {len(final.timing.samples_us) for final in finals} == {8}
    assert torch.cuda.is_initialized() == before, "the tuner's own process makes no CUDA context"
