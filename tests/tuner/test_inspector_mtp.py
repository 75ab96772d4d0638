"""MTP: counted, taken apart, and judged by dtype, never by the count."""

from __future__ import annotations

import pytest
from checkpoint_files import bf16, fp8, merged, nvfp4, qwen35_moe_layer, qwen35_mtp, write_checkpoint, write_shard
from fp4tune.tuner.checkpoint import open_checkpoint
from fp4tune.tuner.inspector import inspect_checkpoint
from fp4tune.tuner.workload import derive

TEXT = {
    "model_type": "qwen3_5_moe_text", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "attn_output_gate": True, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_num_value_heads": 4, "linear_value_head_dim": 16, "full_attention_interval": 2,
    "mtp_num_hidden_layers": 1, "vocab_size": 128,
}  # fmt: skip
QUANT = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "ignore": ["lm_head", "*shared_expert*", "*self_attn*", "*linear_attn*", "*.mlp.gate", "mtp.fc"],
}


def text_config(**changes):
    return {**TEXT, **changes}


def inspect_mtp(tmp_path, text, mtp, **options):
    """A checkpoint whose backbone is one shard and whose MTP branch is another."""
    config = {"model_type": "qwen3_5_moe", "quantization_config": QUANT, "text_config": text}
    shards = {"model-00001-of-00002.safetensors": bf16("lm_head", 128, 64), "model-00002-of-00002.safetensors": mtp}
    return inspect_checkpoint(open_checkpoint(str(write_checkpoint(tmp_path, config, shards, **options))))


def dense_mtp(text):
    h, inner = text["hidden_size"], 128
    heads, kv, dim = text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"]
    tensors = merged(bf16("mtp.fc", h, 2 * h), bf16("mtp.norm", h), bf16("mtp.pre_fc_norm_embedding", h))
    tensors |= bf16("mtp.pre_fc_norm_hidden", h)
    p = "mtp.layers.0"
    tensors |= bf16(f"{p}.input_layernorm", h) | bf16(f"{p}.post_attention_layernorm", h)
    tensors |= bf16(f"{p}.self_attn.q_proj", 2 * heads * dim, h) | bf16(f"{p}.self_attn.k_proj", kv * dim, h)
    tensors |= bf16(f"{p}.self_attn.v_proj", kv * dim, h) | bf16(f"{p}.self_attn.o_proj", h, heads * dim)
    tensors |= bf16(f"{p}.self_attn.q_norm", dim) | bf16(f"{p}.self_attn.k_norm", dim)
    tensors |= bf16(f"{p}.mlp.gate_proj", inner, h) | bf16(f"{p}.mlp.up_proj", inner, h)
    return tensors | bf16(f"{p}.mlp.down_proj", h, inner)


