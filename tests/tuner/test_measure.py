from __future__ import annotations

import random

import pytest
from fp4tune.kernels.device import detect
from fp4tune.tuner.measure import HOPELESS_SAMPLES, MIN_SAMPLE_S, SLOW_SAMPLES, CpuClock, Effort, clock_for, measure

EFFORT = Effort(warmup_s=0.0, min_samples=6, max_samples=50, target_half_width=0.01, budget_s=60.0)


class ScriptedClock:
    """Returns given times instead of looking at a clock; calls nothing twice that it should not."""

    policy = "test.scripted"

    def __init__(self, base_us: float, noise: float = 0.0):
        self.base_us, self.noise, self.calls = base_us, noise, []
        self._draw = random.Random(0)

    def sample_us(self, run, calls):
        self.calls.append(calls)
        run()
        return self.base_us * (1 + self._draw.gauss(0, self.noise))


def test_a_steady_config_needs_few_samples_and_a_noisy_one_all():
    steady, noisy = ScriptedClock(1000.0, 0.001), ScriptedClock(1000.0, 0.2)
    assert measure(steady, lambda: None, EFFORT).n_samples == 6
    assert measure(noisy, lambda: None, EFFORT).n_samples == 50


def test_short_calls_are_repeated_inside_a_sample():
    clock = ScriptedClock(2.0)
    measure(clock, lambda: None, EFFORT)
    assert clock.calls[0] == 1
    assert clock.calls[-1] == round(MIN_SAMPLE_S * 1e6 / 2.0)


def test_a_hopeless_config_is_given_up_and_still_has_a_timing():
    timing = measure(ScriptedClock(1000.0, 0.2), lambda: None, EFFORT, best_us=100.0)
    assert timing.n_samples == HOPELESS_SAMPLES
    never = Effort(warmup_s=0.0, min_samples=6, max_samples=50, budget_s=60.0, hopeless_factor=0)
    assert measure(ScriptedClock(1000.0, 0.2), lambda: None, never, best_us=100.0).n_samples == 50


def test_median_and_samples_are_those_of_the_clock():
    timing = measure(ScriptedClock(500.0), lambda: None, EFFORT)
    assert timing.time_us == pytest.approx(500.0)
    assert list(timing.samples_us) == [500.0] * timing.n_samples


def test_the_cpu_clock_runs_as_often_as_it_says():
    count = 0

    def run():
        nonlocal count
        count += 1

    assert CpuClock().sample_us(run, 37) > 0
    assert count == 37
    assert clock_for(detect("cpu")).policy == "cpu.warm"


def test_an_error_of_the_config_comes_out():
    def run():
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        measure(CpuClock(), run, EFFORT)


def test_a_config_slow_beyond_patience_makes_do_with_three_samples():
    no_time = Effort(warmup_s=0.0, min_samples=6, max_samples=50, target_half_width=0.01, budget_s=0.0)
    assert measure(ScriptedClock(1000.0, 0.2), lambda: None, no_time).n_samples == SLOW_SAMPLES
