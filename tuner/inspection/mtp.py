"""The MTP report: is there a draft branch, what is it stored as, and what does that mean for tuning.

The number of tensors never decides about precision: 1553 is 512 experts x 3 projections in BF16 plus 17, and also
256 experts x 3 x 2 in FP8 plus 17. Suffixes and dtypes decide; the count is checked against them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..presets import Published
from .architecture import Expected
from .formats import WeightFormat
from .gemm_roles import Role
from .linears import Linear
from .model_config import ModelConfig
from .modules import Group
from .notes import SHOWN_MODULES, Warn
from .safetensors_header import ShardState
from .shards import ShardSet

ONLINE_FLAG = "--speculative-draft-model-quantization modelopt_fp4"
"""SGLang's flag that quantises an MTP branch while loading: its routed experts, nothing else."""

_TENSORS = {
    WeightFormat.NVFP4: 4,
    WeightFormat.NVFP4_W4A16: 3,
    WeightFormat.FP8_BLOCK: 2,
    WeightFormat.MXFP8: 2,
    WeightFormat.MXFP4: 2,
    WeightFormat.BF16: 1,
    WeightFormat.FP16: 1,
    WeightFormat.FP32: 1,
}
"""Tensors of one linear: the weight and its scales (reference: suffix tables of ModelOpt and compressed-tensors)."""


_HOW = {
    "headers": "stored",
    "headers and index": "partly stored, partly by the index",
    "index": "by the index, no dtypes",
}
"""What to call a count, by its source."""


@dataclass(frozen=True, slots=True)
class MtpReport:
    """What is known about a checkpoint's MTP branch.

    Attributes:
        status: `present`, `absent` (declared, and the weights are not there), `undeclared` (weights without a key in
            config.json), `unchecked` (declared, and no weights here to look at), or `none`.
        layers: MTP layers, as found, else as declared.
        keys: what config.json says, as `key = value`.
        evidence: what in the tensor names says MTP.
        count: how many tensors; None if nobody counted them.
        count_source: `headers`, `index` (names alone), `headers and index`, or where the count was published; empty if
            there is none.
        expected: how many the config and the formats imply; None without a rule for the family.
        arithmetic: the count taken apart: `1553 = 512·3 + 17`; empty without experts, or if nothing is known.
        dtypes: (dtype, tensors), most frequent first; empty without headers.
        fused: True if experts are stacked in 3-D tensors; None without experts or without names.
        files: (file, tensors) where they are stored.
        unindexed: how many are in a file but not in the index; engines that go by the index do not load them. None
            without an index.
        formats: (role, format, verdict) of each GEMM of the branch.
        meaning: what it means for tuning, in a sentence or two.
    """

    status: str
    layers: int
    keys: tuple[str, ...]
    evidence: tuple[str, ...]
    count: int | None
    count_source: str
    expected: int | None
    arithmetic: str
    dtypes: tuple[tuple[str, int], ...]
    fused: bool | None
    files: tuple[tuple[str, int], ...]
    unindexed: int | None
    formats: tuple[tuple[str, WeightFormat, str], ...]
    meaning: str

    @property
    def has_nvfp4(self) -> bool:
        """True if a GEMM of the branch is NVFP4."""
        return any(fmt.is_nvfp4 for _, fmt, _ in self.formats)

    @property
    def line(self) -> str:
        """Everything that fits on a line."""
        if self.status == "none":
            return "MTP: none."
        parts = [f"{self.layers} layer{'s' if self.layers != 1 else ''}"]
        if self.count is not None:
            text = self.arithmetic if self.arithmetic.startswith(f"{self.count} ") else str(self.count)
            if self.expected not in {None, self.count}:
                text += f" of {self.expected} expected"
            parts.append(f"{text} tensors ({_HOW.get(self.count_source, 'published, not read')})")
        elif self.expected:
            parts.append(f"expected {self.arithmetic or self.expected} tensors")
        formats = Counter(fmt for _, fmt, _ in self.formats)
        if formats:
            verdicts = {verdict for _, _, verdict in self.formats}
            names = "+".join(fmt.value.upper() for fmt, _ in formats.most_common())
            parts.append(f"{names} ({'/'.join(sorted(verdicts))})")
        status = "unchecked, its weights are not here" if self.status == "unchecked" else self.status
        return f"MTP ({status}): {', '.join(parts)}. {self.meaning}"


