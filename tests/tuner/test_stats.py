from __future__ import annotations

import random

import pytest
from fp4tune.tuner.stats import median_interval, paired_ratio
from hypothesis import given
from hypothesis import strategies as st

positive = st.floats(min_value=1e-3, max_value=1e9, allow_nan=False)


@given(st.lists(positive, min_size=1, max_size=200))
def test_interval_is_ordered_and_inside_the_samples(samples: list[float]):
    interval = median_interval(samples)
    assert min(samples) <= interval.low <= interval.median <= interval.high <= max(samples)
    assert interval.half_width >= 0


@pytest.mark.parametrize("n", [6, 15, 40, 400, 1500])
def test_interval_covers_the_true_median_as_often_as_it_says(n: int):
    """A skewed distribution (lognormal, median 1), as timings are; 95 % nominal, at least 92 % of 600 draws seen."""
    draw = random.Random(n)
    hits = 0
    for _ in range(600):
        interval = median_interval([draw.lognormvariate(0, 0.5) for _ in range(n)])
        hits += interval.low <= 1 <= interval.high
    assert hits >= 0.92 * 600


def test_interval_ranks_are_the_textbook_ones():
    """Order-statistic intervals of the median at 95 %: n=6 [1,6], n=10 [2,9], n=20 [6,15] (1-based ranks)."""
    for n, low, high in ((6, 1, 6), (10, 2, 9), (20, 6, 15)):
        interval = median_interval([float(i) for i in range(1, n + 1)])
        assert (interval.low, interval.high) == (low, high)


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
