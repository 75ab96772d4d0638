"""GEMM shapes on one rank, for a tensor-parallel and an expert-parallel size.

Sharding as SGLang and vLLM do it: column-parallel linears split N, row-parallel ones split K, routers and MLA's
low-rank inputs are replicated, kv heads are replicated once there are more ranks than heads, the vocabulary is
padded to a multiple of 64. Expert parallelism replaces tensor parallelism for routed experts and leaves the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..kernels.errors import InvalidInputError
from .inspection.gemm_roles import Part, Role
from .inspection.model_config import ModelConfig
from .inspection.roles import Shard, Unit, rule_of

MAX_RANKS = 4096
"""Largest TP or EP size accepted; no deployment of one model instance comes near it."""

VOCAB_PADDING = 64
"""DEFAULT_VOCAB_PADDING_SIZE of SGLang and vLLM."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is spread over ranks.

    Attributes:
        tp: tensor-parallel size of everything but routed experts.
        ep: expert-parallel size.
        moe_tp: tensor-parallel size inside an expert: TP/EP, at least 1. With EP > TP the attention is data-parallel.
    """

    tp: int
    ep: int

    @property
    def moe_tp(self) -> int:
        """Ranks that share one expert."""
        return max(1, self.tp // self.ep)


class Misfit(Exception):  # noqa: N818 - caught here and in gemms.py, never seen by a user
    """A dimension that cannot be split this way; its text is one sentence."""


def make_plan(model: ModelConfig, tp: int, ep: int) -> Plan:
    """Check the sizes against each other and against what must stay whole in every layer of the model.

    Raises:
        InvalidInputError: a size is out of range or does not divide heads or experts; the sentence says which sizes do.
    """
    for name, value in (("TP", tp), ("EP", ep)):
        if type(value) is not int or not 1 <= value <= MAX_RANKS:
            raise InvalidInputError(f"{name} must be an integer from 1 to {MAX_RANKS}, and is {str(value)[:40]}.")
    if tp % ep and ep % tp:
        raise InvalidInputError(f"EP {ep} and TP {tp} do not fit: one must divide the other.")
    obstacle = _obstacle(model, tp)
    if obstacle:
        possible = [t for t in range(1, 129) if not _obstacle(model, t)]
        raise InvalidInputError(f"TP {tp} does not divide {obstacle}; possible are {', '.join(map(str, possible))}.")
    experts = model.ffn.experts
    if ep > 1 and not experts:
        raise InvalidInputError(f"EP {ep} needs routed experts, and the model has none; use TP.")
    if experts and experts % ep:
        raise InvalidInputError(f"EP {ep} does not divide the model's {experts} experts.")
    return Plan(tp, ep)


def _obstacle(model: ModelConfig, tp: int) -> str:
    """What TP does not divide, for people; empty if it fits."""
    mixers = {layer.mixer for layer in model.layers}
    a, r = model.attention, model.recurrent
    if mixers & {"attention", "sliding"} and a.heads % tp:
        return f"the {a.heads} attention heads"
    if mixers & {"attention", "sliding"} and not a.is_mla and not a.is_v4:
        for kv_heads in {a.kv_heads, a.sliding_kv_heads} - {0}:
            if kv_heads % tp and tp % kv_heads:
                return f"the {kv_heads} kv heads, nor is it a multiple of them"
    if "linear" in mixers and (r.key_heads % tp or r.value_heads % tp):
        return f"the {r.key_heads} key and {r.value_heads} value heads of linear attention"
    if "mamba" in mixers and r.mamba_heads % tp:
        return f"the {r.mamba_heads} Mamba heads"
    return ""


@dataclass(frozen=True, slots=True)
class RankShape:
    """A GEMM on one rank.

    Attributes:
        n, k: output and input features. experts: routed experts on this rank; 0 for a dense GEMM.
        notes: what happened on the way, for people.
    """

    n: int
    k: int
    experts: int
    notes: tuple[str, ...]


def shard_role(role: Role, model: ModelConfig, plan: Plan) -> RankShape:
    """The shape of a role on one rank.

    Raises:
        Misfit: it cannot be split this way.
    """
    notes: list[str] = []
    if not role.n or not role.k:
        raise Misfit("its shape is known neither from headers nor from config.json.")
    grouped = rule_of(role.parts[0].part).grouped
    tp = plan.moe_tp if grouped else plan.tp
    n = 0
    k = role.k
    for part in role.parts:
        rule = rule_of(part.part)
        if rule.shard is Shard.COLUMN:
            n += _COLUMN.get(rule.unit, _even_n)(part, model, tp, notes)
        elif rule.shard is Shard.VOCAB:
            n += _vocab(part, tp, notes)
        else:
            n += part.n
        if rule.shard is Shard.ROW:
            if part.k % tp:
                raise Misfit(f"K = {part.k} cannot be split over {tp} ranks.")
            k = part.k // tp
    experts = role.experts
    if grouped and plan.ep > 1:
        if experts % plan.ep:
            raise Misfit(f"its {experts} experts cannot be split over EP {plan.ep}.")
        experts //= plan.ep
        notes.append(f"EP {plan.ep}: {experts} of {role.experts} experts on a rank")
    if rule_of(role.parts[0].part).shard is Shard.REPLICATED and plan.tp > 1:
        notes.append("replicated")
    return RankShape(n, k, experts, tuple(dict.fromkeys(notes)))


def _even_n(part: Part, _: ModelConfig, tp: int, __: list[str]) -> int:
    if part.n % tp:
        raise Misfit(f"N = {part.n} of {part.part} cannot be split over {tp} ranks.")
    return part.n // tp


def _kv_n(part: Part, model: ModelConfig, tp: int, notes: list[str]) -> int:
    """One of k and v: whole heads; replicated once there are more ranks than heads."""
    heads = _kv_heads(part.n, model)
    if heads >= tp:
        if heads % tp:
            raise Misfit(f"{heads} kv heads cannot be split over {tp} ranks.")
        return part.n // tp
    if tp % heads:
        raise Misfit(f"{heads} kv heads cannot be replicated evenly over {tp} ranks.")
    notes.append(f"{heads} kv heads replicated over {tp} ranks")
    return part.n // heads


def _kv_heads(width: int, model: ModelConfig) -> int:
    """How many kv heads a k projection of this width has; models may have two kinds of attention layer."""
    a = model.attention
    for heads, dim in ((a.kv_heads, a.head_dim), (a.sliding_kv_heads, a.sliding_head_dim)):
        if heads and heads * dim == width:
            return heads
    if not a.kv_heads or width % a.kv_heads:
        raise Misfit(f"config.json names no kv heads that fit a k projection of {width}.")
    return a.kv_heads


def _qkv_n(part: Part, model: ModelConfig, tp: int, notes: list[str]) -> int:
    """A stored fusion of q, k and v, cut by config.json's heads."""
    a = model.attention
    width = a.kv_heads * a.head_dim
    q = part.n - 2 * width
    if not width or q <= 0 or q % tp:
        raise Misfit(f"a fused qkv projection of {part.n} does not fit config.json's {a.heads} and {a.kv_heads} heads.")
    if a.kv_heads >= tp:
        return part.n // tp
    notes.append(f"{a.kv_heads} kv heads replicated over {tp} ranks")
    return q // tp + 2 * a.head_dim


