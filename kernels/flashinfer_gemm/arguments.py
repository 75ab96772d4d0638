"""What FlashInfer's public NVFP4 GEMM is called with: our operands, or stand-ins for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import OtherKindError, UnsupportedError
from ..operands import Quantized, torch_dtype
from ..problem import NVFP4_GROUP, Format, Op
from .stand_ins import stand_in

if TYPE_CHECKING:
    import torch

    from ..operands import Operands
    from ..problem import Problem
    from .seam import Call, Seam

_SCALE_ROWS, _SCALE_COLUMNS = 128, 4
"""Rows and columns of a block of the 128x4 layout of scales."""


class Arguments(NamedTuple):
    """Tensors of one call of `mm_fp4`, B and its scales still [N, ...].

    Attributes:
        a: uint8 [M, K/2]. b: uint8 [N, K/2].
        a_scale: uint8 [up(M, 128), up(K/16, 4)]: bytes in the 128x4 layout, in the shape that FlashInfer gives them.
        b_scale: uint8 [up(N, 128), up(K/16, 4)].
        alpha: float32 [1].
        out: [M, N] of the output dtype.
    """

    a: torch.Tensor
    b: torch.Tensor
    a_scale: torch.Tensor
    b_scale: torch.Tensor
    alpha: torch.Tensor
    out: torch.Tensor

    def call(self, seam: Seam, backend: str, tactic: Any = -1) -> Call:
        """Call `mm_fp4` with one of its backends and a tactic; the call that was captured.

        On stand-ins, within `seam.on`, nothing runs; on operands the GEMM does.

        Raises:
            UnsupportedError: FlashInfer chose among no runner at all.
            ValueError: FlashInfer refuses the shapes, or the card, or what is installed, in its own words.
        """
        with seam.intercept(tactic) as calls:
            seam.mm_fp4(
                self.a,
                self.b.T,
                self.a_scale,
                self.b_scale.T,
                self.alpha,
                self.out.dtype,
                self.out,
                backend=backend,
            )
        if len(calls) != 1:
            raise UnsupportedError(f"FlashInfer {seam.version} ran mm_fp4 on {backend} without asking for a tactic.")
        return calls[0]


def scale_shape(rows: int, k: int) -> tuple[int, int]:
    """Shape of the 128x4 scales of `rows` rows of `k` elements: rows padded to 128, columns to 4."""
    groups = k // NVFP4_GROUP
    return -(-rows // _SCALE_ROWS) * _SCALE_ROWS, -(-groups // _SCALE_COLUMNS) * _SCALE_COLUMNS


def of_operands(operands: Operands) -> Arguments:
    """Our operands as FlashInfer wants them: the same bytes, nothing is copied.

    Raises:
        OtherKindError: they are not of a dense NVFP4 problem.
    """
    a, b = operands.a, operands.b
    if not isinstance(a, Quantized) or not isinstance(b, Quantized) or operands.offsets is not None:
        raise OtherKindError(f"FlashInfer's mm_fp4 multiplies dense NVFP4, and {operands.problem.key} is not that.")
    k = operands.problem.k
    return Arguments(
        a.packed,
        b.packed,
        a.scale_128x4.view(scale_shape(a.packed.shape[0], k)),
        b.scale_128x4.view(scale_shape(b.packed.shape[0], k)),
        operands.alpha,
        operands.out,
    )


def stand_ins(problem: Problem, rows: int, *, alpha_shape: tuple[int, ...] = (1,)) -> Arguments:
    """Stand-ins for a problem with `rows` rows; see stand_ins.py.

    Args:
        problem: dense NVFP4.
        rows: M.
        alpha_shape: `(1,)`, or `()`, which some engines pass and which has another key.
    """
    import torch

    return _made(problem, rows, lambda shape, dtype: stand_in(shape, dtype or torch.uint8), alpha_shape)


def unwritten(problem: Problem, rows: int, device: str) -> Arguments:
    """Tensors of the right shapes on a card, with nothing in them: to ask for tactics, not to run."""
    import torch

    return _made(
        problem, rows, lambda shape, dtype: torch.empty(shape, dtype=dtype or torch.uint8, device=device), (1,)
    )


def _made(problem: Problem, rows: int, make: Any, alpha_shape: tuple[int, ...]) -> Arguments:
    import torch

    if problem.op is not Op.DENSE or problem.format is not Format.NVFP4:
        raise OtherKindError(f"FlashInfer's mm_fp4 multiplies dense NVFP4, and {problem.key} is not that.")
    n, k = problem.n, problem.k
    return Arguments(
        make((rows, k // 2), None),
        make((n, k // 2), None),
        make(scale_shape(rows, k), None),
        make(scale_shape(n, k), None),
        make(alpha_shape, torch.float32),
        make((rows, n), torch_dtype(problem.out_dtype)),
    )
