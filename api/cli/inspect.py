"""`fp4tune inspect`: what a checkpoint declares, what it stores, and the GEMMs of its layers per rank."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from ...kernels.errors import UnsupportedError
from .options import Ep, Json, Tokens, Tp, token_counts
from .output import Cell, print_json, print_line, print_table

if TYPE_CHECKING:
    from ...tuner.gemms import Gemm
    from ...tuner.inspection.gemm_roles import Role
    from ...tuner.inspector import Inspection
    from ...tuner.workload import Workload


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="A directory, a hub cache directory, or a preset name.")],
    tp: Tp = 1,
    ep: Ep = 1,
    tokens: Tokens = None,
    *,
    as_json: Json = False,
) -> None:
    """Show what a checkpoint declares and stores, and its GEMMs per rank."""
    from ...tuner.checkpoint import open_checkpoint
    from ...tuner.gemms import derive_gemms
    from ...tuner.inspector import inspect_checkpoint
    from ...tuner.reports import gemm_report, inspection_report, workload_report
    from ...tuner.workload import derive

    counts = token_counts(tokens)
    inspection = inspect_checkpoint(open_checkpoint(checkpoint))
    table = derive_gemms(inspection, tp=tp, ep=ep)
    workload: Workload | None = None
    refusal = ""
    try:
        workload = derive(inspection, tp=tp, ep=ep, tokens=counts, include_bf16=True)
    except UnsupportedError as error:  # MXFP4: what it holds is shown all the same
        refusal = str(error)
    if as_json:
        gemms = [gemm_report(gemm) for gemm in table.gemms]
        report = {**inspection_report(inspection), "tp": tp, "ep": ep, "gemms": gemms, "problems": []}
        if workload is not None:
            report |= workload_report(workload)  # its gemms are the same, and its warnings hold the inspection's
        print_json({**report, "refusal": refusal})
        return
    _print_head(inspection)
    print_table(
        "Modules by role",
        ("role", "layers", "N", "K", "experts", "declared", "stored", "verdict"),
        [_role_row(role) for role in inspection.roles],
    )
    print_line(inspection.mtp.line)
    print_table(
        f"GEMMs per rank at TP{tp} EP{ep}",
        ("role", "N", "K", "experts", "format", "layers", "notes"),
        [_gemm_row(gemm) for gemm in table.gemms],
    )
    if workload is not None:
        _print_problems(workload)
    for warning in workload.warnings if workload else inspection.warnings:
        print_line(f"warning ({warning.code}): {warning.message}")
    for gemm in table.errors:
        print_line(f"error: {_name(gemm.role, mtp=gemm.mtp)} cannot run: {gemm.error}")
    if refusal:
        print_line(f"refused for tuning: {refusal}")


def _print_head(inspection: Inspection) -> None:
    quant = inspection.quant
    print_line(f"{inspection.name}: {inspection.model.architecture or inspection.model.model_type}")
    if quant.sources:
        by = f", by {quant.producer}" if quant.producer else ""
        print_line(f"quantisation: {quant.method} {quant.algo}{by}, from {' and '.join(quant.sources)}")
    else:
        print_line("quantisation: none is declared")
    print_line(
        {
            "headers": f"verdicts are what is stored: {inspection.tensors:,} tensors in {inspection.shards} files",
            "index": "verdicts rest on the index's names alone (no tensor headers here): less sure than stored ones",
            "config": "verdicts are what is declared, not what is stored: there are no tensor headers here",
        }[inspection.evidence]
    )
    print_line()


def _name(role: str, *, mtp: bool) -> str:
    return f"mtp: {role}" if mtp else role


def _role_row(role: Role) -> list[Cell]:
    experts = f"{role.experts} top {role.top_k}" if role.experts else "-"
    name = _name(role.role, mtp=role.mtp)
    return [name, len(role.layers), role.n, role.k, experts, role.declared_text, role.stored_text, role.verdict]


def _gemm_row(gemm: Gemm) -> list[Cell]:
    return [
        _name(gemm.role, mtp=gemm.mtp),
        gemm.n,
        gemm.k,
        f"{gemm.experts} of {gemm.experts_total} top {gemm.top_k}" if gemm.experts else "-",
        gemm.format.value,
        gemm.layers,
        "; ".join(gemm.notes) or "-",
    ]


def _print_problems(workload: Workload) -> None:
    """How many problems there are to tune, and at which M, by phase."""
    by_format = Counter(item.problem.format.value for item in workload.items)
    counted = ", ".join(f"{count} {name}" for name, count in sorted(by_format.items())) or "none"
    print_line(f"problems (one per GEMM and M): {counted}; `fp4tune tune` takes the BF16 ones with --bf16 only")
    tokens: dict[str, set[int]] = {}
    for item in workload.items:
        for phase in item.phases:
            tokens.setdefault(phase, set()).add(item.problem.m)
    for phase, counts in tokens.items():
        print_line(f"  M in {phase}: {', '.join(str(m) for m in sorted(counts))}")
    print_line()
