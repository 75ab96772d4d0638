"""The inspector on small synthetic checkpoints: stored against declared, headers against config, bad input."""

from __future__ import annotations

import json

import pytest
from checkpoint_files import (
    bf16,
    fp8,
    merged,
    mxfp4_blocks,
    nvfp4,
    nvfp4_ct,
    nvfp4_w4a16,
    write_checkpoint,
    write_shard,
)
from fp4tune.kernels.errors import Fp4tuneError, InvalidInputError, UnsupportedError
from fp4tune.tuner import presets
from fp4tune.tuner.checkpoint import Checkpoint, open_checkpoint
from fp4tune.tuner.gemms import derive_gemms
from fp4tune.tuner.inspection import list_checks
from fp4tune.tuner.inspection.formats import WeightFormat
from fp4tune.tuner.inspection.shards import ShardSet
from fp4tune.tuner.inspector import inspect_checkpoint
from fp4tune.tuner.reports import inspection_report, workload_report
from fp4tune.tuner.workload import derive
from hypothesis import given, settings
from hypothesis import strategies as st

DENSE = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 128,
}  # fmt: skip
SPARSE = {
    "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.mlp.gate"]}


def dense_layer(layer, make=nvfp4, attention=None):
    attention = attention or make
    p = f"model.layers.{layer}"
    tensors = merged(attention(f"{p}.self_attn.q_proj", 64, 64), attention(f"{p}.self_attn.k_proj", 32, 64))
    tensors |= attention(f"{p}.self_attn.v_proj", 32, 64) | attention(f"{p}.self_attn.o_proj", 64, 64)
    tensors |= (
        make(f"{p}.mlp.gate_proj", 96, 64) | make(f"{p}.mlp.up_proj", 96, 64) | make(f"{p}.mlp.down_proj", 64, 96)
    )
    return tensors | bf16(f"{p}.input_layernorm", 64)


def sparse_layer(layer, make=nvfp4):
    p = f"model.layers.{layer}"
    tensors = merged(*(make(f"{p}.self_attn.{x}_proj", n, 64) for x, n in (("q", 64), ("k", 32), ("v", 32), ("o", 64))))
    tensors |= bf16(f"{p}.mlp.gate", 4, 64)
    for e in range(4):
        for name, n, k in (("gate_proj", 32, 64), ("up_proj", 32, 64), ("down_proj", 64, 32)):
            tensors |= make(f"{p}.mlp.experts.{e}.{name}", n, k)
    return tensors


def inspect_files(tmp_path, config, tensors, *, index=False, **quant):
    section = {"quantization_config": quant or NVFP4}
    path = write_checkpoint(tmp_path, {**config, **section}, {"model.safetensors": tensors}, index=index)
    return inspect_checkpoint(open_checkpoint(str(path)))


def dense(tmp_path, *layers, **quant):
    quant = quant or {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    return inspect_files(tmp_path, DENSE, merged(*layers, bf16("lm_head", 128, 64)), **quant)


def codes(inspection):
    return {warn.code for warn in inspection.warnings}


def roles(inspection):
    return {role.role: role for role in inspection.roles}


def test_stored_as_declared_is_silent(tmp_path):
    found = dense(tmp_path, dense_layer(0), dense_layer(1))
    assert found.warnings == ()
    assert found.evidence == "headers"
    shapes = {role.role: (role.n, role.k, len(role.layers), role.format.value, role.verdict) for role in found.roles}
    assert shapes == {
        "attn.qkv": (128, 64, 2, "nvfp4", "stored"),
        "attn.o": (64, 64, 2, "nvfp4", "stored"),
        "mlp.gate_up": (192, 64, 2, "nvfp4", "stored"),
        "mlp.down": (64, 96, 2, "nvfp4", "stored"),
        "lm_head": (128, 64, 1, "bf16", "stored"),
    }


def test_compressed_tensors_checkpoint(tmp_path):
    group = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "input_activations": {"num_bits": 4},
             "targets": ["Linear"], "format": "nvfp4-pack-quantized"}  # fmt: skip
    quant = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    found = dense(tmp_path, dense_layer(0, nvfp4_ct), dense_layer(1, nvfp4_ct), **quant)
    assert found.warnings == ()
    assert roles(found)["attn.qkv"].format is WeightFormat.NVFP4
    assert roles(found)["mlp.down"].k == 96