def _mamba_n(part: Part, model: ModelConfig, tp: int, notes: list[str]) -> int:
    """z, x and dt by heads; B and C by groups, with groups added where they do not divide (vLLM, SGLang)."""
    r = model.recurrent
    inner = r.mamba_heads * r.mamba_dim
    states = 2 * r.groups * r.state
    if part.n != 2 * inner + states + r.mamba_heads:
        return _even_n(part, model, tp, notes)
    groups = r.groups
    if groups % tp:
        groups = tp  # extra_groups_for_head_shards: tp - groups more
        notes.append(f"{r.groups} Mamba groups replicated over {tp} ranks")
    return (2 * inner + 2 * groups * r.state + r.mamba_heads) // tp


def _vocab(part: Part, tp: int, notes: list[str]) -> int:
    padded = -(-part.n // VOCAB_PADDING) * VOCAB_PADDING
    if padded % tp:
        raise Misfit(f"the padded vocabulary of {padded} cannot be split over {tp} ranks.")
    if padded != part.n:
        notes.append(f"vocabulary padded from {part.n} to {padded}")
    return padded // tp


_COLUMN: dict[Unit, Callable[[Part, ModelConfig, int, list[str]], int]] = {
    Unit.KV_HEADS: _kv_n,
    Unit.QKV: _qkv_n,
    Unit.MAMBA_IN: _mamba_n,
}
