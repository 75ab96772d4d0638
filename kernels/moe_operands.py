"""The operands of a fused mixture-of-experts layer: drawn once, shared by every backend that runs it.

The input arrives in BF16, as a layer gets it, and quantising it is part of the problem where the format quantises
activations. Its values are such that this is unambiguous: it is drawn, quantised to NVFP4 under a global scale that is
a power of two, and decoded again, which BF16 holds exactly. In every group of 16 the largest value then has the code 6,
so quantising it once more gives the same bytes, with room to spare for kernels that divide approximately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from .operands import (
    CHUNK_BYTES,
    Operands,
    Quantized,
    bank_bytes,
    bytes_of,
    copy_of,
    draw,
    stored_bytes,
    torch_dtype,
)
from .problem import Format
from .routing import draw_experts, max_rows

if TYPE_CHECKING:
    import torch

    from .problem import Problem

_RMS = 1.695
"""Root mean square of what `operands.draw` draws: a unit normal times 2^u, u uniform in [-2, 2], has the second moment
(4^2 - 4^-2) / (4·ln 4) = 2.87."""

_PRE_RMS = 2.0
"""Root mean square that gate and up are given, near that of trained layers: silu is then neither linear nor a ramp, so
that leaving it out shows."""

_MID_RMS = 2.6
"""Root mean square of silu(gate)·up for independent normal gate and up of _PRE_RMS: sqrt(E[silu(2z)²]·4), with
E[silu(2z)²] = 1.69 by quadrature."""

_MID_AMAX = 128.0
"""What the global scale of the intermediate is calibrated for: above the largest of 10^7 products of two normals of
_PRE_RMS, times 1, 2 or 4. Larger ones saturate, in the oracle as in kernels; the E4M3 scales of all others have range
to spare."""

_EXPERT_SPREAD = 0.25
"""Experts' weights differ in size by 2^u, u uniform in ±0.25, so that none vanishes beside the others in the sum of a
token, as one of a quarter of the size would. Their global scales differ by up to 4 times more (_scaled)."""

_MIN_SHARE = 0.5
"""Router weights of a token lie within [0.5, 1.5] of their mean, so that the loss of any one shows."""


@dataclass(frozen=True, slots=True)
class MoeOperands(Operands):
    """What a backend computes a moe problem on; D[M,K] = Σ weight · W2 · (silu(W1 x) * W3 x).

    Of the fields of `Operands`, `a` is x, BF16 [M, K]; `b` holds W1 (gate) in rows 0:N and W3 (up) in rows N:2N of each
    expert, NVFP4 or BF16 [experts, 2N, K]; `offsets` is None; `alpha` is float32 [experts], the factor of the first
    product of codes: 1 / (a_scale · global scale of B), without a_scale where activations stay BF16; `out` is [M, K].

    Attributes:
        a_scale: float32 [1], the global scale that x is quantised with, a power of two; 1 unless the format is nvfp4.
        b2: W2, NVFP4 or BF16 [experts, K, N].
        mid_scale: float32 [experts], the global scale that the intermediate of each expert is quantised with before the
            second product; 1 unless the format is nvfp4.
        alpha2: float32 [experts], the factor of the second product of codes: 1 / (mid_scale · global scale of B2).
        experts: int32 [M, top_k], the experts of each token, numbered over the whole layer; those from
            `problem.experts` on are on other ranks, and are left out of the sum.
        weights: float32 [M, top_k], the weights of the sum; those of a token add up to 1 over all ranks.
    """

    a_scale: torch.Tensor
    b2: Quantized | torch.Tensor
    mid_scale: torch.Tensor
    alpha2: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor

    @property
    def x(self) -> torch.Tensor:
        """The input, BF16 [M, K]: `a`, which is never quantised here."""
        return cast("torch.Tensor", self.a)

    @property
    def routed(self) -> tuple[int, ...]:
        """The experts of every token, row by row."""
        return tuple(self.experts.flatten().tolist())

    @property
    def weights_bytes(self) -> int:
        """Bytes of W1, W3 and W2 as they are kept."""
        return bytes_of(self.b) + bytes_of(self.b2)

    def with_own_weights(self) -> MoeOperands:
        """The same with copies of all weights, and nothing made of them yet."""
        return replace(self, b=copy_of(self.b), b2=copy_of(self.b2), packed={})

    def deals(self) -> list[dict[str, Any]]:
        """What to replace for the same tokens to go to other experts, no expert twice; the first changes nothing."""
        n = self.problem.experts
        local = self.experts[self.experts < n].long().cpu()
        busy = local.bincount(minlength=n).nonzero().flatten().tolist()
        idle = sorted(set(range(n)) - set(busy))
        order = [*busy, *idle]
        deals: list[dict[str, Any]] = [{}]
        for first in range(len(busy), n - len(busy) + 1, max(1, len(busy))):
            if not busy:
                break
            deals.append({"experts": self._dealt(busy, order[first : first + len(busy)])})
        return deals

    def _dealt(self, busy: list[int], others: list[int]) -> torch.Tensor:
        """The tokens' experts with each of `busy` replaced by its counterpart in `others`."""
        import torch

        table = torch.arange(self.problem.experts_total, dtype=self.experts.dtype)
        table[busy] = torch.tensor(others, dtype=self.experts.dtype)
        return table.to(self.experts.device)[self.experts.long()]


