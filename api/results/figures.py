"""Figures and names that the results page and the dashboard say alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...kernels.problem import Format, OutDtype, Problem, Routing

USUAL = (Format.NVFP4, OutDtype.BF16, Routing.UNIFORM)
"""Format, output dtype and routing of a problem of which nothing else is said."""


def geometric_mean(factors: Sequence[float]) -> float:
    """The geometric mean: that of ratios. At least one, all above 0."""
    return math.exp(sum(map(math.log, factors)) / len(factors))


def unusual(problem: Problem) -> list[str]:
    """Whatever of a problem is not what a shape leaves out: format, output dtype, routing."""
    said = (problem.format, problem.out_dtype, problem.routing)
    # Each beside its own usual value: a format and an output dtype may have the same word, bf16.
    return [one.value for one, usual in zip(said, USUAL, strict=True) if one != usual]


def shape_text(problem: Problem) -> str:
    """The shape, and whatever of the problem is not what a shape leaves out."""
    return " ".join([problem.shape, *unusual(problem)])


def gemm_text(problem: Problem) -> str:
    """The same without M: `4096x7168`, `e512k10:256x4096 power_law`."""
    head, colon, _ = problem.shape.rpartition(":")
    return " ".join([f"{head}{colon}{problem.n}x{problem.k}", *unusual(problem)])
