"""Read the quantisation section of a checkpoint, in whichever file and dialect it is written.

Sections, in the order that SGLang reads them: config.json's quantization_config (or compression_config), then
hf_quant_config.json, which is read only if the first is absent. When both are there and disagree, engines that read
the one behave differently from engines that read the other: a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...kernels.errors import InvalidInputError
from .formats import WeightFormat
from .notes import Warn, clean, is_clean_name
from .patterns import MAX_PATTERNS, Targets
from .quant_rules import CompressedTensorsRules, HybridFp8Rules, ModelOptRules, PlainRules, Rules, Ruling, TargetGroup

_ALGOS = {
    "NVFP4": WeightFormat.NVFP4,
    "NVFP4_AWQ": WeightFormat.NVFP4,
    "NVFP4_SVD": WeightFormat.NVFP4,
    "W4A16_NVFP4": WeightFormat.NVFP4_W4A16,
    "W4A8_NVFP4_FP8": WeightFormat.NVFP4_W4A8,
    "FP8": WeightFormat.FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": WeightFormat.FP8,
    "FP8_PB_WO": WeightFormat.FP8_BLOCK,
    "FP8_PB_REAL": WeightFormat.FP8_BLOCK,
    "FP8_BLOCK": WeightFormat.FP8_BLOCK,
    "MXFP8": WeightFormat.MXFP8,
    "MXFP4": WeightFormat.MXFP4,
}
"""ModelOpt's quant_algo. NVFP4_AWQ and NVFP4_SVD store what NVFP4 stores; W4A8_NVFP4_FP8 is no W4A4."""

_CONFIG_SOURCE = "config.json quantization_config"
_HFQ_SOURCE = "hf_quant_config.json"


@dataclass(frozen=True)
class QuantConfig:
    """The quantisation section of a checkpoint.

    Attributes:
        method: `modelopt`, `compressed-tensors`, `fp8`, `mxfp4`, another name, or `none`.
        algo: the producer's word for the scheme (`NVFP4`, `MIXED_PRECISION`, `nvfp4-pack-quantized`); may be empty.
        producer: who wrote it and which version; may be empty.
        kv_cache: the declared format of the KV cache; may be empty.
        sources: where it stands, the one that counts first.
        rules: what it declares about each module.
        warnings: what is odd about it.
    """

    method: str
    algo: str
    producer: str
    kv_cache: str
    sources: tuple[str, ...]
    rules: Rules
    warnings: tuple[Warn, ...]

    def ruling(self, name: str) -> Ruling:
        """What is declared for a module, by its name in the checkpoint."""
        return self.rules.ruling(name)


def read_quant_config(config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None) -> QuantConfig:
    """Read the sections of config.json and hf_quant_config.json.

    Raises:
        InvalidInputError: a section has a value of the wrong type, or a pattern that cannot be tried.
    """
    section = _section(config)
    other = (
        _object(hf_quant_config.get("quantization"), "hf_quant_config.json: quantization") if hf_quant_config else {}
    )
    sources = tuple(s for s, there in ((_CONFIG_SOURCE, section), (_HFQ_SOURCE, other)) if there)
    if not section and not other:
        stub = () if hf_quant_config is None else (_stub("hf_quant_config.json says nothing about quantisation."),)
        return QuantConfig("none", "", "", "", sources, PlainRules(_dtype(config), "no quantisation config"), stub)
    method = _text(section, "quant_method") or ("modelopt" if _algo(section) or other else "")
    warnings = list(_compare(section, other)) if section and other else []
    counting = _counting(section, other)
    plain = _dtype(config)
    rules: Rules
    if method in {"compressed-tensors", "compressed_tensors"}:
        rules = _compressed_tensors(section, plain)
    elif method == "fp8" and _text(counting, "moe_quant_algo"):
        rules = _hybrid(counting, config)
    elif method == "mxfp4":
        exclude = _strings(section, "modules_to_not_convert")
        rules = PlainRules(WeightFormat.MXFP4, "quant_method mxfp4", exclude, experts_only=True)
    elif method == "fp8":
        exclude = _strings(section, "modules_to_not_convert") or _strings(section, "ignored_layers")
        block = section.get("weight_block_size") is not None
        fmt = WeightFormat.FP8_BLOCK if block else WeightFormat.FP8
        rules = PlainRules(fmt, "quant_method fp8", exclude)
    elif method.startswith(("modelopt", "nvfp4")):
        rules, extra = _modelopt(counting, plain)
        warnings += extra
    else:
        rules = PlainRules(WeightFormat.UNKNOWN, f"quant_method {method!r}")
        message = f"The quant_method {method[:60]!r} is not one that fp4tune reads; what it declares is unknown."
        warnings.append(Warn("unknown-quant-method", message))
    algo = _algo(section) or _algo(other) or _text(section, "format")
    return QuantConfig(
        method or "unknown", algo, _producer(section, hf_quant_config), _kv_cache(section, other), sources, rules,
        tuple(warnings),
    )  # fmt: skip


