"""What the search spaces of `cpu.dequant` and `torch.dequant` have in common. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .backend import Config, Constraint, Parameter, Space, config_key
from .errors import OtherKindError, UnsupportedError
from .problem import Format, Op

if TYPE_CHECKING:
    from .problem import Problem

MAX_BLOCKS = 1 << 14
"""Blocks (over all experts) that a GEMM may be cut into; each holds a few Python objects and costs some 20 µs."""

_BYTES_AN_ELEMENT = 8
"""Of a decoded block: float32 values, int32 indices for every second one, and a copy in BF16."""


def block_values(problem: Problem, candidates: Sequence[int], max_bytes: int) -> tuple[int, ...]:
    """The candidates that make sense as block_n, ascending; the smallest or the largest if none does.

    A value must give at most MAX_BLOCKS blocks that take at most `max_bytes` decoded, and of those that cover all of
    N only the smallest is kept.
    """
    whole = next((c for c in candidates if c >= problem.n), candidates[-1])
    matrices = max(1, problem.experts)
    fitting = [
        c
        for c in candidates
        if c <= whole
        and c * problem.k * _BYTES_AN_ELEMENT <= max_bytes
        and matrices * math.ceil(problem.n / c) <= MAX_BLOCKS
    ]
    if fitting:
        return tuple(fitting)
    too_wide = candidates[0] * problem.k * _BYTES_AN_ELEMENT > max_bytes
    return (candidates[0] if too_wide else whole,)


def dequant_space(problem: Problem, parameters: Sequence[Parameter], max_bytes: int) -> Space:
    """`parameters`, less `decode` for BF16, with `experts_per_step` for a grouped problem."""
    kept = [p for p in parameters if p.name != "decode" or problem.format is not Format.BF16]
    if problem.op is Op.DENSE:
        return Space(tuple(kept))
    kept.append(Parameter("experts_per_step", tuple(v for v in (1, 4, 16) if v <= problem.experts)))
    limit = max_bytes // (_BYTES_AN_ELEMENT * problem.k)
    smallest = min(v for p in kept if p.name == "block_n" for v in p.values if isinstance(v, int))

    def fits(config: Config) -> bool:
        rows = int(config["experts_per_step"]) * int(config["block_n"])
        return rows <= max(limit, smallest) or config["experts_per_step"] == 1

    sentence = f"experts_per_step blocks of block_n rows take at most {max_bytes >> 20} MiB decoded"
    return Space(tuple(kept), (Constraint(sentence, fits),))


def check_gemm(backend: str, problem: Problem) -> None:
    """Refuse a fused layer, for backends that compute single products, dense and grouped.

    Raises:
        OtherKindError: the problem is a moe problem.
    """
    if problem.op is Op.MOE:
        raise OtherKindError(f"{backend} computes dense and grouped GEMMs, and {problem.shape} is a fused layer.")


def check_config(backend: str, config: Config, space: Space) -> None:
    """Refuse a config that is not in the space.

    Raises:
        UnsupportedError: with the parameter that is wrong, its value, and what is allowed.
    """
    if config in space:
        return
    names = [p.name for p in space.parameters]
    if set(config) != set(names):
        raise UnsupportedError(f"{backend} takes {', '.join(names)} here, and the config is {config_key(config)}.")
    for p in space.parameters:
        if not p.allows(config[p.name]):
            allowed = ", ".join(str(v) for v in p.values)
            raise UnsupportedError(f"{backend} takes {p.name} {allowed} here, not {config[p.name]!r}.")
    broken = next(c.sentence for c in space.constraints if not c.holds(config))
    raise UnsupportedError(f"{backend} needs that {broken}; the config is {config_key(config)}.")