def make_moe_operands(problem: Problem, target: torch.device, seed: int) -> MoeOperands:
    """Draw and quantise the operands of a moe problem; the same bytes on every device.

    Args:
        problem: a moe problem that fits (`operands.check_memory`).
        target: where the tensors are to be.
        seed: decides every value and the routing.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    quantised_a, quantised_b = problem.format is Format.NVFP4, problem.format is not Format.BF16
    m, n, k, experts = problem.m, problem.n, problem.k, problem.experts
    a, a_scale = _input(draw((m, k), generator, target, quantised=quantised_a))
    b, b2 = (
        _scaled(draw(shape, generator, target, quantised=quantised_b, spread_of_experts=_EXPERT_SPREAD), divisor, first)
        for shape, divisor, first in (
            ((experts, 2 * n, k), _RMS**2 * math.sqrt(k) / _PRE_RMS, 0),
            ((experts, k, n), _RMS * _MID_RMS * math.sqrt(n), 1),
        )
    )
    mid_scale = torch.ones(experts)
    if quantised_a:
        spread = torch.empty(experts).uniform_(-_EXPERT_SPREAD, _EXPERT_SPREAD, generator=generator).exp2_()
        mid_scale = 448 * 6 / _MID_AMAX * spread / torch.tensor(_steps(experts, 1))
    mid_scale = mid_scale.to(target)
    shares = torch.empty(m, problem.top_k).uniform_(_MIN_SHARE, 2 - _MIN_SHARE, generator=generator)
    shares /= shares.sum(dim=1, keepdim=True)
    return MoeOperands(
        problem=problem,
        a=a,
        b=b,
        offsets=None,
        alpha=_alpha(a_scale, b),
        out=torch.empty(m, k, dtype=torch_dtype(problem.out_dtype), device=target),
        seed=seed,
        a_scale=a_scale,
        b2=b2,
        mid_scale=mid_scale,
        alpha2=_alpha(mid_scale, b2),
        experts=draw_experts(problem, seed).to(torch.int32).to(target),
        weights=shares.to(target),
    )


def moe_required_bytes(problem: Problem) -> int:
    """Memory that operands, oracle and backend of a moe problem take together at their peak, in bytes; an estimate.

    Counts the weights twice (a backend may lay them out anew), the input and the output with their references, the
    rows of all experts between the products in float32, the bank that values are drawn from, and what is worked on
    chunk by chunk.
    """
    m, n, k, rows = problem.m, problem.n, problem.k, max_rows(problem)
    quantised = problem.format is not Format.BF16
    weights = stored_bytes(problem.experts, 2 * n, k, quantised=quantised)
    weights += stored_bytes(problem.experts, k, n, quantised=quantised)
    tokens = m * k * (2 + 3 * 4) + problem.top_k * m * 12
    between = 4 * rows * (4 * n + 2 * k)
    largest = max(m * k, problem.experts * 2 * n * k)
    return 2 * weights + tokens + between + bank_bytes(k, largest) + bank_bytes(n, largest) + 3 * CHUNK_BYTES


def _input(drawn: Quantized | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The input in BF16, and the global scale that it is quantised with."""
    import torch

    from . import nvfp4

    if not isinstance(drawn, Quantized):
        return drawn, torch.ones(1, device=drawn.device)
    # On the host: a device's exp2 need not give the power of two exactly, nor the same bytes everywhere.
    scale = drawn.global_scale.new_tensor([2.0 ** round(math.log2(float(drawn.global_scale)))])
    return nvfp4.dequantize(replace(drawn, global_scale=scale), torch.bfloat16), scale


def _scaled(drawn: Quantized | torch.Tensor, divisor: float, first: int) -> Quantized | torch.Tensor:
    """Weights divided by the power of two next to `divisor`.

    The block scales of quantised ones are divided by 1, 2, 4, 1, 2, 4 ... and so are the global scales: their values
    stay what they are, and an expert's factor cannot be mistaken for its neighbour's. `first` is where that begins.
    """
    factor = 2.0 ** round(math.log2(divisor))
    if not isinstance(drawn, Quantized):
        return drawn.div_(factor)
    steps = drawn.global_scale.new_tensor(_steps(drawn.global_scale.numel(), first))
    for step, scale, swizzled in zip(steps.tolist(), drawn.scale, drawn.scale_128x4, strict=True):
        for view in (scale, swizzled.view(scale.dtype)):
            view.copy_((view.float() / step).to(view.dtype))
    return replace(drawn, global_scale=drawn.global_scale * factor / steps)


def _steps(experts: int, first: int) -> list[float]:
    """1, 2, 4, 1, 2, 4 ... from the place `first` on, one an expert."""
    return [2.0 ** ((expert + first) % 3) for expert in range(experts)]


def _alpha(scale: torch.Tensor, weights: Quantized | torch.Tensor) -> torch.Tensor:
    """The factor of a product of codes, float32 [experts]: 1 / (scale · global scale of the weights)."""
    experts = weights.packed.shape[0] if isinstance(weights, Quantized) else weights.shape[0]
    ones = scale.new_ones(experts) / scale
    return ones / weights.global_scale if isinstance(weights, Quantized) else ones
