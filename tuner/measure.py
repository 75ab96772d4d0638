"""The loop that repeats until a median is known well enough, and one sample under the eyes of a monitor."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..db.records import Conditions, Timing
from .clocks import Loaded
from .monitor import BlindWatch, Watch
from .stats import median_interval

HOPELESS_SAMPLES = 2
"""Samples that are looked at before a config is given up: one alone may have met a hiccup of the machine."""

FINALIST_FACTOR = 1.15
"""A config slower than this many times the best of the search is no finalist (see `select`)."""

SLOW_SAMPLES = 3
SLOW_PATIENCE = 3
"""A config so slow that its budget has been overrun three times over makes do with three samples, whose interval is
their range; if it matters, the finals measure it again, at least six times."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to measure one config.

    Attributes:
        warmup_s: run this long before the first sample, at least once.
        min_samples: never fewer, unless it gives up (hopeless, or slow beyond patience).
        max_samples: never more.
        target_half_width: stop once the interval's half-width relative to the median is below this.
        budget_s: stop after this long, samples permitting.
        hopeless_factor: give up on a config whose first samples (two or more) are all slower than this many times
            the best so far; 0 never gives up.
        far_factor: stop once the whole interval lies beyond this many times the best so far, however wide it is: more
            samples would not make a finalist of it. 0 never does.
    """

    warmup_s: float = 0.02
    min_samples: int = 6
    max_samples: int = 400
    target_half_width: float = 0.01
    budget_s: float = 0.5
    hopeless_factor: float = 2.0
    far_factor: float = FINALIST_FACTOR


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample.

    Attributes:
        us: microseconds per call. throttled: whether something held the clocks back before, during or after it.
    """

    us: float
    throttled: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of measuring one config.

    Attributes:
        timing: median, interval and samples; those that were throttled are among them.
        conditions: what the device was like meanwhile; None where nothing can be seen.
    """

    timing: Timing
    conditions: Conditions | None


def take_sample(loaded: Loaded, watch: Watch, *, after_others: bool = False) -> Sample:
    """One sample, watched. `after_others`: see Loaded.sample_us."""
    watch.before()
    us = loaded.sample_us(after_others=after_others, meanwhile=watch.during)
    return Sample(us, watch.after())


def take_samples(
    loaded: Loaded, effort: Effort, *, watch: Watch | None = None, best_us: float | None = None
) -> Measured:
    """Time calls until their median is known well enough, or the budget is out.

    Args:
        loaded: the calls; their results have already been checked.
        effort: when to stop.
        watch: looks on; None for nobody.
        best_us: the best median so far of this problem, for giving up early.
    """
    watch = watch or BlindWatch()
    deadline = time.monotonic() + effort.budget_s
    loaded.warm_up(effort.warmup_s)
    hopeless_us, far_us = (
        factor * best_us if best_us is not None and factor > 0 else math.inf
        for factor in (effort.hopeless_factor, effort.far_factor)
    )
    samples: list[float] = []
    while True:
        samples.append(take_sample(loaded, watch).us)
        n = len(samples)
        if HOPELESS_SAMPLES <= n <= effort.min_samples and min(samples) > hopeless_us:
            break
        now = time.monotonic()
        if n < effort.min_samples and not (n >= SLOW_SAMPLES and now >= deadline + SLOW_PATIENCE * effort.budget_s):
            continue
        if n >= effort.max_samples or now >= deadline:
            break
        if n % effort.min_samples == 0:  # an interval costs O(n log n), so it is looked at only now and then
            interval = median_interval(samples)
            if interval.half_width < effort.target_half_width or interval.low > far_us:
                break
    return Measured(timing_of(samples), watch.conditions())


def timing_of(samples: Sequence[float]) -> Timing:
    """What samples in microseconds say."""
    interval = median_interval(samples)
    return Timing(interval.median, interval.low, interval.high, samples, len(samples))
