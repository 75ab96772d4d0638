"""The operands of a problem: random, quantised once, shared by every backend that runs the problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .problem import Problem


@dataclass(frozen=True, slots=True)
class Quantized:
    """A matrix (or a stack of them) in NVFP4.

    Attributes:
        packed: uint8 [..., rows, K/2]; the low nibble is the even k.
        scale: float8_e4m3fn [..., rows, K/16], linear layout.
        scale_128x4: uint8 view of E4M3 [..., padded_rows * padded_cols] in the 128x4 layout; padding is zero.
        global_scale: float32 [...] (one an expert) or [1]: 448·6/amax. Dequantised value = code · scale / global_scale.
    """

    packed: torch.Tensor
    scale: torch.Tensor
    scale_128x4: torch.Tensor
    global_scale: torch.Tensor


@dataclass(frozen=True, slots=True)
class Operands:
    """What a backend computes on.

    Attributes:
        problem: the problem they belong to.
        a: NVFP4 or BF16 [rows, K]; for grouped, rows sorted by expert.
        b: NVFP4 or BF16 [N, K]; for grouped [experts, N, K].
        offsets: int64 [experts + 1] on the CPU: expert e owns rows offsets[e]:offsets[e+1] of `a` and `out`;
            None for dense.
        alpha: float32 [1], or [experts] for grouped: 1 / (global scale of A · global scale of B), 1 for BF16.
        out: [rows, N] of the problem's output dtype; written by the backend.
        seed: what they were drawn from.
    """

    problem: Problem
    a: Quantized | torch.Tensor
    b: Quantized | torch.Tensor
    offsets: torch.Tensor | None
    alpha: torch.Tensor
    out: torch.Tensor
    seed: int
