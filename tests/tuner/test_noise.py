"""A/A runs, with executors that follow a script; one that really measures is in the tests of the workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fp4tune.db.records import Timing, TrialStatus
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.problem import parse_shape
from fp4tune.tuner.executor import Candidate, Evaluation
from fp4tune.tuner.measure import Effort
from fp4tune.tuner.noise import Spread, run_noise

PROBLEM = parse_shape("3x48x64")
CANDIDATE = Candidate("a.b", {"tile": 16})


class Scripted:
    """An executor whose medians are given."""

    policy = "test.scripted"
    lookahead = 1

    def __init__(self, log: list[str], times: Iterator[float]):
        self.log, self.times, self.submitted = log, times, []

    def open(self, problem, seed):
        self.log.append(f"open {seed}")

    def submit(self, candidate):
        self.submitted.append(candidate)

    def collect(self, effort, *, best_us=None):
        assert best_us is None, "giving up early would cut the measurement short"
        us = next(self.times)
        if us <= 0:
            return self.submitted.pop(), Evaluation(TrialStatus.CRASHED, None, "Boom: it\nsecond line", None, 0.1)
        return self.submitted.pop(), Evaluation(TrialStatus.OK, Timing(us, us, us, [us], 1), "", 0.0, 0.1)

    def shutdown(self):
        self.log.append("shutdown")


def measured(times, pairs):
    log: list[str] = []
    script = iter(times)
    return log, lambda: run_noise(
        lambda: Scripted(log, script), PROBLEM, CANDIDATE, pairs=pairs, effort=Effort(), seed=7
    )


def test_pairs_within_and_across():
    log, run = measured([100.0, 101.0, 110.0, 110.0, 100.0, 98.0], pairs=2)
    noise = run()
    assert log == ["open 7", "shutdown"] * 3, "each process ends before the next begins"
    assert noise.times_us == ((100.0, 101.0), (110.0, 110.0), (100.0, 98.0))
    assert noise.within.ratios == pytest.approx((1.01, 1.0, 0.98))
    assert noise.across.ratios == pytest.approx((1.1, 100 / 110))
    assert noise.within.median == pytest.approx(0.01)
    assert noise.within.worst == pytest.approx(100 / 98 - 1)
    assert noise.across.median == noise.across.worst == pytest.approx(0.1)
    assert (noise.problem, noise.candidate, noise.policy) == (PROBLEM, CANDIDATE, "test.scripted")


def test_a_difference_has_no_direction():
    assert Spread((2.0, 0.5)).differences == (1.0, 1.0)


def test_a_config_that_cannot_be_measured_ends_it_and_its_process():
    log, run = measured([100.0, 0.0], pairs=3)
    with pytest.raises(UnsupportedError, match=r"^a\.b cannot be measured on this problem: crashed: Boom: it$"):
        run()
    assert log == ["open 7", "shutdown"]


def test_no_pairs_are_no_measurement():
    with pytest.raises(ValueError, match="at least one pair"):
        measured([], pairs=0)[1]()