def report(
    model: ModelConfig,
    groups: Sequence[Group],
    linears: Sequence[Linear],
    roles: Sequence[Role],
    expected: Sequence[Expected],
    shards: ShardSet,
    published: Mapping[str, Published],
    warnings: list[Warn],
) -> MtpReport:
    """Put together what headers, index, config and publications say about the MTP branch.

    Args:
        model: facts of config.json.
        groups: all modules that are there; empty without headers and index.
        linears: the checkpoint's linears with their verdicts.
        roles: its GEMMs.
        expected: what the config implies, MTP included.
        shards: headers and index.
        published: published figures about a preset.
        warnings: where to put what is wrong.
    """
    found = [group for group in groups if group.mtp]
    mine = [linear for linear in linears if linear.mtp]
    formats = tuple((role.role, role.format, role.verdict) for role in roles if role.mtp)
    names = {name for group in found for name in group.names}
    dtypes = Counter[str]()
    for group in found:
        dtypes.update(group.dtypes)
    count, source = _counted(names, shards) if groups else (None, "")
    claim = published.get("mtp_tensors")
    if count is None and claim is not None:
        count, source = claim.value, claim.source
    layers = len({g.layer for g in found if g.layer >= 0}) or (1 if found else model.mtp.layers)
    sizes = _expected_count(model, mine, expected, layers)
    status = _status(declared=model.mtp.layers, count=count)
    arithmetic = _stored_arithmetic(found, len(names)) if found else _expected_arithmetic(model, sizes, layers)
    unindexed = sum(name not in shards.index for name in names) if shards.index is not None else None
    if status in {"absent", "none"}:
        formats, arithmetic = (), ""
    result = MtpReport(
        status=status,
        layers=layers,
        keys=model.mtp.keys,
        evidence=tuple(dict.fromkeys(group.evidence for group in found))[:SHOWN_MODULES],
        count=count,
        count_source=source,
        expected=sum(sizes) if sizes and status != "none" else None,
        arithmetic=arithmetic,
        dtypes=tuple((dtype, n) for dtype, n in dtypes.most_common() if dtype),
        fused=_fused(found),
        files=_files(names, shards),
        unindexed=unindexed,
        formats=formats,
        meaning=_meaning(model, status, roles),
    )
    warnings += _warnings(result, names)
    return result


def _counted(names: set[str], shards: ShardSet) -> tuple[int | None, str]:
    """How many MTP tensors there are, and what says so; None if they may be in files that cannot be read."""
    read = sum(len(names & shard.tensors.keys()) for shard in shards.shards)
    if not names and shards.index is None and any(s.state is not ShardState.OK for s in shards.shards):
        return None, ""
    if read >= len(names) and shards.has_headers:
        return len(names), "headers"
    return len(names), "headers and index" if read else "index"


def _status(*, declared: int, count: int | None) -> str:
    if count is None:
        return "unchecked" if declared else "none"
    if count == 0:
        return "absent" if declared else "none"
    return "present" if declared else "undeclared"


def _expected_count(
    model: ModelConfig, linears: Sequence[Linear], expected: Sequence[Expected], layers: int
) -> tuple[int, int] | None:
    """Tensors in experts and outside of them that the config implies, given how each linear is stored.

    Only for families whose other tensors are known. The rules reproduce published counts: 1553 of Qwen3.5-397B, 19,
    1560 and 15 of its smaller members, 1575 of DeepSeek-V4-Flash, 270 of Nemotron-3.5-Lightning.
    """
    others = _other_tensors(model, layers)
    if others is None:
        return None
    formats = {linear.part: linear.format for linear in linears}
    fused = "moe.gate_up" in formats
    if fused:
        formats.setdefault("moe.gate", formats["moe.gate_up"])
        formats.setdefault("moe.up", formats["moe.gate_up"])
    inside, outside = 0, others
    for entry in expected:
        if not entry.mtp:
            continue
        per_linear = _TENSORS.get(formats.get(entry.part, WeightFormat.BF16))
        if per_linear is None:
            return None
        if not entry.experts:
            outside += per_linear * len(entry.layers)
        elif not fused:
            inside += per_linear * entry.experts * len(entry.layers)
        elif entry.part != "moe.up":  # gate and up are one tensor
            inside += per_linear * len(entry.layers)
    return inside, outside


def _other_tensors(model: ModelConfig, layers: int) -> int | None:
    """Tensors of a family's MTP branch that belong to no linear; None for a family whose layout is not known."""
    if model.model_type.startswith(("qwen3_5", "qwen3_next")):
        # norm, pre_fc_norm_embedding, pre_fc_norm_hidden; a layer: two layernorms, q_norm, k_norm
        return 3 + 4 * layers
    if model.model_type.startswith("deepseek_v4"):
        # enorm, hnorm, norm, attn_norm, ffn_norm, q_norm, kv_norm, attn_sink, gate.bias, and nine hc_* tensors
        return 18 * layers
    if model.model_type == "nemotron_h":
        # enorm, hnorm, final_layernorm; a norm a block; e_score_correction_bias of a MoE block
        return 3 + len(model.mtp.blocks) + sum(block == "moe" for block in model.mtp.blocks)
    return None


