"""The workload: the problems that one rank of a deployed checkpoint computes, each with what it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..db.records import RunProblem
from ..kernels.errors import InvalidInputError, UnsupportedError
from ..kernels.problem import MAX_DIM, Format, Op, Problem
from .gemms import Gemm, GemmTable, derive_gemms
from .inspection.notes import Warn
from .inspector import Inspection
from .token_counts import BACKBONE_PHASES, MTP_PHASES, NEXTN, Phase, Speculation, phase_tokens, phases_at

MAX_TOKENS_LISTED = 1_000
"""Most token counts that a caller may list."""

DRAFT = "draft"
"""Short for both draft phases."""

_SPECULATIVE = frozenset({Phase.VERIFY, Phase.DRAFT_EXTEND, Phase.DRAFT_DECODE})


@dataclass(frozen=True, slots=True)
class WorkloadItem:
    """One problem of the workload; no two items have the same problem.

    Attributes:
        problem: the GEMM.
        role: its role; several that are the same problem are joined by `+`.
        phases: the phases that run it.
        layers: how many layers run it, over all roles and branches.
        gated: True if N holds gate and up.
        labels: where it runs: `backbone`, `mtp`, or both.
    """

    problem: Problem
    role: str
    phases: tuple[str, ...]
    layers: int
    gated: bool
    labels: tuple[str, ...]

    def to_run_problem(self) -> RunProblem:
        """As the store records it."""
        return RunProblem(self.problem, self.role, self.phases, self.layers)


@dataclass(frozen=True, slots=True)
class RoleError:
    """A role that cannot run with this TP and EP.

    Attributes:
        role: which. mtp: True in the MTP branch. message: why, one sentence.
    """

    role: str
    mtp: bool
    message: str


@dataclass(frozen=True, slots=True)
class Workload:
    """What one rank computes.

    Attributes:
        name: the checkpoint.
        tp, ep: sizes it is sharded for.
        items: the problems, by role, then by M.
        gemms: the GEMM table without M, tunable or not.
        errors: roles that cannot run; they have no items.
        warnings: the inspection's, and what was found here.
    """

    name: str
    tp: int
    ep: int
    items: tuple[WorkloadItem, ...]
    gemms: tuple[Gemm, ...]
    errors: tuple[RoleError, ...]
    warnings: tuple[Warn, ...]


def derive(
    inspection: Inspection,
    *,
    tp: int = 1,
    ep: int = 1,
    tokens: Iterable[int] | None = None,
    phases: Iterable[str] | None = None,
    include_bf16: bool = False,
    backend_path: str = "cutlass",
    speculation: Speculation = NEXTN,
) -> Workload:
    """Derive the problems of one rank.

    Args:
        inspection: the checkpoint.
        tp: tensor-parallel size.
        ep: expert-parallel size; routed experts use EP instead of as much of TP.
        tokens: M of every problem; None for each phase's default (see token_counts).
        phases: phases to keep; None for all that the checkpoint can have. `draft` means both draft phases.
        include_bf16: also make problems of BF16 GEMMs; they never count as NVFP4.
        backend_path: whose alignment rules hold.
        speculation: how the server drafts.

    Raises:
        InvalidInputError: TP, EP, a token count, a phase or the path is not valid for this checkpoint.
        UnsupportedError: the checkpoint is MXFP4, which is not NVFP4.
    """
    table = derive_gemms(inspection, tp=tp, ep=ep, backend_path=backend_path)
    if inspection.is_mxfp4:
        raise UnsupportedError(
            f"{inspection.name} is MXFP4 (one E8M0 scale per 32 elements), not NVFP4 (one E4M3 scale per 16); "
            "fp4tune does not tune it."
        )
    listed = None if tokens is None else _checked_tokens(tokens)
    wanted = _phases(inspection, phases)
    kept: dict[str, WorkloadItem] = {}
    for gemm in table.gemms:
        if gemm.is_tunable and (include_bf16 or gemm.format.problem_format is not Format.BF16):
            for item in _items(gemm, wanted, listed, speculation):
                known = kept.get(item.problem.key)
                kept[item.problem.key] = item if known is None else _merged(known, item)
    errors = tuple(RoleError(gemm.role, gemm.mtp, gemm.error) for gemm in table.errors)
    warnings = (*inspection.warnings, *_warnings(inspection, table, tuple(kept.values()), include_bf16=include_bf16))
    return Workload(inspection.name, tp, ep, tuple(kept.values()), table.gemms, errors, warnings)


def _items(
    gemm: Gemm, wanted: Sequence[Phase], listed: Sequence[int] | None, speculation: Speculation
) -> Iterable[WorkloadItem]:
    mine = [phase for phase in (MTP_PHASES if gemm.mtp else BACKBONE_PHASES) if phase in wanted]
    if gemm.role == "lm_head":  # only the last token of a prompt reaches the head
        mine = [phase for phase in mine if phase is not Phase.PREFILL]
    if gemm.role == "mla.kv_b":  # absorbed otherwise
        mine = [phase for phase in mine if phase is Phase.PREFILL]
    if listed is None:
        at = {phase: set(phase_tokens(phase, speculation)) for phase in mine}
        sizes = sorted(set().union(*at.values()))
        runs = {m: tuple(phase for phase in mine if m in at[phase]) for m in sizes}
    else:
        runs = {m: phases_at(m, mine, speculation) for m in listed}
    for m, phases in runs.items():
        if phases:
            names = tuple(phase.value for phase in phases)
            label = "mtp" if gemm.mtp else "backbone"
            yield WorkloadItem(_problem(gemm, m), gemm.role, names, gemm.layers, gemm.gated, (label,))


def _problem(gemm: Gemm, m: int) -> Problem:
    fmt = gemm.format.problem_format or Format.BF16
    if not gemm.experts:
        return Problem(m, gemm.n, gemm.k, format=fmt)
    return Problem(m, gemm.n, gemm.k, Op.GROUPED, gemm.experts, gemm.experts_total, gemm.top_k, format=fmt)


def _merged(one: WorkloadItem, other: WorkloadItem) -> WorkloadItem:
    roles = dict.fromkeys((*one.role.split("+"), *other.role.split("+")))
    return replace(
        one,
        role="+".join(roles),
        phases=tuple(dict.fromkeys((*one.phases, *other.phases))),
        layers=one.layers + other.layers,
        gated=one.gated or other.gated,
        labels=tuple(dict.fromkeys((*one.labels, *other.labels))),
    )


def _checked_tokens(tokens: Iterable[int]) -> list[int]:
    listed = sorted(set(tokens))
    if not listed or len(listed) > MAX_TOKENS_LISTED:
        raise InvalidInputError(f"Give from 1 to {MAX_TOKENS_LISTED} token counts, not {len(listed)}.")
    bad = next((m for m in listed if type(m) is not int or not 1 <= m <= MAX_DIM), None)
    if bad is not None:
        raise InvalidInputError(f"A token count must be an integer from 1 to {MAX_DIM}, and one is {bad}.")
    return listed


def _phases(inspection: Inspection, phases: Iterable[str] | None) -> tuple[Phase, ...]:
    """The phases to derive: those asked for, or all that the checkpoint can have."""
    drafts = inspection.mtp.status not in {"none", "absent"}
    if phases is None:
        return tuple(phase for phase in Phase if drafts or phase not in _SPECULATIVE)
    wanted: list[Phase] = []
    for name in phases:
        if name == DRAFT:
            wanted += [Phase.DRAFT_EXTEND, Phase.DRAFT_DECODE]
        elif name in {phase.value for phase in Phase}:
            wanted.append(Phase(name))
        else:
            known = ", ".join([phase.value for phase in Phase] + [DRAFT])
            raise InvalidInputError(f"There is no phase {str(name)[:40]!r}; there are {known}.")
    if not wanted:
        raise InvalidInputError("Give at least one phase.")
    if not drafts and set(wanted) <= {Phase.DRAFT_EXTEND, Phase.DRAFT_DECODE}:
        raise InvalidInputError(f"{inspection.name} has no MTP layers, so it has no draft phase.")
    return tuple(dict.fromkeys(wanted))


def _warnings(
    inspection: Inspection, table: GemmTable, items: Sequence[WorkloadItem], *, include_bf16: bool
) -> list[Warn]:
    found = []
    nvfp4 = [gemm for gemm in table.gemms if gemm.format.is_nvfp4]
    if not nvfp4:
        message = f"{inspection.name} has no NVFP4 GEMM: nothing to tune."
        if not include_bf16:
            message += " Its BF16 GEMMs can be tuned when asked for."
        found.append(Warn("no-nvfp4", message))
    elif not items and not table.errors:
        found.append(Warn("empty-workload", "No GEMM of this checkpoint runs in the phases that were asked for."))
    refused = sorted({f"{g.role} ({g.format.value})" for g in table.gemms if g.format.problem_format is None})
    if refused:
        found.append(Warn("not-tunable", f"Not tuned, because fp4tune has no such problems: {', '.join(refused)}."))
    return found
