"""What published measurements say of a problem on a card: which precision and whose kernel was fastest, how surely.

Somebody else measured all of this. It answers only where nothing that was measured here fits, and it is never compared
with what was measured here without saying so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...db.records import ReferenceSource
from ...db.reference_systems import variant_note
from ...kernels.problem import Format, Op, OutDtype, Problem, Routing
from ...kernels.routing import POWER_LAW_EXPONENT
from .curves import Curve, Estimate, estimate

NVFP4 = "nvfp4"
"""What publishers call NVFP4 weights and activations."""

BF16_WORDS = ("bfloat16", "bf16", "float16", "fp16")
"""What publishers call operands that are not quantised."""

DISTRIBUTIONS = {Routing.UNIFORM: "balanced", Routing.POWER_LAW: f"power_law_{POWER_LAW_EXPONENT}"}
"""Routing -> the published distribution that comes nearest: experts dealt in turn for uniform."""

NO_CONFIG = "published times bring no config: a server keeps its default until `fp4tune tune` has run on the card"
"""What to do with published times, for who looks for something to serve."""

WEIGHT_ONLY = ("int8_wo", "int4_wo", "w4a16_mxfp4")
"""What publishers call weights that are quantised beside activations that are not."""

_PRECISIONS = {
    NVFP4: "NVFP4", "fp8": "FP8", "fp8_block": "block-scaled FP8", "bfloat16": "BF16", "float16": "FP16",
    "int8_wo": "INT8 weights", "int4_wo": "INT4 weights", "w4a16_mxfp4": "MXFP4 weights",
    "w4a8_mxfp4_mxfp8": "MXFP4 weights with MXFP8 activations", "w4afp8": "INT4 weights with FP8 activations",
}  # fmt: skip
_FRAMEWORKS = {"sglang": "SGLang", "trtllm": "TensorRT-LLM", "vllm": "vLLM"}


class Layer(NamedTuple):
    """What published times are looked up by: everything of a problem but its M and routing.

    Attributes:
        op: `dense` or `moe`.
        n, k: as in `Problem`. experts, experts_total, top_k: as in `Problem`; 0 for dense.
    """

    op: str
    n: int
    k: int
    experts: int = 0
    experts_total: int = 0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Reference:
    """Published times of one problem on one card.

    Attributes:
        problem: what they are of.
        fastest: the fastest that may be chosen.
        alternatives: the fastest of every other precision, fastest first.
        nvfp4: the fastest of NVFP4; None if none is published for the problem.
        cold: where `fastest` may be of weights in L2, the fastest that is not; None if there is no such, or no need.
    """

    problem: Problem
    fastest: Estimate
    alternatives: tuple[Estimate, ...]
    nvfp4: Estimate | None
    cold: Estimate | None

    @property
    def nvfp4_is_fastest(self) -> bool:
        """True if NVFP4 is published, and no other precision was faster, whether it may be chosen or not."""
        others = (self.fastest, *self.alternatives)
        return self.nvfp4 is not None and all(self.nvfp4.time_us <= one.time_us for one in others)

    @property
    def nvfp4_over_fastest(self) -> float | None:
        """Time of NVFP4's fastest over that of `fastest`; None if none is published.

        It is 1 if NVFP4 is that, and below 1 only for a problem in BF16 that would be faster in NVFP4.
        """
        return None if self.nvfp4 is None else self.nvfp4.time_us / self.fastest.time_us


def layer_of(problem: Problem) -> Layer:
    """What a problem's published times are looked up by. A grouped GEMM has none: nobody publishes it alone."""
    op = "moe" if problem.op is Op.MOE else "dense"
    return Layer(op, problem.n, problem.k, problem.experts, problem.experts_total, problem.top_k)