def _stored_arithmetic(found: Sequence[Group], count: int) -> str:
    experts = [group for group in found if group.kind.part.startswith("moe.")]
    inside = sum(group.tensors for group in experts)
    per_layer = max((len(group.experts) for group in experts), default=0)
    if not experts:
        return ""
    if not per_layer:
        return f"{count} = {inside} fused + {count - inside}"
    projections = len({group.kind.part for group in experts})
    layers = len({group.layer for group in experts})
    return _taken_apart(count, inside, (layers, per_layer, projections))


def _expected_arithmetic(model: ModelConfig, sizes: tuple[int, int] | None, layers: int) -> str:
    if sizes is None or not sizes[0]:
        return ""
    inside, outside = sizes
    return _taken_apart(inside + outside, inside, (layers, model.ffn.experts, 3 if model.ffn.gated else 2))


def _taken_apart(count: int, inside: int, factors: tuple[int, int, int]) -> str:
    """`1553 = 512·3 + 17`, `6161 = 512·3·4 + 17`; factors of 1 are left out in front and behind."""
    layers, experts, projections = factors
    each, rest = divmod(inside, layers * experts * projections)
    if rest:
        return f"{count} = {inside} in experts + {count - inside}"
    text = f"{experts}·{projections}"
    text = text if layers == 1 else f"{layers}·{text}"
    text = text if each == 1 else f"{text}·{each}"
    return f"{count} = {text} + {count - inside}"


def _fused(found: Sequence[Group]) -> bool | None:
    experts = [group for group in found if group.kind.part.startswith("moe.")]
    return None if not experts else not any(group.experts for group in experts)


def _files(names: set[str], shards: ShardSet) -> tuple[tuple[str, int], ...]:
    counts = {shard.file: len(names & shard.tensors.keys()) for shard in shards.shards}
    located = {name for shard in shards.shards for name in names & shard.tensors.keys()}
    for name in names - located:
        file = (shards.index or {}).get(name, "")
        counts[file] = counts.get(file, 0) + 1
    return tuple((file, count) for file, count in sorted(counts.items()) if count)


def _meaning(model: ModelConfig, status: str, roles: Sequence[Role]) -> str:
    mine = [role for role in roles if role.mtp]
    if status == "none":
        return "No MTP branch, so no draft GEMMs."
    if status == "absent":
        return (
            "config.json declares MTP and the checkpoint holds no tensor of it: there is nothing to draft with, and an "
            "engine that starts anyway accepts no draft token."
        )
    nvfp4 = sorted({role.role for role in mine if role.format.is_nvfp4})
    if nvfp4:
        return (
            f"NVFP4 GEMMs in the MTP branch: {', '.join(nvfp4)}; tuned at the M of draft-extend and draft-decode. "
            "An engine that forces the branch to BF16 cannot load it."
        )
    others = sorted({role.format.value for role in mine if not role.format.is_unquantised})
    if others:
        return (
            f"No NVFP4 GEMM in the MTP branch: it is {', '.join(others)}. An engine that loads such weights as "
            "unquantised drafts badly without an error; watch the acceptance rate."
        )
    if not mine:
        return "How the MTP branch is stored is not known here; with the weights' headers it would be."
    if not model.ffn.experts:
        return "No NVFP4 GEMM in the MTP branch; engines quantise only routed experts online, and it has none."
    return (
        f"No NVFP4 GEMM in the MTP branch, unless the engine quantises it online ({ONLINE_FLAG}): then its routed "
        "experts alone become NVFP4, with the backbone's shapes."
    )


def _warnings(result: MtpReport, names: set[str]) -> list[Warn]:
    found = []
    if result.status == "absent":
        declared = ", ".join(result.keys)
        message = f"MTP is declared ({declared}) and absent: 0 tensors ({result.count_source}). {result.meaning}"
        found.append(Warn("mtp-absent", message))
    if result.status == "undeclared":
        message = f"{result.count} MTP tensors are there and config.json has no key that declares them."
        found.append(Warn("mtp-undeclared", message, tuple(sorted(names)[:SHOWN_MODULES])))
    if result.unindexed:
        files = ", ".join(file for file, _ in result.files)
        message = (
            f"{result.unindexed} of {result.count} MTP tensors ({files}) are not in the index; engines that go by it "
            "do not load them."
        )
        found.append(Warn("mtp-unindexed", message))
    if result.count and result.expected not in {None, result.count}:
        message = (
            f"The MTP branch has {result.count} tensors and {result.expected} were expected from config.json and the "
            "formats found; some are missing, or of another layout."
        )
        found.append(Warn("mtp-count", message))
    return found
