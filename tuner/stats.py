"""Distribution-free statistics of repeated timings: medians and their intervals, paired comparisons.

Timings are skewed and have outliers, so nothing here assumes a distribution. The interval of a median is the
classic one from order statistics: if X(1) <= ... <= X(n) are the sorted samples, [X(j), X(n+1-j)] covers the
median with probability 1 - 2·P(Binomial(n, 1/2) < j), whatever the distribution (Conover, Practical Nonparametric
Statistics, 3rd ed., section 3.2).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
"""Coverage of every interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and its interval, in the unit of the samples.

    Attributes:
        median: sample median.
        low: lower end. high: upper end.
    """

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval's width relative to the median."""
        return (self.high - self.low) / 2 / self.median


@lru_cache(maxsize=4096)
def _rank(n: int) -> int:
    """The largest 1-based rank j so that [X(j), X(n+1-j)] covers the median with at least CONFIDENCE.

    Below six samples no such pair exists; then 1, the whole range (n = 5 covers with 93.75 %).
    """
    tail = 0.0
    total = 2.0**n if n < 1000 else math.inf
    if total == math.inf:  # normal approximation, exact to one rank at this n
        return max(1, math.floor((n + 1) / 2 - 1.96 * math.sqrt(n) / 2))
    rank = 1
    for j in range(n // 2):
        tail += math.comb(n, j) / total
        if 1 - 2 * tail < CONFIDENCE:
            break
        rank = j + 1
    return rank


def median_interval(samples: Sequence[float]) -> Interval:
    """Median and 95 % interval of the median.

    Args:
        samples: at least one finite number.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    return Interval(statistics.median(ordered), ordered[rank - 1], ordered[-rank])


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Interval of the median of numerator[i]/denominator[i]: how many times as long, round by round.

    Pairing removes what both have in common in a round: clocks, temperature, a noisy neighbour.

    Raises:
        ValueError: the two differ in length, or are empty.
    """
    return median_interval([a / b for a, b in zip(numerator, denominator, strict=True)])
