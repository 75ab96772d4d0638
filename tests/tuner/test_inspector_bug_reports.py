"""Nineteen public bug reports about NVFP4 checkpoints, each with what the inspector answers to it.

Models are small and synthetic; names, dtypes and list entries are those of the reports.
"""

from __future__ import annotations

import pytest
from checkpoint_files import (
    bf16,
    fp8,
    fp8_block,
    merged,
    nvfp4,
    qwen35_moe_layer,
    qwen35_mtp,
    write_checkpoint,
    write_shard,
)
from fp4tune.tuner.checkpoint import open_checkpoint
from fp4tune.tuner.gemms import derive_gemms
from fp4tune.tuner.inspection.formats import WeightFormat
from fp4tune.tuner.inspector import inspect_checkpoint
from fp4tune.tuner.workload import derive

QWEN = {
    "model_type": "qwen3_5_moe_text", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "attn_output_gate": True, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "mtp_num_hidden_layers": 1, "vocab_size": 128,
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
    "v_head_dim": 16, "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 64,
    "num_experts_per_tok": 2, "first_k_dense_replace": 0, "num_nextn_predict_layers": 1, "vocab_size": 128,
}  # fmt: skip


def modelopt(exclude, **more):
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": exclude, **more}


def inspect_files(tmp_path, config, tensors, **options):
    shards = tensors if all(isinstance(v, dict) for v in tensors.values()) else {"model.safetensors": tensors}
    options.setdefault("index", False)
    return inspect_checkpoint(open_checkpoint(str(write_checkpoint(tmp_path, config, shards, **options))))


def inspect_config(tmp_path, config):
    return inspect_files(tmp_path, config, {})


def messages(inspection, code):
    return [warn.message for warn in inspection.warnings if warn.code == code]


def formats(inspection, *, mtp=False):
    return {role.role: role.format.value for role in inspection.roles if role.mtp is mtp}


def mla_layer(prefix, expert, attention=bf16):
    """One layer of DeepSeek-V3 with experts of the given format."""
    at, mlp = f"{prefix}self_attn", f"{prefix}mlp"
    tensors = merged(attention(f"{at}.q_a_proj", 32, 64), attention(f"{at}.q_b_proj", 128, 32))
    tensors |= attention(f"{at}.kv_a_proj_with_mqa", 48, 64) | attention(f"{at}.kv_b_proj", 128, 32)
    tensors |= attention(f"{at}.o_proj", 64, 64) | bf16(f"{mlp}.gate", 4, 64) | bf16(f"{prefix}input_layernorm", 64)
    for name, n, k in (("gate_proj", 64, 64), ("up_proj", 64, 64), ("down_proj", 64, 64)):
        tensors |= bf16(f"{mlp}.shared_experts.{name}", n, k)
        for e in range(4):
            tensors |= expert(f"{mlp}.experts.{e}.{name}", n, k)
    return tensors


def mla_model(expert, nextn):
    """Two decoder layers and one NextN layer with its own formats."""
    tensors = merged(mla_layer("model.layers.0.", expert), mla_layer("model.layers.1.", expert))
    tensors |= mla_layer("model.layers.2.", nextn) | bf16("model.layers.2.eh_proj", 64, 128)
    tensors |= bf16("model.layers.2.enorm", 64) | bf16("model.layers.2.hnorm", 64) | bf16("lm_head", 128, 64)
    return tensors | bf16("model.layers.2.shared_head.head", 128, 64)


ATTENTION = ["lm_head", "*self_attn*", "*shared_expert*", "*.mlp.gate"]


def test_01_vllm_38832_mtp_fc_is_bf16_and_on_no_list(tmp_path):
    config = {
        "model_type": "qwen3_5_moe",
        "text_config": QWEN,
        "quantization_config": modelopt([*ATTENTION, "mtp.layers.0*"]),
    }
    layer = qwen35_moe_layer("model.language_model.layers.0.", QWEN, attention="full", expert="nvfp4")
    found = inspect_files(tmp_path, config, layer | qwen35_mtp(QWEN, expert="bf16"))
    [message] = messages(found, "declared-nvfp4-stored-plain")
    assert message.startswith("declared nvfp4 (by the lists as written), ")
    assert "stored bf16: mtp.fc." in message
    assert formats(found, mtp=True)["mtp.fc"] == "bf16"


