"""Workloads: TP, EP, phases, token counts, formats, and what is refused with which sentence."""

from __future__ import annotations

import pytest
from checkpoint_files import write_checkpoint
from fp4tune.db.records import RunProblem
from fp4tune.kernels.errors import Fp4tuneError, InvalidInputError, UnsupportedError
from fp4tune.kernels.problem import Format, Op
from fp4tune.tuner import presets
from fp4tune.tuner.checkpoint import open_checkpoint
from fp4tune.tuner.gemms import derive_gemms
from fp4tune.tuner.inspector import inspect_checkpoint
from fp4tune.tuner.token_counts import SUGGESTED, Speculation
from fp4tune.tuner.workload import derive
from hypothesis import given, settings
from hypothesis import strategies as st

MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}


@pytest.fixture(scope="module")
def inspections():
    return {name.partition("/")[2]: inspect_checkpoint(open_checkpoint(name)) for name in presets.names()}


def inspect_config(tmp_path, **config):
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "quantization_config": MODELOPT,
        **config,
    }
    return inspect_checkpoint(open_checkpoint(str(write_checkpoint(tmp_path, config, {}, index=False))))


def rows(inspection, **options):
    return {g.role: g for g in derive_gemms(inspection, **options).gemms if not g.mtp}


# --- sizes that are no sizes


@pytest.mark.parametrize("value", [0, -1, 4097, 10**30, 1.0, "8", None, True])
def test_size_out_of_range(inspections, value):
    qwen = inspections["Qwen3.5-397B-A17B-NVFP4"]
    with pytest.raises(InvalidInputError, match="TP must be an integer from 1 to 4096"):
        derive(qwen, tp=value)
    with pytest.raises(InvalidInputError, match="EP must be an integer from 1 to 4096"):
        derive(qwen, ep=value)


@pytest.mark.parametrize("tp", [3, 5, 7, 64, 4096])
def test_tp_that_does_not_divide_the_heads_names_those_that_do(inspections, tp):
    sentence = rf"TP {tp} does not divide the 32 attention heads; possible are 1, 2, 4, 8, 16\."
    if tp in {3, 5, 7}:
        sentence = rf"TP {tp} does not divide the 32 attention heads"
    with pytest.raises(InvalidInputError, match=sentence):
        derive(inspections["Qwen3.5-397B-A17B-NVFP4"], tp=tp)


def test_tp_limited_by_linear_attention(inspections):
    # 32 attention heads divide by 32, 16 key heads of linear attention do not
    with pytest.raises(InvalidInputError, match="the 16 key and 64 value heads of linear attention; possible are"):
        derive(inspections["Qwen3.5-397B-A17B-NVFP4"], tp=32)


def test_tp_against_kv_heads(tmp_path):
    found = inspect_config(tmp_path, num_attention_heads=24, num_key_value_heads=8, intermediate_size=4096)
    with pytest.raises(InvalidInputError, match="TP 12 does not divide the 8 kv heads, nor is it a multiple of them"):
        derive(found, tp=12)


def test_ep_that_does_not_fit(inspections):
    qwen = inspections["Qwen3.5-397B-A17B-NVFP4"]
    with pytest.raises(InvalidInputError, match="EP 3 and TP 8 do not fit"):
        derive(qwen, tp=8, ep=3)
    with pytest.raises(InvalidInputError, match="EP 3 does not divide the model's 512 experts"):
        derive(qwen, ep=3)
    with pytest.raises(InvalidInputError, match="EP 2 needs routed experts"):
        derive(inspections["Qwen3-32B-NVFP4"], tp=2, ep=2)


def test_unknown_path_and_phase(inspections):
    qwen = inspections["Qwen3.5-397B-A17B-NVFP4"]
    with pytest.raises(InvalidInputError, match="no backend path 'x'; there are cutlass, any"):
        derive(qwen, backend_path="x")
    with pytest.raises(InvalidInputError, match="no phase 'warmup'; there are decode, verify"):
        derive(qwen, phases=["warmup"])
    with pytest.raises(InvalidInputError, match="at least one phase"):
        derive(qwen, phases=[])


@pytest.mark.parametrize("tokens", [[], [0], [-1], [1 << 25], [1.5], ["16"], range(1, 1002)])
def test_token_counts_that_are_none(inspections, tokens):
    with pytest.raises(InvalidInputError, match="token count"):
        derive(inspections["Qwen3.5-397B-A17B-NVFP4"], tokens=tokens)


# --- tensor and expert parallelism


