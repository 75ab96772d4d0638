"""Names: which GEMM a module belongs to, in every family's spelling."""

from __future__ import annotations

import pytest
from fp4tune.tuner.inspection.names import classify, layer_and_expert, split_tensor, template_of

CASES = [
    ("model.language_model.layers.3.self_attn.q_proj", "attn.q", False),
    ("model.layers.0.self_attn.qkv_proj", "attn.qkv", False),
    ("backbone.layers.12.mixer.k_proj", "attn.k", False),
    ("model.layers.0.self_attn.q_a_proj", "mla.q_a", False),
    ("model.layers.0.self_attn.kv_a_proj_with_mqa", "mla.kv_a", False),
    ("model.layers.0.self_attn.kv_b_proj", "mla.kv_b", False),
    ("model.layers.0.self_attn.indexer.wq_b", "mla.indexer.wq_b", False),
    ("model.layers.0.self_attn.indexer.k_norm", "", False),
    ("layers.5.attn.wq_b", "mla.q_b", False),
    ("layers.5.attn.wo_a", "mla.o_a", False),
    ("layers.5.attn.compressor.wkv", "mla.compressor.wkv", False),
    ("model.language_model.layers.0.linear_attn.in_proj_qkv", "gdn.qkv", False),
    ("model.layers.0.linear_attn.in_proj_ba", "gdn.ba", False),
    ("model.layers.0.linear_attn.out_proj", "gdn.out", False),
    ("model.layers.0.linear_attn.conv1d", "", False),
    ("model.layers.0.linear_attn.norm", "", False),
    ("backbone.layers.0.mixer.in_proj", "mamba.in", False),
    ("backbone.layers.0.mixer.out_proj", "mamba.out", False),
    ("backbone.layers.0.mixer.conv1d", "", False),
    ("model.layers.0.mlp.gate_proj", "mlp.gate", False),
    ("model.layers.0.mlp.gate_up_proj", "mlp.gate_up", False),
    ("model.layers.0.feed_forward.w2", "mlp.down", False),
    ("model.layers.0.mlp.experts.17.up_proj", "moe.up", False),
    ("model.layers.0.block_sparse_moe.experts.3.w1", "moe.gate", False),
    ("model.layers.0.block_sparse_moe.experts.3.w3", "moe.up", False),
    ("layers.0.ffn.experts.3.w2", "moe.down", False),
    ("model.language_model.layers.0.mlp.experts.gate_up_proj", "moe.gate_up", False),
    ("backbone.layers.1.mixer.experts.0.up_proj", "moe.up", False),
    ("model.layers.0.mlp.shared_expert.down_proj", "shared.down", False),
    ("model.layers.0.mlp.shared_experts.gate_proj", "shared.gate", False),
    ("model.layers.0.mlp.shared_expert_gate", "shared.expert_gate", False),
    ("model.layers.0.mlp.gate", "router", False),
    ("model.layers.0.block_sparse_moe.gate", "router", False),
    ("model.layers.0.mlp.router", "router", False),
    ("model.layers.0.router.proj", "router", False),
    ("backbone.layers.1.mixer.gate", "router", False),
    ("backbone.layers.1.mixer.fc1_latent_proj", "latent.fc1", False),
    ("lm_head", "lm_head", False),
    ("language_model.lm_head", "lm_head", False),
    ("head", "lm_head", False),
    ("model.embed_tokens", "", False),
    ("model.norm", "", False),
    ("model.visual.blocks.0.attn.qkv", "", False),
    ("vision_tower.layers.0.self_attn.q_proj", "", False),
    ("mtp.fc", "mtp.fc", True),
    ("mtp.layers.0.self_attn.q_proj", "attn.q", True),
    ("mtp.layers.0.mlp.experts.5.gate_proj", "moe.gate", True),
    ("model.mtp.layers.0.eh_proj", "mtp.fc", True),
    ("language_model.mtp.layers.0.mlp.gate", "router", True),
    ("model.mtp_layers.0.mlp.up_proj", "mlp.up", True),
    ("model.layers.61.eh_proj", "mtp.fc", True),
    ("model.layers.61.shared_head.head", "lm_head", True),
    ("model.layers.45.mtp_block.self_attn.q_proj", "attn.q", True),
    ("model.layers.61.enorm", "", True),
    ("mtp.0.e_proj", "mtp.e_proj", True),
    ("model.layers.0.mlp.fc", "", False),
]


@pytest.mark.parametrize(("name", "part", "mtp"), CASES)
def test_part(name, part, mtp):
    kind = classify(template_of(name)[0])
    assert (kind.part, kind.mtp) == (part, mtp)


def test_vision_is_told_from_other_things_that_are_no_gemm():
    assert classify("model.visual.blocks.#.attn.qkv").why == "vision"
    assert classify("model.embed_tokens").why == "embedding"
    assert classify("model.norm").why == "other"


@pytest.mark.parametrize(
    ("tensor", "module", "suffix"),
    [
        ("a.b.weight", "a.b", "weight"),
        ("a.b.weight_scale_2", "a.b", "weight_scale_2"),
        ("a.b.weight_scale_inv", "a.b", "weight_scale_inv"),
        ("a.b.weight_packed", "a.b", "weight_packed"),
        ("a.experts.gate_up_proj", "a.experts.gate_up_proj", "weight"),
        ("a.experts.gate_up_proj_weight_scale", "a.experts.gate_up_proj", "weight_scale"),
        ("a.experts.gate_up_proj_weight_scale_2", "a.experts.gate_up_proj", "weight_scale_2"),
        ("a.experts.down_proj_blocks", "a.experts.down_proj", "blocks"),
        ("a.experts.down_proj_bias", "a.experts.down_proj", "bias"),
        ("a.linear_attn.A_log", "a.linear_attn", "A_log"),
        ("weight", "", "weight"),
        ("", "", ""),
    ],
)
def test_tensor_name_is_split(tensor, module, suffix):
    assert split_tensor(tensor) == (module, suffix)


@pytest.mark.parametrize(
    ("name", "template", "layer", "expert"),
    [
        ("model.layers.3.mlp.experts.7.up_proj", "model.layers.#.mlp.experts.#.up_proj", 3, 7),
        ("model.layers.12.mlp.experts.up_proj", "model.layers.#.mlp.experts.up_proj", 12, -1),
        ("mtp.0.ffn.experts.255.w1", "mtp.#.ffn.experts.#.w1", 0, 255),
        ("lm_head", "lm_head", -1, -1),
        ("model.layers.99999999999999999999.x", "model.layers.99999999999999999999.x", -1, -1),
        ("model.layers.٣.x", "model.layers.٣.x", -1, -1),
    ],
)
def test_indexes(name, template, layer, expert):
    found, indexes = template_of(name)
    assert found == template
    slots = layer_and_expert(template, tuple(range(template.count("#"))))
    assert tuple(indexes[slot] if slot >= 0 else -1 for slot in slots) == (layer, expert)
