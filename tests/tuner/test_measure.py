from __future__ import annotations

import random
from dataclasses import replace

import pytest
from fp4tune.db.records import Conditions
from fp4tune.tuner.measure import (
    FINALIST_FACTOR,
    HOPELESS_SAMPLES,
    SLOW_SAMPLES,
    Effort,
    take_sample,
    take_samples,
)

EFFORT = Effort(warmup_s=0.0, min_samples=6, max_samples=50, target_half_width=0.01, budget_s=60.0)


class Scripted:
    """Loaded calls that take given times."""

    n_sets = 1

    def __init__(self, base_us: float, noise: float = 0.0):
        self.call_us, self.noise, self.log = base_us, noise, []
        self._draw = random.Random(0)

    def run(self):
        self.log.append("run")

    def warm_up(self, seconds):
        self.log.append(f"warm up {seconds}")

    def sample_us(self, *, after_others=False, meanwhile=None):
        self.log.append("sample after others" if after_others else "sample")
        if meanwhile is not None:
            meanwhile()
        return self.call_us * (1 + self._draw.gauss(0, self.noise))

    def release(self):
        self.log.append("release")


class Watching:
    """Says that every third sample is throttled."""

    def __init__(self, log):
        self.log, self.n = log, 0

    def before(self):
        self.log.append("before")

    def during(self):
        self.log.append("during")

    def after(self):
        self.log.append("after")
        self.n += 1
        return self.n % 3 == 0

    def conditions(self):
        return Conditions(throttle_reasons=("sw_power_cap",), throttled_samples=tuple(range(2, self.n, 3)))


def test_a_steady_config_needs_few_samples_and_a_noisy_one_all():
    assert take_samples(Scripted(1000.0, 0.001), EFFORT).timing.n_samples == 6
    assert take_samples(Scripted(1000.0, 0.2), EFFORT).timing.n_samples == 50


def test_it_warms_up_first_and_releases_nothing():
    loaded = Scripted(100.0)
    take_samples(loaded, Effort(warmup_s=0.25))
    assert loaded.log == ["warm up 0.25"] + ["sample"] * 6


def test_a_hopeless_config_is_given_up_and_still_has_a_timing():
    timing = take_samples(Scripted(1000.0, 0.2), EFFORT, best_us=100.0).timing
    assert timing.n_samples == HOPELESS_SAMPLES
    never = replace(EFFORT, hopeless_factor=0, far_factor=0)
    assert take_samples(Scripted(1000.0, 0.2), never, best_us=100.0).timing.n_samples == 50
    assert take_samples(Scripted(105.0, 0.2), EFFORT, best_us=100.0).timing.n_samples == 50


def test_a_config_that_is_no_finalist_for_sure_is_not_measured_any_better():
    far = take_samples(Scripted(150.0, 0.05), EFFORT, best_us=100.0).timing
    assert far.n_samples == EFFORT.min_samples
    assert far.time_us_low > FINALIST_FACTOR * 100.0
    unsure = take_samples(Scripted(118.0, 0.1), EFFORT, best_us=100.0).timing
    assert unsure.n_samples > EFFORT.min_samples, "some of its samples are below"
    assert unsure.n_samples == EFFORT.max_samples or unsure.time_us_low > FINALIST_FACTOR * 100.0
    assert take_samples(Scripted(150.0, 0.05), EFFORT).timing.n_samples == 50, "far from nothing"


def test_median_and_samples_are_those_of_the_clock():
    timing = take_samples(Scripted(500.0), EFFORT).timing
    assert timing.time_us == pytest.approx(500.0)
    assert list(timing.samples_us) == [500.0] * timing.n_samples


def test_an_error_of_the_config_comes_out():
    class Broken(Scripted):
        def sample_us(self, **_):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        take_samples(Broken(1.0), EFFORT)


def test_a_config_slow_beyond_patience_makes_do_with_three_samples():
    no_time = Effort(warmup_s=0.0, min_samples=6, max_samples=50, target_half_width=0.01, budget_s=0.0)
    assert take_samples(Scripted(1000.0, 0.2), no_time).timing.n_samples == SLOW_SAMPLES


def test_every_sample_is_watched_and_a_throttled_one_is_kept():
    loaded = Scripted(100.0)
    measured = take_samples(loaded, EFFORT, watch=Watching(loaded.log))
    assert loaded.log[1:] == ["before", "sample", "during", "after"] * 6
    assert measured.timing.n_samples == 6
    assert measured.conditions == Conditions(throttle_reasons=("sw_power_cap",), throttled_samples=(2, 5))
    assert take_samples(Scripted(100.0), EFFORT).conditions is None


def test_a_single_sample_says_whether_it_was_throttled():
    loaded = Scripted(100.0)
    watch = Watching(loaded.log)
    samples = [take_sample(loaded, watch, after_others=True) for _ in range(3)]
    assert [s.throttled for s in samples] == [False, False, True]
    assert [s.us for s in samples] == [100.0] * 3
    assert loaded.log.count("sample after others") == 3
