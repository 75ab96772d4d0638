"""What a search is held against: the same trials in random order, calculated and not run.

Of a run that tried N configs, m of which ran, let t(1) <= ... <= t(m) be their times. If k of the N are drawn at random
without replacement, the best of them is t(i) if t(i) is drawn and none of the i - 1 faster ones is: in

    C(N - i, k - 1) of C(N, k)

of all equally likely draws. That is the distribution of the smallest order statistic of a sample of a finite
population; what failed ranks behind everything that ran, and nothing ran at all in C(N - m, k) of them. From one i to
the next the chance falls by (N - i - k + 1) / (N - i), so nothing large is ever computed, and after some N/k terms it
is nothing: a curve over all k takes O(N log N). Auto-tuners are compared with such calculated searches elsewhere, too
(Kernel Tuner's `autotuning_methodology`), over a whole space; here it is over what one run tried.

It is not what a random search of the space would have done. A search that found good regions tried many good configs,
and in random order those come early: the curve then flatters random search, and a search that beats it has done more
than it shows. Only where everything past the defaults and seeds was enumerated, which is a random order, are the
configs a fair sample of the space. Nothing better can be had of what is stored: the sampler's own random trials are the
first few only (`search.STARTUP_TRIALS`), too few to say what a hundred would have found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

CERTAIN = 0.95
"""Chance that something ran from which on an expected best is given: before, it says what few draws would have."""

_NOTHING = 40.0
"""Terms beyond 40·N/k have a chance below e^-40 together."""


def expected_best(times_us: Sequence[float], n_failed: int, draws: Sequence[int]) -> list[float | None]:
    """The expected time of the best of k trials in random order, for every k of `draws`.

    Args:
        times_us: times of the trials that ran, microseconds, in any order; what is not finite and positive counts as
            failed.
        n_failed: trials that gave nothing.
        draws: numbers of trials, each from 1 to all.

    Returns:
        Microseconds, given that anything ran at all; None where that is less likely than CERTAIN.

    Raises:
        ValueError: a number of draws is none of 1 to all, or `n_failed` is negative.
    """
    import numpy as np

    given = np.asarray(times_us, dtype=np.float64)
    times = np.sort(given[np.isfinite(given) & (given > 0)])
    m, n = len(times), len(given) + n_failed
    if n_failed < 0:
        raise ValueError(f"{n_failed} trials cannot have failed")
    found: list[float | None] = []
    for k in draws:
        if not 1 <= k <= n:
            raise ValueError(f"{k} of {n} trials cannot be drawn")
        terms = n_terms(n, m, k)
        # chances[i - 1] is that of t(i); what is left of 1 is that of nothing, and of what was left out.
        i = np.arange(1, max(terms, 1))
        chances = k / n * np.concatenate(([1.0], np.cumprod((n - i - k + 1) / (n - i))))[:terms]
        ran = float(chances.sum())
        found.append(float((chances / ran) @ times[:terms]) if ran >= CERTAIN - 1e-9 else None)
    return found


def n_terms(n: int, n_ran: int, k: int) -> int:
    """How many terms the sum for the best of k of n trials needs, of which `n_ran` ran."""
    return min(n_ran, n - k + 1, math.ceil(_NOTHING * n / k) + 1)


def expected_draws(n: int, n_good: int) -> float:
    """How many of n trials in random order it takes on average until the first of `n_good` good ones: (n+1)/(n_good+1).

    The good ones part the others into n_good + 1 gaps, which are equally long on average: the mean of the negative
    hypergeometric distribution.

    Raises:
        ValueError: `n_good` is none of 1 to n.
    """
    if not 1 <= n_good <= n:
        raise ValueError(f"{n_good} of {n} trials cannot be the good ones")
    return (n + 1) / (n_good + 1)