def test_compressed_tensors_without_input_scales_is_w4a16_and_says_that_the_label_differs(tmp_path):
    def weights_only(module, n, k):
        return nvfp4_ct(module, n, k, activations=False)

    group = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "input_activations": {"num_bits": 4},
             "targets": ["Linear"], "format": "nvfp4-pack-quantized"}  # fmt: skip
    quant = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    found = dense(tmp_path, dense_layer(0, weights_only), dense_layer(1, weights_only), **quant)
    assert roles(found)["attn.o"].format is WeightFormat.NVFP4_W4A16
    assert codes(found) == {"activation-scales-differ"}


def test_label_says_w4a16_and_input_scales_are_there(tmp_path):
    quant = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]}
    found = dense(tmp_path, dense_layer(0), dense_layer(1), **quant)
    message = next(w.message for w in found.warnings if w.code == "activation-scales-differ")
    assert "declared nvfp4_w4a16" in message
    assert "stored nvfp4: model.layers.0" in message
    assert "It has activation scales" in message
    assert roles(found)["mlp.down"].format is WeightFormat.NVFP4


def test_layers_that_differ_split_their_role(tmp_path):
    found = dense(tmp_path, dense_layer(0), dense_layer(1, attention=bf16))
    split = [(r.layers, r.format.value) for r in found.roles if r.role == "attn.qkv"]
    assert split == [((0,), "nvfp4"), ((1,), "bf16")]
    assert next(r for r in found.roles if r.role == "mlp.down").layers == (0, 1)


def test_nemotron_nano_mamba_is_17_nvfp4_and_6_bf16(tmp_path):
    config = {
        "model_type": "nemotron_h", "hidden_size": 64, "layers_block_type": ["mamba"] * 23, "num_attention_heads": 4,
        "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16,
    }  # fmt: skip
    # z and x of 64, B and C of 2 groups x 16, dt of 4 heads: 196
    tensors = merged(*((nvfp4 if i < 17 else bf16)(f"backbone.layers.{i}.mixer.in_proj", 196, 64) for i in range(23)))
    tensors |= merged(*(nvfp4(f"backbone.layers.{i}.mixer.out_proj", 64, 64) for i in range(23)))
    exclude = [f"backbone.layers.{i}.mixer.in_proj" for i in range(17, 23)]
    found = inspect_files(tmp_path, config, tensors, quant_method="modelopt", quant_algo="NVFP4", ignore=exclude)
    split = [(len(r.layers), r.format.value) for r in found.roles if r.role == "mamba.in_proj"]
    assert split == [(17, "nvfp4"), (6, "bf16")]


def test_fused_parts_that_differ_are_not_tuned(tmp_path):
    layer = dense_layer(0) | bf16("model.layers.0.self_attn.k_proj", 32, 64)
    for suffix in ("weight_scale", "weight_scale_2", "input_scale"):
        layer.pop(f"model.layers.0.self_attn.k_proj.{suffix}")
    found = dense(tmp_path, layer, dense_layer(1))
    broken = next(r for r in found.roles if r.role == "attn.qkv" and r.layers == (0,))
    assert broken.format is WeightFormat.UNKNOWN
    assert "attn.q nvfp4, attn.k bf16" in broken.reason
    assert "fused-parts-differ" in codes(found)
    assert {item.layers for item in derive(found, tokens=[16]).items if item.role == "attn.qkv"} == {1}


def test_gate_without_up_is_noticed(tmp_path):
    layer = {name: t for name, t in dense_layer(0).items() if ".up_proj" not in name}
    found = dense(tmp_path, layer, dense_layer(1))
    assert "there is a gate but no up projection" in next(
        w.message for w in found.warnings if w.code == "fused-parts-differ"
    )


def test_headers_win_over_config_shapes(tmp_path):
    found = inspect_files(tmp_path, {**DENSE, "intermediate_size": 128}, merged(dense_layer(0), dense_layer(1)))
    assert roles(found)["mlp.gate_up"].n == 192
    messages = [w.message for w in found.warnings if w.code == "shape-mismatch"]
    assert any("mlp.gate is 96x64 in the headers and 128x64 by config.json: 2 modules" in m for m in messages)


