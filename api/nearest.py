"""Which tuned shapes lie nearest to one that is not tuned."""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..kernels.problem import Op, Problem

Cell = tuple[Op, int, int, int]
Point = tuple[float, float, float, Problem]
"""log2 of M, N and K, and the problem itself."""


def _point(problem: Problem) -> Point:
    """The place of a problem: log2 of its dimensions, because 16 is as far from 32 as 1024 from 2048."""
    return math.log2(problem.m), math.log2(problem.n), math.log2(problem.k), problem


def _outside(cell: int, x: float) -> float:
    """Distance from `x` to the interval [cell, cell + 1)."""
    return max(0.0, cell - x, x - (cell + 1))


@dataclass(frozen=True, slots=True)
class ShapeMap:
    """Tuned problems in cells one power of two wide in M, N and K, so that a search touches a few cells only.

    Comparing with all of 100,000 problems takes about 100 ms of Python; the cells make that about 1 ms, which is
    short enough for the event loop. Immutable: `with_problems` returns a new map that shares what did not change.

    Attributes:
        cells: (op, floor log2 M, floor log2 N, floor log2 K) -> the problems in it.
    """

    cells: Mapping[Cell, tuple[Point, ...]] = field(default_factory=dict)

    def with_problems(self, problems: Iterable[Problem]) -> ShapeMap:
        """A map that also holds `problems`, none of which may be in it already."""
        added: defaultdict[Cell, list[Point]] = defaultdict(list)
        for problem in problems:
            point = _point(problem)
            added[problem.op, int(point[0]), int(point[1]), int(point[2])].append(point)
        if not added:
            return self
        cells = dict(self.cells)
        for cell, points in added.items():
            cells[cell] = (*cells.get(cell, ()), *points)
        return ShapeMap(cells)

    def nearest(
        self, problem: Problem, count: int, keep: Callable[[Problem], bool] | None = None
    ) -> tuple[Problem, ...]:
        """The `count` problems of the same op with the smallest log distance over M, N and K, nearest first.

        Args:
            problem: the problem that was asked for.
            count: at most this many.
            keep: only problems for which it is true; None for all.
        """
        m, n, k, _ = _point(problem)
        bounds = sorted(
            (math.hypot(_outside(cell[1], m), _outside(cell[2], n), _outside(cell[3], k)), cell[1:], cell)
            for cell in self.cells
            if cell[0] is problem.op
        )
        best: list[tuple[float, str, Problem]] = []
        farthest = math.inf
        for bound, _, cell in bounds:
            if bound > farthest:
                break
            for log_m, log_n, log_k, other in self.cells[cell]:
                distance = math.hypot(log_m - m, log_n - n, log_k - k)
                if distance <= farthest and (keep is None or keep(other)):
                    insort(best, (distance, other.key, other), key=_rank)
                    del best[count:]
                    farthest = best[-1][0] if len(best) == count else math.inf
        return tuple(other for _, _, other in best)


def _rank(found: tuple[float, str, Problem]) -> tuple[float, str]:
    """Nearest first; those equally near by key."""
    return found[:2]
