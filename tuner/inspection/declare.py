"""The declared verdict of one module: what the quantisation lists say, read with the care that the lists need.

Lists are written in one spelling and modules stored in another: per projection against fused (SGLang #36596),
`w1` against `gate_proj`. A module that no entry names is therefore looked up under its other spellings before it
gets the default. And some modules are never quantised whatever a list leaves out (vLLM PR #38832: `mtp.fc`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .formats import WeightFormat
from .quant_config import QuantConfig
from .quant_rules import Ruling

NEVER_QUANTISED = frozenset({"router", "shared.expert_gate", "mtp.fc"})
"""Parts that no published checkpoint quantises; a list that does not exclude them is believed only with headers."""

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "w13": ("w1", "w3"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "fused_wqa_wkv": ("wq_a", "wkv"),
}
_PART_OF = {part: fused for fused, parts in _FUSED.items() for part in parts}
_SAME = {
    "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Declared:
    """What the configuration says about one module.

    Attributes:
        format: what it is taken for.
        by_list: what the lists literally say; differs from `format` for modules that are never quantised.
        excluded: True if an exclude list names it. Then `format` is an assumption: a list says only what a module
            is *not*.
        rule: what decided, for people.
    """

    format: WeightFormat
    by_list: WeightFormat
    excluded: bool
    rule: str


def declare(quant: QuantConfig, name: str, part: str, *, tied: bool = False) -> Declared:
    """The declared verdict of a module.

    Args:
        quant: the quantisation section.
        name: the module's name in the checkpoint, without `.weight`.
        part: what it is (roles.PARTS).
        tied: True for an LM head that shares the embedding, which is never quantised.
    """
    ruling = _ruling(quant, name)
    fmt = ruling.format
    rule = ruling.rule
    if not fmt.is_unquantised and (part in NEVER_QUANTISED or tied) and fmt is not WeightFormat.UNKNOWN:
        fmt = WeightFormat.BF16
        what = "tied to the embedding" if tied else "never quantised by declaration alone"
        rule = f"{what}; {ruling.rule} would make it {ruling.format.value}"
    elif part == "lm_head" and fmt in {WeightFormat.FP8, WeightFormat.FP8_BLOCK} and quant.method == "fp8":
        fmt = WeightFormat.BF16  # engines apply an fp8 quant_method to linears, and an LM head is none
        rule = "an FP8 quant_method does not reach the LM head"
        return Declared(fmt, fmt, ruling.excluded, rule)
    return Declared(fmt, ruling.format, ruling.excluded, rule)


def _ruling(quant: QuantConfig, name: str) -> Ruling:
    ruling = quant.ruling(name)
    if not _is_fallback(ruling):
        return ruling
    for spelling in _spellings(name):
        other = quant.ruling(spelling)
        if not _is_fallback(other):
            return Ruling(other.format, other.excluded, f"{other.rule}, as {spelling.rpartition('.')[2]}")
    parts = _FUSED.get(name.rpartition(".")[2], ())
    if parts:
        parent = name.rpartition(".")[0]
        found = [quant.ruling(f"{parent}.{part}") for part in parts]
        if all(not _is_fallback(r) and r.format is found[0].format for r in found):
            return Ruling(found[0].format, found[0].excluded, f"{found[0].rule}, for each of its parts")
        if any(not _is_fallback(r) for r in found):
            return Ruling(WeightFormat.UNKNOWN, excluded=False, rule="the lists name only some of its fused parts")
    return ruling


def _is_fallback(ruling: Ruling) -> bool:
    """True if no entry of a list named the module."""
    return not ruling.excluded and (
        ruling.rule in {"not in quantized_layers", "no group targets it", "the default of the quantisation config"}
        or ruling.rule.endswith("target 'Linear'")
    )


def _spellings(name: str) -> Iterator[str]:
    parent, _, leaf = name.rpartition(".")
    if leaf in _SAME:
        yield f"{parent}.{_SAME[leaf]}"
    if leaf in _PART_OF:
        yield f"{parent}.{_PART_OF[leaf]}"
