"""How samples of one config are spread, and whether they hang together: without a distribution in mind, as in `stats`.

An interval of a median takes samples for independent. Two things speak against that, and both are looked for by ranks,
which an outlier does not move: neighbours that resemble each other (autocorrelation at lag 1; beyond 1.96/sqrt(n) it is
no chance, Box, Jenkins and Reinsel, Time Series Analysis, 4th ed., section 2.1.6), and a drift over the whole
measurement (the test of Mann, Econometrica 13, 1945, and Kendall).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .....tuner.stats import median_interval

FEW = 10
"""Fewer samples say nothing of neighbours and drifts."""

_BEYOND_CHANCE = 1.96
"""95 % of a standard normal distribution lie within."""

_DRIFTS = 2.576
"""99 %: eight configs are looked at on one page."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How samples are spread.

    Attributes:
        n: how many.
        least, quarter, median, three_quarters, most: quartiles, in the samples' unit.
        variation: coefficient of variation, standard deviation over mean; None of a single one.
        half_width: half the 95 % interval of the median, relative to it.
        autocorrelation: of the ranks at lag 1, -1 to 1; None of few samples or of equal ones.
        drift: median of the later half over that of the earlier half, less one; None of few samples.
        drifts: whether a trend is more than chance.
    """

    n: int
    least: float
    quarter: float
    median: float
    three_quarters: float
    most: float
    variation: float | None
    half_width: float
    autocorrelation: float | None
    drift: float | None
    drifts: bool

    @property
    def hangs_together(self) -> bool:
        """Whether neighbours resemble each other beyond chance."""
        return self.autocorrelation is not None and self.autocorrelation * math.sqrt(self.n) > _BEYOND_CHANCE

    @property
    def honest_half_width(self) -> float:
        """The half-width that so many samples are worth if they hang together; else the half-width itself.

        n of them are worth n(1 - r)/(1 + r): for the mean of a long first-order autoregression (Bayley and Hammersley,
        Supplement to the Journal of the Royal Statistical Society 8, 1946), and a guide for a median.
        """
        if not self.hangs_together or self.autocorrelation is None:
            return self.half_width
        r = min(self.autocorrelation, 0.99)
        return self.half_width * math.sqrt((1 + r) / (1 - r))


def spread(samples: Sequence[float]) -> Spread | None:
    """How samples, in the order they were taken, are spread; None if there is no finite, positive one."""
    taken = [one for one in samples if math.isfinite(one) and one > 0]
    if not taken:
        return None
    n = len(taken)
    interval = median_interval(taken)
    quarter, _, three_quarters = statistics.quantiles(taken, n=4, method="inclusive") if n > 1 else taken * 3
    enough = n >= FEW
    drift = statistics.median(taken[(n + 1) // 2 :]) / statistics.median(taken[: n // 2]) - 1 if enough else None
    return Spread(
        n,
        min(taken),
        quarter,
        interval.median,
        three_quarters,
        max(taken),
        statistics.stdev(taken) / statistics.fmean(taken) if n > 1 else None,
        interval.half_width,
        _autocorrelation(_ranks(taken)) if enough else None,
        drift,
        enough and abs(_trend(taken)) > _DRIFTS,
    )


def _ranks(samples: Sequence[float]) -> list[float]:
    """Ranks from 1; equal ones share the mean of theirs."""
    order = sorted(range(len(samples)), key=samples.__getitem__)
    ranks = [0.0] * len(samples)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and samples[order[stop]] == samples[order[start]]:
            stop += 1
        for place in order[start:stop]:
            ranks[place] = (start + 1 + stop) / 2
        start = stop
    return ranks


def _autocorrelation(values: Sequence[float]) -> float | None:
    mean = statistics.fmean(values)
    off = [value - mean for value in values]
    total = sum(one * one for one in off)
    return sum(a * b for a, b in pairwise(off)) / total if total else None


def _trend(samples: Sequence[float]) -> float:
    """Mann and Kendall's statistic, standard normal without a trend; positive if samples grow."""
    n = len(samples)
    s = sum((later > one) - (later < one) for i, one in enumerate(samples) for later in samples[i + 1 :])
    ties = [samples.count(value) for value in set(samples)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    return (s - math.copysign(1, s)) / math.sqrt(variance) if s and variance > 0 else 0.0