def test_linears_that_config_implies_and_nobody_has(tmp_path):
    found = dense(tmp_path, dense_layer(0))
    message = next(w.message for w in found.warnings if w.code == "modules-missing")
    assert "7 modules that config.json implies" in message
    assert "model.layers.1.self_attn.q_proj" in message


def test_linears_in_missing_files_are_declared(tmp_path):
    shards = {"model-00001-of-00002.safetensors": dense_layer(0), "model-00002-of-00002.safetensors": dense_layer(1)}
    path = write_checkpoint(tmp_path, {**DENSE, "quantization_config": NVFP4}, shards, index=False)
    (path / "model-00002-of-00002.safetensors").unlink()
    found = inspect_checkpoint(open_checkpoint(str(path)))
    split = {(r.layers, r.verdict) for r in found.roles if r.role == "mlp.down"}
    assert split == {((0,), "stored"), ((1,), "declared")}
    assert {"modules-not-read", "shards-unreadable"} <= codes(found)


def test_index_alone_takes_shapes_from_config(tmp_path):
    tensors = merged(dense_layer(0), dense_layer(1))
    path = write_checkpoint(
        tmp_path,
        {**DENSE, "quantization_config": NVFP4},
        {},
        index=dict.fromkeys(tensors, "model-00001-of-00001.safetensors"),
    )
    found = inspect_checkpoint(open_checkpoint(str(path)))
    assert found.evidence == "index"
    role = roles(found)["mlp.down"]
    assert (role.n, role.k, role.format.value, role.verdict) == (64, 96, "nvfp4", "index")
    assert "guessed" in found.confidence


def test_index_that_names_tensors_its_files_lack(tmp_path):
    tensors = merged(dense_layer(0), dense_layer(1))
    names = {
        **dict.fromkeys(tensors, "model-00001-of-00001.safetensors"),
        "ghost.weight": "model-00001-of-00001.safetensors",
    }
    config = {**DENSE, "quantization_config": NVFP4}
    path = write_checkpoint(tmp_path, config, {"model-00001-of-00001.safetensors": tensors}, index=names)
    found = inspect_checkpoint(open_checkpoint(str(path)))
    assert "The index names 1 tensors that their files do not hold, such as ghost.weight" in [
        w.message.rstrip(".") for w in found.warnings if w.code == "index-stale"
    ]


def test_experts_by_index(tmp_path):
    found = inspect_files(tmp_path, SPARSE, merged(sparse_layer(0), sparse_layer(1)))
    role = roles(found)["moe.w13"]
    assert (role.n, role.k, role.experts, role.top_k, len(role.layers), role.gated) == (64, 64, 4, 2, 2, True)
    assert roles(found)["moe.w2"].gated is False


def test_missing_expert(tmp_path):
    tensors = {
        n: t for n, t in merged(sparse_layer(0), sparse_layer(1)).items() if "layers.1.mlp.experts.2.gate" not in n
    }
    found = inspect_files(tmp_path, SPARSE, tensors)
    assert "1 experts of model.layers.1.mlp.experts.0.gate_proj are missing below index 3: 2." in [
        w.message for w in found.warnings if w.code == "experts-missing"
    ]
    assert any("different numbers of experts" in role.reason for role in found.roles)


def test_experts_that_differ(tmp_path):
    odd = "model.layers.1.mlp.experts.3.down_proj"
    tensors = merged(sparse_layer(0), sparse_layer(1))
    tensors = {n: t for n, t in tensors.items() if not n.startswith(odd)} | bf16(odd, 64, 32)
    found = inspect_files(tmp_path, SPARSE, tensors)
    assert any("3 nvfp4 64x32, 1 bf16 64x32" in w.message for w in found.warnings if w.code == "experts-differ")
    broken = next(r for r in found.roles if r.role == "moe.w2" and r.layers == (1,))
    assert broken.format is WeightFormat.UNKNOWN