def test_02_vllm_35031_every_bf16_linear_under_a_default_of_nvfp4_is_listed(tmp_path):
    config = {"model_type": "qwen3_5_moe", "text_config": QWEN, "quantization_config": modelopt(["lm_head"])}
    layer = qwen35_moe_layer("model.language_model.layers.0.", QWEN, attention="full", expert="nvfp4", shared="nvfp4")
    found = inspect_files(tmp_path, config, layer | qwen35_mtp(QWEN, expert="bf16"))
    warned = {name for warn in found.warnings if warn.code == "declared-nvfp4-stored-plain" for name in warn.modules}
    p = "mtp.layers.0"
    attention = {f"{p}.self_attn.{x}_proj" for x in "qkvo"}
    shared = {f"{p}.mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")}
    experts = {f"{p}.mlp.experts.0.{x}_proj" for x in ("gate", "up", "down")}
    gates = {f"{p}.mlp.gate", f"{p}.mlp.shared_expert_gate"}
    backbone = {"model.language_model.layers.0.mlp.gate", "model.language_model.layers.0.mlp.shared_expert_gate"}
    assert warned == attention | shared | experts | gates | backbone | {"mtp.fc"}


def test_03_vllm_44087_step_drafter_is_bf16_under_its_own_names(tmp_path):
    config = {
        "model_type": "step3p5", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 64, "vocab_size": 128, "num_nextn_predict_layers": 1,
        "quantization_config": modelopt(["lm_head"]),
    }  # fmt: skip
    p = "model.layers.1"
    tensors = merged(nvfp4("model.layers.0.mlp.up_proj", 64, 64), bf16(f"{p}.mtp_block.self_attn.q_proj", 64, 64))
    tensors |= bf16(f"{p}.mtp_block.self_attn.k_proj", 64, 64) | bf16(f"{p}.mtp_block.mlp.up_proj", 64, 64)
    tensors |= bf16(f"{p}.shared_head.head", 128, 64)
    found = inspect_files(tmp_path, config, tensors)
    assert found.mtp.count == 4
    assert {"mtp_block", "shared_head"} <= set(found.mtp.evidence)
    assert set(formats(found, mtp=True).values()) == {"bf16"}
    assert any("model.layers.1.shared_head.head" in m for m in messages(found, "declared-nvfp4-stored-plain"))


def test_04_sglang_36599_nextn_that_is_nvfp4(tmp_path):
    found = inspect_files(tmp_path, {**MLA, "quantization_config": modelopt(ATTENTION)}, mla_model(nvfp4, nvfp4))
    assert found.mtp.has_nvfp4
    assert formats(found, mtp=True)["moe.w13"] == "nvfp4"
    assert "NVFP4 GEMMs in the MTP branch: moe.w13, moe.w2" in found.mtp.line
    assert "forces the branch to BF16 cannot load it" in found.mtp.meaning


def test_05_sglang_38569_fp8_block_experts_are_no_bf16(tmp_path):
    config = {**MLA, "quantization_config": modelopt([*ATTENTION, "model.layers.2*"])}
    found = inspect_files(tmp_path, config, mla_model(nvfp4, fp8_block))
    assert formats(found, mtp=True)["moe.w13"] == "fp8_block"
    assert "it is fp8_block" in found.mtp.meaning
    assert "acceptance rate" in found.mtp.meaning
    assert any("stored fp8_block: model.layers.2.mlp.experts.0" in m for m in messages(found, "excluded-but-quantised"))


def test_06_sglang_36596_list_names_projections_and_the_module_is_fused(tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 64,
        "quantization_config": modelopt([f"model.layers.0.self_attn.{x}_proj" for x in "qkv"]),
    }  # fmt: skip
    tensors = merged(
        bf16("model.layers.0.self_attn.qkv_proj", 128, 64), nvfp4("model.layers.0.self_attn.o_proj", 64, 64)
    )
    tensors |= nvfp4("model.layers.0.mlp.gate_up_proj", 128, 64) | nvfp4("model.layers.0.mlp.down_proj", 64, 64)
    found = inspect_files(tmp_path, config, tensors)
    role = next(role for role in found.roles if role.role == "attn.qkv")
    assert (role.format, role.parts[0].declared.excluded) == (WeightFormat.BF16, True)
    assert "for each of its parts" in role.parts[0].declared.rule
    assert messages(found, "declared-nvfp4-stored-plain") == []
    assert {g.role: (g.n, g.k) for g in derive_gemms(found, tp=2).gemms}["attn.qkv"] == (64, 64)


def wrongly_prefixed(tmp_path, exclude, name):
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 64, "quantization_config": modelopt(exclude),
    }  # fmt: skip
    tensors = merged(*(bf16(f"{name}.self_attn.{x}_proj", 64, 64) for x in "qkvo"))
    tensors |= merged(*(nvfp4(f"{name}.mlp.{x}_proj", 64, 64) for x in ("gate", "up", "down")))
    return inspect_files(tmp_path, config, tensors)


