"""The GEMM table of one rank: every role with its shape, format, errors and notes, before M."""

from __future__ import annotations

from dataclasses import dataclass

from ..kernels.errors import InvalidInputError
from ..kernels.problem import MAX_DIM, MAX_EXPERTS
from .alignment import BACKEND_PATHS, alignment_error, alignment_notes
from .inspection.formats import WeightFormat
from .inspection.gemm_roles import Role
from .inspector import Inspection
from .sharding import Misfit, Plan, RankShape, make_plan, shard_role

_SKIPPED = frozenset({"shared.expert_gate"})
"""Roles of N = 1: a dot product, not a GEMM."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """One GEMM of one rank, for every M.

    Attributes:
        role: `moe.w13`, ... mtp: True in the MTP branch.
        n, k: output and input features on this rank; 0 if it cannot be sharded.
        experts, experts_total, top_k: on this rank, in the layer, per token; 0 for a dense GEMM.
        format: how its weight is stored or declared. verdict: `stored`, `index` or `declared`.
        layers: how many layers run it.
        gated: True if N holds gate and up.
        notes: paddings, replication, and what else is worth knowing.
        error: why it cannot run with this TP and EP; empty if it can.
    """

    role: str
    mtp: bool
    n: int
    k: int
    experts: int
    experts_total: int
    top_k: int
    format: WeightFormat
    verdict: str
    layers: int
    gated: bool
    notes: tuple[str, ...]
    error: str

    @property
    def is_tunable(self) -> bool:
        """True if it can run and its format is one that fp4tune makes problems of."""
        return not self.error and self.format.problem_format is not None


@dataclass(frozen=True, slots=True)
class GemmTable:
    """All GEMMs of one rank.

    Attributes:
        plan: TP and EP.
        gemms: in the order of roles, the backbone first.
    """

    plan: Plan
    gemms: tuple[Gemm, ...]

    @property
    def errors(self) -> tuple[Gemm, ...]:
        """Those that cannot run."""
        return tuple(gemm for gemm in self.gemms if gemm.error)


def derive_gemms(inspection: Inspection, *, tp: int = 1, ep: int = 1, backend_path: str = "cutlass") -> GemmTable:
    """Shard every role of a checkpoint.

    Args:
        inspection: the checkpoint.
        tp: tensor-parallel size.
        ep: expert-parallel size; TP/EP ranks share an expert.
        backend_path: whose alignment rules hold (see BACKEND_PATHS).

    Raises:
        InvalidInputError: TP or EP is out of range, or divides no heads or experts of the model. A role that alone
            cannot be sharded is no exception: its row says why.
    """
    if backend_path not in BACKEND_PATHS:
        raise InvalidInputError(
            f"There is no backend path {backend_path[:40]!r}; there are {', '.join(BACKEND_PATHS)}."
        )
    plan = make_plan(inspection.model, tp, ep)
    rows = [_gemm(role, inspection, plan, backend_path) for role in inspection.roles if role.role not in _SKIPPED]
    return GemmTable(plan, tuple(rows))


def _gemm(role: Role, inspection: Inspection, plan: Plan, backend_path: str) -> Gemm:
    try:
        shape = shard_role(role, inspection.model, plan)
        error = alignment_error(role, shape, plan, backend_path)
    except Misfit as misfit:
        at = f"TP {plan.tp} does not fit: " if role.n and role.k else ""
        shape, error = RankShape(0, 0, 0, ()), f"{at}{misfit}"
    if not error and (max(shape.n, shape.k) > MAX_DIM or role.experts > MAX_EXPERTS):
        error = f"its size of {shape.n}x{shape.k} with {role.experts} experts is beyond what any kernel takes."
    if not error and role.experts and not role.top_k:
        error = "config.json does not say how many experts a token goes to (num_experts_per_tok)."
    notes = [*shape.notes, *_role_notes(role, inspection, plan.tp)]
    if shape.n:
        notes += alignment_notes(role, shape)
    return Gemm(
        role.role, role.mtp, shape.n, shape.k, shape.experts, role.experts, role.top_k, role.format, role.verdict,
        len(role.layers), role.gated, tuple(notes), error,
    )  # fmt: skip


def _role_notes(role: Role, inspection: Inspection, tp: int) -> list[str]:
    notes = []
    if role.role == "mla.kv_b":
        notes.append("absorbed into batched products at decode; a GEMM in prefill only")
    if role.role == "attn.qkv" and not {"attn.v", "attn.qkv"} & {part.part for part in role.parts}:
        notes.append("k serves as v, too: there is no v projection")
    if role.role == "mla.o_a":
        notes.append("block-diagonal: one product per output group")
    if role.role == "lm_head" and inspection.model.tied:
        notes.append("tied to the embedding")
    if role.role == "mtp.fc" and tp > 1:
        notes.append("vLLM splits N and gathers")
    if role.format.is_nvfp4 and role.experts and not role.mtp:
        notes += _shared_fusion(role, inspection)
    return notes


def _shared_fusion(role: Role, inspection: Inspection) -> list[str]:
    """Engines may run a shared expert of the same shape and format as one more routed expert."""
    twin = {"moe.w13": "shared.gate_up", "moe.w1": "shared.up", "moe.w2": "shared.down"}.get(role.role)
    for other in inspection.roles:
        same = (
            other.role == twin and not other.mtp and (other.n, other.k, other.format) == (role.n, role.k, role.format)
        )
        if same:
            return [f"with shared-expert fusion: {role.experts + 1} experts, top {role.top_k + 1}"]
    return []