def test_single_experts_that_the_lists_declare_differently(tmp_path):
    layers = {f"model.layers.{i}.mlp.experts.{e}.{x}_proj": {"quant_algo": "NVFP4"}
              for i in range(2) for e in range(4) for x in ("gate", "up", "down")}  # fmt: skip
    layers.pop("model.layers.1.mlp.experts.3.up_proj")
    config = {**SPARSE, "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                                                "quantized_layers": layers}}  # fmt: skip
    found = inspect_checkpoint(open_checkpoint(str(write_checkpoint(tmp_path, config, {}, index=False))))
    message = next(w.message for w in found.warnings if w.code == "experts-declared-differ")
    assert "The lists declare 1 experts of model.layers.1.mlp.experts.0.up_proj differently" in message


def test_lists_that_name_every_expert_match_every_expert(tmp_path):
    names = [f"model.layers.0.mlp.experts.{e}.{x}_proj" for e in range(4) for x in ("gate", "up", "down")]
    names += [f"model.layers.0.self_attn.{x}_proj" for x in "qkvo"]
    layers = {name: {"quant_algo": "NVFP4"} for name in names}
    quant = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    found = inspect_files(tmp_path, {**SPARSE, "num_hidden_layers": 1}, sparse_layer(0), **quant)
    assert found.warnings == ()


def test_fused_experts_as_e_n_k_and_as_e_k_n(tmp_path):
    p = "model.layers.{}.mlp.experts"
    plain = merged(sparse_layer(0, bf16), sparse_layer(1, bf16))
    stacked = {name: tensor for name, tensor in plain.items() if ".experts." not in name}
    upright = {f"{p.format(0)}.gate_up_proj": ("BF16", (4, 64, 64)), f"{p.format(0)}.down_proj": ("BF16", (4, 64, 32))}
    turned = {f"{p.format(1)}.gate_up_proj": ("BF16", (4, 64, 64)), f"{p.format(1)}.down_proj": ("BF16", (4, 32, 64))}
    found = inspect_files(tmp_path, SPARSE, stacked | upright | turned)
    role = roles(found)["moe.w2"]
    assert (role.n, role.k, role.experts, role.layers) == (64, 32, 4, (0, 1))
    assert roles(found)["moe.w13"].n == 64
    assert "shape-mismatch" not in codes(found)


def test_fused_nvfp4_experts_with_underscored_scales(tmp_path):
    p = "model.layers.0.mlp.experts"
    tensors = {
        f"{p}.gate_up_proj": ("U8", (4, 64, 32)), f"{p}.gate_up_proj_weight_scale": ("F8_E4M3", (4, 64, 4)),
        f"{p}.gate_up_proj_weight_scale_2": ("F32", (4,)), f"{p}.gate_up_proj_input_scale": ("F32", (4,)),
        f"{p}.down_proj": ("U8", (4, 64, 16)), f"{p}.down_proj_weight_scale": ("F8_E4M3", (4, 64, 2)),
        f"{p}.down_proj_weight_scale_2": ("F32", (4,)), f"{p}.down_proj_input_scale": ("F32", (4,)),
    }  # fmt: skip
    found = inspect_files(tmp_path, {**SPARSE, "num_hidden_layers": 1}, tensors)
    w13, w2 = roles(found)["moe.w13"], roles(found)["moe.w2"]
    assert (w13.format.value, w13.n, w13.k, w13.experts, w13.gated) == ("nvfp4", 64, 64, 4, True)
    assert (w2.format.value, w2.n, w2.k, w2.experts) == ("nvfp4", 64, 32, 4)


def test_mxfp4_checkpoint_is_labelled_printed_and_refused(tmp_path):
    config = {**SPARSE, "model_type": "gpt_oss", "num_hidden_layers": 1}
    p = "model.layers.0.mlp.experts"
    tensors = mxfp4_blocks(f"{p}.gate_up_proj", 4, 64, 64) | mxfp4_blocks(f"{p}.down_proj", 4, 64, 32)
    found = inspect_files(tmp_path, config, tensors, quant_method="mxfp4", modules_to_not_convert=["*self_attn"])
    assert roles(found)["moe.w13"].format is WeightFormat.MXFP4
    assert (roles(found)["moe.w13"].n, roles(found)["moe.w2"].k) == (64, 32)
    assert "mxfp4" in codes(found)
    assert derive_gemms(found).gemms
    with pytest.raises(UnsupportedError, match="MXFP4"):
        derive(found)


def test_unknown_format_is_reported_and_not_tuned(tmp_path):
    layer = dense_layer(0) | {"model.layers.0.mlp.down_proj.weight_scale": ("F8_E4M3", (64, 5))}
    found = dense(tmp_path, layer, dense_layer(1))
    message = next(w.message for w in found.warnings if w.code == "format-unknown")
    assert "weight_scale should be [64, 6] and is [64, 5]" in message
    assert {i.layers for i in derive(found, tokens=[16]).items if i.role == "mlp.down"} == {1}


def test_pattern_that_matches_too_many_layers(tmp_path):
    config = {**DENSE, "num_hidden_layers": 80}
    quant = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.7*", "model.layers.8.*"]}
    path = write_checkpoint(tmp_path, {**config, "quantization_config": quant}, {}, index=False)
    found = inspect_checkpoint(open_checkpoint(str(path)))
    [message] = [w.message for w in found.warnings if w.code == "pattern-ambiguous"]
    assert message == "The pattern 'model.layers.7*' matches layer 7 and also layers 70 to 79."
    assert sum(len(r.layers) for r in found.roles if r.role == "mlp.down" and r.format.value == "bf16") == 1 + 10 + 1


@pytest.mark.parametrize(("pairs", "reported"), [(5_000_000, 3), (10, 1)])
def test_wildcards_are_not_checked_for_idleness_if_that_would_take_minutes(tmp_path, monkeypatch, pairs, reported):
    monkeypatch.setattr(list_checks, "_MAX_PAIRS", pairs)
    exclude = ["lm_head", "nobody.a*", "*.nobody", "nobody"]
    found = dense(tmp_path, dense_layer(0), dense_layer(1), quant_method="modelopt", quant_algo="NVFP4", ignore=exclude)
    [message] = [w.message for w in found.warnings if w.code == "pattern-matches-nothing"]
    assert message.startswith(f"{reported} entries")


def test_entry_that_vllm_matches_as_a_substring(tmp_path):
    quant = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.1"]}
    path = write_checkpoint(tmp_path, {**DENSE, "num_hidden_layers": 12, "quantization_config": quant}, {}, index=False)
    message = next(
        w.message for w in inspect_checkpoint(open_checkpoint(str(path))).warnings if w.code == "pattern-substring"
    )
    assert "'model.layers.1' in 'model.layers.1.self_attn.q_proj'" in message


def test_fp8_attention_beside_nvfp4(tmp_path):
    quant = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
        "model.layers.0.self_attn": {"quant_algo": "FP8"}, "model.layers.1.self_attn": {"quant_algo": "FP8"},
        "model.layers.0.mlp": {"quant_algo": "NVFP4"}, "model.layers.1.mlp": {"quant_algo": "NVFP4"}}}  # fmt: skip
    found = dense(tmp_path, dense_layer(0, attention=fp8), dense_layer(1, attention=fp8), **quant)
    assert found.warnings == ()
    assert {i.role for i in derive(found).items} == {"mlp.gate_up", "mlp.down"}


