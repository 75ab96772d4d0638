"""Qwen3.5-397B-A17B-NVFP4, the model the project was begun for: from its preset and from all of its headers."""

from __future__ import annotations

import pytest
from checkpoint_files import bf16, merged, qwen35_moe_layer, qwen35_mtp, write_checkpoint
from fp4tune.tuner import presets
from fp4tune.tuner.checkpoint import open_checkpoint
from fp4tune.tuner.gemms import derive_gemms
from fp4tune.tuner.inspector import inspect_checkpoint
from fp4tune.tuner.workload import derive

NAME = "nvidia/Qwen3.5-397B-A17B-NVFP4"

# By hand from config.json (hidden 4096, heads 32 x 256 with a gated q, kv 2, linear attention 16 x 128 keys and
# 64 x 128 values, 512 experts of 1024, shared 1024, vocabulary 248320); (N, K) at TP 1, 2, 4, 8.
#   qkv at TP1: 2*32*256 + 2*2*256 = 17408; at TP8 each rank keeps one whole kv head: 16384/8 + 2*256 = 2560.
#   qkvz: 2*2048 + 8192 + 8192 = 20480. ba: 2*64 = 128.
TABLE = {
    "moe.w13": ("nvfp4", 60, [(2048, 4096), (1024, 4096), (512, 4096), (256, 4096)]),
    "moe.w2": ("nvfp4", 60, [(4096, 1024), (4096, 512), (4096, 256), (4096, 128)]),
    "attn.qkv": ("bf16", 15, [(17408, 4096), (8704, 4096), (4608, 4096), (2560, 4096)]),
    "attn.o": ("bf16", 15, [(4096, 8192), (4096, 4096), (4096, 2048), (4096, 1024)]),
    "gdn.in_proj_qkvz": ("bf16", 45, [(20480, 4096), (10240, 4096), (5120, 4096), (2560, 4096)]),
    "gdn.in_proj_ba": ("bf16", 45, [(128, 4096), (64, 4096), (32, 4096), (16, 4096)]),
    "gdn.out_proj": ("bf16", 45, [(4096, 8192), (4096, 4096), (4096, 2048), (4096, 1024)]),
    "shared.gate_up": ("bf16", 60, [(2048, 4096), (1024, 4096), (512, 4096), (256, 4096)]),
    "shared.down": ("bf16", 60, [(4096, 1024), (4096, 512), (4096, 256), (4096, 128)]),
    "router": ("bf16", 60, [(512, 4096)] * 4),
    "lm_head": ("bf16", 1, [(248320, 4096), (124160, 4096), (62080, 4096), (31040, 4096)]),
}
MTP_TABLE = {
    **{role: ("bf16", 1, TABLE[role][2]) for role in ("moe.w13", "moe.w2", "attn.qkv", "attn.o", "router")},
    **{role: ("bf16", 1, TABLE[role][2]) for role in ("shared.gate_up", "shared.down")},
    "mtp.fc": ("bf16", 1, [(4096, 8192)] * 4),
}


@pytest.fixture(scope="module")
def preset():
    return inspect_checkpoint(open_checkpoint(NAME))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """All tensors of the model as headers, its published configuration beside them."""
    data = presets.load(NAME)
    config = data.config["text_config"]
    shards = {}
    for layer, kind in enumerate(config["layer_types"]):
        attention = "full" if kind == "full_attention" else "linear"
        prefix = f"model.language_model.layers.{layer}."
        tensors = qwen35_moe_layer(prefix, config, attention=attention, expert="nvfp4")
        shards[f"model-{layer + 1:05d}-of-00062.safetensors"] = tensors
    top = merged(bf16("model.language_model.embed_tokens", 248320, 4096), bf16("lm_head", 248320, 4096))
    top |= bf16("model.language_model.norm", 4096) | bf16("model.visual.blocks.0.attn.qkv", 3456, 1152)
    shards["model-00061-of-00062.safetensors"] = top
    shards["model-00062-of-00062.safetensors"] = qwen35_mtp(config, expert="bf16")
    assert sum(".experts." in name and not name.startswith("mtp") for s in shards.values() for name in s) == 368_640
    path = write_checkpoint(tmp_path_factory.mktemp("397b"), data.config, shards, hf_quant_config=data.hf_quant_config)
    return inspect_checkpoint(open_checkpoint(str(path)))


def check_table(inspection, verdict):
    for column, tp in enumerate((1, 2, 4, 8)):
        table = derive_gemms(inspection, tp=tp)
        assert table.errors == ()
        for mtp, expected in ((False, TABLE), (True, MTP_TABLE)):
            rows = {gemm.role: gemm for gemm in table.gemms if gemm.mtp is mtp}
            assert rows.keys() == expected.keys()
            for role, (fmt, layers, shapes) in expected.items():
                row = rows[role]
                assert (row.n, row.k) == shapes[column], (role, tp)
                assert (row.format.value, row.layers, row.verdict) == (fmt, layers, verdict), (role, tp)
                experts = (512, 512, 10) if role.startswith("moe.") else (0, 0, 0)
                assert (row.experts, row.experts_total, row.top_k) == experts, (role, tp)


def test_every_role_at_every_tp_from_the_preset(preset):
    check_table(preset, "declared")


def test_every_role_at_every_tp_from_the_headers(stored):
    check_table(stored, "stored")


