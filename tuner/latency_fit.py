"""Fitting a latency model: relative least absolute deviation, exact in two of its constants, a grid in the others.

The form is `t = max(x1 * bytes, x2 * flops, x3 * K) + launch`, and what is minimised is the sum of `|t - measured| /
measured`: a few wild measurements must not bend it, and a microsecond counts more where there are few. A time that is
wildly short would count the most of all; one below half of what the fit says weighs by that instead, and all is fitted
again.

That is not convex. But once the ratios of the x are given, the maximum is one known quantity q a problem, and what is
left, `x * q + launch`, is a line: for a given launch the best x is a weighted median (Koenker, Quantile Regression,
2005, section 1.3), and the best loss is convex in launch. So only the ratios are searched, on a grid between the
smallest and the largest at which they decide anything, which is then refined around its best nodes. There is nothing
random in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..kernels.errors import UnsupportedError
from .latency_model import Point, Term

Array = npt.NDArray[np.float64]

MIN_POINTS = 8
"""Fewest problems that are fitted: twice as many as there are constants."""

MIN_LAYERS = 3
"""Fewest layers (problems that differ in M alone are of one): each is held out once, and two must be left."""

MIN_BOUND = 3
"""Fewest problems that a term must bind to be believed: with two a line goes through any two times."""

MIN_SPAN = 1.25
"""The largest of a term's quantity among the problems that it binds, over the smallest: else it is no slope."""

MIN_PART = 0.05
"""Part of the longest time that a term binds which the term must make up, the launch being the rest: what is less is
lost in the noise of the measurements."""

_MAX_FOLDS = 32
"""Fits made to hold something out: one a layer, or, of more layers than this, one for every 32nd of them."""

_NODES = 24
"""Ratios on each axis of the grid."""

_MOST_AT_ONCE = 250_000
"""Grid nodes times problems: of more than 434 problems every k-th is looked at on the grid, all when it is refined."""

_STARTS, _ROUNDS = 3, 9
"""Nodes that are refined, and rounds, each of which halves the step: from a factor of about 1.4 down to 1.001."""

_REWEIGHTINGS = 4
"""Most fits after the first to take the weight from times that are wildly short."""

