"""Padding M: running a dense NVFP4 problem as one with more rows, because some kernels are faster with full tiles.

On published measurements of an SM120 card M = 1 takes 9 to 50 % longer than M = 128 on wide weights. So `pad_m` is a
parameter like any other, and what it costs is part of what is timed: the rows of A and their scales are copied into the
padded operands before every call, and the rows of the result back after it.

It is for kernels that somebody else picks or compiles by M. Where the rows of a tile are a parameter and rows beyond M
are masked, as in `triton.native`, the same tile runs either way, and padding would only add the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .errors import UnsupportedError
from .operands import Quantized
from .problem import Format, Op

if TYPE_CHECKING:
    import torch

    from .operands import Operands
    from .problem import Problem

TILES = (16, 32, 64, 128)
"""Rows of the tiles of today's NVFP4 kernels. FlashInfer's buckets up to 256 are the powers of two, so these are
buckets too."""

_SCALE_ROWS = 128
"""Rows of a block of the 128x4 scale layout."""


def pad_values(problem: Problem, tiles: Sequence[int] = TILES) -> tuple[int, ...]:
    """Values of the parameter `pad_m` that can make a difference for a problem.

    Args:
        problem: what is computed; only dense NVFP4 is ever padded.
        tiles: rows that a kernel's tiles or its tuner's buckets have.

    Returns:
        0 (as it is), then M rounded up to a multiple of each tile, ascending, without M itself and duplicates; so an M
        that is a multiple of every tile gives (0,) alone.
    """
    if problem.op is not Op.DENSE or problem.format is not Format.NVFP4:
        return (0,)
    padded = {-(-problem.m // tile) * tile for tile in tiles} - {problem.m}
    return (0, *sorted(padded))


@dataclass(frozen=True, slots=True)
class Padded:
    """Operands of a padded problem, and how to get in and out of them.

    Attributes:
        operands: of the problem with `pad_m` rows: its own A, whose rows beyond M are zero, as are their scales in both
            layouts; its own out; everything else the original's. The original operands where nothing is padded.
        before: copies A's M rows and their scales in. A few device copies: no allocation, no wait, so a CUDA graph
            holds it.
        after: copies the first M rows of the result back.
    """

    operands: Operands
    before: Callable[[], None]
    after: Callable[[], None]

    def around(self, run: Callable[[], None]) -> Callable[[], None]:
        """`before`, `run` and `after` as one callable; `run` itself where nothing is padded."""
        before, after = self.before, self.after
        if before is _nothing and after is _nothing:
            return run

        def padded_run() -> None:
            before()
            run()
            after()

        return padded_run


def padded(operands: Operands, pad_m: int, *, linear_scale: bool = True) -> Padded:
    """Operands of the problem with `pad_m` rows, filled once and again by every `before`.

    The 128x4 scales need no copy of their own if both numbers of rows fill the same blocks of 128: the layout does not
    depend on the number of rows, and its padding is zero already.

    Args:
        operands: of a dense NVFP4 problem.
        pad_m: rows, more than M; 0 for the operands as they are.
        linear_scale: whether the kernel reads the linear scales; if not, they are zero and cost no copy.

    Raises:
        UnsupportedError: the problem is not dense NVFP4, or `pad_m` is not more than M.
    """
    if pad_m == 0:
        return Padded(operands, _nothing, _nothing)
    problem, a = operands.problem, operands.a
    if problem.op is not Op.DENSE or not isinstance(a, Quantized):
        raise UnsupportedError(f"pad_m pads the rows of a dense NVFP4 problem, and {problem.key} is not one.")
    if pad_m <= problem.m:
        raise UnsupportedError(f"pad_m must be 0 or more than M, and is {pad_m} where M is {problem.m}.")
    rows = problem.m
    packed = a.packed.new_zeros(pad_m, a.packed.shape[1])
    scale = _zeros_like_rows(a.scale, pad_m)
    copies = [(packed[:rows], a.packed)]
    if linear_scale:
        copies.append((_bytes(scale[:rows]), _bytes(a.scale)))
    scale_128x4 = a.scale_128x4
    if -(-pad_m // _SCALE_ROWS) > -(-rows // _SCALE_ROWS):
        of_a_row = a.scale_128x4.numel() // (-(-rows // _SCALE_ROWS) * _SCALE_ROWS)
        scale_128x4 = a.scale_128x4.new_zeros(-(-pad_m // _SCALE_ROWS) * _SCALE_ROWS * of_a_row)
        # Blocks of 128 rows lie one after the other, so the original's are the padded one's first.
        copies.append((scale_128x4[: a.scale_128x4.numel()], a.scale_128x4))
    out = operands.out.new_empty(pad_m, operands.out.shape[1])
    result = out[:rows]
    wide = replace(
        operands,
        problem=replace(problem, m=pad_m),
        a=Quantized(packed, scale, scale_128x4, a.global_scale),
        out=out,
    )

    def before() -> None:
        for target, source in copies:
            target.copy_(source)

    def after() -> None:
        operands.out.copy_(result)

    before()
    return Padded(wide, before, after)


def _zeros_like_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """[rows, ...] of x's dtype, all bytes zero."""
    return _bytes(x).new_zeros(rows, x.shape[1]).view(x.dtype)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes: copies of E4M3 values are copies of bytes, without a conversion kernel."""
    import torch

    return x.view(torch.uint8)


def _nothing() -> None:
    """For operands that are not padded."""
