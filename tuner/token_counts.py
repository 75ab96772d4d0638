"""Which M an engine runs: token counts per phase.

Sources: SGLang's cuda_graph_hook.py (capture sizes) and spec_utils.py (speculation widths), vLLM's CUDA-graph sizes on
SM120. NEXTN is SGLang's name for drafting with MTP layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SUGGESTED = (
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 384, 512,
    1024, 2048, 4096, 8192, 16384,
)  # fmt: skip
"""Token counts worth a tuned entry: every small M, then about four a doubling, then the prefill chunks."""

MAX_BATCH = 512
"""Largest decode batch that SGLang captures on a 96 GB card at TP >= 4 (256 below)."""

PREFILL_CHUNK = 8192
"""SGLang's chunked prefill on a 96 GB card; 16384 above 160 GB."""

PREFILL_FROM = 512
"""Smallest M that counts as prefill by default: below it, prefill runs at M that decode and verify cover."""


class Phase(StrEnum):
    """What a server is doing when it runs a GEMM."""

    DECODE = "decode"
    """One token a sequence, no speculation: M = batch."""
    VERIFY = "verify"
    """The model checks the draft: M = batch x draft tokens, the bonus token included."""
    DRAFT_EXTEND = "draft_extend"
    """The MTP layer digests the verified tokens: M = batch x draft tokens."""
    DRAFT_DECODE = "draft_decode"
    """The MTP layer's remaining steps: M = batch x topk."""
    PREFILL = "prefill"
    """Chunks of prompts: M = chunk tokens."""


BACKBONE_PHASES = (Phase.DECODE, Phase.VERIFY, Phase.PREFILL)
MTP_PHASES = (Phase.DRAFT_EXTEND, Phase.DRAFT_DECODE, Phase.PREFILL)


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a server drafts.

    Attributes:
        steps: draft steps. topk: branches a step. draft_tokens: tokens verified a sequence, bonus included.
    """

    steps: int
    topk: int
    draft_tokens: int


NEXTN = Speculation(steps=3, topk=1, draft_tokens=4)
"""SGLang's default for MTP; with topk 1, draft_tokens is steps + 1."""


def phase_tokens(phase: Phase, speculation: Speculation) -> tuple[int, ...]:
    """The default M of a phase: those of SUGGESTED that the phase can have."""
    return tuple(m for m in SUGGESTED if _runs(phase, m, speculation) and m <= _limit(phase, speculation))


def phases_at(m: int, phases: Sequence[Phase], speculation: Speculation) -> tuple[Phase, ...]:
    """Which of `phases` run at this M; a M that fits none is a prefill chunk, if prefill is among them."""
    found = tuple(phase for phase in phases if _runs(phase, m, speculation) and m <= _limit(phase, speculation))
    if not found and Phase.PREFILL in phases:
        return (Phase.PREFILL,)
    return found


def _runs(phase: Phase, m: int, speculation: Speculation) -> bool:
    if phase in {Phase.VERIFY, Phase.DRAFT_EXTEND}:
        return m % speculation.draft_tokens == 0
    if phase is Phase.DRAFT_DECODE:
        return m % speculation.topk == 0
    return phase is Phase.DECODE or m >= PREFILL_FROM


def _limit(phase: Phase, speculation: Speculation) -> int:
    limits = {
        Phase.DECODE: MAX_BATCH,
        Phase.VERIFY: MAX_BATCH * speculation.draft_tokens,
        Phase.DRAFT_EXTEND: MAX_BATCH * speculation.draft_tokens,
        Phase.DRAFT_DECODE: MAX_BATCH * speculation.topk,
    }
    return limits.get(phase, PREFILL_CHUNK)


def sglang_decode_batches(max_batch: int, *, speculative: bool) -> list[int]:
    """Decode batch sizes for which SGLang captures a CUDA graph."""
    if speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, max_batch + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), *range(512, max_batch + 1, 32)]
    return [size for size in sizes if size <= max_batch]


def sglang_prefill_tokens(chunk: int) -> list[int]:
    """Prefill token counts for which SGLang captures a CUDA graph, up to its chunk."""
    sizes = [
        *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256),
        *range(4608, chunk + 1, 512),
    ]  # fmt: skip
    return [size for size in sizes if size <= chunk]


def vllm_captured_tokens(cap: int = 512) -> list[int]:
    """Token counts for which vLLM captures a CUDA graph; the cap is 512 on SM120."""
    return [size for size in [1, 2, 4, *range(8, 249, 8), *range(256, cap + 1, 16)] if size <= cap]
