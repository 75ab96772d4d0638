"""Shapes that do not split: each role says why, and the others still come out."""

from __future__ import annotations

import pytest
from checkpoint_files import bf16, fp8_block, merged, nvfp4, write_checkpoint
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.tuner.checkpoint import open_checkpoint
from fp4tune.tuner.gemms import derive_gemms
from fp4tune.tuner.inspector import inspect_checkpoint
from fp4tune.tuner.workload import derive

QUANT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "quantization_config": QUANT,
}  # fmt: skip
ATTENTION = "model.layers.0.self_attn"


def inspect(tmp_path, tensors=None, **changes):
    shards = {"model.safetensors": tensors} if tensors else {}
    path = write_checkpoint(tmp_path, {**CONFIG, **changes}, shards, index=False)
    return inspect_checkpoint(open_checkpoint(str(path)))


def row(inspection, role, **options):
    return next(g for g in derive_gemms(inspection, **options).gemms if g.role == role)


def test_fused_qkv_is_cut_by_heads(tmp_path):
    found = inspect(tmp_path, nvfp4(f"{ATTENTION}.qkv_proj", 8 * 16 + 2 * 2 * 16, 64))
    assert [row(found, "attn.qkv", tp=tp).n for tp in (1, 2, 4, 8)] == [192, 96, 64, 48]
    assert "2 kv heads replicated over 8 ranks" in row(found, "attn.qkv", tp=8).notes


def test_fused_qkv_that_does_not_fit_the_heads(tmp_path):
    found = inspect(tmp_path, nvfp4(f"{ATTENTION}.qkv_proj", 48, 64))
    assert "a fused qkv projection of 48 does not fit" in row(found, "attn.qkv", tp=2).error


def test_k_projection_that_fits_no_heads(tmp_path):
    tensors = merged(bf16(f"{ATTENTION}.q_proj", 128, 64), bf16(f"{ATTENTION}.k_proj", 33, 64))
    assert "no kv heads that fit a k projection of 33" in row(inspect(tmp_path, tensors), "attn.qkv").error


def test_k_projection_of_another_head_size_is_cut_by_heads(tmp_path):
    tensors = merged(*(bf16(f"{ATTENTION}.{x}_proj", n, 64) for x, n in (("q", 256), ("k", 64), ("v", 64))))
    # 2 kv heads of 32 in the headers: TP 4 gives 64 of q and one head each of k and v
    assert row(inspect(tmp_path, tensors), "attn.qkv", tp=4).n == 64 + 32 + 32


def test_vocabulary_that_does_not_split(tmp_path):
    found = inspect(tmp_path, vocab_size=128, num_attention_heads=24, num_key_value_heads=24)
    assert "the padded vocabulary of 128 cannot be split over 3 ranks" in row(found, "lm_head", tp=3).error


def test_row_that_does_not_split(tmp_path):
    found = inspect(tmp_path, intermediate_size=130)
    assert "K = 130 cannot be split over 4 ranks" in row(found, "mlp.down", tp=4).error
    assert row(found, "attn.o", tp=4).error == ""


def test_mamba_of_another_layout_is_split_evenly(tmp_path):
    config = {"model_type": "nemotron_h", "layers_block_type": ["mamba"], "mamba_num_heads": 4, "mamba_head_dim": 16,
              "n_groups": 1, "ssm_state_size": 16}  # fmt: skip
    found = inspect(tmp_path, nvfp4("backbone.layers.0.mixer.in_proj", 96, 64), **config)
    assert row(found, "mamba.in_proj", tp=4).n == 24


def test_kv_heads_of_layers_that_config_does_not_mention(tmp_path):
    """TP is checked against the layers of config.json; headers may hold others."""
    config = {"model_type": "nemotron_h", "layers_block_type": ["mamba"], "mamba_num_heads": 12, "mamba_head_dim": 16,
              "num_attention_heads": 12, "num_key_value_heads": 6}  # fmt: skip
    at = "backbone.layers.0.mixer"
    tensors = merged(*(bf16(f"{at}.{x}_proj", n, 64) for x, n in (("q", 192), ("k", 96), ("v", 96))))
    found = inspect(tmp_path, tensors, **config)
    assert row(found, "attn.qkv", tp=6).n == 64
    assert "6 kv heads cannot be split over 4 ranks" in row(found, "attn.qkv", tp=4).error
    assert row(found, "attn.qkv", tp=12).n == 16 + 16 + 16
    twelve = {**config, "mamba_num_heads": 16, "num_key_value_heads": 6}
    found = inspect(tmp_path / "b", tensors, **twelve)
    assert "6 kv heads cannot be replicated evenly over 16 ranks" in row(found, "attn.qkv", tp=16).error