def test_07_sglang_38781_list_is_written_with_another_prefix(tmp_path):
    found = wrongly_prefixed(tmp_path, ["model.language_model.layers.0*"], "model.layers.0")
    [message] = messages(found, "pattern-matches-nothing")
    assert "1 entries of the quantisation lists match no module" in message
    assert "it is written for 'model.language_model.' and the modules are called 'model.'" in message
    assert messages(found, "declared-nvfp4-stored-plain")
    assert formats(found)["attn.qkv"] == "bf16"


def test_08_vllm_53790_nemotron_mtp_under_another_name(tmp_path):
    config = {
        "model_type": "nemotron_h", "hidden_size": 64, "layers_block_type": ["attention"], "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention"],
        "quantization_config": modelopt(["backbone.mtp.layers.0*"]),
    }  # fmt: skip
    tensors = merged(bf16("mtp.layers.0.eh_proj", 64, 128), bf16("mtp.layers.0.mixer.q_proj", 64, 64))
    tensors |= bf16("mtp.layers.0.mixer.k_proj", 32, 64) | nvfp4("backbone.layers.0.mixer.o_proj", 64, 64)
    found = inspect_files(tmp_path, config, tensors)
    assert "backbone.mtp.layers.0*" in messages(found, "pattern-matches-nothing")[0]
    assert any("stored bf16: mtp.layers.0.mixer.q_proj" in m for m in messages(found, "declared-nvfp4-stored-plain"))
    assert set(formats(found, mtp=True).values()) == {"bf16"}


def test_09_vllm_24178_list_matches_in_the_checkpoints_spelling(tmp_path):
    found = wrongly_prefixed(tmp_path, ["language_model.model.layers.0.self_attn*"], "language_model.model.layers.0")
    assert messages(found, "pattern-matches-nothing") == []
    assert messages(found, "declared-nvfp4-stored-plain") == []
    role = next(role for role in found.roles if role.role == "attn.qkv")
    assert all(part.declared.excluded for part in role.parts)


def test_10_vllm_45132_lm_head_is_excluded_and_has_scales(tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 64, "vocab_size": 128, "quantization_config": modelopt(["lm_head"]),
    }  # fmt: skip
    found = inspect_files(tmp_path, config, nvfp4("lm_head", 128, 64))
    [message] = messages(found, "excluded-but-quantised")
    assert message.startswith("excluded by 'lm_head' but stored nvfp4: lm_head.")
    assert formats(found)["lm_head"] == "nvfp4"


def test_11_vllm_49187_quark_export_whose_mtp_is_found_by_its_layer_index(tmp_path):
    config = {**MLA, "quantization_config": {"quant_method": "quark", "exclude": ["lm_head"]}}
    found = inspect_files(tmp_path, config, mla_model(nvfp4, bf16))
    assert found.mtp.status == "present"
    assert "layer 2 of 2" in found.mtp.evidence
    assert set(formats(found, mtp=True).values()) == {"bf16"}
    assert formats(found)["moe.w13"] == "nvfp4"
    assert "quark" in messages(found, "unknown-quant-method")[0]


def test_12_vllm_35548_mtp_is_declared_and_its_weights_are_not_there(tmp_path):
    tensors = merged(mla_layer("model.layers.0.", nvfp4), mla_layer("model.layers.1.", nvfp4), bf16("lm_head", 128, 64))
    found = inspect_files(tmp_path, {**MLA, "quantization_config": modelopt(ATTENTION)}, tensors)
    assert found.mtp.status == "absent"
    [message] = messages(found, "mtp-absent")
    assert "num_nextn_predict_layers = 1" in message
    assert "0 tensors" in message
    assert {phase for item in derive(found).items for phase in item.phases} == {"decode", "prefill"}


def test_13_sglang_17166_mtp_file_that_is_not_in_the_index(tmp_path):
    config = {"model_type": "qwen3_5_moe", "text_config": QWEN, "quantization_config": modelopt([*ATTENTION, "mtp*"])}
    layer = qwen35_moe_layer("model.language_model.layers.0.", QWEN, attention="full", expert="nvfp4")
    path = write_checkpoint(tmp_path, config, {"model-00001-of-00001.safetensors": layer})
    write_shard(path / "mtp.safetensors", qwen35_mtp(QWEN, expert="bf16"))
    found = inspect_checkpoint(open_checkpoint(str(path)))
    assert (found.mtp.status, found.mtp.count, found.mtp.unindexed) == ("present", 29, 29)
    assert "29 of 29 MTP tensors (mtp.safetensors) are not in the index" in messages(found, "mtp-unindexed")[0]
    assert "29 tensors in mtp.safetensors are not in the index" in messages(found, "tensors-unindexed")[0]


NEMOTRON = {
    "model_type": "nemotron_h", "hidden_size": 2688, "layers_block_type": ["moe"], "num_attention_heads": 32,
    "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "quantization_config": modelopt([]),
}  # fmt: skip


