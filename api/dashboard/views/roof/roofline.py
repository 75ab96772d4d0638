"""Where a problem stands below the roofs of its card: the arithmetic of a roofline, of measured roofs alone.

Williams, Waterman and Patterson, CACM 52(4), 2009. Operations are `Problem.flops`. Bytes of a dense problem are
`touched_bytes`. Those of a problem with experts depend on which experts the drawn tokens met, and drawing needs torch,
which a service need not have: they follow from the share of the roof that was stored with the trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from .....db.dashboard.roof import Served
from .....db.records import Roofs
from .....kernels.device import Device
from .....kernels.problem import Op, Problem
from .....tuner.latency_model import load_of
from .....tuner.roofs import bf16_rate_bounds, floor_us

_NEAR = 0.95
"""The rate limits a problem with experts if its operations take this share of the least time that the roofs allowed.
Not 1, because the BF16 rate of one H200 differed by 4 % from one measurement to the next (docs/measuring.md)."""

_LEAST, _MOST = 1e6, 1e21
"""Bytes and operations per second that no card is below or above."""

ANY_SEED = 0
"""Of the operands: of a dense problem it decides neither bytes nor operations."""


class Limit(StrEnum):
    """Which roof is above a problem."""

    MEMORY = "memory"
    MATRIX = "matrix"


@dataclass(frozen=True, slots=True)
class Placed:
    """A winner below its roofs.

    Attributes:
        served: the winner.
        n_flops: multiply and add operations of one call. n_bytes: what it reads and writes at least, each byte once.
        least_us: the time that the roofs allow at least, microseconds.
        share: of the roof: `least_us` over the winner's time.
        limit: which roof that is.
    """

    served: Served
    n_flops: float
    n_bytes: float
    least_us: float
    share: float
    limit: Limit

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.n_flops / self.n_bytes

    @property
    def flops_per_s(self) -> float:
        """Operations per second that were reached."""
        return self.n_flops / self.served.time_us * 1e6

    @property
    def gain_us(self) -> float:
        """Microseconds that all its layers would take less if the roof were reached; 0 if it is."""
        return max(0.0, self.served.time_us - self.least_us) * self.served.layers


def place(served: Served, roofs: Roofs, device: Device) -> Placed | None:
    """Where a winner stands; None if it cannot be told.

    That is so for a problem with experts whose trial carries no share of the roof, and for figures that cannot be.

    Args:
        served: the winner.
        roofs: of the environment that it was measured in.
        device: the card.
    """
    problem, time_us, share = served.problem, served.time_us, served.roof_share
    if not _is_positive(time_us) or not (_is_positive(share) or problem.op is Op.DENSE):
        return None
    least_us = share * time_us if share and _is_positive(share) else floor_us(problem, roofs, ANY_SEED, device)
    rate_us = problem.flops / roofs.bf16_flops_per_s * 1e6 if bf16_rate_bounds(problem, device) else 0.0
    n_bytes, limit = _bytes(problem, least_us, rate_us, roofs)
    placed = Placed(served, float(problem.flops), n_bytes, least_us, least_us / time_us, limit)
    figures = (n_bytes, least_us, placed.share, placed.flops_per_s, placed.intensity if n_bytes else 0.0)
    return placed if all(map(_is_positive, figures)) else None


def can_be(roofs: Roofs) -> bool:
    """Whether roofs are figures that a card may have; others come of a database that was written by hand."""
    return all(_LEAST < rate < _MOST for rate in (roofs.copy_bytes_per_s, roofs.bf16_flops_per_s))


def ridge(roofs: Roofs) -> float:
    """Operations per byte at which the two roofs meet."""
    return roofs.bf16_flops_per_s / roofs.copy_bytes_per_s


def _bytes(problem: Problem, least_us: float, rate_us: float, roofs: Roofs) -> tuple[float, Limit]:
    """Bytes that a call touches, and which roof is above the problem.

    Args:
        problem: what is computed.
        least_us: the time that the roofs allowed it at least, microseconds.
        rate_us: the time that its operations take at the BF16 rate; 0 if that does not bound it.
        roofs: of the card.
    """
    of_copy = roofs.copy_bytes_per_s * 1e-6
    if problem.op is Op.DENSE:
        n_bytes = float(load_of(problem, ANY_SEED)[0])
        return n_bytes, Limit.MATRIX if rate_us > n_bytes / of_copy else Limit.MEMORY
    at_most = least_us * of_copy
    if rate_us < _NEAR * least_us:
        return at_most, Limit.MEMORY
    # Of so many tokens hardly an expert gets none.
    return min(float(problem.operand_bytes), at_most), Limit.MATRIX


def _is_positive(value: float | None) -> bool:
    """True for a number that a logarithmic axis has."""
    return value is not None and 0 < value < math.inf