def test_tied_lm_head_is_there_without_a_tensor(tmp_path):
    config = {**DENSE, "tie_word_embeddings": True, "num_hidden_layers": 1}
    found = inspect_files(tmp_path, config, dense_layer(0) | bf16("model.embed_tokens", 128, 64))
    head = roles(found)["lm_head"]
    assert (head.format.value, head.verdict, head.n) == ("bf16", "declared", 128)
    assert "modules-missing" not in codes(found)


def test_fp32_router_of_a_bf16_declaration_is_no_difference(tmp_path):
    tensors = sparse_layer(0) | bf16("lm_head", 8, 64) | {"model.layers.0.mlp.gate.weight": ("F32", (4, 64))}
    found = inspect_files(tmp_path, {**SPARSE, "num_hidden_layers": 1}, tensors)
    assert found.warnings == ()
    assert roles(found)["router"].format is WeightFormat.FP32


def test_w4a16_checkpoint(tmp_path):
    quant = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]}
    found = dense(tmp_path, dense_layer(0, nvfp4_w4a16), dense_layer(1, nvfp4_w4a16), **quant)
    assert found.warnings == ()
    assert {i.problem.format.value for i in derive(found).items} == {"nvfp4_w4a16"}


def test_f4_checkpoint_has_the_same_shapes(tmp_path):
    def f4(module, n, k):
        return nvfp4(module, n, k, f4=True)

    found = dense(tmp_path, dense_layer(0, f4), dense_layer(1))
    assert found.warnings == ()
    assert roles(found)["mlp.down"].k == 96