# Layout -> (experts, expert format, format of the rest, fused, count, arithmetic, has NVFP4). The counts are the
# published ones and those that follow from them (512 or 256 experts, 3 projections, 1 to 4 tensors each; 17 others,
# of which the 7 attention and shared linears have a scale in FP8).
LAYOUTS = {
    "512 unfused bf16": (512, "bf16", "bf16", False, 1553, "1553 = 512·3 + 17", False),
    "512 fused bf16": (512, "bf16", "bf16", True, 19, "19 = 2 fused + 17", False),
    "512 nvfp4 w4a4": (512, "nvfp4", "bf16", False, 6161, "6161 = 512·3·4 + 17", True),
    "512 nvfp4 w4a16": (512, "nvfp4_w4a16", "bf16", False, 4625, "4625 = 512·3·3 + 17", True),
    "512 fp8 block": (512, "fp8_block", "fp8_block", False, 3096, "3096 = 512·3·2 + 24", False),
    "256 unfused bf16": (256, "bf16", "bf16", False, 785, "785 = 256·3 + 17", False),
    "256 fp8 block": (256, "fp8_block", "fp8_block", False, 1560, "1560 = 256·3·2 + 24", False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_count_and_arithmetic(tmp_path, layout):
    experts, expert, shared, fused, count, arithmetic, has_nvfp4 = LAYOUTS[layout]
    text = text_config(num_experts=experts)
    found = inspect_mtp(tmp_path, text, qwen35_mtp(text, expert=expert, shared=shared, fused=fused))
    mtp = found.mtp
    assert (mtp.status, mtp.count, mtp.expected) == ("present", count, count)
    assert (mtp.arithmetic, mtp.fused, mtp.has_nvfp4) == (arithmetic, fused, has_nvfp4)
    assert sum(n for _, n in mtp.dtypes) == count
    formats = {role: fmt.value for role, fmt, _ in mtp.formats}
    assert (formats["moe.w13"], formats["moe.w2"], formats["attn.qkv"]) == (expert, expert, shared)
    assert f"{arithmetic} tensors (stored)" in mtp.line


def test_dense_branch_has_15_tensors(tmp_path):
    text = text_config(num_experts=None, moe_intermediate_size=None, intermediate_size=128)
    mtp = inspect_mtp(tmp_path, text, dense_mtp(text)).mtp
    assert (mtp.count, mtp.expected, mtp.arithmetic, mtp.fused) == (15, 15, "", None)
    assert "15 tensors (stored)" in mtp.line


def test_trap_256_experts_of_two_tensors_are_also_1553(tmp_path):
    """256·3·2 + 17 is 1553, too: FP8 experts with a scale each. The dtype tells, the count does not."""
    text = text_config(num_experts=256)
    mtp = inspect_mtp(tmp_path, text, qwen35_mtp(text, expert="fp8_block")).mtp
    assert (mtp.count, mtp.expected, mtp.arithmetic) == (1553, 1553, "1553 = 256·3·2 + 17")
    formats = {role: fmt.value for role, fmt, _ in mtp.formats}
    assert formats["moe.w13"] == "fp8_block"
    assert dict(mtp.dtypes) == {"F8_E4M3": 768, "F32": 768, "BF16": 17}
    assert not mtp.has_nvfp4
    assert "it is fp8_block" in mtp.meaning
    assert "online" not in mtp.meaning


def test_v4_flash_layout_has_1575_tensors(tmp_path):
    """DeepSeek-V4-Flash: 256 experts of MXFP4 (I8 and an E8M0 scale) and 39 others; its index holds 1575."""
    config = {
        "model_type": "deepseek_v4", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32,
        "num_key_value_heads": 1, "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 32, "n_routed_experts": 256,
        "n_shared_experts": 1, "moe_intermediate_size": 64, "num_experts_per_tok": 6, "num_nextn_predict_layers": 1,
        "expert_dtype": "fp4",
    }  # fmt: skip

    def block(module, n, k):
        return {f"{module}.weight": ("F8_E4M3", (n, k)), f"{module}.scale": ("F8_E8M0", (1, 2))}

    p = "mtp.0"
    tensors = merged(block(f"{p}.e_proj", 64, 64), block(f"{p}.h_proj", 64, 64))
    tensors |= block(f"{p}.attn.wq_a", 32, 64) | block(f"{p}.attn.wkv", 32, 64) | block(f"{p}.attn.wq_b", 128, 32)
    tensors |= block(f"{p}.attn.wo_a", 64, 64) | block(f"{p}.attn.wo_b", 64, 64)
    for name in ("w1", "w2", "w3"):
        tensors |= block(f"{p}.ffn.shared_experts.{name}", 64, 64)
        for e in range(256):
            at = f"{p}.ffn.experts.{e}.{name}"
            tensors |= {f"{at}.weight": ("I8", (64, 32)), f"{at}.scale": ("F8_E8M0", (64, 2))}
    tensors |= {f"{p}.attn.attn_sink": ("F32", (4,))} | bf16(f"{p}.attn.q_norm", 32) | bf16(f"{p}.attn.kv_norm", 32)
    for name in ("attn_norm", "ffn_norm", "enorm", "hnorm", "norm"):
        tensors |= bf16(f"{p}.{name}", 64)
    tensors |= bf16(f"{p}.ffn.gate", 256, 64) | {f"{p}.ffn.gate.bias": ("F32", (256,))}
    for owner in ("head", "attn", "ffn"):
        tensors |= {f"{p}.hc_{owner}_{kind}": ("F32", (4,)) for kind in ("fn", "base", "scale")}
    path = write_checkpoint(tmp_path, config, {"m.safetensors": tensors}, index=False)
    found = inspect_checkpoint(open_checkpoint(str(path)))
    assert (found.mtp.count, found.mtp.expected, found.mtp.arithmetic) == (1575, 1575, "1575 = 256·3·2 + 39")
    formats = {role: fmt.value for role, fmt, _ in found.mtp.formats}
    assert (formats["moe.w13"], formats["mla.q_b"], formats["shared.gate_up"]) == ("mxfp4", "fp8_block", "fp8_block")


def test_two_layers(tmp_path):
    text = text_config(mtp_num_hidden_layers=2, num_experts=4)
    tensors = qwen35_mtp(text, expert="bf16")
    tensors |= qwen35_moe_layer("mtp.layers.1.", text, attention="full", expert="bf16")
    mtp = inspect_mtp(tmp_path, text, tensors).mtp
    # 4 experts x 3 in each of 2 layers; fc and 3 norms once, 13 others a layer
    assert (mtp.layers, mtp.count, mtp.expected) == (2, 54, 54)
    assert mtp.arithmetic == "54 = 2·4·3 + 30"


def test_present_and_undeclared(tmp_path):
    text = text_config(mtp_num_hidden_layers=None, num_experts=4, model_type="qwen3_next")
    found = inspect_mtp(tmp_path, text, qwen35_mtp(text, expert="bf16"))
    assert (found.mtp.status, found.mtp.count, found.mtp.expected) == ("undeclared", 29, 29)
    assert "mtp-undeclared" in {warn.code for warn in found.warnings}


def test_declared_and_absent(tmp_path):
    found = inspect_mtp(tmp_path, text_config(num_experts=4), bf16("model.norm", 64))
    assert (found.mtp.status, found.mtp.count, found.mtp.expected) == ("absent", 0, 29)
    assert "0 of 29 expected tensors (stored)" in found.mtp.line
    warning = next(warn for warn in found.warnings if warn.code == "mtp-absent")
    assert "mtp_num_hidden_layers = 1" in warning.message
    assert not any(role.mtp for role in found.roles)


def test_absent_from_readable_files_is_not_absent_while_files_are_missing(tmp_path):
    text = text_config(num_experts=4)
    config = {"model_type": "qwen3_5_moe", "quantization_config": QUANT, "text_config": text}
    shard = {"model-00001-of-00002.safetensors": bf16("lm_head", 128, 64)}
    found = inspect_checkpoint(open_checkpoint(str(write_checkpoint(tmp_path, config, shard, index=False))))
    assert (found.mtp.status, found.mtp.count) == ("unchecked", None)
    assert "mtp-absent" not in {warn.code for warn in found.warnings}


def test_some_tensors_missing(tmp_path):
    text = text_config(num_experts=4)
    tensors = qwen35_mtp(text, expert="bf16")
    del tensors["mtp.norm.weight"]
    found = inspect_mtp(tmp_path, text, tensors)
    assert "28 tensors and 29 were expected" in next(w.message for w in found.warnings if w.code == "mtp-count")


def test_index_alone_counts_without_dtypes(tmp_path):
    text = text_config(num_experts=4)
    tensors = qwen35_mtp(text, expert="nvfp4")
    index = dict.fromkeys(tensors, "mtp.safetensors")
    config = {"model_type": "qwen3_5_moe", "quantization_config": QUANT, "text_config": text}
    found = inspect_checkpoint(open_checkpoint(str(write_checkpoint(tmp_path, config, {}, index=index))))
    mtp = found.mtp
    assert found.evidence == "index"
    assert (mtp.count, mtp.count_source, mtp.dtypes) == (65, "index", ())
    assert mtp.files == (("mtp.safetensors", 65),)
    assert ("moe.w13", "nvfp4", "index") in [(role, fmt.value, verdict) for role, fmt, verdict in mtp.formats]
    assert "by the index, no dtypes" in mtp.line
    assert "guessed from tensor names" in found.confidence


def test_nvfp4_experts_share_the_backbones_problems_and_keep_both_labels(tmp_path):
    text = text_config(num_experts=4, num_experts_per_tok=2, mtp_num_hidden_layers=1)
    backbone = merged(
        qwen35_moe_layer("model.language_model.layers.0.", text, attention="linear", expert="nvfp4"),
        qwen35_moe_layer("model.language_model.layers.1.", text, attention="full", expert="nvfp4"),
    )
    found = inspect_mtp(tmp_path, text, qwen35_mtp(text, expert="nvfp4") | backbone)
    assert "NVFP4 GEMMs in the MTP branch: moe.w13, moe.w2" in found.mtp.meaning
    items = {(item.role, item.problem.m): item for item in derive(found, tokens=[3, 4]).items}
    assert items["moe.w13", 4].labels == ("backbone", "mtp")
    assert items["moe.w13", 4].phases == ("decode", "verify", "draft_extend", "draft_decode")
    assert items["moe.w13", 4].layers == 3
    assert items["moe.w13", 3].phases == ("decode", "draft_decode")
    draft = derive(found, tokens=[4], phases=["draft"])
    assert {item.labels for item in draft.items} == {("mtp",)}


def test_experts_of_unequal_tensors_are_summed(tmp_path):
    text = text_config(num_experts=4)
    tensors = qwen35_mtp(text, expert="bf16") | {"mtp.layers.0.mlp.experts.0.up_proj.bias": ("BF16", (64,))}
    mtp = inspect_mtp(tmp_path, text, tensors).mtp
    assert mtp.arithmetic == "30 = 13 in experts + 17"


def test_preset_without_a_published_count_expects_one():
    line = inspect_checkpoint(open_checkpoint("nvidia/Qwen3.5-122B-A10B-NVFP4")).mtp.line
    assert (
        "MTP (unchecked, its weights are not here): 1 layer, expected 785 = 256·3 + 17 tensors, BF16 (declared)."
        in line
    )


def test_line_of_a_model_without_mtp():
    assert inspect_checkpoint(open_checkpoint("nvidia/Qwen3-32B-NVFP4")).mtp.line == "MTP: none."


@pytest.mark.parametrize(
    ("config", "layers", "keys"),
    [
        ({"use_mtp": True}, 1, ("use_mtp = true",)),
        ({"use_mtp": False, "num_mtp_modules": 2}, 0, ("num_mtp_modules = 2 x mtp_transformer_layers = 1", "use_mtp = false")),
        ({"num_nextn_predict_layers": 0}, 0, ("num_nextn_predict_layers = 0",)),
        ({"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}, 1,
         ("num_nextn_predict_layers = 1", "mtp blocks = attention+moe")),
        ({}, 0, ()),
    ],
)  # fmt: skip
def test_keys_that_declare_mtp(tmp_path, config, layers, keys):
    base = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    path = write_checkpoint(tmp_path, {**base, **config}, {}, index=False)
    mtp = inspect_checkpoint(open_checkpoint(str(path))).mtp
    assert (mtp.layers, mtp.keys) == (layers, keys)
    assert mtp.status == ("unchecked" if layers else "none")


def test_fp8_per_tensor_has_no_expected_count(tmp_path):
    text = text_config(num_experts=4)
    tensors = qwen35_mtp(text, expert="bf16") | fp8("mtp.fc", 64, 128)
    assert inspect_mtp(tmp_path, text, tensors).mtp.expected is None


def test_unindexed_branch_is_counted_and_reported_apart(tmp_path):
    text = text_config(num_experts=4)
    inspect_mtp(tmp_path, text, bf16("model.norm", 64))
    write_shard(tmp_path / "mtp.safetensors", qwen35_mtp(text, expert="bf16"))
    mtp = inspect_checkpoint(open_checkpoint(str(tmp_path))).mtp
    assert (mtp.status, mtp.count, mtp.unindexed) == ("present", 29, 29)
    assert mtp.files == (("mtp.safetensors", 29),)


def test_without_an_index_nothing_is_missing_from_it(tmp_path):
    text = text_config(num_experts=4)
    assert inspect_mtp(tmp_path / "a", text, qwen35_mtp(text, expert="bf16")).mtp.unindexed == 0
    assert inspect_mtp(tmp_path / "b", text, qwen35_mtp(text, expert="bf16"), index=False).mtp.unindexed is None


def test_layer_beyond_the_decoder_is_mtp_only_in_its_own_stack(tmp_path):
    config = {"model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    tensors = merged(
        bf16("model.layers.2.mlp.up_proj", 64, 64),
        bf16("vision_tower.encoder.layers.5.mlp.up_proj", 64, 64),
        nvfp4("model.layers.1.mlp.up_proj", 64, 64),
    )
    path = write_checkpoint(tmp_path, config, {"m.safetensors": tensors}, index=False)
    mtp = inspect_checkpoint(open_checkpoint(str(path))).mtp
    assert (mtp.status, mtp.count, mtp.evidence) == ("undeclared", 1, ("layer 2 of 2",))
