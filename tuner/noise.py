"""A/A: how far apart two measurements of one config lie, in one process and across processes.

It says what a difference between two configs is worth: one that is smaller than what a config differs from itself by
is none.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ..kernels.errors import UnsupportedError
from ..kernels.problem import Problem
from .executor import Candidate, Executor
from .measure import Effort


@dataclass(frozen=True, slots=True)
class Spread:
    """How far apart the two measurements of each pair lie.

    Attributes:
        ratios: second median over first, one a pair.
    """

    ratios: tuple[float, ...]

    @property
    def differences(self) -> tuple[float, ...]:
        """By how much the slower of each pair is above the faster, 0.01 for one percent."""
        return tuple(max(ratio, 1 / ratio) - 1 for ratio in self.ratios)

    @property
    def median(self) -> float:
        """The median difference."""
        return statistics.median(self.differences)

    @property
    def worst(self) -> float:
        """The largest difference."""
        return max(self.differences)


@dataclass(frozen=True, slots=True)
class Noise:
    """What measuring one config again and again gave.

    Attributes:
        problem, candidate: what was measured. policy: how.
        times_us: medians in microseconds: of each process the first and the second.
        within: pairs inside one process. across: each process's first beside the first of the one before.
    """

    problem: Problem
    candidate: Candidate
    policy: str
    times_us: tuple[tuple[float, float], ...]
    within: Spread
    across: Spread


def run_noise(
    make_executor: Callable[[], Executor],
    problem: Problem,
    candidate: Candidate,
    *,
    pairs: int,
    effort: Effort,
    seed: int,
) -> Noise:
    """Measure one config twice in each of `pairs` + 1 executors made one after the other.

    Args:
        make_executor: makes an executor with processes of its own; it is shut down before the next is made.
        problem: what is computed.
        candidate: how.
        pairs: pairs across processes, at least 1; there is one more inside processes.
        effort: how hard to measure.
        seed: of the operands.

    Raises:
        UnsupportedError: the config cannot be measured; the sentence says why.
        ValueError: `pairs` is less than 1.
    """
    if pairs < 1:
        raise ValueError(f"A/A needs at least one pair, not {pairs}")
    times: list[tuple[float, float]] = []
    policy = ""
    for _ in range(pairs + 1):
        executor = make_executor()
        try:
            policy = executor.policy
            executor.open(problem, seed)
            times.append((_time_us(executor, candidate, effort), _time_us(executor, candidate, effort)))
        finally:
            executor.shutdown()
    within = Spread(tuple(second / first for first, second in times))
    across = Spread(tuple(after[0] / before[0] for before, after in pairwise(times)))
    return Noise(problem, candidate, policy, tuple(times), within, across)


def _time_us(executor: Executor, candidate: Candidate, effort: Effort) -> float:
    executor.submit(candidate)
    _, evaluation = executor.collect(effort)
    if evaluation.timing is None:
        why = evaluation.error.split("\n", 1)[0]
        raise UnsupportedError(f"{candidate.backend} cannot be measured on this problem: {evaluation.status}: {why}")
    return evaluation.timing.time_us
