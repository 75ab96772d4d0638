"""Inspect a checkpoint: two verdicts per GEMM, every difference between them, and the MTP branch.

*Declared* is what config.json and hf_quant_config.json say; *stored* is what the tensor headers say. Stored wins, and
every difference is a warning that names both. Without headers there is only the declared verdict, and it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .checkpoint import Checkpoint
from .inspection.architecture import Expected, expected_modules, naming_of
from .inspection.formats import WeightFormat
from .inspection.gemm_roles import Role, fuse
from .inspection.linears import Declarer, Linear, from_config, from_groups
from .inspection.list_checks import check_lists
from .inspection.model_config import ModelConfig, read_model_config
from .inspection.modules import Group, Tensors, group_modules
from .inspection.mtp import MtpReport, report
from .inspection.notes import SHOWN_MODULES, Warn
from .inspection.quant_config import QuantConfig, read_quant_config
from .inspection.safetensors_header import ShardState, TensorInfo

_MLA_PARTS = {"attn.q": "mla.q", "attn.o": "mla.o"}
"""MLA models call their output projection o_proj, too."""


_CONFIDENCE = {
    "headers": "Verdicts are stored: read from the tensors' headers.",
    "index": (
        "Verdicts are guessed from tensor names in the index, because no header could be read; N and K come from "
        "config.json and nothing cross-checks them."
    ),
    "config": "Verdicts are declared: from the configuration alone, because there are no tensors here to be read.",
}


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is known about a checkpoint.

    Attributes:
        name: what to call it.
        evidence: what the verdicts rest on: `headers`, `index` (names alone: less sure), or `config` (declared only).
        model: facts of config.json.
        quant: the quantisation section.
        roles: every GEMM of the backbone, then of the MTP branch.
        mtp: the MTP report.
        tensors, shards: how many tensors and files were seen; 0 for a preset.
        warnings: everything that does not fit, most important first within its kind.
    """

    name: str
    evidence: str
    model: ModelConfig
    quant: QuantConfig
    roles: tuple[Role, ...]
    mtp: MtpReport
    tensors: int
    shards: int
    warnings: tuple[Warn, ...]

    @property
    def confidence(self) -> str:
        """What the verdicts rest on, in a sentence."""
        return _CONFIDENCE[self.evidence]

    @property
    def is_mxfp4(self) -> bool:
        """True if the model's quantised GEMMs are MXFP4 and none is NVFP4."""
        formats = {role.format for role in self.roles}
        return WeightFormat.MXFP4 in formats and not any(fmt.is_nvfp4 for fmt in formats)


def inspect_checkpoint(checkpoint: Checkpoint) -> Inspection:
    """Inspect an opened checkpoint.

    Raises:
        InvalidInputError: config.json or a quantisation section has a value that no model has.
    """
    model = read_model_config(checkpoint.config)
    quant = read_quant_config(checkpoint.config, checkpoint.hf_quant_config)
    tensors = _all_tensors(checkpoint)
    warnings = list(quant.warnings) + _file_warnings(checkpoint, tensors)
    wrapper = checkpoint.config.get("model_type")
    naming = naming_of(model, wrapper if isinstance(wrapper, str) else "", quant.rules.listed_names())
    groups = group_modules(tensors, len(model.layers)) if tensors else []
    found_mtp = len({g.layer for g in groups if g.mtp and g.layer >= 0}) or int(any(g.mtp for g in groups))
    expected = expected_modules(model, naming, mtp_layers=model.mtp.layers or found_mtp)
    declarer = Declarer(quant, model)
    if not groups and model.unknown_mixers:
        kinds = ", ".join(model.unknown_mixers)
        message = f"config.json lists layers of a type that is not known here ({kinds}): their mixers are left out."
        warnings.append(Warn("layer-type-unknown", message))
    if groups:
        linears = from_groups(groups, expected, declarer, warnings, rename=_MLA_PARTS if model.attention.is_mla else {})
        linears += _unseen(checkpoint, linears, expected, declarer, warnings)
    else:
        linears = from_config(expected, declarer, warnings)
    roles = fuse(linears, model.ffn.top_k, warnings)
    mtp = report(model, groups, linears, roles, expected, checkpoint.shards, checkpoint.published, warnings)
    if mtp.status == "absent":
        roles = [role for role in roles if not role.mtp]
    warnings += _difference_warnings(linears)
    warnings += check_lists(quant, model, linears, _module_names(groups))
    warnings += _format_warnings(roles)
    has_headers = checkpoint.shards.has_headers
    return Inspection(
        name=checkpoint.name,
        evidence="headers" if has_headers else "index" if groups else "config",
        model=model,
        quant=quant,
        roles=tuple(roles),
        mtp=mtp,
        tensors=len(tensors),
        shards=sum(shard.state is not ShardState.MISSING for shard in checkpoint.shards.shards),
        warnings=tuple(warnings),
    )


def _all_tensors(checkpoint: Checkpoint) -> Tensors:
    """Headers united with what only the index names."""
    tensors: dict[str, TensorInfo | None] = dict(checkpoint.shards.tensors())
    tensors.update(dict.fromkeys(name for name in checkpoint.shards.index or {} if name not in tensors))
    return tensors


