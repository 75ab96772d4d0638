"""Published times of one kernel over M: what it says of an M between two of them, and how far that may be off.

Nothing is carried from one framework, version or kernel to another, and nothing beyond the ends of a curve. The figures
that bound the error were found on published times of an RTX PRO 6000 (aiconfigurator-core 0.12.0, dense, N and K from
1024): power-of-two neighbours predict the M between them with a 90th percentile of the error of 13 to 16 %, and of 30
to 35 % at M 256 and 512, where tiles and kernels change. Of the times of the next power of two above, a tenth are
off by 68 % or more.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...db.records import ReferenceRow, ReferenceSource

Published = tuple[ReferenceSource, ReferenceRow]
"""One published time and the file that it is from."""

BAND = 0.15
"""Least relative error that an interpolated time is given: see the module."""

WIDE_BAND = 0.35
"""The same where M is among WIDE_M, or where there is too little near it to tell."""

WIDE_M = range(129, 513)
"""M at which kernels and tiles change, so that neighbours say less."""

POINT_BAND = 0.08
"""Relative error that a published time is given: the mean of a few replays, without a variance. From M to M + 1, where
the work is the same, 95 % of the published times differ by less than 4 to 8 %, by framework."""

MAX_GAP = 4.0
"""Neighbours farther apart than this factor say nothing of what lies between: farther was never checked."""

NEAR = 4.0
"""The error is estimated on published M within this factor of the asked one."""

TWIN = 1.05
"""M this close count as one when a time is predicted from the others: publishers measure M and M + 1 (128 and 129), and
one would predict the other without telling anything about the gaps between such pairs."""

MIN_PREDICTED = 3
"""Fewer predicted times than this do not tell an error."""


class CurveKey(NamedTuple):
    """What the times of a curve have in common.

    Attributes:
        package, package_version, file: where it is from.
        precision, kernel_source: as published.
        tp, ep, distribution: of a fused MoE layer; 1, 1 and empty if dense.
    """

    package: str
    package_version: str
    file: str
    precision: str
    kernel_source: str
    tp: int
    ep: int
    distribution: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Published times of one kernel on one layer, without those that are suspect.

    Attributes:
        source: the file; it names system, device, framework and version.
        key: what the times have in common.
        m: published M, ascending.
        time_us: microseconds, one for each M.
        l2_hot_risk: one for each M, 0 or 1.
        includes_act_quant: quantising the activations is part of the times.
        suspect: M -> why its published time is not used.
        errors: how far each time is from what the others predict, one for each M; NaN where they cannot. Worked out
            here, once, because every interpolation on the curve asks for it.
    """

    source: ReferenceSource
    key: CurveKey
    m: Sequence[int]
    time_us: Sequence[float]
    l2_hot_risk: Sequence[int]
    includes_act_quant: bool
    suspect: Mapping[int, str] = field(default_factory=dict)
    errors: Sequence[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out the errors."""
        object.__setattr__(self, "errors", array("d", (_leave_one_out(self, at) for at in range(len(self.m)))))

    @property
    def precision(self) -> str:
        """As published."""
        return self.key.precision


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a curve says of one M.

    Attributes:
        curve: whose.
        time_us: the published time, or the interpolated one, microseconds.
        time_us_low, time_us_high: where it is likely to be, microseconds.
        between: the two published M that it was interpolated from; None if this M is published (and not suspect).
        l2_hot_risk: a time that it comes from may be of weights that were in L2.
        suspect: which published times at M, or between the two neighbours, were not used, and why; empty for none.
    """

    curve: Curve
    time_us: float
    time_us_low: float
    time_us_high: float
    between: tuple[int, int] | None
    l2_hot_risk: bool
    suspect: str

    @property
    def interpolated(self) -> bool:
        """True if this M is not published, or its published time is suspect."""
        return self.between is not None


def curves(rows: Iterable[Published]) -> tuple[Curve, ...]:
    """The rows of one layer as curves.

    Args:
        rows: in any order, of one op, N, K, experts and top_k.
    """
    gathered: defaultdict[CurveKey, dict[int, ReferenceRow]] = defaultdict(dict)
    sources: dict[CurveKey, ReferenceSource] = {}
    for source, row in rows:
        key = CurveKey(
            source.package, source.package_version, source.file, row.precision, row.kernel_source, row.tp, row.ep,
            row.distribution,
        )  # fmt: skip
        sources[key] = source
        gathered[key][row.m] = row
    return tuple(_curve(sources[key], key, gathered[key]) for key in sorted(gathered))


def _curve(source: ReferenceSource, key: CurveKey, by_m: dict[int, ReferenceRow]) -> Curve:
    rows = [by_m[m] for m in sorted(by_m)]
    good = [row for row in rows if not row.suspect]
    return Curve(
        source,
        key,
        array("q", (row.m for row in good)),  # a service keeps many: a quarter of what tuples take
        array("d", (row.time_us for row in good)),
        bytes(row.l2_hot_risk for row in good),
        any(row.includes_act_quant for row in rows),
        {row.m: row.suspect for row in rows if row.suspect},
    )


def estimate(curve: Curve, m: int) -> Estimate | None:
    """What a curve says of M rows; None outside of it, or where its neighbours are too far apart.

    An M that is published has its own time, give or take POINT_BAND. One that is not is interpolated, linearly in
    the logarithms of time and M, between its two neighbours; its band is `interpolation_error`.
    """
    at = bisect_left(curve.m, m)
    if at < len(curve.m) and curve.m[at] == m:
        time_us = curve.time_us[at]
        return _estimate(curve, time_us, POINT_BAND, None, hot=bool(curve.l2_hot_risk[at]), suspect="")
    if at in (0, len(curve.m)) or curve.m[at] > MAX_GAP * curve.m[at - 1]:
        return None
    low, high = at - 1, at
    left_out = [f"M {one} ({why})" for one, why in curve.suspect.items() if curve.m[low] < one < curve.m[high]]
    return _estimate(
        curve,
        _interpolated(curve, low, high, m),
        interpolation_error(curve, m),
        (curve.m[low], curve.m[high]),
        hot=bool(curve.l2_hot_risk[low] or curve.l2_hot_risk[high]),
        suspect="; ".join(left_out),
    )


def _estimate(
    curve: Curve, time_us: float, error: float, between: tuple[int, int] | None, *, hot: bool, suspect: str
) -> Estimate:
    return Estimate(curve, time_us, time_us / (1 + error), time_us * (1 + error), between, hot, suspect)


def _interpolated(curve: Curve, low: int, high: int, m: int) -> float:
    """Microseconds at `m`, on the line through the points at indices `low` and `high` in log M and log time."""
    share = math.log(m / curve.m[low]) / math.log(curve.m[high] / curve.m[low])
    return curve.time_us[low] * math.exp(share * math.log(curve.time_us[high] / curve.time_us[low]))


def interpolation_error(curve: Curve, m: int) -> float:
    """Relative error that an interpolation at M has to reckon with: a time is within [t / (1 + e), t · (1 + e)].

    Every published M within a factor NEAR of the asked one is predicted from the others (twins left out, see TWIN);
    the error is the 90th percentile of how far prediction and published time are apart, the larger over the smaller
    less one. It is never below BAND, nor below WIDE_BAND among WIDE_M and where fewer than MIN_PREDICTED M can be
    predicted or a suspect time was left out beside `m`.

    Checked on the published times of an RTX PRO 6000 (aiconfigurator-core 0.12.0, 400 curves of each of its six files,
    N and K from 1024 for dense), each M predicted after it and its twins were taken away: the published time was inside
    for 93 to 99 % of dense ones, and of MoE layers for 97 to 100 % above M 32 and 89 to 91 % up to there.
    """
    near = slice(bisect_left(curve.m, m / NEAR), bisect_right(curve.m, m * NEAR))
    errors = sorted(error for error in curve.errors[near] if not math.isnan(error))
    wide = m in WIDE_M or len(errors) < MIN_PREDICTED or _beside_suspect(curve, m)
    least = WIDE_BAND if wide else BAND
    return max(least, errors[math.ceil(0.9 * len(errors)) - 1]) if errors else least


def _beside_suspect(curve: Curve, m: int) -> bool:
    """True if a time was left out between the two neighbours of `m`."""
    at = bisect_left(curve.m, m)
    return any(curve.m[at - 1] < one < curve.m[at] for one in curve.suspect)


def _leave_one_out(curve: Curve, at: int) -> float:
    """How far the point at an index is from what the others predict; NaN at the ends of the curve and in wide gaps."""
    m = curve.m[at]
    low = bisect_left(curve.m, m / TWIN) - 1
    high = bisect_left(curve.m, math.floor(m * TWIN) + 1)
    if low < 0 or high >= len(curve.m) or curve.m[high] > MAX_GAP * MAX_GAP * curve.m[low]:
        return math.nan
    return math.exp(abs(math.log(_interpolated(curve, low, high, m) / curve.time_us[at]))) - 1