_GOLDEN = (math.sqrt(5) - 1) / 2
_COARSE, _FINE = 14, 40
"""Steps of golden section: the interval of the launch constant shrinks to 1e-3 and to 4e-9 of what it was."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What came out.

    Attributes:
        launch_us: the constant part, microseconds.
        us_per: microseconds a byte, an operation and an element of K; without those terms that cannot be told.
        binds: problems that each term binds, for the terms of `us_per`.
    """

    launch_us: float
    us_per: Mapping[Term, float]
    binds: Mapping[Term, int]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What a fit without a problem's layer says of it, beside the measurement.

    Attributes:
        point: the problem. estimate_us: microseconds.
    """

    point: Point
    estimate_us: float

    @property
    def error(self) -> float:
        """|estimate / measurement - 1|."""
        return abs(self.estimate_us / self.point.time_us - 1)


def fit(points: Sequence[Point]) -> Fit:
    """Fit the constants, without those that the measurements do not decide.

    A term that binds too few problems, or only problems of about the same size, is left out and the rest fitted anew.

    Args:
        points: at least MIN_POINTS problems, each once.

    Raises:
        UnsupportedError: there are fewer, or their times do not grow with anything.
    """
    if len(points) < MIN_POINTS:
        raise UnsupportedError(f"{_counted(len(points), 'problem')} measured, and a fit needs {MIN_POINTS}.")
    return _fit(points)


def _fit(points: Sequence[Point]) -> Fit:
    quantities = np.array([_quantities(point) for point in points])
    times = np.array([point.time_us for point in points])
    terms = list(Term)
    while terms:
        launch_us, slopes = _robust(quantities[:, _columns(terms)], times)
        parts = slopes * quantities[:, _columns(terms)]
        bound = parts.argmax(axis=1)
        weak = [i for i in range(len(terms)) if not _is_decided(parts[bound == i, i], launch_us)]
        if not weak:
            us_per = dict(zip(terms, map(float, slopes), strict=True))
            return Fit(launch_us, us_per, {term: int((bound == i).sum()) for i, term in enumerate(terms)})
        del terms[min(weak, key=lambda i: int((bound == i).sum()))]
    raise UnsupportedError("the measured times do not grow with bytes, operations or K, so nothing can be fitted.")


def held_out(points: Sequence[Point]) -> list[HeldOut]:
    """What is said of every problem by a fit that has not seen its layer.

    Args:
        points: as for `fit`.

    Raises:
        UnsupportedError: they are of fewer than MIN_LAYERS layers, or without one of them times do not grow.
    """
    layers = sorted({point.layer for point in points})
    if len(layers) < MIN_LAYERS:
        raise UnsupportedError(
            f"{_counted(len(layers), 'layer')} measured (N and K), and a fit needs {MIN_LAYERS}, each of which is held "
            "out once."
        )
    n_folds = min(len(layers), _MAX_FOLDS)
    fold_of = {layer: i % n_folds for i, layer in enumerate(layers)}
    found: list[HeldOut] = []
    for fold in range(n_folds):
        without = _fit([point for point in points if fold_of[point.layer] != fold])
        found += [HeldOut(p, estimate_us(without, p)) for p in points if fold_of[p.layer] == fold]
    return found


def estimate_us(fitted: Fit, point: Point) -> float:
    """What a fit says of a problem, microseconds."""
    quantities = _quantities(point)
    return fitted.launch_us + max(us * quantities[_COLUMN[term]] for term, us in fitted.us_per.items())


def quantile(errors: Sequence[float], share: float) -> float:
    """The smallest of the errors that at least this share of them do not exceed."""
    return sorted(errors)[max(0, math.ceil(share * len(errors)) - 1)]


_COLUMN = {term: i for i, term in enumerate(Term)}


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun} is" if n == 1 else f"{n} {noun}s are"


def _quantities(point: Point) -> tuple[float, float, float]:
    return float(point.n_bytes), float(point.n_flops), float(point.problem.k)


def _columns(terms: Sequence[Term]) -> list[int]:
    return [_COLUMN[term] for term in terms]


def _is_decided(parts: Array, launch_us: float) -> bool:
    """Whether problems of whose time a term makes up these parts, in microseconds, decide its slope."""
    if len(parts) < MIN_BOUND:
        return False
    least, most = parts.min(), parts.max()
    return bool(most >= MIN_SPAN * least and most > 0 and most >= MIN_PART * (launch_us + most))


def _robust(quantities: Array, times: Array) -> tuple[float, Array]:
    """The launch constant and the slopes, whatever some times are.

    Args:
        quantities: [points, terms], all above 0.
        times: [points], microseconds.
    """
    # Crude, but no wild time bends it: what is typical for such bytes, operations and K, at least the lower quartile.
    typical = np.median(times[:, None] / quantities, axis=0) * quantities
    said = np.maximum(typical.min(axis=1), np.quantile(times, 0.25))
    weigh_by = np.where(times < said / 2, said, times)
    launch_us, slopes = _best(quantities, times, weigh_by)
    for _ in range(_REWEIGHTINGS):
        said = launch_us + (slopes * quantities).max(axis=1)
        before, weigh_by = weigh_by, np.where(times < said / 2, said, times)
        if np.allclose(before, weigh_by, rtol=0.01):
            break
        launch_us, slopes = _best(quantities, times, weigh_by)
    return launch_us, slopes


def _best(quantities: Array, times: Array, weigh_by: Array) -> tuple[float, Array]:
    """The launch constant and the slopes of the least sum of |t - times| / weigh_by."""
    n_others = quantities.shape[1] - 1
    every = max(1, len(times) * _NODES**n_others // _MOST_AT_ONCE)
    # With the first term's slope at 1, another one's binds somewhere, but not everywhere, between these two.
    bounds = np.log(quantities[:, :1] / quantities[:, 1:])
    low, high = bounds.min(axis=0), bounds.max(axis=0)
    step = (high - low) / (_NODES - 1)
    nodes = _grid([np.linspace(low[i], high[i], _NODES) for i in range(n_others)])
    some = slice(None, None, every)
    coarse, _, _ = _lines(_largest(nodes, quantities[some]), times[some], weigh_by[some], steps=_COARSE)
    around = _grid([np.arange(-2.0, 3.0)] * n_others)
    around = around[np.abs(around).sum(axis=1).argsort(kind="stable")]  # a node stays where nothing near is better
    centres = nodes[np.argsort(coarse, kind="stable")[:_STARTS]]
    for i in range(_ROUNDS):
        near = centres[:, None] + around * step / 2 ** (i + 1)
        flat = near.reshape(len(centres) * len(around), n_others)
        losses, _, _ = _lines(_largest(flat, quantities), times, weigh_by, steps=_COARSE + 3 * i)
        best = losses.reshape(len(centres), -1).argmin(axis=1)
        centres = near[np.arange(len(centres)), best]
    losses, slopes, launches = _lines(_largest(centres, quantities), times, weigh_by)
    at = int(losses.argmin())
    return float(launches[at]), slopes[at] * np.exp([0.0, *centres[at]])


def _grid(axes: Sequence[Array]) -> Array:
    """Every combination, [nodes, axes]; one node without axes."""
    if not axes:
        return np.zeros((1, 0))
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def _largest(log_ratios: Array, quantities: Array) -> Array:
    """The largest term of every problem at every node, with the first term's slope at 1; [nodes, points]."""
    found = np.broadcast_to(quantities[:, 0], (len(log_ratios), len(quantities)))
    for i in range(log_ratios.shape[1]):
        found = np.maximum(found, np.exp(log_ratios[:, i, None]) * quantities[:, i + 1])
    return found


