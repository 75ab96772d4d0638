"""Seconds and memory of `inspect` on a checkpoint of 400,000 tensors.

    python benchmarks/inspect_400k.py

Makes a Qwen3.5-MoE checkpoint of 66 layers with 512 NVFP4 experts (405,835 tensors, 0.4 TB of holes, about 60 MB on
disk) in a temporary directory and inspects it in a fresh process. Goal: under 5 s and under 1 GB.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAYERS, EXPERTS, HIDDEN, INNER = 66, 512, 4096, 1024
BYTES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}
GOAL_S, GOAL_GB = 5.0, 1.0

CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*", "*.mlp.gate"]},
    "text_config": {
        "model_type": "qwen3_5_moe_text", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_experts": EXPERTS,
        "num_experts_per_tok": 10, "moe_intermediate_size": INNER, "num_attention_heads": 32, "num_key_value_heads": 2,
        "head_dim": 256, "attn_output_gate": True,
    },
}  # fmt: skip


def layer_tensors(layer: int) -> dict[str, tuple[str, list[int]]]:
    """One layer: attention in BF16, experts in NVFP4."""
    prefix = f"model.language_model.layers.{layer}"
    tensors: dict[str, tuple[str, list[int]]] = {f"{prefix}.mlp.gate.weight": ("BF16", [EXPERTS, HIDDEN])}
    for name, n, k in (("q", 16384, HIDDEN), ("k", 512, HIDDEN), ("v", 512, HIDDEN), ("o", HIDDEN, 8192)):
        tensors[f"{prefix}.self_attn.{name}_proj.weight"] = ("BF16", [n, k])
    for expert in range(EXPERTS):
        for name, n, k in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
            module = f"{prefix}.mlp.experts.{expert}.{name}_proj"
            tensors[f"{module}.weight"] = ("U8", [n, k // 2])
            tensors[f"{module}.weight_scale"] = ("F8_E4M3", [n, k // 16])
            tensors[f"{module}.weight_scale_2"] = ("F32", [])
            tensors[f"{module}.input_scale"] = ("F32", [])
    return tensors


def write_shard(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """A real header before a hole as large as its data."""
    entries, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + math.prod(shape) * BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        os.truncate(file.fileno(), 8 + len(header) + offset)


def make_checkpoint(directory: Path) -> int:
    """Write the checkpoint; returns how many tensors it has."""
    (directory / "config.json").write_text(json.dumps(CONFIG))
    weight_map = {}
    for layer in range(LAYERS):
        file = f"model-{layer + 1:05d}-of-{LAYERS:05d}.safetensors"
        tensors = layer_tensors(layer)
        if layer == 0:
            tensors["lm_head.weight"] = ("BF16", [248320, HIDDEN])
        write_shard(directory / file, tensors)
        weight_map.update(dict.fromkeys(tensors, file))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return len(weight_map)


def measure(directory: str) -> None:
    """Inspect in this process and print what it took as JSON."""
    start = time.perf_counter()
    from fp4tune.tuner.checkpoint import open_checkpoint
    from fp4tune.tuner.inspector import inspect_checkpoint

    inspection = inspect_checkpoint(open_checkpoint(directory))
    seconds = time.perf_counter() - start
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(json.dumps({"tensors": inspection.tensors, "seconds": round(seconds, 2), "peak_rss_gb": round(peak_gb, 3)}))


def main() -> int:
    """Make, inspect, compare with the goals."""
    if len(sys.argv) == 2:
        measure(sys.argv[1])
        return 0
    with tempfile.TemporaryDirectory() as directory:
        count = make_checkpoint(Path(directory))
        done = subprocess.run([sys.executable, __file__, directory], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    good = result["tensors"] == count and result["seconds"] < GOAL_S and result["peak_rss_gb"] < GOAL_GB
    seconds, peak_gb = result["seconds"], result["peak_rss_gb"]
    print(f"{count} tensors: {seconds} s (goal {GOAL_S} s), {peak_gb} GB peak (goal {GOAL_GB} GB)")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
