"""Fuse linears into the GEMMs that engines run, over the layers that share them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .declare import Declared
from .formats import WeightFormat
from .linears import Linear
from .notes import SHOWN_MODULES, Warn
from .roles import NON_GATED, PARTS, order_of, rule_of


@dataclass(frozen=True, slots=True)
class Part:
    """One linear of a fused GEMM.

    Attributes:
        part: what it is. name: an example of its name in the checkpoint.
        n, k: output and input features.
        declared: what the configuration says. stored: what headers or index say, or None. format: the verdict.
    """

    part: str
    name: str
    n: int
    k: int
    declared: Declared
    stored: WeightFormat | None
    format: WeightFormat


@dataclass(frozen=True, slots=True)
class Role:
    """One GEMM of the model before it is sharded, and the layers that run it.

    Attributes:
        role: `moe.w13`, `attn.qkv`, ...; the same in the backbone and in the MTP branch.
        mtp: True if it belongs to the MTP branch.
        layers: indexes of the layers; (-1,) for one outside of them.
        n, k: of the fused GEMM, in elements; for experts, of one expert. 0 if unknown.
        experts, top_k: of a routed GEMM; 0 otherwise.
        gated: True if N holds gate and up.
        parts: the linears it is fused from.
        format: the verdict on the whole: `unknown` if its parts differ.
        verdict: `stored` (headers), `index` (names alone, less sure), or `declared` (configuration alone).
        reason: why the format is unknown; else empty.
    """

    role: str
    mtp: bool
    layers: tuple[int, ...]
    n: int
    k: int
    experts: int
    top_k: int
    gated: bool
    parts: tuple[Part, ...]
    format: WeightFormat
    verdict: str
    reason: str = ""

    @property
    def declared_text(self) -> str:
        """The declared format for a table: `nvfp4`, `bf16 (excluded)`, `nvfp4/bf16` where parts differ."""
        texts = [
            f"{p.declared.format.value} (excluded)" if p.declared.excluded else p.declared.format.value
            for p in self.parts
        ]
        return "/".join(dict.fromkeys(texts))

    @property
    def stored_text(self) -> str:
        """The stored format for a table; `-` if nothing was there to be read."""
        return "/".join(dict.fromkeys(p.stored.value if p.stored else "-" for p in self.parts))


def fuse(linears: Iterable[Linear], top_k: int, warnings: list[Warn]) -> list[Role]:
    """Group linears by role and layer, then layers whose GEMM is the same into one Role each.

    Args:
        linears: every linear.
        top_k: experts a token goes to.
        warnings: where to put fusions whose parts differ or are not all there.
    """
    by_layer: dict[tuple[str, bool, int], list[Linear]] = {}
    for linear in linears:
        by_layer.setdefault((rule_of(linear.part).role, linear.mtp, linear.layer), []).append(linear)
    same: dict[tuple[object, ...], list[int]] = {}
    first: dict[tuple[object, ...], list[Linear]] = {}
    for (role, mtp, layer), members in by_layer.items():
        members.sort(key=lambda linear: _part_order(linear.part))
        shape = tuple(
            (m.part, m.n, m.k, m.experts, m.declared.format, m.declared.excluded, m.stored and m.stored.format)
            for m in members
        )
        key = (role, mtp, shape)
        same.setdefault(key, []).append(layer)
        first.setdefault(key, members)
    roles = [_role(str(key[0]), tuple(sorted(same[key])), members, top_k, warnings) for key, members in first.items()]
    return sorted(roles, key=lambda role: (role.mtp, order_of(role.role), role.layers))


def _part_order(part: str) -> int:
    return list(PARTS).index(part) if part in PARTS else len(PARTS)


def _role(role: str, layers: tuple[int, ...], members: list[Linear], top_k: int, warnings: list[Warn]) -> Role:
    parts = tuple(
        Part(m.part, m.name, m.n, m.k, m.declared, m.stored.format if m.stored else None, m.format) for m in members
    )
    names = {m.part.rpartition(".")[2] for m in members}
    gated = bool(names & {"gate", "gate_up"}) and role in NON_GATED
    shown = NON_GATED[role] if role in NON_GATED and not gated else role
    k = members[0].k
    n = sum(m.n for m in members) if all(m.n for m in members) else 0
    formats = {m.format for m in members}
    fmt = members[0].format if len(formats) == 1 else WeightFormat.UNKNOWN
    reason = next((m.stored.reason for m in members if m.stored and m.stored.reason), "")
    modules = tuple(m.name for m in members)[:SHOWN_MODULES]
    problem = _fusion_problem(members, names, role)
    if problem:
        reason = problem
        fmt = WeightFormat.UNKNOWN
        message = (
            f"{shown} in {_layers_text(layers)}: {problem}. Engines fuse these into one GEMM; they refuse it, or load "
            "it wrongly. It is not tuned."
        )
        warnings.append(Warn("fused-parts-differ", message, modules))
    experts = max(m.experts for m in members)
    verdict = "declared" if members[0].stored is None else "stored"
    if verdict == "stored" and any(m.from_index for m in members):
        verdict = "index"
    return Role(
        shown, members[0].mtp, layers, n, k, experts, min(top_k, experts), gated, parts, fmt, verdict, reason
    )  # fmt: skip


def _fusion_problem(members: list[Linear], names: set[str], role: str) -> str:
    """Why the linears of a layer do not make one GEMM; empty if they do."""
    formats = {m.format for m in members}
    if len(formats) > 1:
        return "its parts differ: " + ", ".join(f"{m.part} {m.format.value}" for m in members)
    if len({m.k for m in members}) > 1:
        return "its parts have different K: " + ", ".join(f"{m.part} {m.k}" for m in members)
    if len({m.experts for m in members}) > 1:
        return "its parts have different numbers of experts: " + ", ".join(f"{m.part} {m.experts}" for m in members)
    if role == "attn.qkv" and not names >= {"q", "k"} and "qkv" not in names:
        return f"only {', '.join(sorted(names))} of q, k and v are there"
    if "gate" in names and "up" not in names:
        return "there is a gate but no up projection"
    return ""


def _layers_text(layers: tuple[int, ...]) -> str:
    return f"{len(layers)} layers (first {layers[0]})" if len(layers) > 1 else f"layer {layers[0]}"
