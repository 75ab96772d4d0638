"""The executor that runs everything in this process; workers have their own tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faulty_backends import GATE_CALLS, DiesAfterTheGate, FaultyBackend
from fp4tune.db.records import TrialStatus
from fp4tune.kernels.device import detect
from fp4tune.kernels.problem import parse_shape
from fp4tune.tuner.executor import MIN_ROUNDS, Candidate, LocalExecutor
from fp4tune.tuner.measure import Effort

CPU = detect("cpu")
DENSE = parse_shape("3x48x64")
FINE, WRONG, SLOW = (Candidate("test.faulty", {"fault": fault}) for fault in ("none", "zero_tile", "slow"))


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    made = LocalExecutor(CPU, {b.name: b for b in (FaultyBackend(), DiesInTheRounds(), DiesAfterTheGate())})
    made.open(DENSE, 0)
    yield made
    made.shutdown()
    made.shutdown()


class DiesInTheRounds(FaultyBackend):
    """Fails at the third sample: its calls are so slow that each is a sample, and the gate warmed it up."""

    def __init__(self) -> None:
        super().__init__("test.dies_late")

    def prepare(self, problem, operands, config):
        right = super().prepare(problem, operands, config)
        calls = 0

        def run() -> None:
            nonlocal calls
            calls += 1
            if calls > GATE_CALLS + 2:
                raise RuntimeError("launch failed")
            right()

        return run


def test_rounds_give_everyone_as_many_samples_and_drop_who_is_wrong(executor: LocalExecutor):
    first, wrong, second = executor.rounds([FINE, WRONG, SLOW], n_rounds=9, budget_s=60.0, seed=0)
    assert (first.status, wrong.status, second.status) == (TrialStatus.OK, TrialStatus.WRONG, TrialStatus.OK)
    assert len(first.timing.samples_us) == len(second.timing.samples_us) == 9
    assert first.timing.time_us < second.timing.time_us, "samples are their own config's"


def test_rounds_end_after_six_when_the_budget_is_out(executor: LocalExecutor):
    (result,) = executor.rounds([FINE], n_rounds=1000, budget_s=0.0, seed=0)
    assert result.timing.n_samples == MIN_ROUNDS


def test_who_fails_in_the_rounds_crashed_and_the_others_go_on(executor: LocalExecutor):
    late = Candidate("test.dies_late", {"fault": "slow"})
    dies, fine, at_once = executor.rounds([late, FINE, Candidate("test.dies", {})], n_rounds=8, budget_s=60.0, seed=0)
    assert (dies.status, dies.timing) == (TrialStatus.CRASHED, None)
    assert "launch failed" in dies.error
    assert at_once.status is TrialStatus.CRASHED
    assert fine.timing.n_samples == 8


def test_nothing_is_collected_that_was_not_submitted(executor: LocalExecutor):
    executor.submit(FINE)
    executor.rounds([FINE], n_rounds=6, budget_s=0.0, seed=0)
    with pytest.raises(RuntimeError, match="nothing was submitted"):
        executor.collect(Effort())
