"""The GEMMs of a decoder layer: which linears of a checkpoint an engine fuses into one, and how it shards them.

Sources: SGLang and vLLM model code (qkv, gate_up, in_proj_qkvz and in_proj_ba are merged column-parallel linears;
MLA's q_a and kv_a are one replicated linear; o, down and out_proj are row-parallel).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Shard(StrEnum):
    """How a linear is split over the ranks of a tensor-parallel group."""

    COLUMN = "column"
    """N is split."""
    ROW = "row"
    """K is split."""
    REPLICATED = "replicated"
    VOCAB = "vocab"
    """N is the vocabulary, padded to a multiple of 64, then split."""


class Unit(StrEnum):
    """What must not be cut when N or K is split."""

    NONE = "none"
    HEADS = "heads"
    KV_HEADS = "kv_heads"
    """As heads, but replicated once there are more ranks than heads."""
    QKV = "qkv"
    """A stored fusion of heads and kv_heads."""
    LINEAR_HEADS = "linear_heads"
    MAMBA_HEADS = "mamba_heads"
    MAMBA_IN = "mamba_in"
    """Mamba2's in_proj: z and x by heads, B and C by groups, dt by heads."""
    GROUPS = "groups"
    """Output groups of DeepSeek-V4's grouped output projection."""


@dataclass(frozen=True, slots=True)
class PartRule:
    """One linear of a checkpoint.

    Attributes:
        role: the GEMM it is fused into.
        shard: how it is split.
        unit: what must stay whole.
        grouped: True if it is one linear per routed expert.
    """

    role: str
    shard: Shard
    unit: Unit = Unit.NONE
    grouped: bool = False


PARTS: dict[str, PartRule] = {
    "attn.q": PartRule("attn.qkv", Shard.COLUMN, Unit.HEADS),
    "attn.k": PartRule("attn.qkv", Shard.COLUMN, Unit.KV_HEADS),
    "attn.v": PartRule("attn.qkv", Shard.COLUMN, Unit.KV_HEADS),
    "attn.qkv": PartRule("attn.qkv", Shard.COLUMN, Unit.QKV),
    "attn.o": PartRule("attn.o", Shard.ROW, Unit.HEADS),
    "mla.q_a": PartRule("mla.qkv_a", Shard.REPLICATED),
    "mla.kv_a": PartRule("mla.qkv_a", Shard.REPLICATED),
    "mla.qkv_a": PartRule("mla.qkv_a", Shard.REPLICATED),
    "mla.q": PartRule("mla.q", Shard.COLUMN, Unit.HEADS),
    "mla.q_b": PartRule("mla.q_b", Shard.COLUMN, Unit.HEADS),
    "mla.kv_b": PartRule("mla.kv_b", Shard.COLUMN, Unit.HEADS),
    "mla.o": PartRule("mla.o", Shard.ROW, Unit.HEADS),
    "mla.o_a": PartRule("mla.o_a", Shard.COLUMN, Unit.GROUPS),
    "mla.o_b": PartRule("mla.o_b", Shard.ROW, Unit.GROUPS),
    "gdn.qkv": PartRule("gdn.in_proj_qkvz", Shard.COLUMN, Unit.LINEAR_HEADS),
    "gdn.z": PartRule("gdn.in_proj_qkvz", Shard.COLUMN, Unit.LINEAR_HEADS),
    "gdn.qkvz": PartRule("gdn.in_proj_qkvz", Shard.COLUMN, Unit.LINEAR_HEADS),
    "gdn.b": PartRule("gdn.in_proj_ba", Shard.COLUMN, Unit.LINEAR_HEADS),
    "gdn.a": PartRule("gdn.in_proj_ba", Shard.COLUMN, Unit.LINEAR_HEADS),
    "gdn.ba": PartRule("gdn.in_proj_ba", Shard.COLUMN, Unit.LINEAR_HEADS),
    "gdn.out": PartRule("gdn.out_proj", Shard.ROW, Unit.LINEAR_HEADS),
    "mamba.in": PartRule("mamba.in_proj", Shard.COLUMN, Unit.MAMBA_IN),
    "mamba.out": PartRule("mamba.out_proj", Shard.ROW, Unit.MAMBA_HEADS),
    "mlp.gate": PartRule("mlp.gate_up", Shard.COLUMN),
    "mlp.up": PartRule("mlp.gate_up", Shard.COLUMN),
    "mlp.gate_up": PartRule("mlp.gate_up", Shard.COLUMN),
    "mlp.down": PartRule("mlp.down", Shard.ROW),
    "moe.gate": PartRule("moe.w13", Shard.COLUMN, grouped=True),
    "moe.up": PartRule("moe.w13", Shard.COLUMN, grouped=True),
    "moe.gate_up": PartRule("moe.w13", Shard.COLUMN, grouped=True),
    "moe.down": PartRule("moe.w2", Shard.ROW, grouped=True),
    "shared.gate": PartRule("shared.gate_up", Shard.COLUMN),
    "shared.up": PartRule("shared.gate_up", Shard.COLUMN),
    "shared.gate_up": PartRule("shared.gate_up", Shard.COLUMN),
    "shared.down": PartRule("shared.down", Shard.ROW),
    "shared.expert_gate": PartRule("shared.expert_gate", Shard.REPLICATED),
    "latent.fc1": PartRule("latent.fc1", Shard.REPLICATED),
    "latent.fc2": PartRule("latent.fc2", Shard.REPLICATED),
    "router": PartRule("router", Shard.REPLICATED),
    "mtp.fc": PartRule("mtp.fc", Shard.REPLICATED),
    "lm_head": PartRule("lm_head", Shard.VOCAB),
}

NON_GATED = {"moe.w13": "moe.w1", "mlp.gate_up": "mlp.up", "shared.gate_up": "shared.up"}
"""The role of a feed-forward layer without a gate: N is I, not 2I."""

ORDER = tuple(dict.fromkeys(
    role for rule in (
        "moe.gate", "moe.down", "shared.gate", "shared.down", "shared.expert_gate", "latent.fc1", "latent.fc2",
        "router", "mlp.gate", "mlp.down", "attn.q", "attn.o", "mla.q_a", "mla.q", "mla.q_b", "mla.kv_b", "mla.o",
        "mla.o_a", "mla.o_b", "gdn.qkv", "gdn.b", "gdn.out", "mamba.in", "mamba.out", "mtp.fc", "lm_head",
    )
    for role in (PARTS[rule].role, NON_GATED.get(PARTS[rule].role, ""))
    if role
))  # fmt: skip
"""The order in which roles are listed: what is tuned first."""


def rule_of(part: str) -> PartRule:
    """The rule of a part; indexer and compressor linears are replicated roles of their own."""
    return PARTS.get(part) or PartRule(part, Shard.REPLICATED)


def order_of(role: str) -> tuple[int, str]:
    """Sort key of a role."""
    return (ORDER.index(role) if role in ORDER else len(ORDER), role)
