"""Which shapes NVFP4 kernels take: hard rules (errors) and paddings (notes).

Sources: K group of 16 (the format); SGLang pads N and K of dense FP4 GEMMs to 32; scale factors are swizzled in tiles
of 128 rows by 4 columns, that is 64 of K; SGLang asserts and vLLM raises unless (2I/TP) % 128 == 0 for gated NVFP4
experts on the flashinfer_cutlass path, the default on SM120.
"""

from __future__ import annotations

from ..kernels.problem import NVFP4_GROUP
from .inspection.formats import WeightFormat
from .inspection.gemm_roles import Role
from .sharding import Plan, RankShape

CUTLASS_MOE_ROWS = 128
SGLANG_PADDING = 32
SCALE_TILE_ROWS = 128
SCALE_TILE_K = 64

BACKEND_PATHS = ("cutlass", "any")
"""`cutlass`: rules of the flashinfer_cutlass MoE path hold. `any`: only rules of the format do."""


def alignment_error(role: Role, shape: RankShape, plan: Plan, backend_path: str) -> str:
    """Why no NVFP4 kernel of this path can run the shape, in one sentence; empty if one can."""
    if not role.format.is_nvfp4:
        return ""
    tp = plan.moe_tp if role.experts else plan.tp
    if shape.k % NVFP4_GROUP:
        return (
            f"{_at(tp, plan, grouped=bool(role.experts))} is invalid: K = {role.k}/{tp} = {shape.k} is no multiple of "
            f"{NVFP4_GROUP}, so a shard would split the elements of one scale."
        )
    gated_experts = role.gated and role.experts and role.format is WeightFormat.NVFP4
    if gated_experts and backend_path == "cutlass" and shape.n % CUTLASS_MOE_ROWS:
        return (
            f"{_at(tp, plan, grouped=True)} is invalid on the CUTLASS path: 2I/TP = {role.n}/{tp} = {shape.n} is no "
            f"multiple of {CUTLASS_MOE_ROWS}, and gate and up are never padded there."
        )
    return ""


def alignment_notes(role: Role, shape: RankShape) -> list[str]:
    """Paddings that the shape costs, for people: those of W4A4 kernels, because W4A16 kernels repack the weights."""
    if role.format is not WeightFormat.NVFP4:
        return []
    notes = []
    dense = not role.experts
    if dense and (shape.n % SGLANG_PADDING or shape.k % SGLANG_PADDING):
        padded = (_up(shape.n, SGLANG_PADDING), _up(shape.k, SGLANG_PADDING))
        notes.append(f"SGLang pads {shape.n}x{shape.k} to {padded[0]}x{padded[1]}")
    if shape.n % SCALE_TILE_ROWS:
        rows = _up(shape.n, SCALE_TILE_ROWS)
        notes.append(f"N % {SCALE_TILE_ROWS} = {shape.n % SCALE_TILE_ROWS}: swizzled scales have {rows} rows")
    if shape.n % SCALE_TILE_K:
        notes.append(f"N % {SCALE_TILE_K} = {shape.n % SCALE_TILE_K}: the last tile of N is partly empty")
    if shape.k % SCALE_TILE_K:
        columns = _up(shape.k, SCALE_TILE_K)
        notes.append(f"K % {SCALE_TILE_K} = {shape.k % SCALE_TILE_K}: swizzled scales cover K = {columns}")
    return notes


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _at(tp: int, plan: Plan, *, grouped: bool) -> str:
    return f"TP {plan.tp} with EP {plan.ep}" if grouped and plan.ep > 1 else f"TP {tp}"
