"""The GEMMs of a model at one TP and EP: what its runs set out to tune, and what its preset derives.

Paths are not opened here: a checkpoint that is a directory is known by its runs alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...db.records import RunProblem
from ...kernels.errors import Fp4tuneError
from ...kernels.problem import Format, Op, OutDtype, Problem, Routing
from ...tuner import presets
from ...tuner.checkpoint import Checkpoint
from ...tuner.inspection.shards import ShardSet
from ...tuner.inspector import Inspection, inspect_checkpoint
from ...tuner.workload import Workload, WorkloadItem, derive

ODD = "The runs of this model tuned GEMMs that its preset does not have ({}), so only what runs tuned is shown."


@dataclass(frozen=True, slots=True)
class Model:
    """A model as it is deployed.

    Attributes:
        name: the preset's own name, or else the checkpoint as it was given; empty for bare shapes.
        tp, ep: ranks that share every layer, and the experts.
    """

    name: str
    tp: int = 1
    ep: int = 1


@dataclass(frozen=True, slots=True)
class Use:
    """A problem that a rank of the model computes.

    Attributes:
        problem: the GEMM. role: its role in the model; empty for a bare shape.
        layers: how many layers run it, by phase; empty for a bare shape. n_layers: in whatever phase.
        is_tuned: True if a run of the model set out to tune it.
    """

    problem: Problem
    role: str
    layers: Mapping[str, int]
    n_layers: int
    is_tuned: bool


@dataclass(frozen=True, slots=True)
class ModelWorkload:
    """Every problem of a model that is known here.

    Attributes:
        uses: the problems, by GEMM, in the order of the model.
        preset: the preset that was derived as well; empty if there was none.
        n_bf16: GEMMs of the preset that are in BF16 and no run tuned: they are not in `uses`.
        warnings: what is in doubt, a sentence each.
    """

    uses: tuple[Use, ...]
    preset: str = ""
    n_bf16: int = 0
    warnings: tuple[str, ...] = ()


def gemm_of(problem: Problem) -> Problem:
    """The GEMM of a problem, whatever its M: the problem at M 1."""
    return replace(problem, m=1)


def preset_names() -> dict[str, str]:
    """The names of presets by what may be typed for them, in small letters."""
    short: dict[str, list[str]] = {}
    for name in presets.names():
        short.setdefault(name.lower().partition("/")[2], []).append(name)
    found = {text: names[0] for text, names in short.items() if len(names) == 1}
    return found | {name.lower(): name for name in presets.names()}


def workload_of(model: Model, items: Sequence[RunProblem], *, preset: str = "") -> ModelWorkload:
    """Put together what runs tuned and what a preset derives.

    Args:
        model: the model.
        items: problems of its runs, those of the newest run first.
        preset: name of its preset; empty if it is none.
    """
    tuned = {use.problem.key: use for use in _of_runs(items)}
    if not preset:
        return ModelWorkload(_ordered(tuned.values()))
    with_bf16 = any(use.problem.format is Format.BF16 for use in tuned.values())
    try:
        derived = _Derived(_inspection(preset), model, {item.problem.m for item in items}, with_bf16=with_bf16)
        uses = {use.problem.key: replace(use, is_tuned=use.problem.key in tuned) for use in derived.uses()}
    except Fp4tuneError as error:
        said = f"Nothing is derived of {preset} for TP {model.tp} and EP {model.ep}: {error}"
        return ModelWorkload(_ordered(tuned.values()), preset, warnings=(said,))
    known = {gemm_of(use.problem) for use in uses.values()}
    odd = [use for use in tuned.values() if _is_derivable(use.problem) and gemm_of(use.problem) not in known]
    if odd:
        return ModelWorkload(_ordered(tuned.values()), warnings=(ODD.format(odd[0].problem.shape),))
    uses |= {key: use for key, use in tuned.items() if key not in uses}
    unfit = tuple(f"{role} cannot run with TP {model.tp} and EP {model.ep}: {why}" for role, why in derived.unfit)
    return ModelWorkload(_ordered(uses.values()), preset, derived.n_bf16, unfit)


def _of_runs(items: Sequence[RunProblem]) -> Iterator[Use]:
    """The problems of runs, each once, as the newest run has it, with the phases of all runs."""
    newest: dict[str, RunProblem] = {}
    phases: dict[str, dict[str, None]] = {}
    for item in items:
        newest.setdefault(item.problem.key, item)
        phases.setdefault(item.problem.key, {}).update(dict.fromkeys(item.phases))
    for key, item in newest.items():
        yield Use(item.problem, item.role, dict.fromkeys(phases[key], item.layers), item.layers, is_tuned=True)


def _inspection(preset: str) -> Inspection:
    """What a preset declares. By name, and never a directory that may be called the same."""
    found = presets.load(preset)
    nothing = ShardSet((), None, {}, ())
    return inspect_checkpoint(
        Checkpoint(found.name, None, found.config, found.hf_quant_config, nothing, found.published)
    )


class _Derived:
    """The problems of a preset, at each phase's usual M and at some more.

    Args:
        inspection: of the preset.
        model: its TP and EP.
        tokens: the M beside the usual ones.
        with_bf16: whether BF16 GEMMs are wanted.

    Attributes:
        n_bf16: BF16 GEMMs that are left out. unfit: (role, why) of roles that cannot run with this TP and EP.

    Raises:
        Fp4tuneError: nothing can be derived.
    """

    def __init__(self, inspection: Inspection, model: Model, tokens: Collection[int], *, with_bf16: bool) -> None:
        self._inspection = inspection
        self._model = model
        self._tokens = tokens
        self._with_bf16 = with_bf16
        workload = self._workload(None)
        self.unfit = [(error.role, error.message) for error in workload.errors]
        self.n_bf16 = 0 if with_bf16 else sum(
            gemm.is_tunable and gemm.format.problem_format is Format.BF16 for gemm in workload.gemms
        )  # fmt: skip
        self._items = self._both(workload)

    def uses(self) -> list[Use]:
        """The problems.

        A GEMM that the MTP layers share with the others is one problem, which stands for the layers of both. Which of
        them run in a phase is what deriving that phase alone says.
        """
        shared = [item for item in self._items.values() if len(item.labels) > 1]
        alone = {
            phase: self._both(self._workload(None, (phase,)), (phase,))
            for phase in dict.fromkeys(phase for item in shared for phase in item.phases)
        }
        return [
            Use(
                item.problem,
                item.role,
                {
                    phase: alone[phase][key].layers if len(item.labels) > 1 else item.layers
                    for phase in item.phases
                },
                item.layers,
                is_tuned=False,
            )
            for key, item in self._items.items()
        ]  # fmt: skip

    def _both(self, usual: Workload, phases: tuple[str, ...] | None = None) -> dict[str, WorkloadItem]:
        """Problems at the M beside the usual ones, then at those, by key."""
        listed = self._workload(self._tokens, phases).items if self._tokens else ()
        found: dict[str, WorkloadItem] = {}
        for item in (*listed, *usual.items):
            found.setdefault(item.problem.key, item)
        return found

    def _workload(self, tokens: Collection[int] | None, phases: tuple[str, ...] | None = None) -> Workload:
        model = self._model
        return derive(
            self._inspection, tp=model.tp, ep=model.ep, tokens=tokens, phases=phases, include_bf16=self._with_bf16
        )


def _is_derivable(problem: Problem) -> bool:
    """Whether a checkpoint's workload can have such a problem: no fused layer, and routing and output as usual."""
    return problem.op is not Op.MOE and problem.routing is Routing.UNIFORM and problem.out_dtype is OutDtype.BF16


def _ordered(uses: Collection[Use]) -> tuple[Use, ...]:
    """Problems of one GEMM together, GEMMs in the order in which they come, then by M. BF16 last."""
    place: dict[Problem, int] = {}
    for use in uses:
        place.setdefault(gemm_of(use.problem), len(place))
    return tuple(
        sorted(uses, key=lambda use: (use.problem.format is Format.BF16, place[gemm_of(use.problem)], use.problem.m))
    )