def test_broken_shard_is_one_sentence(tmp_path):
    write_checkpoint(tmp_path, {**DENSE, "quantization_config": NVFP4}, {"a.safetensors": dense_layer(0)}, index=False)
    (tmp_path / "b.safetensors").write_bytes(b"PK\x03\x04" + b"\xff" * 100)
    with pytest.raises(InvalidInputError, match=r"b\.safetensors is no safetensors file"):
        open_checkpoint(str(tmp_path))


def test_reports_are_json(tmp_path):
    found = dense(tmp_path, dense_layer(0), dense_layer(1, attention=bf16))
    report = json.loads(json.dumps(inspection_report(found)))
    assert report["evidence"] == "headers"
    assert report["roles"][0].keys() >= {"role", "declared", "stored", "format", "n", "k", "layers", "parts"}
    assert report["warnings"][0]["code"] == "declared-nvfp4-stored-plain"
    work = json.loads(json.dumps(workload_report(derive(found, tp=2, tokens=[16]))))
    assert work["problems"][0]["shape"].startswith("16x")
    assert len(work["gemms"]) == 7


@pytest.mark.parametrize("name", presets.names())
def test_reports_of_presets_are_json(name):
    found = inspect_checkpoint(open_checkpoint(name))
    report = json.loads(json.dumps(inspection_report(found)))
    assert report["mtp"]["meaning"]
    assert all(role["stored"] is None for role in report["roles"])


# --- bad config values


BAD_SIZES = ["64", -1, 1.5, [64], {}, True, 10**30]


@pytest.mark.parametrize("value", [*BAD_SIZES, 0, None])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers"])
def test_bad_required_size(tmp_path, key, value):
    config = {**DENSE, key: value, "quantization_config": NVFP4}
    path = write_checkpoint(tmp_path, config, {}, index=False)
    with pytest.raises(InvalidInputError, match=key):
        inspect_checkpoint(open_checkpoint(str(path)))


@pytest.mark.parametrize("value", BAD_SIZES)
@pytest.mark.parametrize(
    "key",
    ["num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size", "num_experts",
     "num_experts_per_tok", "moe_intermediate_size", "mtp_num_hidden_layers", "first_k_dense_replace", "kv_lora_rank",
     "full_attention_interval", "mamba_num_heads", "decoder_sparse_step"],
)  # fmt: skip
def test_bad_size(tmp_path, key, value):
    config = {**SPARSE, "linear_num_value_heads": 4, key: value, "quantization_config": NVFP4}
    path = write_checkpoint(tmp_path, config, {}, index=False)
    with pytest.raises(InvalidInputError, match=key):
        inspect_checkpoint(open_checkpoint(str(path)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"text_config": [1]}, "text_config should be an object"),
        ({"text_config": "x"}, "text_config should be an object"),
        ({"layer_types": "full"}, "layer_types should be a list"),
        ({"layer_types": ["full_attention"]}, "2 layers and 1 layer_types"),
        ({"mlp_layer_types": ["sparse"] * 3}, "2 layers and 3 mlp_layer_types"),
        ({"layers_block_type": ["moe"]}, "2 layers and lists 1 blocks"),
        ({"layers_block_type": ["moe", "teapot"]}, "a block 'teapot' that is not known"),
        ({"hybrid_override_pattern": "ME*"}, "2 layers and lists 3 blocks"),
        ({"layers_block_type": ["moe"] * 10_001}, "lists 10001 layers; at most 10000"),
        ({"architectures": "Llama"}, "architectures should be a list"),
        ({"model_type": 3}, "model_type should be text"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings should be true or false"),
        ({"use_mtp": 1}, "use_mtp should be true or false"),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers should be an integer from 0 to 10000"),
        ({"num_experts": 65_537}, "num_experts should be an integer from 0 to 65536"),
        ({"mtp_layers_block_type": {}}, "mtp_layers_block_type should be a list"),
        ({"moe_layer_freq": [1]}, "2 layers and 1 entries in moe_layer_freq"),
        ({"moe_layer_freq": True}, "moe_layer_freq should be an integer"),
    ],
)
def test_config_of_the_wrong_form(tmp_path, changes, sentence):
    path = write_checkpoint(tmp_path, {**SPARSE, "quantization_config": NVFP4, **changes}, {}, index=False)
    with pytest.raises(InvalidInputError, match=sentence):
        inspect_checkpoint(open_checkpoint(str(path)))