def test_14_vllm_49949_nemotron_nano_tp8_splits_a_group(tmp_path):
    found = inspect_config(tmp_path, NEMOTRON)
    rows = {g.role: g for g in derive_gemms(found, tp=8).gemms}
    assert rows["moe.w2"].error == (
        "TP 8 is invalid: K = 1856/8 = 232 is no multiple of 16, so a shard would split the elements of one scale."
    )
    assert rows["moe.w1"].error == ""  # not gated: I/8 = 232 rows need no group
    assert derive_gemms(found, tp=4).errors == ()  # 464 = 29 * 16
    assert {item.role for item in derive(found, tp=8).items} == {"moe.w1"}


def test_15_vllm_46879_gemma_26b_tp4_is_refused_by_the_cutlass_path(tmp_path):
    config = {
        "model_type": "gemma4", "text_config": {
            "model_type": "gemma4_text", "hidden_size": 2816, "num_hidden_layers": 1, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 2112, "enable_moe_block": True,
            "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
        }, "quantization_config": modelopt(["*self_attn*", "*.mlp.*", "*router*"]),
    }  # fmt: skip
    found = inspect_config(tmp_path, config)
    sizes = {tp: {g.role: g for g in derive_gemms(found, tp=tp).gemms}["moe.w13"] for tp in (1, 2, 4, 8)}
    assert {tp: row.n for tp, row in sizes.items()} == {1: 1408, 2: 704, 4: 352, 8: 176}
    assert {tp for tp, row in sizes.items() if "is no multiple of 128" in row.error} == {2, 4, 8}
    assert "2I/TP = 1408/4 = 352" in sizes[4].error
    relaxed = {g.role: g for g in derive_gemms(found, tp=4, backend_path="any").gemms}["moe.w13"]
    assert relaxed.error == ""


def test_16_flashinfer_4653_intermediate_size_1856_pads_its_scales(tmp_path):
    row = {g.role: g for g in derive_gemms(inspect_config(tmp_path, NEMOTRON)).gemms}["moe.w1"]
    assert "N % 128 = 64: swizzled scales have 1920 rows" in row.notes


def test_17_1cat_642_intermediate_size_640_at_tp8(tmp_path):
    config = {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 1, "num_attention_heads": 32, "head_dim": 64,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 640, "quantization_config": modelopt([]),
    }  # fmt: skip
    row = {g.role: g for g in derive_gemms(inspect_config(tmp_path, config), tp=8).gemms}["moe.w13"]
    assert row.n == 160
    assert "1280/8 = 160 is no multiple of 128" in row.error
    assert "N % 64 = 32: the last tile of N is partly empty" in row.notes


def test_18_tensorrt_llm_16196_excluded_is_not_bf16(tmp_path):
    v4 = inspect_checkpoint(open_checkpoint("nvidia/DeepSeek-V4-Pro-NVFP4"))
    assert formats(v4)["mla.q_b"] == "fp8_block"
    config = {**MLA, "quantization_config": modelopt(ATTENTION)}
    tensors = merged(mla_layer("model.layers.0.", nvfp4, fp8_block), mla_layer("model.layers.1.", nvfp4, fp8_block))
    found = inspect_files(tmp_path, config, tensors)
    assert formats(found)["mla.o"] == "fp8_block"
    assert "Excluded does not mean BF16" in messages(found, "excluded-but-quantised")[0]


def test_19_model_optimizer_2427_export_dropped_mtp(tmp_path):
    text = {
        **QWEN,
        "model_type": "qwen3_5_text",
        "num_experts": None,
        "moe_intermediate_size": None,
        "intermediate_size": 64,
    }
    config = {"model_type": "qwen3_5", "text_config": text, "quantization_config": modelopt(["mtp*"])}
    found = inspect_files(tmp_path, config, nvfp4("model.language_model.layers.0.mlp.up_proj", 64, 64))
    assert (found.mtp.status, found.mtp.count, found.mtp.expected) == ("absent", 0, 15)
    assert "0 of 15 expected tensors" in found.mtp.line


@pytest.mark.parametrize("maker", [fp8, fp8_block])
def test_19_model_optimizer_868_fp8_under_an_nvfp4_label(tmp_path, maker):
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 64, "quantization_config": modelopt([]),
    }  # fmt: skip
    name = "model.layers.0.mlp.down_proj"
    found = inspect_files(tmp_path, config, maker(name, 64, 64))
    stored = formats(found)["mlp.down"]
    assert stored in {"fp8", "fp8_block"}
    assert f"stored {stored}: {name}." in messages(found, "declared-stored-differ")[0]
    assert derive(found, include_bf16=True).items == ()
