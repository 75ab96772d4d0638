"""Inspections and workloads as plain JSON-able objects: what `--json` prints. Keys are stable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .gemms import Gemm
from .inspection.gemm_roles import Role
from .inspection.mtp import MtpReport
from .inspection.notes import Warn
from .inspector import Inspection
from .workload import Workload


def inspection_report(inspection: Inspection) -> dict[str, Any]:
    """Everything an inspection found."""
    model, quant = inspection.model, inspection.quant
    return {
        "name": inspection.name,
        "evidence": inspection.evidence,
        "confidence": inspection.confidence,
        "tensors": inspection.tensors,
        "files": inspection.shards,
        "model": {
            "architecture": model.architecture,
            "model_type": model.model_type,
            "layers": len(model.layers),
            "hidden_size": model.hidden,
            "vocab_size": model.vocab,
            "attention_heads": model.attention.heads,
            "kv_heads": model.attention.kv_heads,
            "head_dim": model.attention.head_dim,
            "experts": model.ffn.experts,
            "experts_per_token": model.ffn.top_k,
            "expert_intermediate_size": model.ffn.expert,
        },
        "quantization": {
            "method": quant.method,
            "algorithm": quant.algo,
            "producer": quant.producer,
            "kv_cache": quant.kv_cache,
            "sources": list(quant.sources),
        },
        "roles": [_role(role) for role in inspection.roles],
        "mtp": _mtp(inspection.mtp),
        "warnings": _warnings(inspection.warnings),
    }


def workload_report(workload: Workload) -> dict[str, Any]:
    """A workload: the table of one rank, its problems, and what cannot run."""
    return {
        "name": workload.name,
        "tp": workload.tp,
        "ep": workload.ep,
        "gemms": [gemm_report(gemm) for gemm in workload.gemms],
        "problems": [
            {
                "shape": item.problem.shape,
                "key": item.problem.key,
                "format": item.problem.format.value,
                "role": item.role,
                "phases": list(item.phases),
                "layers": item.layers,
                "gated": item.gated,
                "labels": list(item.labels),
            }
            for item in workload.items
        ],
        "errors": [{"role": e.role, "mtp": e.mtp, "message": e.message} for e in workload.errors],
        "warnings": _warnings(workload.warnings),
    }


def gemm_report(gemm: Gemm) -> dict[str, Any]:
    """One row of the per-rank table."""
    return {
        "role": gemm.role,
        "mtp": gemm.mtp,
        "n": gemm.n,
        "k": gemm.k,
        "experts": gemm.experts,
        "experts_total": gemm.experts_total,
        "top_k": gemm.top_k,
        "format": gemm.format.value,
        "verdict": gemm.verdict,
        "layers": gemm.layers,
        "gated": gemm.gated,
        "tunable": gemm.is_tunable,
        "notes": list(gemm.notes),
        "error": gemm.error,
    }


def _role(role: Role) -> dict[str, Any]:
    return {
        "role": role.role,
        "mtp": role.mtp,
        "declared": role.declared_text,
        "stored": None if role.verdict == "declared" else role.stored_text,
        "format": role.format.value,
        "verdict": role.verdict,
        "reason": role.reason,
        "n": role.n,
        "k": role.k,
        "experts": role.experts,
        "top_k": role.top_k,
        "gated": role.gated,
        "layers": list(role.layers),
        "parts": [
            {"name": part.name, "n": part.n, "k": part.k, "declared_by": part.declared.rule} for part in role.parts
        ],
    }


def _mtp(mtp: MtpReport) -> dict[str, Any]:
    return {
        "status": mtp.status,
        "layers": mtp.layers,
        "config_keys": list(mtp.keys),
        "evidence": list(mtp.evidence),
        "tensors": mtp.count,
        "tensors_source": mtp.count_source,
        "tensors_expected": mtp.expected,
        "arithmetic": mtp.arithmetic,
        "dtypes": dict(mtp.dtypes),
        "fused_experts": mtp.fused,
        "files": dict(mtp.files),
        "unindexed": mtp.unindexed,
        "formats": [{"role": role, "format": fmt.value, "verdict": verdict} for role, fmt, verdict in mtp.formats],
        "has_nvfp4": mtp.has_nvfp4,
        "meaning": mtp.meaning,
    }


def _warnings(warnings: Iterable[Warn]) -> list[dict[str, Any]]:
    return [{"code": w.code, "message": w.message, "modules": list(w.modules)} for w in warnings]
