"""The reference of a fused mixture-of-experts layer, and how far a right result may be from it.

Two things are unambiguous: the input's codes (see `moe_operands`) and the products. The intermediate is not. It is
computed in float32 and then rounded to four bits, so whatever a kernel rounds before that (FlashInfer's CUTLASS path
keeps gate and up in BF16 in between, others approximate the exponential) moves a few values across the middle between
two codes, each of which then differs by a whole step. The bounds are those of this, not of the output's dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import silu

from .nvfp4 import decode, pack, quantize_rows
from .operands import Quantized
from .problem import Format

if TYPE_CHECKING:
    from .moe_operands import MoeOperands

_CHUNK_BYTES = 64 << 20
"""Bytes of decoded weights, and of rows between the products, that are held at a time."""


@torch.no_grad()
def moe_reference(operands: MoeOperands, dtype: torch.dtype) -> torch.Tensor:
    """D of `operands`: [M, K] of `dtype`; tokens without an expert on this rank are zero.

    Args:
        operands: `out` is not touched.
        dtype: what is accumulated and returned: float32, or float64 for small problems.
    """
    expected = torch.zeros(operands.out.shape, dtype=dtype, device=operands.out.device)
    for expert, tokens, shares in routes(operands):
        step = max(1, _CHUNK_BYTES // (16 * operands.problem.n))
        for start in range(0, len(tokens), step):
            at = tokens[start : start + step]
            middle = intermediate(operands, expert, operands.x[at].to(dtype))
            down = _product(middle, operands.b2, expert) * operands.alpha2[expert].to(dtype)
            expected[at] += down * shares[at].to(dtype).unsqueeze(1)
    return expected


def intermediate(operands: MoeOperands, expert: int, x: torch.Tensor) -> torch.Tensor:
    """What goes into an expert's second product: codes times block scales if it is requantised, [rows, N] like `x`."""
    # The input is worth its codes times block scales over a_scale; alpha is for the former.
    factor = operands.alpha[expert] * operands.a_scale
    gate, up = (_product(x, operands.b, expert) * factor.to(x.dtype)).chunk(2, dim=1)
    middle = silu(gate) * up
    if operands.problem.format is not Format.NVFP4:
        return middle
    codes, scale = quantize_rows(middle.float(), operands.mid_scale[expert])
    return decode(pack(codes), scale, x.dtype)


def routes(operands: MoeOperands) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """(expert, its tokens, every token's weight for it) of those experts on this rank that have any.

    The tokens are int64 [rows], ascending; the weights float32 [M].
    """
    for expert in torch.unique(operands.experts).tolist():
        if expert < operands.problem.experts:
            here = operands.experts == expert
            yield expert, here.any(dim=1).nonzero().flatten(), (operands.weights * here).sum(dim=1)


def _product(x: torch.Tensor, weights: Quantized | torch.Tensor, expert: int) -> torch.Tensor:
    """The product x · weights[expert]ᵀ without global scales, the weights decoded part by part."""
    n, k = weights.packed.shape[1] if isinstance(weights, Quantized) else weights.shape[1], x.shape[1]
    step = max(1, _CHUNK_BYTES // (4 * k))
    parts = []
    for start in range(0, n, step):
        rows = slice(start, start + step)
        if isinstance(weights, Quantized):
            part = decode(weights.packed[expert, rows], weights.scale[expert, rows], x.dtype)
        else:
            part = weights[expert, rows].to(x.dtype)
        parts.append(x @ part.t())
    return torch.cat(parts, dim=1)
