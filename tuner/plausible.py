"""Whether a measured time can be true. What is doubted is said and stored beside the time, and never dropped for it.

Two things speak against a time:

- It is shorter than the bytes of the operands take at the bandwidth of a copy that was measured on the card. Weights
  were then read from L2, not all of the work was done, or the clock is wrong. Only where operands really are rotated
  past L2; and only the bytes count, since a rate of BF16 is no bound for kernels of narrower types.
- It is far from what the device's latency model says: a fit of what was measured there before (`latency_model`). A
  time far above it often means that somebody else computed at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..db.records import LatencyModel, Roofs
from ..kernels.device import Device
from ..kernels.operands import MAX_SETS
from ..kernels.problem import Problem
from .latency_model import Estimate, estimate, load_of

COPY_SHARE = 0.8
"""A copy reads and writes, and a memory loses time when it turns from one to the other: a copy reaches less than
reading alone, but this share of it at least. Measured on an H200: 4.23 of the 4.8 TB/s of its data sheet, 0.88; and of
5,381 timed trials there none took less than 1.27 times what its bytes take at the copy's bandwidth."""

FAR = 2.0
"""A time is far from an estimate if it is this many times as long or as short..."""

FAR_ERRORS = 3.0
"""...and more than this many times the model's own p90 error away, which is larger where the model is poor."""

_MARK = "; doubtful: "


@dataclass(frozen=True, slots=True)
class Plausibility:
    """What times of one problem are held against.

    Attributes:
        floor_us: what the bytes take at least, microseconds; 0 if that is not known.
        estimate: of the latency model; None without one, or where it has nothing to say.
        far: how many times as long or as short as the estimate a time must be to be doubted.
    """

    floor_us: float = 0.0
    estimate: Estimate | None = None
    far: float = FAR

    def is_too_fast(self, time_us: float) -> bool:
        """Whether a time, in microseconds, is shorter than the bytes allow."""
        return time_us < self.floor_us

    def doubt(self, time_us: float) -> str:
        """Why a time, in microseconds, is doubted, in one sentence; empty if it is not."""
        if self.is_too_fast(time_us):
            return (
                f"{time_us:,.1f} µs is less than the {self.floor_us:,.1f} µs that reading its bytes takes: were they "
                "read from L2?"
            )
        guess = self.estimate
        if guess is None or guess.outside:
            return ""
        ratio = time_us / guess.time_us
        if ratio >= self.far:
            return f"{time_us:,.1f} µs is {ratio:.1f} times what the device's latency model expects"
        if ratio <= 1 / self.far:
            return f"the device's latency model expects {1 / ratio:.1f} times {time_us:,.1f} µs"
        return ""


def plausibility(
    problem: Problem, seed: int, device: Device, *, roofs: Roofs | None, model: LatencyModel | None
) -> Plausibility:
    """What the times of a problem are held against.

    Args:
        problem: what is computed.
        seed: of its operands: it decides which experts are hit.
        device: where.
        roofs: of the device, if they were measured.
        model: of the device, the problem's op and format and the policy it is measured by, if one was fitted.
    """
    n_bytes = load_of(problem, seed)[0] if roofs is not None else 0
    floor_us = 0.0
    if roofs is not None and _runs_cold(n_bytes, device):
        floor_us = COPY_SHARE * n_bytes / roofs.copy_bytes_per_s * 1e6
    if model is None:
        return Plausibility(floor_us)
    return Plausibility(floor_us, estimate(model, problem, seed), far(model))


def far(model: LatencyModel) -> float:
    """How many times as long or as short as a model's estimate a time must be to be doubted."""
    return max(FAR, 1 + FAR_ERRORS * model.p90_error)


def _runs_cold(n_bytes: int, device: Device) -> bool:
    """Whether there are sets of operands enough to push all of one set out of L2 before it is read again."""
    return device.kind == "cuda" and device.l2_bytes > 0 and (MAX_SETS - 1) * n_bytes >= device.l2_bytes


def with_doubt(outcome: str, doubt: str) -> str:
    """A run's sentence about a problem, with what is doubted at its end: what `doubt_in` reads there."""
    return outcome + _MARK + doubt if doubt else outcome


def doubt_in(outcome: str) -> str:
    """What a run's sentence about a problem says is doubted; empty if nothing is."""
    return outcome.partition(_MARK)[2]