def _unseen(
    checkpoint: Checkpoint, linears: list[Linear], expected: list[Expected], declarer: Declarer, warnings: list[Warn]
) -> list[Linear]:
    """Linears that the config implies and nothing shows: declared if files are missing, else a warning."""
    seen = {(linear.part.partition(".")[0], linear.mtp, linear.layer) for linear in linears}
    absent = [
        replace(entry, layers=tuple(layers))
        for entry in expected
        if (layers := [i for i in entry.layers if (entry.part.partition(".")[0], entry.mtp, i) not in seen])
        and entry.is_sized
        and not entry.mtp
        and not (entry.part == "lm_head" and declarer.tied)
    ]
    if not absent:
        return from_config([e for e in expected if e.part == "lm_head" and declarer.tied], declarer, warnings)
    incomplete = any(s.state is not ShardState.OK for s in checkpoint.shards.shards)
    names = tuple(entry.name(entry.layers[0]) for entry in absent)
    count = sum(len(entry.layers) for entry in absent)
    if incomplete:
        message = f"{count} modules are in files that could not be read; their verdict is declared, not stored."
        warnings.append(Warn("modules-not-read", message, names[:SHOWN_MODULES]))
        return from_config(absent, declarer, warnings)
    message = f"{count} modules that config.json implies are not in the checkpoint, such as {names[0]}."
    warnings.append(Warn("modules-missing", message, names[:SHOWN_MODULES]))
    return []


def _module_names(groups: Sequence[Group]) -> list[str]:
    """One name a template and layer; experts are represented by one of them."""
    return [variant.example for group in groups for variant in group.variants[:1]]


def _file_warnings(checkpoint: Checkpoint, tensors: Tensors) -> list[Warn]:
    shards = checkpoint.shards
    found = [Warn("shards-unreadable", note) for note in shards.notes]
    found += [Warn("shards-ignored", f"{file} is ignored: {why}.") for file, why in list(shards.ignored.items())[:4]]
    if shards.index is None:
        return found
    index = shards.index
    unindexed = {shard.file: sum(name not in index for name in shard.tensors) for shard in shards.shards}
    loose = {file: count for file, count in unindexed.items() if count}
    if loose:
        total = sum(loose.values())
        files = ", ".join(list(loose)[:3])
        message = f"{total} tensors in {files} are not in the index; SGLang and vLLM load only what it names."
        found.append(Warn("tensors-unindexed", message))
    readable = {shard.file for shard in shards.shards if shard.tensors}
    gone = [name for name, info in tensors.items() if info is None and index[name] in readable]
    if gone:
        message = f"The index names {len(gone)} tensors that their files do not hold, such as {gone[0]}."
        found.append(Warn("index-stale", message, tuple(gone[:SHOWN_MODULES])))
    return found


def _difference_warnings(linears: Sequence[Linear]) -> list[Warn]:
    """Every difference between declared and stored, grouped by what differs."""
    kinds: dict[tuple[str, WeightFormat, bool, WeightFormat], list[Linear]] = {}
    for linear in linears:
        if linear.stored is None or linear.stored.format is WeightFormat.UNKNOWN:
            continue
        declared = linear.declared
        if declared.by_list is not linear.stored.format and declared.by_list is not WeightFormat.UNKNOWN:
            if declared.by_list.is_unquantised and linear.stored.format.is_unquantised:
                continue  # a list does not tell BF16 from FP32
            key = (linear.part, declared.by_list, declared.excluded, linear.stored.format)
            kinds.setdefault(key, []).append(linear)
    return [_difference(key, members) for key, members in kinds.items()]


def _difference(key: tuple[str, WeightFormat, bool, WeightFormat], members: list[Linear]) -> Warn:
    _, declared, excluded, stored = key
    name = members[0].name
    names = tuple(linear.name for linear in members)[:SHOWN_MODULES]
    more = f" and {len(members) - 1} more" if len(members) > 1 else ""
    if excluded:
        message = (
            f"{members[0].declared.rule} but stored {stored.value}: {name}{more}. Excluded does not mean "
            "BF16; an engine that builds an unquantised layer has no parameter for its scales."
        )
        return Warn("excluded-but-quantised", message, names)
    literal = members[0].declared.format is not declared  # taken for something else, so its rule is about that
    rule = "by the lists as written" if literal else members[0].declared.rule
    message = f"declared {declared.value} ({rule}), stored {stored.value}: {name}{more}."
    if declared.is_nvfp4 and stored.is_unquantised:
        message += " An engine that follows the lists builds an NVFP4 layer and fails, or misreads, its shape."
        return Warn("declared-nvfp4-stored-plain", message, names)
    if {declared, stored} == {WeightFormat.NVFP4, WeightFormat.NVFP4_W4A16}:
        has = "has" if stored is WeightFormat.NVFP4 else "has no"
        message += f" It {has} activation scales."
        return Warn("activation-scales-differ", message, names)
    return Warn("declared-stored-differ", message, names)


def _format_warnings(roles: Sequence[Role]) -> list[Warn]:
    found = []
    for role in roles:
        names = tuple(part.name for part in role.parts)
        where = f"{'MTP ' if role.mtp else ''}{role.role}"
        if role.verdict == "declared":
            literal = [p for p in role.parts if p.declared.by_list.is_nvfp4 and p.format.is_unquantised]
            if literal:
                message = (
                    f"{where} is on no exclude list, so the lists as written make it "
                    f"{literal[0].declared.by_list.value}; it is taken for bf16, as such modules are stored."
                )
                if role.role == "mtp.fc":  # engines build routers unquantised anyway, but not this one
                    message += " Engines that follow the lists literally fail to load it (vLLM PR #38832)."
                found.append(Warn("not-excluded", message, names))
        if role.format is WeightFormat.UNKNOWN and role.reason and "its parts" not in role.reason:
            message = f"{where}: the format of {names[0]} is unknown: {role.reason}. It is not tuned."
            found.append(Warn("format-unknown", message, names))
        if role.format is WeightFormat.MXFP4:
            message = f"{where} is MXFP4 (one E8M0 scale per 32 elements), which is not NVFP4; it is not tuned."
            found.append(Warn("mxfp4", message, names))
    return found