def _section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for holder in (config, config.get("text_config")):
        if not isinstance(holder, Mapping):
            continue
        for key in ("quantization_config", "compression_config"):
            if holder.get(key) is not None:
                return _object(holder[key], f"config.json: {key}")
    return {}


def _counting(section: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section that counts: config.json's, else the other; its quantized_layers may stand in the other alone."""
    if not section:
        return other
    if section.get("quantized_layers") is None and other.get("quantized_layers") is not None:
        return {**section, "quantized_layers": other["quantized_layers"]}
    return section


def _modelopt(section: Mapping[str, Any], plain: WeightFormat) -> tuple[ModelOptRules, list[Warn]]:
    algo = _algo(section)
    exclude = _exclude(section)
    listed = _object(section.get("quantized_layers"), "quantized_layers")
    if not all(map(is_clean_name, listed)):
        raise InvalidInputError("The quantisation config's quantized_layers has a key that is no module name.")
    layers = {
        name: _ALGOS.get(_algo(_object(entry, f"quantized_layers[{name!r}]")).upper(), WeightFormat.UNKNOWN)
        for name, entry in listed.items()
    }
    if algo == "MIXED_PRECISION":
        if layers:
            return ModelOptRules(plain, plain, exclude, layers), []
        message = "MIXED_PRECISION without quantized_layers: what the checkpoint declares is not known."
        return ModelOptRules(WeightFormat.UNKNOWN, plain, exclude), [_stub(message)]
    default = _ALGOS.get(algo.upper())
    if default is None:
        message = f"The quant_algo {algo[:60]!r} is not one that fp4tune knows; what it declares is unknown."
        return ModelOptRules(WeightFormat.UNKNOWN, plain, exclude, layers), [_stub(message)]
    return ModelOptRules(default, plain, exclude, layers), []


def _hybrid(section: Mapping[str, Any], config: Mapping[str, Any]) -> HybridFp8Rules:
    inner, _ = _modelopt({**section, "quant_algo": "MIXED_PRECISION"}, WeightFormat.BF16)
    experts = _ALGOS.get(_text(section, "moe_quant_algo").upper(), WeightFormat.UNKNOWN)
    block = section.get("weight_block_size") is not None
    base = WeightFormat.FP8_BLOCK if block else WeightFormat.FP8
    fp4_base = config.get("expert_dtype") == "fp4"  # DeepSeek-V4 ships its own experts in MXFP4
    return HybridFp8Rules(inner, experts, base, WeightFormat.MXFP4 if fp4_base else base)


def _compressed_tensors(section: Mapping[str, Any], plain: WeightFormat) -> CompressedTensorsRules:
    shared = _text(section, "format")
    groups = []
    for name, value in _object(section.get("config_groups"), "config_groups").items():
        group = _object(value, f"config_groups[{name!r}]")
        fmt = _ct_format(group, _text(group, "format") or shared)
        groups.append(TargetGroup(name, fmt, Targets(_strings(group, "targets"))))
    return CompressedTensorsRules(tuple(groups), Targets(_strings(section, "ignore")), plain)


def _ct_format(group: Mapping[str, Any], fmt: str) -> WeightFormat:
    weights = _object(group.get("weights"), "config_groups weights")
    activations = group.get("input_activations")
    bits, group_size, kind = weights.get("num_bits"), weights.get("group_size"), weights.get("type")
    if fmt == "nvfp4-pack-quantized" or (kind == "float" and bits == 4 and group_size == 16):
        if not activations:
            return WeightFormat.NVFP4_W4A16
        eight = _object(activations, "input_activations").get("num_bits") == 8
        return WeightFormat.NVFP4_W4A8 if eight else WeightFormat.NVFP4
    if fmt == "mxfp4-pack-quantized" or (kind == "float" and bits == 4 and group_size == 32):
        return WeightFormat.MXFP4
    if kind == "float" and bits == 8:
        if group_size == 32:
            return WeightFormat.MXFP8
        return WeightFormat.FP8_BLOCK if weights.get("strategy") == "block" else WeightFormat.FP8
    return WeightFormat.UNKNOWN


def _compare(section: Mapping[str, Any], other: Mapping[str, Any]) -> list[Warn]:
    """Differences between the two files, each as one warning that names both."""
    found = []
    if _algo(section) and _algo(other) and _algo(section) != _algo(other):
        found.append(f"quant_algo is {_algo(section)!r} there and {_algo(other)!r} here")
    mine, theirs = set(_exclude(section)), set(_exclude(other))
    if mine != theirs:
        example = min(mine ^ theirs)
        found.append(
            f"{len(mine - theirs)} excluded modules stand only in the first and {len(theirs - mine)} only in the "
            f"second, such as {example[:100]!r}"
        )
    ours = _object(section.get("quantized_layers"), "quantized_layers")
    yours = _object(other.get("quantized_layers"), "quantized_layers")
    differing = [n for n in sorted(ours.keys() | yours.keys()) if _algo_of(ours, n) != _algo_of(yours, n)]
    if ours and yours and differing:
        found.append(f"quantized_layers differ in {len(differing)} entries, such as {differing[0][:100]!r}")
    return [
        Warn(
            "quant-configs-disagree",
            f"{_CONFIG_SOURCE} and {_HFQ_SOURCE} disagree: {text}. Engines read the first and ignore the second.",
        )
        for text in found
    ]


def _algo_of(layers: Mapping[str, Any], name: str) -> object:
    entry = layers.get(name)
    return entry.get("quant_algo") if isinstance(entry, Mapping) else entry


def _exclude(section: Mapping[str, Any]) -> tuple[str, ...]:
    return _strings(section, "exclude_modules") or _strings(section, "ignore")


def _algo(section: Mapping[str, Any]) -> str:
    return _text(section, "quant_algo")


def _producer(section: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None) -> str:
    found = section.get("producer") or (hf_quant_config or {}).get("producer")
    if isinstance(found, Mapping):
        return clean(f"{found.get('name', '')} {found.get('version', '')}".strip())
    version = section.get("version")
    return clean(f"compressed-tensors {version}") if isinstance(version, str) else ""


def _kv_cache(section: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    named = other.get("kv_cache_quant_algo") or section.get("kv_cache_quant_algo")
    if isinstance(named, str):
        return clean(named.lower(), 40)
    scheme = section.get("kv_cache_scheme")
    bits = scheme.get("num_bits") if isinstance(scheme, Mapping) else None
    return f"fp{bits}" if bits == 4 or bits == 8 else ""  # noqa: PLR1714 - bits may be unhashable


def _dtype(config: Mapping[str, Any]) -> WeightFormat:
    """The dtype that config.json names for what is not quantised."""
    text = config.get("text_config")
    for holder in (config, text if isinstance(text, Mapping) else {}):
        named = str(holder.get("dtype") or holder.get("torch_dtype") or "").removeprefix("torch.")
        if named in {"float16", "float32"}:
            return WeightFormat.FP16 if named == "float16" else WeightFormat.FP32
    return WeightFormat.BF16


def _stub(message: str) -> Warn:
    return Warn("declared-unknown", message)


def _object(value: object, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{what} should be an object and is {str(value)[:60]!r}.")
    return value


def _text(section: Mapping[str, Any], key: str) -> str:
    value = section.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInputError(f"The quantisation config's {key} should be text and is {str(value)[:60]!r}.")
    return clean(value)


def _strings(section: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = section.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(entry, str) and is_clean_name(entry) for entry in value):
        raise InvalidInputError(f"The quantisation config's {key} should be a list of module names, and is not.")
    if len(value) > MAX_PATTERNS:
        raise InvalidInputError(f"The quantisation config's {key} has {len(value)} entries; at most {MAX_PATTERNS}.")
    return tuple(value)