def test_ep_inside_tp_shares_what_is_left(inspections):
    found = rows(inspections["Qwen3.5-397B-A17B-NVFP4"], tp=8, ep=2)
    # 512 / 2 = 256 experts, each over 8 / 2 = 4 ranks: 2048 / 4 and 1024 / 4
    assert (found["moe.w13"].n, found["moe.w2"].k, found["moe.w13"].experts) == (512, 256, 256)
    assert found["shared.gate_up"].n == 256


def test_kv_heads_are_replicated_beyond_their_number(inspections):
    # Qwen3-30B: 32 q and 4 kv heads of 128. TP 8: 4 q heads and one whole k and v head = 768
    row = rows(inspections["Qwen3-30B-A3B-NVFP4"], tp=8)["attn.qkv"]
    assert row.n == 768
    assert "4 kv heads replicated over 8 ranks" in row.notes
    assert rows(inspections["Qwen3-30B-A3B-NVFP4"], tp=4)["attn.qkv"].n == 5120 // 4


def test_two_kinds_of_attention_layer(inspections):
    gemma = derive_gemms(inspections["Gemma-4-31B-IT-NVFP4"], tp=8).gemms
    # sliding: 16384/8; global: 32*512/8 + 4 kv heads of 512 on 8 ranks = 2048 + 512, without a v
    assert [(g.n, g.layers) for g in gemma if g.role == "attn.qkv"] == [(2048, 50), (2560, 10)]


def test_mla_replicates_its_low_rank_inputs(inspections):
    found = rows(inspections["DeepSeek-V3.1-NVFP4"], tp=8)
    assert (found["mla.qkv_a"].n, found["mla.qkv_a"].k) == (2112, 7168)
    assert "replicated" in found["mla.qkv_a"].notes
    assert (found["mla.q_b"].n, found["mla.kv_b"].n) == (24576 // 8, 32768 // 8)
    assert (found["mla.o"].n, found["mla.o"].k) == (7168, 2048)
    assert any("absorbed" in note for note in found["mla.kv_b"].notes)


def test_mamba_by_heads_and_groups(inspections):
    lightning = inspections["NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"]
    # z and x 4096 each, B and C 8 groups x 128 each, dt 64. TP 8: 512*2 + 2*128 + 8
    assert rows(lightning, tp=8)["mamba.in_proj"].n == 1024 + 256 + 8
    # TP 16: one group a rank, 16 instead of 8: 256*2 + 2*128 + 4
    sixteen = rows(lightning, tp=16)["mamba.in_proj"]
    assert sixteen.n == 512 + 256 + 4
    assert "8 Mamba groups replicated over 16 ranks" in sixteen.notes


def test_vocabulary_is_padded_to_64(tmp_path):
    found = inspect_config(tmp_path, vocab_size=32001, intermediate_size=4096)
    row = rows(found, tp=8)["lm_head"]
    assert row.n == 32064 // 8
    assert "vocabulary padded from 32001 to 32064" in row.notes


def test_latent_experts(tmp_path):
    # Nemotron-3-Super: experts work in a latent width of 1024: w1 2688 x 1024, w2 1024 x 2688, E 512, top 22
    found = inspect_config(
        tmp_path, model_type="nemotron_h", layers_block_type=["moe", "moe"], moe_latent_size=1024,
        moe_intermediate_size=2688, n_routed_experts=512, num_experts_per_tok=22,
    )  # fmt: skip
    table = rows(found)
    assert (table["moe.w1"].n, table["moe.w1"].k, table["moe.w1"].top_k) == (2688, 1024, 22)
    assert (table["moe.w2"].n, table["moe.w2"].k) == (1024, 2688)
    assert (table["latent.fc1"].n, table["latent.fc1"].k) == (1024, 4096)
    assert (table["latent.fc2"].n, table["latent.fc2"].k) == (4096, 1024)
    assert "replicated" in rows(found, tp=2)["latent.fc1"].notes


def test_shared_expert_fusion_is_noted_where_formats_agree(inspections):
    assert any("257 experts, top 9" in note for note in rows(inspections["DeepSeek-V3.1-NVFP4"])["moe.w13"].notes)
    assert not any("fusion" in note for note in rows(inspections["Qwen3.5-397B-A17B-NVFP4"])["moe.w13"].notes)


# --- alignment


def test_k_that_splits_a_group_stops_a_dense_role_alone(tmp_path):
    found = inspect_config(tmp_path, intermediate_size=1856, num_key_value_heads=8)
    workload = derive(found, tp=8)
    assert [(e.role, e.mtp) for e in workload.errors] == [("mlp.down", False)]
    assert "K = 1856/8 = 232" in workload.errors[0].message
    assert {item.role for item in workload.items} == {"attn.qkv", "attn.o", "mlp.gate_up"}


def test_intermediate_size_that_does_not_divide_stops_its_roles_alone(tmp_path):
    found = inspect_config(tmp_path, intermediate_size=4100, num_key_value_heads=8)
    errors = {e.role: e.message for e in derive(found, tp=8).errors}
    assert errors.keys() == {"mlp.gate_up", "mlp.down"}
    assert "N = 4100 of mlp.gate cannot be split over 8 ranks" in errors["mlp.gate_up"]


def test_dense_gate_up_has_no_rule_of_128(inspections):
    assert rows(inspections["Qwen3-32B-NVFP4"], tp=8)["mlp.gate_up"].error == ""


def test_w4a16_experts_have_no_rule_of_128(tmp_path):
    quant = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}
    found = inspect_config(
        tmp_path, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=704, quantization_config=quant
    )
    row = rows(found, tp=4)["moe.w13"]
    assert (row.n, row.error) == (352, "")