def test_moe_layer_freq_may_be_one_flag_a_layer(tmp_path):
    config = {**SPARSE, "intermediate_size": 96, "moe_layer_freq": [0, 1], "quantization_config": NVFP4}
    found = roles(inspect_checkpoint(open_checkpoint(str(write_checkpoint(tmp_path, config, {}, index=False)))))
    assert (found["mlp.down"].layers, found["moe.w2"].layers) == ((0,), (1,))


@pytest.mark.parametrize(
    ("absent", "lacking"),
    [
        ("num_attention_heads", {"attn.qkv", "attn.o"}),
        ("intermediate_size", {"mlp.gate_up", "mlp.down"}),
    ],
)
def test_gemm_whose_size_config_does_not_tell_is_an_error_and_not_left_out(tmp_path, absent, lacking):
    config = {k: v for k, v in DENSE.items() if k not in {absent, "num_key_value_heads", "head_dim"}}
    path = write_checkpoint(tmp_path, {**config, "quantization_config": NVFP4}, {}, index=False)
    found = inspect_checkpoint(open_checkpoint(str(path)))
    errors = {gemm.role: gemm.error for gemm in derive_gemms(found).errors}
    assert errors == dict.fromkeys(lacking, "its shape is known neither from headers nor from config.json.")
    assert lacking.isdisjoint(item.role for item in derive(found, include_bf16=True).items)


def test_sizes_that_config_does_not_tell_are_no_mismatch_with_headers(tmp_path):
    config = {k: v for k, v in DENSE.items() if k != "intermediate_size"}
    found = inspect_files(tmp_path, config, merged(dense_layer(0), dense_layer(1), bf16("lm_head", 128, 64)))
    assert codes(found).isdisjoint({"shape-mismatch", "modules-missing"})
    assert (roles(found)["mlp.down"].n, roles(found)["mlp.down"].k) == (64, 96)


def test_layer_type_that_is_not_known_is_left_out_and_said(tmp_path):
    config = {**DENSE, "layer_types": ["conv", "compressed_sparse_attention"], "quantization_config": NVFP4}
    found = inspect_checkpoint(open_checkpoint(str(write_checkpoint(tmp_path, config, {}, index=False))))
    [message] = [w.message for w in found.warnings if w.code == "layer-type-unknown"]
    assert "(conv)" in message
    assert roles(found)["attn.qkv"].layers == (1,)
    stored = inspect_files(tmp_path, config, merged(dense_layer(0), dense_layer(1), bf16("lm_head", 128, 64)))
    assert "layer-type-unknown" not in codes(stored)


def test_layer_that_no_model_has(tmp_path):
    with pytest.raises(InvalidInputError, match="stands in layer 30000; at most 10000"):
        dense(tmp_path, dense_layer(0), dense_layer(30_000))


def test_largest_accepted_model_is_inspected_in_bounded_work(tmp_path):
    """10,000 layers of 65,536 experts: nothing is enumerated by expert unless the lists name experts."""
    config = {**SPARSE, "num_hidden_layers": 10_000, "num_experts": 65_536, "quantization_config": NVFP4}
    path = write_checkpoint(tmp_path, config, {}, index=False)
    found = inspect_checkpoint(open_checkpoint(str(path)))
    assert roles(found)["moe.w13"].experts == 65_536
    assert len(roles(found)["moe.w13"].layers) == 10_000


def test_largest_accepted_model_with_lists_that_name_experts(tmp_path):
    layers = {"model.layers.0.mlp.experts.0.up_proj": {"quant_algo": "NVFP4"}}
    quant = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    config = {**SPARSE, "num_hidden_layers": 200, "num_experts": 65_536, "quantization_config": quant}
    path = write_checkpoint(tmp_path, config, {}, index=False)
    assert "experts-declared-differ" in codes(inspect_checkpoint(open_checkpoint(str(path))))


