from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from fp4tune.tuner.random_baseline import CERTAIN, expected_best, expected_draws, n_terms
from hypothesis import given
from hypothesis import strategies as st


def brute(times: list[float], n_failed: int, k: int) -> float | None:
    """Every subset of k of all trials is as likely as any other."""
    everything = [*times, *[math.inf] * n_failed]
    bests = [min(drawn) for drawn in itertools.combinations(everything, k)]
    ran = [best for best in bests if best < math.inf]
    return statistics.fmean(ran) if len(ran) >= CERTAIN * len(bests) else None


@pytest.mark.parametrize("draws", [[0], [4], [-1]])
def test_impossible_draws_are_refused(draws: list[int]):
    with pytest.raises(ValueError, match="cannot be drawn"):
        expected_best([1.0, 2.0], 1, draws)


def test_a_negative_number_of_failures_is_refused():
    with pytest.raises(ValueError, match="cannot have failed"):
        expected_best([1.0], -1, [1])


def test_of_nothing_that_ran_nothing_is_expected():
    assert expected_best([], 3, [1, 2, 3]) == [None, None, None]
    assert expected_best([], 0, []) == []


def test_times_that_are_none_count_as_failed():
    bad = [math.nan, math.inf, -math.inf, 0.0, -3.0]
    assert expected_best([5.0, *bad], 0, [6]) == [5.0] == expected_best([5.0], 5, [6])
    assert expected_best([5.0, *bad], 0, [1]) == [None]


def test_a_huge_time_stays_finite():
    (best,) = expected_best([1e308, 1.7e308, 1.7e308], 0, [1])
    assert best == pytest.approx(1e308 / 3 + 1.7e308 / 1.5)


@given(st.lists(st.floats(0.1, 1e4), max_size=7), st.integers(0, 4))
def test_it_is_what_every_subset_gives(times: list[float], n_failed: int):
    n = len(times) + n_failed
    found = expected_best(times, n_failed, range(1, n + 1))
    for k, best in enumerate(found, 1):
        exact = brute(times, n_failed, k)
        assert (best is None) == (exact is None)
        assert exact is None or best == pytest.approx(exact, rel=1e-12)


def test_it_is_what_shuffling_gives():
    """20,000 random orders of 60 trials, a sixth of which failed: each mean within four standard errors."""
    generator = np.random.default_rng(3)
    times = generator.lognormal(3, 0.7, size=50)
    everything = np.concatenate([times, np.full(10, np.inf)])
    orders = generator.permuted(np.tile(everything, (20_000, 1)), axis=1)
    bests = np.minimum.accumulate(orders, axis=1)
    for k, best in zip((2, 5, 20, 59, 60), expected_best(times.tolist(), 10, [2, 5, 20, 59, 60]), strict=True):
        ran = bests[:, k - 1][np.isfinite(bests[:, k - 1])]
        assert best == pytest.approx(ran.mean(), abs=4 * ran.std() / len(ran) ** 0.5 + 1e-9)


def test_more_draws_never_expect_worse_and_all_of_them_find_the_best():
    times = [float(t) for t in np.random.default_rng(1).lognormal(2, 1, size=300)]
    found = expected_best(times, 0, range(1, 301))
    assert found[0] == pytest.approx(statistics.fmean(times))
    assert all(later <= sooner for sooner, later in itertools.pairwise(found))
    assert found[-1] == min(times)


def test_what_is_left_out_of_the_sum_is_nothing():
    """Every term of one that is cut short, by exact binomials."""
    n, k = 5000, 700
    times = [float(i) for i in range(1, n + 1)]
    n_draws = math.comb(n, k)
    exact = float(sum(Fraction(i * math.comb(n - i, k - 1), n_draws) for i in range(1, 1000)))
    assert expected_best(times, 0, [k]) == [pytest.approx(exact, rel=1e-12)]
    assert exact == pytest.approx((n + 1) / (k + 1)), "the known mean of the smallest of k of 1 to n"


def test_a_hundred_thousand_trials_need_few_terms():
    """O(n log n): the sums of 2,000 points of the curve have 2 million terms, where n a point would be 200 million."""
    n = 100_000
    times = np.random.default_rng(0).lognormal(2, 1, size=n).tolist()
    draws = [1, *range(50, n + 1, 50)]
    assert expected_best(times, 0, draws)[-1] == min(times)
    assert sum(n_terms(n, n, k) for k in draws) < 2e6


@pytest.mark.parametrize(("n", "n_good"), [(5, 1), (6, 3), (7, 7)])
def test_expected_draws_are_those_of_every_order(n: int, n_good: int):
    firsts = [min(places) + 1 for places in itertools.combinations(range(n), n_good)]
    assert expected_draws(n, n_good) == pytest.approx(statistics.fmean(firsts))


@pytest.mark.parametrize("n_good", [0, 6])
def test_expected_draws_refuse_what_cannot_be(n_good: int):
    with pytest.raises(ValueError, match="cannot be the good ones"):
        expected_draws(5, n_good)


def test_importing_it_imports_nothing_heavy():
    code = "import sys, fp4tune.tuner.random_baseline; print({'numpy', 'torch', 'optuna'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