def test_padding_of_a_dense_role_is_noted(tmp_path):
    found = inspect_config(tmp_path, intermediate_size=8 * 1872, num_key_value_heads=8)
    row = rows(found, tp=8)["mlp.down"]  # K = 1872 = 58.5 * 32
    assert row.error == ""
    assert "SGLang pads 4096x1872 to 4096x1888" in row.notes
    assert any("swizzled scales cover K = 1920" in note for note in row.notes)


def test_paddings_of_w4a4_kernels_are_not_those_of_w4a16(inspections):
    lightning = inspections["NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"]
    assert {row.notes for row in rows(lightning, tp=4).values() if row.format.value == "nvfp4_w4a16"} == {()}
    assert "multiple of 16" in rows(lightning, tp=8)["moe.w2"].error


def test_unknown_top_k_is_an_error_of_its_role(tmp_path):
    found = inspect_config(tmp_path, num_experts=8, moe_intermediate_size=1024)
    assert "num_experts_per_tok" in rows(found)["moe.w13"].error
    assert {item.role for item in derive(found).items} == {"attn.qkv", "attn.o"}


# --- formats


def test_mxfp4_is_refused_with_its_reason(inspections):
    gpt = inspections["gpt-oss-120b"]
    with pytest.raises(UnsupportedError, match=r"is MXFP4 .* not NVFP4"):
        derive(gpt)
    assert rows(gpt)["moe.w13"].is_tunable is False


def test_mxfp4_mtp_does_not_refuse_an_nvfp4_model(inspections):
    workload = derive(inspections["DeepSeek-V4-Pro-NVFP4"], tokens=[16])
    assert {item.role for item in workload.items} == {"moe.w13", "moe.w2"}
    assert "moe.w13 (mxfp4)" in next(w.message for w in workload.warnings if w.code == "not-tunable")


def test_bf16_only_when_asked_for(inspections):
    qwen = inspections["Qwen3.5-397B-A17B-NVFP4"]
    plain = derive(qwen, tokens=[16])
    assert {item.problem.format for item in plain.items} == {Format.NVFP4}
    more = derive(qwen, tokens=[16], include_bf16=True)
    by_format = {fmt: [i for i in more.items if i.problem.format is fmt] for fmt in Format}
    assert [i.problem for i in by_format[Format.NVFP4]] == [i.problem for i in plain.items]
    assert any("mtp" in item.labels for item in by_format[Format.BF16])
    assert not any("mtp" in item.labels for item in by_format[Format.NVFP4])


def test_w4a16_keeps_its_format(inspections):
    items = derive(inspections["Qwen3.6-27B-NVFP4"], tokens=[16]).items
    assert {(i.role, i.problem.format) for i in items} == {
        ("mlp.gate_up", Format.NVFP4_W4A16), ("mlp.down", Format.NVFP4_W4A16), ("lm_head", Format.NVFP4_W4A16),
    }  # fmt: skip


def test_model_without_nvfp4_has_nothing_to_tune(inspections):
    workload = derive(inspections["Qwen3.5-397B-A17B"])
    assert workload.items == ()
    assert any(w.code == "no-nvfp4" for w in workload.warnings)


# --- phases and token counts


def test_default_token_counts_by_phase(inspections):
    items = [i for i in derive(inspections["Qwen3.5-397B-A17B-NVFP4"], tp=8).items if i.role == "moe.w13"]
    at = {phase: [i.problem.m for i in items if phase in i.phases] for phase in ("decode", "verify", "prefill")}
    assert at["decode"] == [m for m in SUGGESTED if m <= 512]
    assert at["verify"] == [m for m in SUGGESTED if m % 4 == 0 and m <= 4 * 512]
    assert at["prefill"] == [512, 1024, 2048, 4096, 8192]
    assert {p for i in items for p in i.phases} == {"decode", "verify", "prefill"}