def test_names_with_control_characters_are_refused(tmp_path):
    write_checkpoint(tmp_path, {**DENSE, "quantization_config": NVFP4}, {}, index=False)
    write_shard(tmp_path / "model.safetensors", bf16("model.\x1b[31mred", 4, 4))
    with pytest.raises(InvalidInputError, match="which no model has"):
        open_checkpoint(str(tmp_path))


KEYS = sorted({*DENSE, *SPARSE, "text_config", "layer_types", "mlp_layer_types", "layers_block_type", "q_lora_rank",
               "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts",
               "n_shared_experts", "first_k_dense_replace", "moe_layer_freq", "mtp_num_hidden_layers", "use_mtp",
               "num_nextn_predict_layers", "num_mtp_modules", "linear_num_key_heads", "linear_key_head_dim",
               "linear_num_value_heads", "linear_value_head_dim", "full_attention_interval", "mamba_num_heads",
               "mamba_head_dim", "n_groups", "ssm_state_size", "moe_latent_size", "enable_moe_block", "o_groups",
               "o_lora_rank", "tie_word_embeddings", "quantization_config", "expert_dtype", "architectures",
               "hybrid_override_pattern", "mtp_layers_block_type", "attention_k_eq_v", "attn_output_gate"})  # fmt: skip
SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 64, 96, 128, -1, 1 << 24, 10**12])
VALUES = (
    SIZES
    | st.none()
    | st.booleans()
    | st.text(max_size=5)
    | st.sampled_from(["qwen3_5_moe", "deepseek_v3", "deepseek_v4", "nemotron_h", "gemma4", "minimax_m2", "gpt_oss"])
    | st.lists(st.sampled_from(["moe", "mamba", "attention", "full_attention", "linear_attention", "sparse", 3]), max_size=4)
    | st.dictionaries(st.sampled_from(["quant_method", "quant_algo", "ignore", "num_experts", "hidden_size"]),
                      st.sampled_from(["modelopt", "NVFP4", "fp8", "mxfp4", ["lm_head"], 4, 64]), max_size=4)
)  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=14), st.integers(1, 8))
def test_random_configs_never_crash(changes, tp):
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 64, **changes}
    checkpoint = Checkpoint("random", None, config, None, ShardSet((), None, {}, ()), {})
    try:
        inspection = inspect_checkpoint(checkpoint)
        json.dumps(inspection_report(inspection))
        json.dumps(workload_report(derive(inspection, tp=tp, tokens=[4], include_bf16=True)))
    except Fp4tuneError as error:
        assert str(error)  # noqa: PT017 - any other exception fails the test


MODULES = st.sampled_from(["model.layers.0.mlp.up_proj", "model.layers.0.mlp.gate_proj", "model.layers.0.self_attn.q_proj",
                           "model.layers.0.self_attn.k_proj", "model.layers.1.mlp.experts.0.w1", "lm_head", "mtp.fc",
                           "model.layers.0.mlp.experts.3.w1", "model.layers.9.eh_proj", "mtp.layers.0.mlp.gate",
                           "model.layers.0.mlp.experts.gate_up_proj", "weight", "", "model.visual.x"])  # fmt: skip
SUFFIXES = st.sampled_from(
    ["weight", "weight_scale", "weight_scale_2", "input_scale", "weight_packed", "A_log", "bias"]
)
SHAPES = st.lists(st.sampled_from([0, 1, 2, 4, 8, 64]), max_size=3).map(tuple)
TENSORS = st.dictionaries(
    st.tuples(MODULES, SUFFIXES).map(".".join),
    st.tuples(st.sampled_from(["BF16", "U8", "F4", "F8_E4M3", "F32"]), SHAPES),
    max_size=10,
)


@settings(deadline=None)
@given(TENSORS, st.sampled_from([1, 2, 4]))
def test_random_tensors_never_crash(tmp_path_factory, tensors, tp):
    path = tmp_path_factory.mktemp("random")
    inspection = inspect_files(path, DENSE, tensors)
    for role in inspection.roles:
        assert role.format is not WeightFormat.UNKNOWN or role.reason
    try:
        derive(inspection, tp=tp, tokens=[4], include_bf16=True)
    except Fp4tuneError as error:
        assert str(error)  # noqa: PT017 - any other exception fails the test
