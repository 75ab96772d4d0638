"""What the gate allows a result to differ from the oracle by, without torch: the limits of `kernels.oracle` again.

A service without torch shows them, too; `tests/api/dashboard/test_trust.py` holds them against the originals.
"""

from __future__ import annotations

import math

from ...kernels.problem import Format, Op, OutDtype, Problem

BOUNDS = {OutDtype.BF16: 5e-3, OutDtype.FP16: 6.25e-4, OutDtype.FP32: 1e-4}
"""`oracle.BOUNDS`: relative Frobenius error by the output's dtype."""

SMALL = 8.0
"""`oracle._SMALL_TILE`: n elements are allowed 1 + 8/sqrt(n) times the bound."""

MOE_16_BIT = 1e-2
"""`moe_tolerance.BOUND_16_BIT`: a fused layer that requantises nothing."""

MOE, MOE_SCATTER, MOE_MOST = 5e-2, 0.5, 0.25
"""`moe_tolerance.BOUND`, `SCATTER` and `MOST`: a fused layer whose intermediate is quantised again."""

_GROUP = 16


def allowed(problem: Problem) -> float:
    """Relative Frobenius error that the gate allows the whole result of a problem.

    Tiles, and single elements, have limits of their own. With experts on several ranks the rows of a result follow from
    the routing; here they are the average, which moves the limit of a small result a little.
    """
    if problem.op is Op.MOE and problem.format is Format.NVFP4:
        groups = max(1, problem.rows) * problem.n / _GROUP
        return min(MOE_MOST, MOE + MOE_SCATTER / math.sqrt(groups))
    bound = BOUNDS[problem.out_dtype]
    if problem.op is Op.MOE:
        return _of(max(MOE_16_BIT, bound), problem.m * problem.k)
    return _of(bound, max(1, problem.rows) * problem.n)


def _of(bound: float, n: int) -> float:
    return bound * (1 + SMALL / math.sqrt(n))
