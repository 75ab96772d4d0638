"""Policies and the CPU's clock; the CUDA clocks are tested where there is a GPU, in tests/gpu."""

from __future__ import annotations

import time

import pytest
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.tuner import clocks
from fp4tune.tuner.clocks import LONG_CALL_US, MAX_CALLS, MIN_SAMPLE_CPU_US, POLICIES, CpuClock, clock_for

CPU = detect("cpu")


class Counted:
    """A call that counts itself, and takes as long as it is told."""

    def __init__(self, seconds: float = 0.0):
        self.calls, self.seconds = 0, seconds

    def __call__(self) -> None:
        self.calls += 1
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass


def test_a_policy_belongs_to_a_kind_of_device():
    assert clock_for(CPU).policy == clock_for(CPU, "cpu.warm").policy == "cpu.warm"
    assert POLICIES["cuda"][0] == "cuda.graph"
    for policy in ("cuda.graph", "eager", "CPU.WARM"):
        with pytest.raises(InvalidInputError, match=r"^A cpu device is measured by cpu\.warm, not by "):
            clock_for(CPU, policy)


def test_short_calls_are_repeated_inside_a_sample_and_long_ones_are_not():
    for call_us, calls in ((2.0, round(MIN_SAMPLE_CPU_US / 2)), (MIN_SAMPLE_CPU_US * 10, 1)):
        run = Counted()
        assert CpuClock().load([run], call_s=call_us / 1e6).sample_us() > 0
        assert run.calls == calls


def test_a_sample_goes_through_all_sets_equally_often():
    runs = [Counted() for _ in range(3)]
    loaded = CpuClock().load(runs, call_s=10e-6)
    assert loaded.n_sets == 3
    loaded.sample_us()
    assert {run.calls for run in runs} == {round(MIN_SAMPLE_CPU_US / 10 / 3)}
    loaded.run()
    assert {run.calls for run in runs} == {round(MIN_SAMPLE_CPU_US / 10 / 3) + 1}


def test_a_sample_is_what_a_call_took():
    loaded = CpuClock().load([Counted(0.003)], call_s=0.003)
    assert loaded.sample_us() >= 3000


def test_after_others_a_short_call_first_brings_back_what_they_evicted():
    for call_us, extra in ((LONG_CALL_US / 2, 1), (LONG_CALL_US * 2, 0)):
        run = Counted()
        CpuClock().load([run], call_s=call_us / 1e6).sample_us(after_others=True)
        assert run.calls == 1 + extra


def test_warming_up_counts_what_ran_before():
    warm = Counted()
    CpuClock().load([warm], call_s=0.5).warm_up(0.4)
    assert warm.calls == 0
    fresh = Counted()
    loaded = CpuClock().load([fresh], call_s=0.0)
    loaded.warm_up(0.0)
    assert fresh.calls == 1, "how long a call takes must be known"
    assert loaded.call_us > 0
    cold = Counted(0.001)
    CpuClock().load([cold], call_s=0.001).warm_up(0.01)
    assert cold.calls >= 1


def test_a_rotation_that_would_take_too_long_is_cut():
    runs = [Counted() for _ in range(100)]
    assert len(clocks._affordable(runs, 1e-4)) == 100
    assert len(clocks._affordable(runs, clocks.MAX_ROTATION_S / 10)) == 10
    assert len(clocks._affordable(runs, 60.0)) == 1
    assert len(clocks._affordable(runs, 0.0)) == 100


def test_a_graph_is_long_enough_for_its_events_and_not_endless():
    assert clocks._rotations(clocks.MIN_SAMPLE_CUDA_US * 2, 3) == 1
    assert clocks._rotations(100.0, 10) == clocks.MIN_SAMPLE_CUDA_US / 100
    assert clocks._rotations(0.0, 10) * 10 <= MAX_CALLS
    assert clocks._rotations(0.0, MAX_CALLS * 2) == 1
