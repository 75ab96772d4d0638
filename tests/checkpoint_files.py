"""Synthetic checkpoints for tests: real safetensors headers before sparse data, so that 200 GB take kilobytes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Tensor = tuple[str, tuple[int, ...]]
"""Dtype and shape."""

BITS = {"U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4, "BF16": 16, "F16": 16, "F32": 32}


def header_of(tensors: Mapping[str, Tensor]) -> tuple[bytes, int]:
    """The JSON header of a file with these tensors, and how many bytes of data follow it."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        end = offset + math.prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    return json.dumps(entries, separators=(",", ":")).encode(), offset


def write_shard(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file whose header is real and whose data is a hole."""
    header, size = header_of(tensors)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        os.truncate(file.fileno(), 8 + len(header) + size)


def write_checkpoint(
    directory: Path,
    config: Mapping[str, Any],
    shards: Mapping[str, Mapping[str, Tensor]],
    *,
    hf_quant_config: Mapping[str, Any] | None = None,
    index: bool | Mapping[str, str] = True,
) -> Path:
    """Write config.json, the shards, and an index: of all tensors, a given one, or none."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if hf_quant_config is not None:
        (directory / "hf_quant_config.json").write_text(json.dumps(hf_quant_config))
    for file, tensors in shards.items():
        write_shard(directory / file, tensors)
    if index:
        weight_map = {name: file for file, tensors in shards.items() for name in tensors} if index is True else index
        text = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
        (directory / "model.safetensors.index.json").write_text(text)
    return directory


def bf16(module: str, *shape: int) -> dict[str, Tensor]:
    """A plain linear, norm or embedding."""
    return {f"{module}.weight": ("BF16", shape)}


def nvfp4(module: str, n: int, k: int, *, activations: bool = True, f4: bool = False) -> dict[str, Tensor]:
    """A ModelOpt NVFP4 linear: W4A4 with an input_scale, W4A16 without."""
    weight: Tensor = ("F4", (n, k)) if f4 else ("U8", (n, k // 2))
    tensors: dict[str, Tensor] = {
        f"{module}.weight": weight,
        f"{module}.weight_scale": ("F8_E4M3", (n, k // 16)),
        f"{module}.weight_scale_2": ("F32", ()),
    }
    return tensors | ({f"{module}.input_scale": ("F32", ())} if activations else {})


def nvfp4_ct(module: str, n: int, k: int, *, activations: bool = True) -> dict[str, Tensor]:
    """A compressed-tensors NVFP4 linear."""
    tensors: dict[str, Tensor] = {
        f"{module}.weight_packed": ("U8", (n, k // 2)),
        f"{module}.weight_scale": ("F8_E4M3", (n, k // 16)),
        f"{module}.weight_global_scale": ("F32", (1,)),
    }
    return tensors | ({f"{module}.input_global_scale": ("F32", (1,))} if activations else {})


def fp8_block(module: str, n: int, k: int) -> dict[str, Tensor]:
    """A linear in FP8 with one scale per block of 128 x 128."""
    return {
        f"{module}.weight": ("F8_E4M3", (n, k)),
        f"{module}.weight_scale_inv": ("F32", (-(-n // 128), -(-k // 128))),
    }


def fp8(module: str, n: int, k: int) -> dict[str, Tensor]:
    """A linear in FP8 with one scale; its weight_scale has the name of NVFP4's block scales."""
    return {
        f"{module}.weight": ("F8_E4M3", (n, k)),
        f"{module}.weight_scale": ("F32", ()),
        f"{module}.input_scale": ("F32", ()),
    }


def mxfp4_blocks(module: str, experts: int, n: int, k: int) -> dict[str, Tensor]:
    """gpt-oss's stacked MXFP4 experts."""
    return {
        f"{module}_blocks": ("U8", (experts, n, k // 32, 16)),
        f"{module}_scales": ("U8", (experts, n, k // 32)),
        f"{module}_bias": ("BF16", (experts, n)),
    }


def merged(*parts: Iterable[tuple[str, Tensor]] | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One mapping of several."""
    tensors: dict[str, Tensor] = {}
    for part in parts:
        tensors.update(part)
    return tensors


def qwen35_moe_layer(
    prefix: str, config: Mapping[str, Any], *, attention: str, expert: str, shared: str = "bf16", fused: bool = False
) -> dict[str, Tensor]:
    """One layer of Qwen3.5-MoE by its published layout.

    Args:
        prefix: up to and with the layer's dot.
        config: text_config.
        attention: `full` or `linear`.
        expert: format of routed experts (a key of MAKERS). shared: of shared experts and attention projections.
        fused: experts as two 3-D tensors.
    """
    h, inner, experts = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    make, rest = MAKERS[expert], MAKERS[shared]
    tensors = merged(bf16(f"{prefix}input_layernorm", h), bf16(f"{prefix}post_attention_layernorm", h))
    if attention == "full":
        heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        at = f"{prefix}self_attn"
        tensors |= rest(f"{at}.q_proj", 2 * heads * dim, h) | rest(f"{at}.k_proj", kv * dim, h)
        tensors |= rest(f"{at}.v_proj", kv * dim, h) | rest(f"{at}.o_proj", h, heads * dim)
        tensors |= bf16(f"{at}.q_norm", dim) | bf16(f"{at}.k_norm", dim)
    else:
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        heads = config["linear_num_value_heads"]
        values = heads * config["linear_value_head_dim"]
        at = f"{prefix}linear_attn"
        tensors |= bf16(f"{at}.in_proj_qkv", 2 * keys + values, h) | bf16(f"{at}.in_proj_z", values, h)
        tensors |= bf16(f"{at}.in_proj_b", heads, h) | bf16(f"{at}.in_proj_a", heads, h)
        tensors |= bf16(f"{at}.out_proj", h, values) | bf16(f"{at}.conv1d", 2 * keys + values, 1, 4)
        tensors |= {f"{at}.A_log": ("F32", (heads,)), f"{at}.dt_bias": ("BF16", (heads,))}
        tensors |= bf16(f"{at}.norm", config["linear_value_head_dim"])
    mlp = f"{prefix}mlp"
    tensors |= bf16(f"{mlp}.gate", experts, h) | bf16(f"{mlp}.shared_expert_gate", 1, h)
    for name, n, k in (("gate_proj", inner, h), ("up_proj", inner, h), ("down_proj", h, inner)):
        tensors |= rest(f"{mlp}.shared_expert.{name}", n, k)
        if not fused:
            for e in range(experts):
                tensors |= make(f"{mlp}.experts.{e}.{name}", n, k)
    if fused:
        tensors |= {f"{mlp}.experts.gate_up_proj": ("BF16", (experts, 2 * inner, h))}
        tensors |= {f"{mlp}.experts.down_proj": ("BF16", (experts, h, inner))}
    return tensors


def qwen35_mtp(
    config: Mapping[str, Any], *, expert: str, shared: str = "bf16", fused: bool = False
) -> dict[str, Tensor]:
    """The MTP branch of Qwen3.5-MoE: fc, three norms, and one full-attention layer."""
    h = config["hidden_size"]
    tensors = merged(bf16("mtp.fc", h, 2 * h), bf16("mtp.norm", h), bf16("mtp.pre_fc_norm_embedding", h))
    tensors |= bf16("mtp.pre_fc_norm_hidden", h)
    layer = qwen35_moe_layer("mtp.layers.0.", config, attention="full", expert=expert, shared=shared, fused=fused)
    return tensors | layer


def nvfp4_w4a16(module: str, n: int, k: int) -> dict[str, Tensor]:
    """A ModelOpt NVFP4 linear without activation scales."""
    return nvfp4(module, n, k, activations=False)


MAKERS = {"bf16": bf16, "nvfp4": nvfp4, "nvfp4_w4a16": nvfp4_w4a16, "fp8_block": fp8_block, "fp8": fp8}