def test_mtp_roles_run_at_draft_counts(inspections):
    items = derive(inspections["Qwen3.5-397B-A17B-NVFP4"], include_bf16=True, phases=["draft"]).items
    assert {label for i in items for label in i.labels} == {"mtp"}
    w13 = [i for i in items if i.role == "moe.w13"]
    extend = [i.problem.m for i in w13 if "draft_extend" in i.phases]
    decode = [i.problem.m for i in w13 if "draft_decode" in i.phases]
    assert extend == [m for m in SUGGESTED if m % 4 == 0 and m <= 2048]
    assert decode == [m for m in SUGGESTED if m <= 512]


def test_widths_of_another_speculation(inspections):
    five = Speculation(steps=4, topk=1, draft_tokens=5)
    items = derive(inspections["Qwen3.5-397B-A17B-NVFP4"], phases=["verify"], tokens=[4, 5, 10], speculation=five).items
    assert {i.problem.m for i in items} == {5, 10}


def test_model_without_mtp_has_no_verify_unless_asked_for(inspections):
    qwen3 = inspections["Qwen3-32B-NVFP4"]
    assert {p for i in derive(qwen3).items for p in i.phases} == {"decode", "prefill"}
    assert {p for i in derive(qwen3, phases=["verify"]).items for p in i.phases} == {"verify"}
    with pytest.raises(InvalidInputError, match="has no MTP layers"):
        derive(qwen3, phases=["draft"])


def test_explicit_tokens_are_sorted_and_unique(inspections):
    items = derive(inspections["Qwen3-32B-NVFP4"], tokens=[16, 3, 16]).items
    assert [i.problem.m for i in items if i.role == "attn.o"] == [3, 16]


def test_token_count_beyond_the_batches_is_prefill(inspections):
    items = derive(inspections["Qwen3-32B-NVFP4"], tokens=[100_000]).items
    assert {i.phases for i in items} == {("prefill",)}


def test_lm_head_sees_no_prefill_and_kv_b_nothing_else(inspections):
    items = derive(inspections["DeepSeek-V3.1-NVFP4"], include_bf16=True).items
    assert "prefill" not in {p for i in items if i.role == "lm_head" for p in i.phases}
    assert {p for i in items if i.role == "mla.kv_b" for p in i.phases} == {"prefill"}


# --- records


def test_equal_problems_of_two_roles_are_one_item(inspections):
    items = derive(inspections["Qwen3.5-397B-A17B-NVFP4"], tokens=[16], include_bf16=True).items
    # attention's and the delta net's output projections are both 4096 x 8192: 15 + 45 layers, and one in MTP at
    # the draft phases
    item = next(i for i in items if (i.problem.n, i.problem.k) == (4096, 8192))
    assert item.role == "attn.o+gdn.out_proj+mtp.fc"
    assert item.layers == 15 + 45 + 1 + 1
    assert item.labels == ("backbone", "mtp")
    keys = [i.problem.key for i in items]
    assert len(keys) == len(set(keys))


def test_item_becomes_a_record_of_the_store(inspections):
    item = derive(inspections["Qwen3.5-397B-A17B-NVFP4"], tp=8, tokens=[16]).items[0]
    assert item.to_run_problem() == RunProblem(item.problem, "moe.w13", ("decode", "verify"), 60)
    assert item.gated
    assert (item.problem.op, item.problem.experts, item.problem.top_k) == (Op.GROUPED, 512, 10)


@settings(deadline=None)
@given(
    st.sampled_from(presets.names()),
    st.integers(-3, 300),
    st.integers(-3, 300),
    st.lists(st.integers(-2, 1 << 25), max_size=4) | st.none(),
)
def test_any_sizes_give_a_workload_or_a_sentence(name, tp, ep, tokens):
    inspection = inspect_checkpoint(open_checkpoint(name))
    try:
        workload = derive(inspection, tp=tp, ep=ep, tokens=tokens, include_bf16=True)
    except Fp4tuneError as error:
        assert str(error).endswith(".")  # noqa: PT017 - any other exception fails the test
        return
    for gemm in workload.gemms:
        assert gemm.error or (gemm.n > 0 and gemm.k > 0)
    for item in workload.items:
        if item.problem.format is not Format.BF16:
            assert item.problem.k % 16 == 0
