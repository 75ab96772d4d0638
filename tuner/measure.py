"""How a prepared callable is timed: the policies, and the loop that repeats until the interval is tight."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..db.records import Timing
from ..kernels.device import Device
from .stats import median_interval

MIN_SAMPLE_S = 200e-6
"""A sample spans at least this long: perf_counter costs about 0.1 µs and ticks in 1 ns on Linux,
so clock error stays far under 0.1 %; shorter calls are repeated inside one sample."""

HOPELESS_SAMPLES = 2
"""Samples that are looked at before a config is given up: one alone may have met a hiccup of the machine."""

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
    """

    warmup_s: float = 0.02
    min_samples: int = 6
    max_samples: int = 400
    target_half_width: float = 0.01
    budget_s: float = 0.5
    hopeless_factor: float = 2.0


class Clock(Protocol):
    """Times calls on one device.

    Attributes:
        policy: name of the measuring policy, stored with every trial so that policies are never mixed.
    """

    policy: str

    def sample_us(self, run: Callable[[], None], calls: int) -> float:
        """Run `calls` times; microseconds per call."""
        ...


class CpuClock:
    """Wall clock around synchronous calls, caches as the previous call left them."""

    policy = "cpu.warm"

    def sample_us(self, run: Callable[[], None], calls: int) -> float:
        """See Clock."""
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        return (time.perf_counter_ns() - start) / 1e3 / calls


class CudaEagerClock:
    """CUDA events around calls launched one by one from the host: launch gaps included, L2 warm."""

    policy = "cuda.eager"

    def __init__(self, device: Device) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device.torch_device)

    def sample_us(self, run: Callable[[], None], calls: int) -> float:
        """See Clock."""
        cuda = self._torch.cuda
        with cuda.device(self._device):
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda.synchronize()
            start.record()
            for _ in range(calls):
                run()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e3 / calls


def clock_for(device: Device) -> Clock:
    """The clock of a device's kind."""
    return CpuClock() if device.kind == "cpu" else CudaEagerClock(device)


def warm_up(clock: Clock, run: Callable[[], None], effort: Effort, *, ran_s: float) -> float:
    """Run until the callable has run for `effort.warmup_s` in all; microseconds of the last call.

    Args:
        clock: times the calls.
        run: the prepared callable.
        effort: how long to warm up.
        ran_s: how long its last call took just before, in seconds; a long one needs no more warming.
    """
    call_us = ran_s * 1e6
    deadline = time.monotonic() + effort.warmup_s - ran_s
    while call_us <= 0 or time.monotonic() < deadline:
        call_us = clock.sample_us(run, 1)
    return call_us


def calls_per_sample(call_us: float) -> int:
    """How many calls make a sample of at least MIN_SAMPLE_S."""
    return max(1, round(MIN_SAMPLE_S * 1e6 / call_us))


def measure(
    clock: Clock, run: Callable[[], None], effort: Effort, *, ran_s: float = 0.0, best_us: float | None = None
) -> Timing:
    """Time a callable until its median is known well enough, or the budget is out.

    Args:
        clock: times the calls.
        run: the prepared callable; its result has already been checked.
        effort: when to stop.
        ran_s: how long its last call took just before, in seconds.
        best_us: the best median so far of this problem, for giving up early.
    """
    deadline = time.monotonic() + effort.budget_s
    calls = calls_per_sample(warm_up(clock, run, effort, ran_s=ran_s))
    hopeless_us = effort.hopeless_factor * best_us if best_us is not None and effort.hopeless_factor > 0 else math.inf
    samples: list[float] = []
    while True:
        samples.append(clock.sample_us(run, calls))
        n = len(samples)
        if HOPELESS_SAMPLES <= n <= effort.min_samples and min(samples) > hopeless_us:
            break
        now = time.monotonic()
        if n < effort.min_samples and not (n >= SLOW_SAMPLES and now >= deadline + SLOW_PATIENCE * effort.budget_s):
            continue
        # The interval costs O(n log n), so it is looked at only now and then.
        tight = n % effort.min_samples == 0 and median_interval(samples).half_width < effort.target_half_width
        if tight or n >= effort.max_samples or now >= deadline:
            break
    return timing_of(samples)


def timing_of(samples: list[float]) -> Timing:
    """What samples in microseconds say."""
    interval = median_interval(samples)
    return Timing(interval.median, interval.low, interval.high, samples, len(samples))
