"""Every shipped preset, inspected: format, N, K, layers and experts of each GEMM.

The expectations were worked out by hand from the configurations: each block says how. A row is
`role: (format, N, K, layers)` at TP 1; experts and top_k stand in the model's entry.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from fp4tune.kernels.errors import InvalidInputError, UnsupportedError
from fp4tune.tuner import presets
from fp4tune.tuner.checkpoint import open_checkpoint
from fp4tune.tuner.gemms import derive_gemms
from fp4tune.tuner.inspector import inspect_checkpoint
from fp4tune.tuner.workload import derive

N4, A16, F8, F8B, M4, B = "nvfp4", "nvfp4_w4a16", "fp8", "fp8_block", "mxfp4", "bf16"


def deepseek_mla(fmt_o, layers, heads=128, hidden=7168):
    """MLA of q_lora 1536, kv_lora 512, nope 128, rope 64, v 128: q_a + kv_a = 1536 + 512 + 64 = 2112;
    q_b = heads * 192; kv_b = heads * 256; o reads heads * 128.
    """
    return {
        "mla.qkv_a": (B, 2112, hidden, layers), "mla.q_b": (B, heads * 192, 1536, layers),
        "mla.kv_b": (B, heads * 256, 512, layers), "mla.o": (fmt_o, hidden, heads * 128, layers),
    }  # fmt: skip


def moe(fmt, hidden, inner, experts, layers, shared=None, router=B):
    """Gated experts: w13 = 2I x H, w2 = H x I; the router has one row an expert."""
    rows = {"moe.w13": (fmt, 2 * inner, hidden, layers), "moe.w2": (fmt, hidden, inner, layers)}
    rows["router"] = (router, experts, hidden, layers)
    if shared:
        rows |= {"shared.gate_up": (shared, 2 * inner, hidden, layers), "shared.down": (shared, hidden, inner, layers)}
    return rows


# DSA's indexer: 64 heads x 128 from q_lora, one key of 128, 64 weights; replicated, never listed as quantised.
INDEXER_V32 = {"mla.indexer.wq_b": (B, 8192, 1536, 61), "mla.indexer.wk": (B, 128, 7168, 61),
               "mla.indexer.weights_proj": (B, 64, 7168, 61)}  # fmt: skip
# GLM-5: 32 heads x 128 from q_lora 2048.
GLM_ATTENTION = {
    # q_lora 2048 + kv_lora 512 + rope 64 = 2624; 64 heads: q_b 64 * (192 + 64), kv_b 64 * (192 + 256), o 64 * 256
    "mla.qkv_a": (B, 2624, 6144, 78), "mla.q_b": (B, 16384, 2048, 78), "mla.kv_b": (B, 28672, 512, 78),
    "mla.o": (B, 6144, 16384, 78), "mla.indexer.wq_b": (B, 4096, 2048, 78), "mla.indexer.wk": (B, 128, 6144, 78),
    "mla.indexer.weights_proj": (B, 32, 6144, 78),
}  # fmt: skip


def qwen35_mixers(hidden, full, linear, heads=32, kv=2, values=64, fmt=B):
    """Gated q of heads x 256 twice, kv x 256 each; delta net: 16 x 128 keys twice, values x 128 twice."""
    return {
        "attn.qkv": (fmt, 2 * heads * 256 + 2 * kv * 256, hidden, full), "attn.o": (fmt, hidden, heads * 256, full),
        "gdn.in_proj_qkvz": (fmt, 4096 + 2 * values * 128, hidden, linear),
        "gdn.in_proj_ba": (B, 2 * values, hidden, linear), "gdn.out_proj": (fmt, hidden, values * 128, linear),
    }  # fmt: skip


# name -> (experts, top_k, backbone roles)
EXPECTED = {
    # §2: o_proj, dense, MoE and shared are NVFP4. 61 layers, the first 3 dense (18432), I 2048.
    "nvidia/DeepSeek-V3.1-NVFP4": (256, 8, {
        **deepseek_mla(N4, 61), **moe(N4, 7168, 2048, 256, 58, shared=N4),
        "mlp.gate_up": (N4, 36864, 7168, 3), "mlp.down": (N4, 7168, 18432, 3), "lm_head": (B, 129280, 7168, 1)}),
    "nvidia/DeepSeek-V3.2-NVFP4": (256, 8, {
        **deepseek_mla(N4, 61), **moe(N4, 7168, 2048, 256, 58, shared=N4), **INDEXER_V32,
        "mlp.gate_up": (N4, 36864, 7168, 3), "mlp.down": (N4, 7168, 18432, 3), "lm_head": (B, 129280, 7168, 1)}),
    # fp8 base with NVFP4 experts (§2). q_lora 1536 + one kv head of 512 = 2048; 128 heads x 512 = 65536;
    # 16 output groups x 1024, each reads 65536 / 16 = 4096.
    "nvidia/DeepSeek-V4-Pro-NVFP4": (384, 6, {
        **moe(N4, 7168, 3072, 384, 61, shared=F8B), "mla.qkv_a": (F8B, 2048, 7168, 61),
        "mla.q_b": (F8B, 65536, 1536, 61), "mla.o_a": (F8B, 16384, 4096, 61), "mla.o_b": (F8B, 7168, 16384, 61),
        "lm_head": (B, 129280, 7168, 1)}),
    # compressed-tensors: `re:.*ffn.*(gate|up|down)_proj$` takes shared experts, too; attention FP8 blocks.
    # q_lora 1024 + 512 = 1536; 64 heads x 512 = 32768; 8 groups x 1024, each reads 32768 / 8 = 4096.
    "RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8": (256, 6, {
        **moe(N4, 4096, 2048, 256, 43, shared=N4), "mla.qkv_a": (F8B, 1536, 4096, 43),
        "mla.q_b": (F8B, 32768, 1024, 43), "mla.o_a": (F8B, 8192, 4096, 43), "mla.o_b": (F8B, 4096, 8192, 43),
        "lm_head": (B, 129280, 4096, 1)}),
    # §2: GLM-5 dense, MoE, shared; GLM-5.1 routed experts alone. 78 layers, 3 dense of 12288.
    "nvidia/GLM-5-NVFP4": (256, 8, {
        **moe(N4, 6144, 2048, 256, 75, shared=N4), **GLM_ATTENTION,
        "mlp.gate_up": (N4, 24576, 6144, 3), "mlp.down": (N4, 6144, 12288, 3), "lm_head": (B, 154880, 6144, 1)}),
    "nvidia/GLM-5.1-NVFP4": (256, 8, {
        **moe(N4, 6144, 2048, 256, 75, shared=B), **GLM_ATTENTION,
        "mlp.gate_up": (B, 24576, 6144, 3), "mlp.down": (B, 6144, 12288, 3), "lm_head": (B, 154880, 6144, 1)}),
    # §2: mlp. Layers 5, 11, ... are global: 32 x 512 + k 4 x 512 without a v; the other 50: (32 + 2 * 16) x 256.
    "nvidia/Gemma-4-31B-IT-NVFP4": (0, 0, {
        "mlp.gate_up": (N4, 43008, 5376, 60), "mlp.down": (N4, 5376, 21504, 60),
        "attn.qkv": (B, 16384, 5376, 50), "attn.qkv#2": (B, 18432, 5376, 10),
        "attn.o": (B, 5376, 8192, 50), "attn.o#2": (B, 5376, 16384, 10), "lm_head": (B, 262144, 5376, 1)}),
    # §2: K2.5 dense, MoE and shared. 61 layers, the first dense; 64 heads.
    "nvidia/Kimi-K2.5-NVFP4": (384, 8, {
        **deepseek_mla(B, 61, heads=64), **moe(N4, 7168, 2048, 384, 60, shared=N4),
        "mlp.gate_up": (N4, 36864, 7168, 1), "mlp.down": (N4, 7168, 18432, 1), "lm_head": (B, 163840, 7168, 1)}),
    # intermediate_size is the experts'. (48 + 2 * 8) x 128 = 8192.
    "nvidia/MiniMax-M2.5-NVFP4": (256, 8, {
        **moe(N4, 3072, 1536, 256, 62), "attn.qkv": (B, 8192, 3072, 62), "attn.o": (B, 3072, 6144, 62),
        "lm_head": (B, 200064, 3072, 1)}),
    # Not gated: w1 = I x H. 52 blocks: 23 mamba, 23 moe, 6 attention. Mamba in: 2 * 4096 + 2 * 8 * 128 + 64 = 10304;
    # attention (32 + 2 * 2) x 128 = 4608. §2: experts, shared and LM head W4A16; mamba FP8.
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": (128, 6, {
        "moe.w1": (A16, 1856, 2688, 23), "moe.w2": (A16, 2688, 1856, 23), "router": (B, 128, 2688, 23),
        "shared.up": (A16, 3712, 2688, 23), "shared.down": (A16, 2688, 3712, 23),
        "mamba.in_proj": (F8, 10304, 2688, 23), "mamba.out_proj": (F8, 2688, 4096, 23),
        "attn.qkv": (B, 4608, 2688, 6), "attn.o": (B, 2688, 4096, 6), "lm_head": (A16, 131072, 2688, 1)}),
    # §2: qkv, o, experts. (32 + 2 * 4) x 128 = 5120.
    "nvidia/Qwen3-30B-A3B-NVFP4": (128, 8, {
        **moe(N4, 2048, 768, 128, 48), "attn.qkv": (N4, 5120, 2048, 48), "attn.o": (N4, 2048, 4096, 48),
        "lm_head": (B, 151936, 2048, 1)}),
    # §2: all linears. (64 + 2 * 8) x 128 = 10240.
    "nvidia/Qwen3-32B-NVFP4": (0, 0, {
        "attn.qkv": (N4, 10240, 5120, 64), "attn.o": (N4, 5120, 8192, 64), "mlp.gate_up": (N4, 51200, 5120, 64),
        "mlp.down": (N4, 5120, 25600, 64), "lm_head": (B, 151936, 5120, 1)}),
    "nvidia/Qwen3.5-122B-A10B-NVFP4": (256, 8, {
        **moe(N4, 3072, 1024, 256, 48, shared=B), **qwen35_mixers(3072, 12, 36), "lm_head": (B, 248320, 3072, 1)}),
    "nvidia/Qwen3.5-397B-A17B-NVFP4": (512, 10, {
        **moe(N4, 4096, 1024, 512, 60, shared=B), **qwen35_mixers(4096, 15, 45), "lm_head": (B, 248320, 4096, 1)}),
    "Qwen/Qwen3.5-397B-A17B": (512, 10, {
        **moe(B, 4096, 1024, 512, 60, shared=B), **qwen35_mixers(4096, 15, 45), "lm_head": (B, 248320, 4096, 1)}),
    # §2: mlp and LM head W4A16, attention FP8 (but in_proj_a and in_proj_b, which are not listed). 24 heads, 4 kv,
    # 48 value heads.
    "nvidia/Qwen3.6-27B-NVFP4": (0, 0, {
        **qwen35_mixers(5120, 16, 48, heads=24, kv=4, values=48, fmt=F8), "mlp.gate_up": (A16, 34816, 5120, 64),
        "mlp.down": (A16, 5120, 17408, 64), "lm_head": (A16, 248320, 5120, 1)}),
    # Gated q without a key in config.json: 2 * 16 * 256 + 2 * 2 * 256 = 9216; qkvz 4096 + 2 * 32 * 128 = 12288.
    "Qwen/Qwen3-Next-80B-A3B-Thinking": (512, 10, {
        **moe(B, 2048, 512, 512, 48, shared=B), **qwen35_mixers(2048, 12, 36, heads=16, kv=2, values=32),
        "lm_head": (B, 151936, 2048, 1)}),
    # (64 + 2 * 8) x 64 = 5120; routed experts alone are MXFP4.
    "openai/gpt-oss-120b": (128, 4, {
        **moe(M4, 2880, 2880, 128, 36), "attn.qkv": (B, 5120, 2880, 36), "attn.o": (B, 2880, 4096, 36),
        "lm_head": (B, 201088, 2880, 1)}),
}  # fmt: skip

# name -> (status, layers, count, expected, formats of the branch's GEMMs)
MTP = {
    "nvidia/DeepSeek-V3.1-NVFP4": ("unchecked", 1, None, None, {B}),
    "nvidia/DeepSeek-V3.2-NVFP4": ("unchecked", 1, None, None, {B}),
    # 384 * 3 * 2 MXFP4 tensors, and 39 others: 11 of the branch are linears of one or two tensors
    "nvidia/DeepSeek-V4-Pro-NVFP4": ("unchecked", 1, None, 384 * 3 * 2 + 39, {M4, F8B, B}),
    "nvidia/GLM-5-NVFP4": ("unchecked", 1, None, None, {B}),
    "nvidia/GLM-5.1-NVFP4": ("unchecked", 1, None, None, {B}),
    # num_mtp_modules 3 x 1 layer, and none published
    "nvidia/MiniMax-M2.5-NVFP4": ("absent", 3, 0, None, set()),
    # 270 tensors is what an export of this model reported (Model-Optimizer PR #2141): 128 * 2 + 14
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": ("unchecked", 1, None, 270, {B}),
    "nvidia/Qwen3.5-122B-A10B-NVFP4": ("unchecked", 1, None, 785, {B}),
    "nvidia/Qwen3.5-397B-A17B-NVFP4": ("present", 1, 1553, 1553, {B}),
    "Qwen/Qwen3.5-397B-A17B": ("unchecked", 1, None, 1553, {B}),
    "nvidia/Qwen3.6-27B-NVFP4": ("unchecked", 1, None, 15, {B}),
}
NO_MTP = ("none", 0, None, None, set())


@pytest.fixture(scope="module", params=presets.names())
def inspection(request):
    return inspect_checkpoint(open_checkpoint(request.param))


def test_every_preset_has_an_expectation():
    assert set(presets.names()) == set(EXPECTED)
    assert len(EXPECTED) == 18


def test_backbone(inspection):
    experts, top_k, expected = EXPECTED[inspection.name]
    found = {}
    for role in inspection.roles:
        if not role.mtp and role.role != "shared.expert_gate":
            key = role.role if role.role not in found else f"{role.role}#2"
            found[key] = (role.format.value, role.n, role.k, len(role.layers))
            grouped = role.role.startswith("moe.")
            assert (role.experts, role.top_k) == ((experts, top_k) if grouped else (0, 0)), role.role
    assert found == expected


def test_verdicts_are_declared(inspection):
    assert inspection.evidence == "config"
    assert {role.verdict for role in inspection.roles} == {"declared"}
    assert "declared" in inspection.confidence


def test_mtp(inspection):
    if inspection.name.startswith("RedHatAI"):  # what it stores is not known; its expression reaches the branch
        assert (inspection.mtp.status, inspection.mtp.count) == ("unchecked", None)
        return
    status, layers, count, expected, formats = MTP.get(inspection.name, NO_MTP)
    mtp = inspection.mtp
    assert (mtp.status, mtp.layers, mtp.count, mtp.expected) == (status, layers, count, expected)
    assert {fmt.value for _, fmt, _ in mtp.formats} == formats
    assert not mtp.has_nvfp4


def test_warnings_by_code(inspection):
    codes = {warn.code for warn in inspection.warnings}
    quiet = {"nvidia/Qwen3-30B-A3B-NVFP4", "nvidia/Qwen3-32B-NVFP4", "nvidia/Gemma-4-31B-IT-NVFP4",
             "nvidia/Qwen3.6-27B-NVFP4", "Qwen/Qwen3.5-397B-A17B", "Qwen/Qwen3-Next-80B-A3B-Thinking",
             "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", "RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8"}  # fmt: skip
    expected = {
        "nvidia/MiniMax-M2.5-NVFP4": {"mtp-absent"},
        "openai/gpt-oss-120b": {"mxfp4"},
        "nvidia/DeepSeek-V4-Pro-NVFP4": {"mxfp4"},
    }
    assert codes == (set() if inspection.name in quiet else expected.get(inspection.name, {"not-excluded"}))


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_every_preset_is_derived_or_says_why_not(inspection, tp):
    if inspection.name == "openai/gpt-oss-120b":
        assert derive_gemms(inspection, tp=tp).gemms
        with pytest.raises(UnsupportedError, match="MXFP4"):
            derive(inspection, tp=tp, include_bf16=True)
        return
    workload = derive(inspection, tp=tp, include_bf16=True)
    keys = [item.problem.key for item in workload.items]
    assert len(keys) == len(set(keys))
    assert workload.items
    for item in workload.items:
        assert item.layers >= 1
        assert item.phases
        assert item.to_run_problem().problem is item.problem


def test_names_are_unique_without_their_organisation():
    short = [name.partition("/")[2].lower() for name in presets.names()]
    assert len(set(short)) == len(short)


def test_find_is_exact_but_for_case():
    assert presets.find("GPT-OSS-120B").name == "openai/gpt-oss-120b"
    assert presets.find("gpt-oss") is None
    assert presets.find("nvidia/gpt-oss-120b") is None


def test_ambiguous_short_name(monkeypatch):
    monkeypatch.setattr(presets, "names", lambda: ["a/model", "b/model"])
    with pytest.raises(InvalidInputError, match="names 2 presets; give one of a/model, b/model"):
        presets.find("model")


def test_close_names():
    assert presets.close_names("kimi-k2.5")[0] == "nvidia/Kimi-K2.5-NVFP4"
    assert presets.close_names("zzzz") == []


def test_presets_are_small_and_attributed():
    files = {entry.name: entry for entry in resources.files(presets).iterdir()}
    sizes = [len(entry.read_bytes()) for name, entry in files.items() if name.endswith(".json.gz")]
    assert len(sizes) == 18
    assert sum(sizes) < 300_000
    text = files["ATTRIBUTION.md"].read_text()
    for name in presets.names():
        assert f"[{name}]" in text


def test_damaged_preset_says_so(monkeypatch, tmp_path):
    (tmp_path / "a--b.json.gz").write_bytes(b"not gzip")
    monkeypatch.setattr(presets.resources, "files", lambda _: tmp_path)
    with pytest.raises(InvalidInputError, match="install fp4tune again"):
        presets.load("a/b")


def test_make_presets_is_deterministic(tmp_path):
    source = tmp_path / "in" / "org--model"
    source.mkdir(parents=True)
    (source / "config.json").write_text('{"hidden_size": 64}')
    (source / "SOURCE.md").write_text("# x\n\n- Obtained from: https://example.org/model\n")
    script = Path(__file__).parents[2] / "tools" / "make_presets.py"
    made = []
    for name in ("one", "two"):
        command = [sys.executable, str(script), str(tmp_path / "in"), "--output", str(tmp_path / name)]
        subprocess.run(command, check=True, capture_output=True)
        made.append((tmp_path / name / "org--model.json.gz").read_bytes())
        assert "https://example.org/model" in (tmp_path / name / "ATTRIBUTION.md").read_text()
    assert made[0] == made[1]
    assert made[0][4:8] == b"\0\0\0\0"  # gzip's time field
    assert b'"hidden_size":64' in gzip.decompress(made[0])


def test_make_presets_without_models_fails(tmp_path):
    script = Path(__file__).parents[2] / "tools" / "make_presets.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "holds no" in done.stderr