def _lines(q: Array, times: Array, weigh_by: Array, *, steps: int = _FINE) -> tuple[Array, Array, Array]:
    """For every row of q the loss, slope and launch of the best line through (q, times), neither below 0.

    Golden section on the launch constant between 0 and the median time, for all rows at once: not the shortest time,
    which may be a wild one.
    """
    low, high = np.zeros(len(q)), np.full(len(q), np.median(times))
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = _slopes(q, times, weigh_by, left)[0], _slopes(q, times, weigh_by, right)[0]
    for _ in range(steps):
        keep_left = at_left <= at_right
        high, low = np.where(keep_left, right, high), np.where(keep_left, low, left)
        new = np.where(keep_left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_new = _slopes(q, times, weigh_by, new)[0]
        left, right = np.where(keep_left, new, right), np.where(keep_left, left, new)
        at_left, at_right = np.where(keep_left, at_new, at_right), np.where(keep_left, at_left, at_new)
    launch = (low + high) / 2
    at_zero, at_launch = (_slopes(q, times, weigh_by, at)[0] for at in (np.zeros(len(q)), launch))
    launch = np.where(at_zero <= at_launch, 0.0, launch)
    loss, slope = _slopes(q, times, weigh_by, launch)
    return loss, slope, launch


def _slopes(q: Array, times: Array, weigh_by: Array, launch: Array) -> tuple[Array, Array]:
    """For every row of q the loss and the slope that are best at its launch constant: a weighted median."""
    rows = np.arange(len(q))
    ratios = (times - launch[:, None]) / q
    order = ratios.argsort(axis=1, kind="stable")
    weights = (q / weigh_by)[rows[:, None], order].cumsum(axis=1)
    middle = (weights < weights[:, -1:] / 2).sum(axis=1)
    slope = np.maximum(ratios[rows, order[rows, middle]], 0.0)
    losses = np.abs(slope[:, None] * q + launch[:, None] - times) / weigh_by
    return losses.sum(axis=1), slope
