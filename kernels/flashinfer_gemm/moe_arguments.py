"""What FlashInfer's fused MoE functions are called with: our operands, or stand-ins for them.

FlashInfer wants W3 (up) in the first half of the rows of w13 and W1 (gate) in the second; ours are the other way round,
so weights and block scales are exchanged once for all configs (`MoeOperands.packed`). Nothing else is copied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import OtherKindError
from ..moe_operands import MoeOperands
from ..operands import Quantized
from ..problem import Format, Op
from .arguments import scale_shape
from .stand_ins import stand_in

if TYPE_CHECKING:
    import torch

    from ..operands import Operands
    from ..problem import Problem


class MoeArguments(NamedTuple):
    """Tensors of one fused layer.

    Attributes:
        x: bfloat16 [M, K].
        experts: int32 [M, top_k]. weights: float32 [M, top_k].
        w13: uint8 [experts, 2N, K/2], up before gate. w2: uint8 [experts, K, N/2].
        w13_scale, w2_scale: uint8 [experts, up(rows, 128), up(columns, 4)]: bytes in the 128x4 layout.
        a_scale: float32 [1], what x is multiplied with to be quantised.
        mid_scale: float32 [experts], the same for the intermediate.
        w13_global, w2_global: float32 [experts], global scales of the weights, 448·6/amax.
        alpha, alpha2: float32 [experts], factors of the products of codes.
        out: [M, K].
    """

    x: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor
    w13: torch.Tensor
    w2: torch.Tensor
    w13_scale: torch.Tensor
    w2_scale: torch.Tensor
    a_scale: torch.Tensor
    mid_scale: torch.Tensor
    w13_global: torch.Tensor
    w2_global: torch.Tensor
    alpha: torch.Tensor
    alpha2: torch.Tensor
    out: torch.Tensor


def of_operands(operands: Operands) -> MoeArguments:
    """Our operands as FlashInfer wants them.

    Raises:
        OtherKindError: they are not of a moe problem in NVFP4.
    """
    if (
        not isinstance(operands, MoeOperands)
        or not isinstance(operands.b, Quantized)
        or not isinstance(operands.b2, Quantized)
    ):
        raise OtherKindError(f"FlashInfer's fused MoE needs NVFP4 weights of a layer, not {operands.problem.key}.")
    n, k, experts = operands.problem.n, operands.problem.k, operands.problem.experts
    packed = operands.packed
    if "flashinfer.up_gate" not in packed:
        packed["flashinfer.up_gate"] = up_before_gate(operands.b)
    w13, w2 = packed["flashinfer.up_gate"], operands.b2
    return MoeArguments(
        operands.x,
        operands.experts,
        operands.weights,
        w13.packed,
        w2.packed,
        w13.scale_128x4.view(experts, *scale_shape(2 * n, k)),
        w2.scale_128x4.view(experts, *scale_shape(k, n)),
        operands.a_scale,
        operands.mid_scale,
        w13.global_scale,
        w2.global_scale,
        operands.alpha,
        operands.alpha2,
        operands.out,
    )


def up_before_gate(w13: Quantized) -> Quantized:
    """A copy with the halves of the rows of every expert exchanged, in both layouts of the scales."""
    import torch

    from ..nvfp4 import swizzle_128x4

    half = w13.packed.shape[1] // 2
    packed, scale = (x.view(torch.uint8).roll(half, dims=1) for x in (w13.packed, w13.scale))
    swizzled = torch.stack([swizzle_128x4(one) for one in scale])
    return replace(w13, packed=packed, scale=scale.view(w13.scale.dtype), scale_128x4=swizzled)


def stand_ins(problem: Problem) -> MoeArguments:
    """Stand-ins for a moe problem; see stand_ins.py.

    Raises:
        OtherKindError: it is no moe problem in NVFP4.
    """
    import torch

    from ..operands import torch_dtype

    if problem.op is not Op.MOE or problem.format is not Format.NVFP4:
        raise OtherKindError(f"FlashInfer's fused MoE is for NVFP4 layers, and {problem.key} is not that.")
    m, n, k, e = problem.m, problem.n, problem.k, problem.experts

    def bytes_of(*shape: int) -> Any:
        return stand_in(shape, torch.uint8)

    def floats(*shape: int) -> Any:
        return stand_in(shape, torch.float32)

    return MoeArguments(
        stand_in((m, k), torch.bfloat16), stand_in((m, problem.top_k), torch.int32), floats(m, problem.top_k),
        bytes_of(e, 2 * n, k // 2), bytes_of(e, k, n // 2), bytes_of(e, *scale_shape(2 * n, k)),
        bytes_of(e, *scale_shape(k, n)), floats(1), floats(e), floats(e), floats(e), floats(e), floats(e),
        stand_in((m, k), torch_dtype(problem.out_dtype)),
    )  # fmt: skip