def test_tp_that_does_not_divide_mamba_heads(tmp_path):
    config = {"model_type": "nemotron_h", "layers_block_type": ["mamba"], "mamba_num_heads": 12, "mamba_head_dim": 16}
    with pytest.raises(
        InvalidInputError, match="TP 8 does not divide the 12 Mamba heads; possible are 1, 2, 3, 4, 6, 12"
    ):
        derive(inspect(tmp_path, **config), tp=8)


def test_experts_in_headers_that_ep_does_not_split(tmp_path):
    experts = [
        nvfp4(f"model.layers.0.mlp.experts.{e}.{x}_proj", 128, 128) for e in range(3) for x in ("gate", "up", "down")
    ]
    changes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "hidden_size": 128}
    found = inspect(tmp_path, merged(*experts), **changes)
    assert "its 3 experts cannot be split over EP 2" in row(found, "moe.w13", ep=2).error


def test_shape_that_nobody_knows(tmp_path):
    path = write_checkpoint(tmp_path, CONFIG, {}, index={"model.layers.0.mixer.in_proj.weight": "gone.safetensors"})
    found = inspect_checkpoint(open_checkpoint(str(path)))
    assert "known neither from headers nor from config.json" in row(found, "mamba.in_proj").error


def test_shape_beyond_any_kernel(tmp_path):
    found = inspect(tmp_path, intermediate_size=1 << 24)
    assert "beyond what any kernel takes" in row(found, "mlp.gate_up").error
    assert row(found, "mlp.gate_up", tp=8).error == ""


def test_mla_without_a_low_rank_q(tmp_path):
    mla = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
    found = inspect(tmp_path, model_type="deepseek_v2", **mla)
    assert (row(found, "mla.q", tp=2).n, row(found, "mla.q").k) == (8 * 32 // 2, 64)
    assert row(found, "mla.qkv_a", tp=2).n == 48


def test_tensors_of_one_module_in_two_files_of_which_one_is_missing(tmp_path):
    tensors = nvfp4("model.layers.0.mlp.down_proj", 64, 128)
    late = "model.layers.0.mlp.down_proj.weight_scale_2"
    index = {name: "b.safetensors" if name == late else "a.safetensors" for name in tensors}
    early = {name: tensor for name, tensor in tensors.items() if name != late}
    path = write_checkpoint(tmp_path, CONFIG, {"a.safetensors": early}, index=index)
    found = inspect_checkpoint(open_checkpoint(str(path)))
    role = next(r for r in found.roles if r.role == "mlp.down")
    assert (role.format.value, role.verdict, role.n, role.k) == ("nvfp4", "index", 64, 128)


def test_nothing_runs_in_the_phase_asked_for(tmp_path):
    found = inspect(tmp_path, vocab_size=128)
    only_head = derive(inspect(tmp_path / "x", nvfp4("lm_head", 128, 64), vocab_size=128), phases=["prefill"])
    assert only_head.items == ()
    assert "empty-workload" in {w.code for w in only_head.warnings}
    assert derive(found, phases=["prefill"]).items


def test_fp8_is_named_as_not_tuned(tmp_path):
    found = inspect(tmp_path, fp8_block("model.layers.0.mlp.down_proj", 64, 128))
    workload = derive(found, include_bf16=True)
    assert "mlp.down (fp8_block)" in next(w.message for w in workload.warnings if w.code == "not-tunable")


@pytest.mark.parametrize("role", ["mlp.gate_up", "mlp.down", "attn.qkv", "attn.o"])
def test_tp_divides_the_weight_bytes(tmp_path, role):
    found = inspect(tmp_path, num_key_value_heads=8)
    whole = row(found, role)
    for tp in (2, 4, 8):
        part = row(found, role, tp=tp)
        assert part.n * part.k * tp == whole.n * whole.k
