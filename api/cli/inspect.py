"""`fp4tune inspect`: what a checkpoint declares, what it stores, and the GEMMs of its layers per rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ...kernels.errors import UnsupportedError
from .options import Ep, Json, Tokens, Tp, token_counts
from .output import Cell, print_json, print_line, print_prose, print_table

if TYPE_CHECKING:
    from ...tuner.gemms import Gemm
    from ...tuner.inspection.gemm_roles import Role
    from ...tuner.inspection.mtp import MtpReport
    from ...tuner.inspector import Inspection
    from ...tuner.workload import Workload


MAX_LINES = 40
"""Most warnings, and most errors, that are printed for people."""

_M_IS = {
    "decode": "batch",
    "verify": "batch x draft tokens",
    "draft_extend": "batch x draft tokens, MTP layers",
    "draft_decode": "batch, MTP layers",
    "prefill": "chunk of prompts",
}
"""What M counts in a phase, in short."""


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
        errors = [{"role": gemm.role, "mtp": gemm.mtp, "message": gemm.error} for gemm in table.errors]
        report = {**inspection_report(inspection), "tp": tp, "ep": ep, "gemms": gemms, "problems": [], "errors": errors}
        if workload is not None:
            report |= workload_report(workload)  # its gemms are the same, and its warnings hold the inspection's
        print_json({**report, "refusal": refusal})
        return
    _print_head(inspection)
    _print_roles(inspection.roles)
    print_prose(inspection.mtp.line)
    _print_mtp_tensors(inspection.mtp)
    print_line()
    print_table(
        f"GEMMs per rank at TP {tp}, EP {ep}",
        ("role", "N", "K", "experts", "format", "layers", "notes"),
        [_gemm_row(gemm) for gemm in table.gemms],
    )
    if workload is not None:
        _print_problems(workload)
    warnings = workload.warnings if workload else inspection.warnings
    for warning in warnings[:MAX_LINES]:
        print_prose(f"warning ({warning.code}): {warning.message}")
    for gemm in table.errors[:MAX_LINES]:
        print_prose(f"error: {_name(gemm.role, mtp=gemm.mtp)} cannot run: {gemm.error}")
    hidden = len(warnings[MAX_LINES:]) + len(table.errors[MAX_LINES:])
    if hidden:
        print_prose(f"and {hidden} warnings and errors more; --json prints all of them")
    if refusal:
        print_prose(f"refused for tuning: {refusal}")


def _print_head(inspection: Inspection) -> None:
    quant = inspection.quant
    print_prose(
        f"{inspection.name}: {inspection.model.architecture or inspection.model.model_type or 'no architecture named'}"
    )
    if quant.sources:
        by = f", by {quant.producer}" if quant.producer else ""
        print_prose(f"quantisation: {f'{quant.method} {quant.algo}'.strip()}{by}, from {' and '.join(quant.sources)}")
    else:
        print_prose("quantisation: none is declared")
    print_prose(
        {
            "headers": f"verdicts are what is stored: {inspection.tensors:,} tensors in {inspection.shards} files",
            "index": "verdicts rest on the index's names alone (no tensor headers here): less sure than stored ones",
            "config": "verdicts are what is declared, not what is stored: there are no tensor headers here",
        }[inspection.evidence]
    )
    print_line()


def _print_roles(roles: Sequence[Role]) -> None:
    """The modules; what a verdict rests on has a column only if it is not the same for all."""
    mixed = len({role.verdict for role in roles}) > 1
    columns = ("role", "layers", "N", "K", "experts", "declared", "stored")
    rows = [_role_row(role) + ([role.verdict] if mixed else []) for role in roles]
    print_table("Modules by role, whole model", (*columns, "verdict") if mixed else columns, rows)


def _print_mtp_tensors(mtp: MtpReport) -> None:
    """Where the MTP tensors are and what they are made of, if anybody looked or published."""
    parts = []
    if mtp.dtypes:
        parts.append(", ".join(f"{count} {dtype}" for dtype, count in mtp.dtypes))
    if mtp.fused is not None:
        parts.append("experts stacked in 3-D tensors" if mtp.fused else "experts not stacked")
    if mtp.files:
        more = f" and {len(mtp.files) - 3} files more" if len(mtp.files) > 3 else ""
        parts.append("in " + ", ".join(file for file, _ in mtp.files[:3]) + more)
    if mtp.unindexed is not None and mtp.files:
        parts.append(f"{mtp.unindexed} not in the index" if mtp.unindexed else "all in the index")
    if parts:
        print_prose(f"MTP tensors: {'; '.join(parts)}.")
    elif mtp.count is not None and mtp.count_source:
        print_prose(f"MTP tensors: none is here to be counted; source of the count: {mtp.count_source}")


def _name(role: str, *, mtp: bool) -> str:
    return f"mtp: {role}" if mtp else role


def _role_row(role: Role) -> list[Cell]:
    experts = f"{role.experts} top {role.top_k}" if role.experts else "-"
    name = _name(role.role, mtp=role.mtp)
    return [name, len(role.layers), role.n or None, role.k or None, experts, role.declared_text, role.stored_text]


def _gemm_row(gemm: Gemm) -> list[Cell]:
    notes = ("cannot run, see below",) if gemm.error else gemm.notes
    return [
        _name(gemm.role, mtp=gemm.mtp),
        gemm.n or None,
        gemm.k or None,
        f"{gemm.experts} of {gemm.experts_total} top {gemm.top_k}" if gemm.experts else "-",
        gemm.format.value,
        gemm.layers,
        "; ".join(notes) or "-",
    ]


def _print_problems(workload: Workload) -> None:
    """How many problems there are to tune, and at which M, by phase."""
    count = Counter(item.problem.format.value for item in workload.items)
    plain = count.pop("bf16", 0)
    counted = ", ".join(f"{n} {name}" for name, n in sorted(count.items())) or "none"
    bf16 = f"; {plain} bf16 more with `fp4tune tune --bf16`" if plain else ""
    print_prose(f"Problems to tune, one per GEMM and M: {counted}{bf16}.")
    tokens: dict[str, set[int]] = {}
    formats: dict[str, set[str]] = {}
    for item in workload.items:
        for phase in item.phases:
            tokens.setdefault(phase, set()).add(item.problem.m)
            formats.setdefault(phase, set()).add(item.problem.format.value)
    rows: list[list[Cell]] = [
        [phase, _M_IS[phase], " ".join(str(m) for m in sorted(counts)), ", ".join(sorted(formats[phase], reverse=True))]
        for phase, counts in tokens.items()
    ]
    print_table("Tokens M of a step, by phase", ("phase", "M is", "values", "GEMMs"), rows)