@pytest.mark.parametrize("tp", [1, 8])
def test_expert_parallel_8_keeps_whole_experts(preset, tp):
    rows = {gemm.role: gemm for gemm in derive_gemms(preset, tp=tp, ep=8).gemms if not gemm.mtp}
    w13, w2 = rows["moe.w13"], rows["moe.w2"]
    assert (w13.n, w13.k, w13.experts, w13.experts_total, w13.top_k) == (2048, 4096, 64, 512, 10)
    assert (w2.n, w2.k, w2.experts, w2.experts_total) == (4096, 1024, 64, 512)
    assert rows["attn.qkv"].n == (17408 if tp == 1 else 2560)
    assert rows["router"].n == 512


def test_preset_mtp_is_declared_bf16_with_the_published_count(preset):
    mtp = preset.mtp
    assert preset.evidence == "config"
    assert (mtp.count, mtp.expected, mtp.arithmetic) == (1553, 1553, "1553 = 512·3 + 17")
    assert "pull/38832" in mtp.count_source
    assert {fmt.value for _, fmt, _ in mtp.formats} == {"bf16"}
    assert {verdict for _, _, verdict in mtp.formats} == {"declared"}
    assert not mtp.has_nvfp4
    assert mtp.dtypes == ()
    assert mtp.files == ()
    assert "1553 = 512·3 + 17 tensors (published, not read)" in mtp.line
    assert "BF16 (declared)" in mtp.line
    assert "stored" not in mtp.line
    assert "No NVFP4 GEMM in the MTP branch" in mtp.line
    assert "--speculative-draft-model-quantization modelopt_fp4" in mtp.line


def test_stored_mtp_is_bf16_by_its_headers(stored):
    mtp = stored.mtp
    assert stored.evidence == "headers"
    assert (mtp.status, mtp.layers) == ("present", 1)
    assert (mtp.count, mtp.count_source, mtp.expected) == (1553, "headers", 1553)
    assert mtp.arithmetic == "1553 = 512·3 + 17"
    assert mtp.dtypes == (("BF16", 1553),)
    assert mtp.fused is False
    assert mtp.files == (("model-00062-of-00062.safetensors", 1553),)
    assert mtp.unindexed == 0
    assert "mtp" in mtp.evidence
    assert not mtp.has_nvfp4
    assert "1553 = 512·3 + 17 tensors (stored)" in mtp.line
    assert "BF16 (stored)" in mtp.line


def test_stored_checkpoint_is_inspected_whole(stored):
    # 60 x 512 x 3 x 4 experts; a full-attention layer has 2 + 6 + 5 others, a linear one 2 + 9 + 5; 4 at the top; MTP.
    assert stored.tensors == 368_640 + 15 * 13 + 45 * 16 + 4 + 1553
    assert stored.shards == 62


def test_stored_warns_of_what_the_list_forgets(stored):
    messages = [warn.message for warn in stored.warnings if warn.code == "declared-nvfp4-stored-plain"]
    assert any(m.startswith("declared nvfp4") and "stored bf16: mtp.fc" in m for m in messages)
    assert any("stored bf16: model.language_model.layers.0.mlp.gate and 59 more" in m for m in messages)
    assert len(messages) == 2


def test_preset_warns_of_what_the_list_forgets(preset):
    warned = [warn.modules for warn in preset.warnings if warn.code == "not-excluded"]
    assert warned == [("model.language_model.layers.0.mlp.gate",), ("mtp.fc",)]


def test_workload_at_tp8(preset):
    workload = derive(preset, tp=8, tokens=[1, 16, 4096])
    shapes = [(item.role, item.problem.shape, item.phases) for item in workload.items]
    assert shapes == [
        ("moe.w13", "e512k10:1x256x4096", ("decode",)),
        ("moe.w13", "e512k10:16x256x4096", ("decode", "verify")),
        ("moe.w13", "e512k10:4096x256x4096", ("prefill",)),
        ("moe.w2", "e512k10:1x4096x128", ("decode",)),
        ("moe.w2", "e512k10:16x4096x128", ("decode", "verify")),
        ("moe.w2", "e512k10:4096x4096x128", ("prefill",)),
    ]
    assert {item.layers for item in workload.items} == {60}
    assert {item.labels for item in workload.items} == {("backbone",)}
    assert {item.problem.format.value for item in workload.items} == {"nvfp4"}


MTP_OTHERS = """
mtp.fc mtp.norm mtp.pre_fc_norm_embedding mtp.pre_fc_norm_hidden
mtp.layers.0.input_layernorm mtp.layers.0.post_attention_layernorm
mtp.layers.0.self_attn.q_proj mtp.layers.0.self_attn.k_proj mtp.layers.0.self_attn.v_proj
mtp.layers.0.self_attn.o_proj mtp.layers.0.self_attn.q_norm mtp.layers.0.self_attn.k_norm
mtp.layers.0.mlp.gate mtp.layers.0.mlp.shared_expert_gate mtp.layers.0.mlp.shared_expert.gate_proj
mtp.layers.0.mlp.shared_expert.up_proj mtp.layers.0.mlp.shared_expert.down_proj
"""


def test_synthetic_mtp_has_the_published_names():
    config = presets.load(NAME).config["text_config"]
    projections = ("gate_proj", "up_proj", "down_proj")
    experts = {f"mtp.layers.0.mlp.experts.{e}.{p}.weight" for e in range(512) for p in projections}
    others = {f"{name}.weight" for name in MTP_OTHERS.split()}
    assert (len(experts), len(others)) == (1536, 17)
    assert set(qwen35_mtp(config, expert="bf16")) == experts | others