def fused_layers(problem: Problem) -> tuple[Layer, ...]:
    """The fused MoE layers that a grouped problem may be a part of: as gate and up (N twice theirs), or as down."""
    if problem.op is not Op.GROUPED:
        return ()
    experts = (problem.experts, problem.experts_total, problem.top_k)
    gate_up = (Layer("moe", problem.n // 2, problem.k, *experts),) if problem.n % 2 == 0 else ()
    return (*gate_up, Layer("moe", problem.k, problem.n, *experts))


def comparable(curve: Curve, problem: Problem) -> bool:
    """True if a curve of the problem's layer has times that are not suspect, of its routing."""
    routed = problem.op is not Op.MOE or curve.key.distribution == DISTRIBUTIONS.get(problem.routing)
    return routed and bool(curve.m)


def published(problem: Problem, curves: Iterable[Curve], systems: Sequence[str]) -> Reference | None:
    """The published times of a problem; None if there is none that may be used.

    Args:
        problem: dense or moe.
        curves: of its layer.
        systems: those of the card, the very card's first; times of two systems are never set against each other.
    """
    found = [one for curve in curves if comparable(curve, problem) and (one := estimate(curve, problem.m)) is not None]
    for system in systems:
        here = sorted((one for one in found if one.curve.source.system == system), key=lambda one: one.time_us)
        reference = _reference(problem, here)
        if reference is not None:
            return reference
    return None


def _reference(problem: Problem, found: Sequence[Estimate]) -> Reference | None:
    """What may be chosen of the times on one card, fastest first. Weights in BF16 can only run as such."""
    choices = [one for one in found if problem.format is not Format.BF16 or one.curve.precision in BF16_WORDS]
    if not choices:
        return None
    fastest = choices[0]
    best: dict[str, Estimate] = {}
    for one in found:
        best.setdefault(one.curve.precision, one)
    others = tuple(one for precision, one in best.items() if precision != fastest.curve.precision)
    cold = next((one for one in choices if not one.l2_hot_risk), None) if fastest.l2_hot_risk else None
    return Reference(problem, fastest, others, best.get(NVFP4), cold)


def name_of(one: Estimate) -> str:
    """A published kernel for a sentence: `FP8 (SGLang 0.5.14, sglang_sgl_kernel_fp8_scaled_mm)`."""
    return f"{precision_name(one.curve.precision)} ({framework_name(one.curve.source)}, {one.curve.key.kernel_source})"


def precision_name(precision: str) -> str:
    """A precision for a sentence: `FP8`."""
    return _PRECISIONS.get(precision, precision)


def framework_name(source: ReferenceSource) -> str:
    """A framework and its version for a sentence: `SGLang 0.5.14`."""
    return f"{_FRAMEWORKS.get(source.framework.casefold(), source.framework)} {source.framework_version}"


def sentences(reference: Reference, device_name: str = "") -> tuple[str, ...]:
    """What a reference says, without a full stop: fit to be reasons.

    Args:
        reference: the reference.
        device_name: the card that was asked about; if the published one is another variant of it, a sentence says so.
    """
    note = variant_note(reference.fastest.curve.source.system, device_name)
    return (*_headline(reference), *([note] if note else []), *_caveats(reference), NO_CONFIG)


def _headline(reference: Reference) -> Iterator[str]:
    """Which is fastest, what NVFP4 or the next precision takes, and whether quantising is part of it."""
    fastest, nvfp4 = reference.fastest, reference.nvfp4
    source = fastest.curve.source
    in_bf16 = " in BF16" if reference.problem.format is Format.BF16 else ""
    said = (
        f"on {source.device or source.system} the fastest published kernel for {reference.problem.shape}{in_bf16} is "
        f"{name_of(fastest)}, {_us(fastest)}, {_quantising(fastest)}"
    )
    other = next(iter(reference.alternatives), None) if nvfp4 is None or nvfp4 is fastest else nvfp4
    missing = "" if nvfp4 is not None else "; no NVFP4 time is published for it"
    if other is None:
        yield said + missing
        return
    whose = f"({framework_name(other.curve.source)})"
    if other is nvfp4:
        who = f"NVFP4's fastest {whose}"
    else:
        who = f"the next precision, {precision_name(other.curve.precision)} {whose},"
    times = f"{other.time_us / fastest.time_us:.2f}x as long"
    yield f"{said}; {who} takes {_us(other)}, {times}, {_quantising(other)}{missing}"
    if fastest.time_us_high > other.time_us_low and other.time_us_high > fastest.time_us_low:
        yield "the error bands of these two overlap: which is faster is not certain"


def _caveats(reference: Reference) -> Iterator[str]:
    """What a reader has to know before he relies on it."""
    fastest, problem = reference.fastest, reference.problem
    if fastest.between is not None:
        low, high = fastest.between
        unpublished = "is not published" if problem.m not in fastest.curve.suspect else "is published and not used"
        yield (
            f"M {problem.m} {unpublished}: interpolated between M {low} and {high} of the same kernel, "
            f"likely {fastest.time_us_low:.1f} to {fastest.time_us_high:.1f} µs"
        )
    if fastest.suspect:
        yield f"not used, because it is suspect: {fastest.suspect}"
    if fastest.l2_hot_risk:
        instead = "and so may those of all others"
        if reference.cold:
            instead = f"the fastest without that risk is {name_of(reference.cold)}, {_us(reference.cold)}"
        yield f"its weights may have come from L2, where a server's do not; {instead}"
    if problem.format is Format.NVFP4_W4A16 and reference.nvfp4 is not None:
        yield "published NVFP4 times are of quantised activations (W4A4), and not of W4A16"
    if problem.out_dtype is not OutDtype.BF16:
        yield f"published times are of BF16 outputs, and not of {problem.out_dtype.value}"
    if problem.op is Op.MOE and problem.routing is Routing.UNIFORM:
        yield "published for tokens dealt to the experts in turn, which is more even than uniform routing"


def _us(one: Estimate) -> str:
    return f"{one.time_us:.1f} µs"


def _quantising(one: Estimate) -> str:
    """Whether a time includes quantising the activations, for a sentence."""
    if one.curve.precision in (*BF16_WORDS, *WEIGHT_ONLY):
        return "with no activations to quantise"
    return f"quantising the activations {'' if one.curve.includes_act_quant else 'not '}included"


def why_not(problem: Problem, curves: Sequence[Curve]) -> str:
    """Why the curves of a problem's layer do not answer it: one clause."""
    if not curves:
        experts = f" with {problem.shape.partition(':')[2].partition(':')[0]}" if problem.op is Op.MOE else ""
        return f"no time of N {problem.n} and K {problem.k}{experts} is published for the card"
    usable = [curve for curve in curves if comparable(curve, problem)]
    if not usable:
        what = "that is not suspect" if problem.op is not Op.MOE else f"of {problem.routing.value} routing"
        return f"published times of this layer are there, and none {what}"
    if problem.format is Format.BF16 and not any(curve.precision in BF16_WORDS for curve in usable):
        return "published times of this layer are there, and none in BF16"
    low, high = min(curve.m[0] for curve in usable), max(curve.m[-1] for curve in usable)
    return f"published times of this layer are of M {low} to {high}, and none near enough to {problem.m}"


def fused_note(problem: Problem, layer: Layer, curves: Iterable[Curve]) -> str:
    """One clause about a published fused layer that a grouped problem may be a part of; empty if none is published.

    Args:
        problem: the grouped problem.
        layer: one of its `fused_layers`.
        curves: of that layer.
    """
    kinds = {
        f"{precision_name(curve.precision)} by {_FRAMEWORKS.get(curve.source.framework.casefold(), 'others')}"
        for curve in curves
        if curve.m
    }
    if not kinds:
        return ""
    experts = problem.shape.partition(":")[0]
    return (
        f"times of the whole fused MoE layer are published ({', '.join(sorted(kinds))}), which are not those of this "
        f"grouped GEMM and do not answer it: moe:{experts}:{problem.m}x{layer.n}x{layer.k} asks for them"
    )
