"""What makes a published latency differ from what a server pays: the rules, and where each was found.

The collectors that measured for aiconfigurator are public (github.com/ai-dynamo/aiconfigurator, `collector/`); what is
said of them here was read there, and checked against the published times of an RTX PRO 6000 (0.12.0). The package does
not say which revision collected which row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WEIGHT_BITS: dict[str, float] = {
    "bfloat16": 16, "fp8": 8, "fp8_block": 8, "int8_wo": 8, "sq": 8, "int4_wo": 4, "w4afp8": 4,
    "w4a16_mxfp4": 4.25, "w4a8_mxfp4_mxfp8": 4.25, "nvfp4": 4.5,
}  # fmt: skip
"""Bits of a weight with its share of a block's scale (NVFP4: 8 bits a 16 values, MXFP4: 8 bits a 32), by published
precision. Scales of blocks of 128 x 128, rows and tensors count nothing. What is not here is not imported."""

QUANTISES_ACTIVATIONS = frozenset({"fp8", "fp8_block", "sq", "w4afp8", "w4a8_mxfp4_mxfp8", "nvfp4"})
"""Precisions whose layer takes BF16 and quantises it: that is part of the time of a dense GEMM and of a MoE layer."""

FALL = 0.30
"""A time that is smaller by more than this at the next larger m marks what comes before it as implausible. Of all steps
of dense NVFP4 0.7 to 1.0 % fall by more than a tenth; beyond 30 % there are single spikes (2,808 us between 204 and
207), and kernels that were chosen badly."""

_SGLANG_TRITON = "sglang_fused_moe_triton"
_DEEPSEEK_V3 = (2048, 7168, 256, 8)
_SM120 = "rtx_pro_6000_server"


@dataclass(frozen=True, slots=True)
class Card:
    """What decides whether weights were read from memory.

    Attributes:
        system: the publisher's name of it.
        memory_bytes_per_s: its memory's bandwidth, as published.
        l2_bytes: size of its L2 cache.
    """

    system: str
    memory_bytes_per_s: float
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one layer that are read for one call.

    Attributes:
        least_bytes: what must have been read whatever the routing was.
        likely_bytes: what was read if the tokens spread evenly.
        copies: sets of weights that the collector went through in turn.
    """

    least_bytes: float
    likely_bytes: float
    copies: int


def dense_weights(framework: str, precision: str, n: int, k: int) -> Weights:
    """Weights of a dense GEMM."""
    n_bytes = n * k * WEIGHT_BITS[precision] / 8
    return Weights(n_bytes, n_bytes, _copies(framework, precision))


def _copies(framework: str, precision: str) -> int:
    """Copies of the weights that a dense collector rotated at most: none of them flushed L2.

    SGLang's goes through up to six. TensorRT-LLM's through five (it takes fewer only of what is larger than L2 anyway).
    vLLM's through six, but a single one of NVFP4 and block-scaled FP8. Of others one is assumed.
    """
    if framework == "vllm":
        return 1 if precision in ("nvfp4", "fp8_block") else 6
    return {"sglang": 6, "trtllm": 5}.get(framework, 1)


def moe_weights(
    precision: str, m: int, n: int, k: int, *, experts: int, top_k: int, ep: int, matrices: int, balanced: bool
) -> Weights:
    """Weights of the experts of rank 0 that m tokens of the layer meet. Every replay uses the same ones.

    Args:
        precision: as published.
        m: tokens of the layer, over all ranks.
        n: intermediate size of the rank.
        k: hidden size.
        experts: of the rank.
        top_k: experts a token.
        ep: ranks that share the experts.
        matrices: three with a gate, two without.
        balanced: tokens were dealt out evenly; if not, only one token's experts are certain.
    """
    expert = matrices * n * k * WEIGHT_BITS[precision] / 8
    even = min(experts, -(-m * top_k // ep))
    least = even if balanced else min(experts, -(-top_k // ep))
    return Weights(least * expert, even * expert, copies=1)


def l2_hot(card: Card, weights: Weights, time_us: float) -> bool:
    """Whether weights may have come from L2: all copies fit it, or they came faster than memory delivers."""
    faster = weights.least_bytes > card.memory_bytes_per_s * time_us / 1e6
    return faster or weights.copies * weights.likely_bytes <= card.l2_bytes


def falls(points: Sequence[tuple[int, float]]) -> dict[int, str]:
    """Which points of a curve are slower than one of larger m by more than FALL allows, and what to say of them.

    Marked are all in a row before the fall that are slower than what it falls to: a plateau, as well as a spike.

    Args:
        points: m and microseconds, m growing.
    """
    found: dict[int, str] = {}
    for i in range(1, len(points)):
        m, time_us = points[i]
        limit = time_us / (1 - FALL)
        for before in range(i - 1, -1, -1):
            slow_m, slow_us = points[before]
            if slow_us <= limit:
                break
            found.setdefault(slow_m, f"slower than m {m}, which takes {time_us:.4g} us")
    return found


def repeats(times_us: Sequence[float]) -> str:
    """What to say of a time that was published more than once; empty if the times agree by FALL."""
    if max(times_us) * (1 - FALL) <= min(times_us):
        return ""
    return f"published {len(times_us)} times, {min(times_us):.4g} to {max(times_us):.4g} us"


def moe_suspect(
    system: str,
    framework: str,
    kernel_source: str,
    *,
    layer: tuple[int, int, int, int],
    ep: int,
    m: int,
    balanced: bool,
) -> str:
    """Why a MoE latency is not to be compared with others; empty if nothing is known against it.

    Args:
        system: the publisher's name of the card.
        framework: in lower case.
        kernel_source: as published.
        layer: intermediate size of the whole layer, hidden size, experts of the whole layer, experts a token.
        ep: ranks that share the experts.
        m: tokens of the layer.
        balanced: tokens were dealt out evenly.
    """
    if kernel_source.startswith(_SGLANG_TRITON) and ep > 1:
        return "experts of other ranks were computed as this rank's first one"
    # 8 to 11 times what TensorRT-LLM takes for the same.
    if framework == "vllm" and system == _SM120 and layer == _DEEPSEEK_V3 and ep in (32, 64) and balanced and m >= 6144:
        return "8 to 11 times another framework's time"
    return ""
