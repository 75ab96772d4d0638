from __future__ import annotations

import random
import statistics
from math import comb

import numpy as np
import pytest
from fp4tune.tuner.stats import FEW, binomial_tail, bootstrap_rank, median_interval, order_rank, paired_ratio
from hypothesis import given
from hypothesis import strategies as st

positive = st.floats(min_value=1e-3, max_value=1e9, allow_nan=False)


@given(st.lists(positive, min_size=1, max_size=200))
def test_interval_is_ordered_and_inside_the_samples(samples: list[float]):
    interval = median_interval(samples)
    assert min(samples) <= interval.low <= interval.median <= interval.high <= max(samples)
    assert interval.half_width >= 0


@given(st.lists(positive, min_size=1, max_size=60), st.randoms())
def test_the_same_samples_give_the_same_interval_in_any_order(samples: list[float], shuffler: random.Random):
    shuffled = list(samples)
    shuffler.shuffle(shuffled)
    assert median_interval(shuffled) == median_interval(samples)


@pytest.mark.parametrize("n", [6, 7, 8, 13, 15, 33, 40, 400, 1500])
def test_interval_covers_the_true_median_as_often_as_it_says(n: int):
    """A skewed distribution (lognormal, median 1), as timings are; 95 % nominal.

    Of 4000 draws at least 95 % for few samples, and the 92 % of the worst n from FEW on, less three standard errors.
    """
    draws = np.random.default_rng(n).lognormal(0, 0.5, size=(4000, n))
    intervals = [median_interval(row) for row in draws.tolist()]
    coverage = sum(i.low <= 1 <= i.high for i in intervals) / 4000
    assert coverage >= (0.95 if n < FEW else 0.92) - 3 * (0.05 * 0.95 / 4000) ** 0.5
    assert coverage < 0.99 or n < FEW, "an interval that is never wrong is too wide"


def exact_coverage(n: int, rank: int) -> float:
    return 1 - 2 * sum(comb(n, i) for i in range(rank)) / 2**n


def test_exact_coverage_is_what_the_constants_say():
    ranks = {n: min(bootstrap_rank(n), order_rank(n)) if n < FEW else bootstrap_rank(n) for n in range(6, 1000)}
    coverage = {n: exact_coverage(n, rank) for n, rank in ranks.items()}
    assert min(coverage[n] for n in range(6, FEW)) >= 0.95
    assert min(coverage.values()) == coverage[33] == pytest.approx(0.920, abs=5e-4)
    assert min(coverage[n] for n in coverage if n % 2 == 0) == coverage[34] == pytest.approx(0.942, abs=5e-4)
    assert exact_coverage(7, bootstrap_rank(7)) == pytest.approx(0.875), "why few samples need widening"


@pytest.mark.parametrize("n", [31, 40, 41, 100])
def test_the_closed_form_is_what_resampling_gives(n: int):
    """20,000 resamples of skewed samples: their percentiles are the closed form's order statistics, to a rank."""
    generator = np.random.default_rng(n)
    samples = np.sort(generator.lognormal(0, 0.5, size=n))
    medians = np.median(generator.choice(samples, size=(20_000, n)), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    rank, interval = bootstrap_rank(n), median_interval(samples.tolist())
    assert (interval.low, interval.high) == (samples[rank - 1], samples[-rank])
    # For odd n the median is a sample, for even n it may lie between two.
    assert samples[max(0, rank - 2)] <= low <= samples[rank]
    assert samples[-rank - 1] <= high <= samples[min(n - 1, n - rank + 1)]
    if n % 2:
        assert np.searchsorted(samples, low) in {rank - 2, rank - 1, rank}
        share = np.mean(medians <= interval.low)
        assert share == pytest.approx(binomial_tail(n, rank / n, (n + 1) // 2), abs=0.005)
    else:
        assert np.mean(medians < interval.low) < 0.025 + 0.005
        assert interval.low <= low
        assert high <= interval.high


def test_the_binomial_tail_is_the_sum_that_it_stands_for():
    for n, p, least in ((6, 1 / 6, 3), (10, 0.2, 5), (37, 0.3, 19), (200, 0.43, 100), (5, 1.0, 3)):
        exact = sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(least, n + 1))
        assert binomial_tail(n, p, least) == pytest.approx(exact, rel=1e-10)
    assert binomial_tail(1_000_000, 0.5, 500_000) == pytest.approx(0.5, abs=1e-3)


def test_interval_ranks_are_the_textbook_ones():
    """Order-statistic intervals of the median at 95 %: n=6 [1,6], n=10 [2,9], n=20 [6,15] (1-based ranks)."""
    for n, low, high in ((6, 1, 6), (10, 2, 9), (20, 6, 15)):
        interval = median_interval([float(i) for i in range(1, n + 1)])
        assert (interval.low, interval.high) == (low, high)
        assert interval.median == statistics.median(range(1, n + 1))


def test_pairing_removes_what_both_have_in_common():
    drift = [1.0, 3.0, 2.0, 5.0, 1.5, 4.0, 2.5, 8.0]
    ratio = paired_ratio([1.1 * d for d in drift], drift)
    assert ratio.low == pytest.approx(1.1)
    assert ratio.high == pytest.approx(1.1)


def test_no_samples_and_unpaired_samples_are_refused():
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    with pytest.raises(ValueError, match="longer|shorter"):
        paired_ratio([1.0], [1.0, 2.0])
