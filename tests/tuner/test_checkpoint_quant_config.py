"""Declared verdicts: every dialect of quantisation config, and what its lists match."""

from __future__ import annotations

import re

import pytest
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.tuner.inspection import patterns
from fp4tune.tuner.inspection.declare import declare
from fp4tune.tuner.inspection.formats import WeightFormat
from fp4tune.tuner.inspection.patterns import Globs, Targets, compile_regex
from fp4tune.tuner.inspection.quant_config import read_quant_config
from hypothesis import given, settings
from hypothesis import strategies as st

NVFP4_GROUP = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "input_activations": {"num_bits": 4}}


def modelopt(**section):
    return read_quant_config({"quantization_config": {"quant_method": "modelopt", **section}}, None)


def fmt(quant, name, part="mlp.up"):
    return declare(quant, name, part).format.value


@pytest.mark.parametrize(
    ("algo", "expected"),
    [
        ("NVFP4", "nvfp4"),
        ("NVFP4_AWQ", "nvfp4"),
        ("NVFP4_SVD", "nvfp4"),
        ("W4A16_NVFP4", "nvfp4_w4a16"),
        ("W4A8_NVFP4_FP8", "nvfp4_w4a8"),
        ("FP8", "fp8"),
        ("MXFP8", "mxfp8"),
        ("W4A16_AWQ", "unknown"),
        ("", "unknown"),
    ],
)
def test_modelopt_algorithms(algo, expected):
    assert fmt(modelopt(quant_algo=algo), "model.layers.0.mlp.up_proj") == expected


def test_w4a8_is_not_tuned_as_nvfp4():
    assert WeightFormat.NVFP4_W4A8.problem_format is None


def test_modelopt_globs_are_over_the_whole_name():
    quant = modelopt(quant_algo="NVFP4", ignore=["lm_head", "model.layers.1.self_attn*", "*.mlp.shared_expert.*"])
    assert fmt(quant, "lm_head", "lm_head") == "bf16"
    assert fmt(quant, "language_model.lm_head", "lm_head") == "nvfp4"
    assert fmt(quant, "model.layers.1.self_attn.q_proj") == "bf16"
    assert fmt(quant, "model.layers.10.self_attn.q_proj") == "nvfp4"
    assert fmt(quant, "model.layers.1.mlp.shared_expert.up_proj") == "bf16"
    assert fmt(quant, "model.layers.1.mlp.shared_expert_gate") == "nvfp4"


def test_exclusion_says_that_it_is_an_assumption():
    found = declare(modelopt(quant_algo="NVFP4", ignore=["lm_head"]), "lm_head", "lm_head")
    assert (found.format, found.excluded, found.rule) == (WeightFormat.BF16, True, "excluded by 'lm_head'")


def test_hf_quant_config_alone():
    quant = read_quant_config({}, {"producer": {"name": "modelopt", "version": "0.33.0"},
                                   "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8",
                                                    "exclude_modules": ["lm_head"]}})  # fmt: skip
    assert (quant.method, quant.algo, quant.producer, quant.kv_cache) == ("modelopt", "NVFP4", "modelopt 0.33.0", "fp8")
    assert quant.sources == ("hf_quant_config.json",)
    assert fmt(quant, "x") == "nvfp4"
    assert fmt(quant, "lm_head", "lm_head") == "bf16"


def test_mixed_precision_takes_the_longest_prefix():
    layers = {
        "layers.0.ffn.experts": {"quant_algo": "NVFP4"},
        "layers.0.ffn": {"quant_algo": "FP8"},
        "layers.0.ffn.experts.3.w1": {"quant_algo": "W4A16_NVFP4"},
    }
    quant = modelopt(quant_algo="MIXED_PRECISION", quantized_layers=layers)
    assert fmt(quant, "layers.0.ffn.experts.0.w1", "moe.gate") == "nvfp4"
    assert fmt(quant, "layers.0.ffn.experts.3.w1", "moe.gate") == "nvfp4_w4a16"
    assert fmt(quant, "layers.0.ffn.shared_experts.w1", "shared.gate") == "fp8"
    assert fmt(quant, "layers.0.ffn.experts_extra.w1", "moe.gate") == "fp8"
    assert fmt(quant, "layers.1.ffn.experts.0.w1", "moe.gate") == "bf16"


def test_mixed_precision_without_layers_is_unknown():
    quant = modelopt(quant_algo="MIXED_PRECISION")
    assert fmt(quant, "x") == "unknown"
    assert [w.code for w in quant.warnings] == ["declared-unknown"]


def test_exclusion_beats_quantized_layers():
    quant = modelopt(quant_algo="MIXED_PRECISION", quantized_layers={"a.b": {"quant_algo": "NVFP4"}}, ignore=["a.b"])
    assert fmt(quant, "a.b") == "bf16"


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"quant_algo": "FP8"}, "quant_algo is 'NVFP4' there and 'FP8' here"),
        ({"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, "0 excluded modules stand only in the first and 1"),
        ({"quant_algo": "NVFP4", "exclude_modules": ["a"]}, "such as 'a'"),
    ],
)
def test_both_files_that_disagree(other, text):
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    quant = read_quant_config({"quantization_config": section}, {"quantization": other})
    assert [w.code for w in quant.warnings] == ["quant-configs-disagree"]
    assert text in quant.warnings[0].message
    assert fmt(quant, "model.layers.0.mlp.up_proj") == "nvfp4"


def test_both_files_whose_layers_disagree():
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    one = {**section, "quantized_layers": {"a": {"quant_algo": "NVFP4"}}}
    other = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP8"}}}
    quant = read_quant_config({"quantization_config": one}, {"quantization": other})
    assert "quantized_layers differ in 1 entries, such as 'a'" in quant.warnings[0].message
    assert fmt(quant, "a") == "nvfp4"


def test_first_file_decides_where_both_speak():
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["a"]}
    quant = read_quant_config(
        {"quantization_config": section}, {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["b"]}}
    )
    assert (fmt(quant, "a"), fmt(quant, "b")) == ("bf16", "nvfp4")


def test_layers_of_the_second_file_count_where_the_first_has_none():
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    other = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "NVFP4"}}}
    quant = read_quant_config({"quantization_config": section}, {"quantization": other})
    assert (fmt(quant, "a"), fmt(quant, "b")) == ("nvfp4", "bf16")


def test_what_is_left_alone_has_the_dtype_of_config():
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["a"]}
    quant = read_quant_config({"torch_dtype": "float16", "quantization_config": section}, None)
    assert fmt(quant, "a") == "fp16"


def test_both_files_that_agree_are_silent():
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["b", "a"]}
    other = {"quant_algo": "NVFP4", "exclude_modules": ["a", "b"]}
    assert read_quant_config({"quantization_config": section}, {"quantization": other}).warnings == ()


def compressed(groups, **section):
    section = {"quant_method": "compressed-tensors", "config_groups": groups, **section}
    return read_quant_config({"quantization_config": section}, None)


def test_compressed_tensors_class_target_minus_ignore():
    group = {**NVFP4_GROUP, "targets": ["Linear"]}
    quant = compressed({"group_0": group}, format="nvfp4-pack-quantized", ignore=["lm_head", "re:.*mlp.gate$"])
    assert fmt(quant, "model.layers.0.self_attn.q_proj", "attn.q") == "nvfp4"
    assert fmt(quant, "lm_head", "lm_head") == "bf16"
    assert fmt(quant, "model.layers.0.mlp.gate", "router") == "bf16"
    assert fmt(quant, "model.layers.0.mlp.gate_proj", "mlp.gate") == "nvfp4"
    # re.match anchors at the start: without `.*` an expression for a nested module matches nothing
    anchored = compressed({"g": group}, ignore=["re:linear_attn.*"])
    assert fmt(anchored, "model.layers.0.linear_attn.out_proj", "gdn.out") == "nvfp4"


def test_compressed_tensors_without_activations_is_w4a16():
    group = {"weights": NVFP4_GROUP["weights"], "input_activations": None, "targets": ["Linear"],
             "format": "nvfp4-pack-quantized"}  # fmt: skip
    assert fmt(compressed({"group_0": group}), "model.layers.0.mlp.up_proj") == "nvfp4_w4a16"


def test_compressed_tensors_with_fp8_activations_is_w4a8():
    group = {"weights": NVFP4_GROUP["weights"], "input_activations": {"num_bits": 8}, "targets": ["Linear"]}
    assert fmt(compressed({"group_0": group}), "model.layers.0.mlp.up_proj") == "nvfp4_w4a8"


def test_compressed_tensors_groups_by_expression_beat_a_class():
    groups = {
        "group_0": {**NVFP4_GROUP, "targets": ["Linear"]},
        "group_1": {"weights": {"num_bits": 8, "type": "float", "strategy": "block"}, "targets": ["re:.*attn.*"]},
    }
    quant = compressed(groups)
    assert fmt(quant, "layers.0.attn.wq_b", "mla.q_b") == "fp8_block"
    assert fmt(quant, "layers.0.ffn.w1") == "nvfp4"


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"num_bits": 8, "type": "float"}, "fp8"),
        ({"num_bits": 8, "type": "float", "group_size": 32}, "mxfp8"),
        ({"num_bits": 4, "type": "float", "group_size": 32}, "mxfp4"),
        ({"num_bits": 4, "type": "int", "group_size": 128}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_compressed_tensors_other_formats(weights, expected):
    quant = compressed({"g": {"weights": weights, "targets": ["Linear"], "input_activations": {"num_bits": 8}}})
    assert fmt(quant, "model.layers.0.mlp.up_proj") == expected


HYBRID = {
    "quant_method": "fp8", "moe_quant_algo": "NVFP4", "quant_algo": "MIXED_PRECISION", "weight_block_size": [128, 128],
    "ignore": ["*.attn.*", "head", "mtp.*"],
}  # fmt: skip


def test_fp8_hybrid_with_a_list_of_layers():
    section = {**HYBRID, "quantized_layers": {"layers.0.ffn.experts": {"quant_algo": "NVFP4"}}}
    quant = read_quant_config({"expert_dtype": "fp4", "quantization_config": section}, None)
    assert fmt(quant, "layers.0.ffn.experts.7.w1", "moe.gate") == "nvfp4"
    assert fmt(quant, "layers.1.ffn.experts.7.w1", "moe.gate") == "fp8_block"
    assert fmt(quant, "layers.0.attn.wq_b", "mla.q_b") == "fp8_block"
    assert fmt(quant, "mtp.0.ffn.experts.0.w1", "moe.gate") == "mxfp4"
    assert fmt(quant, "mtp.0.attn.wq_b", "mla.q_b") == "fp8_block"
    assert fmt(quant, "layers.0.ffn.gate", "router") == "bf16"
    assert fmt(quant, "head", "lm_head") == "bf16"


def test_fp8_hybrid_without_a_list_means_all_routed_experts():
    quant = read_quant_config({"quantization_config": HYBRID}, None)
    assert fmt(quant, "layers.5.ffn.experts.0.w1", "moe.gate") == "nvfp4"
    assert fmt(quant, "layers.5.ffn.shared_experts.w1", "shared.gate") == "fp8_block"


def test_plain_fp8():
    section = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.0"]}
    quant = read_quant_config({"quantization_config": section}, None)
    assert fmt(quant, "model.layers.1.mlp.up_proj") == "fp8_block"
    assert fmt(quant, "model.layers.0.mlp.up_proj") == "bf16"


def test_mxfp4_reaches_experts_only():
    section = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    quant = read_quant_config({"quantization_config": section}, None)
    assert fmt(quant, "model.layers.3.mlp.experts.gate_up_proj", "moe.gate_up") == "mxfp4"
    assert fmt(quant, "model.layers.3.self_attn.q_proj", "attn.q") == "bf16"
    assert fmt(quant, "model.layers.3.mlp.down_proj", "mlp.down") == "bf16"


@pytest.mark.parametrize("method", ["awq", "gptq", "quark", "bitsandbytes"])
def test_other_methods_are_named_and_unknown(method):
    quant = read_quant_config({"quantization_config": {"quant_method": method}}, None)
    assert fmt(quant, "model.layers.0.mlp.up_proj") == "unknown"
    assert method in quant.warnings[0].message


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", "bf16"), ("float16", "fp16"), (None, "bf16")])
def test_no_quantisation(dtype, expected):
    quant = read_quant_config({"torch_dtype": dtype}, None)
    assert (quant.method, fmt(quant, "x")) == ("none", expected)


@pytest.mark.parametrize("part", ["router", "shared.expert_gate", "mtp.fc"])
def test_some_parts_are_never_quantised_by_declaration_alone(part):
    found = declare(modelopt(quant_algo="NVFP4"), "x", part)
    assert (found.format, found.by_list) == (WeightFormat.BF16, WeightFormat.NVFP4)
    assert "would make it nvfp4" in found.rule


def test_tied_lm_head_is_the_embedding():
    assert declare(modelopt(quant_algo="NVFP4"), "lm_head", "lm_head", tied=True).format is WeightFormat.BF16


def test_fused_module_is_looked_up_by_its_parts():
    quant = modelopt(quant_algo="NVFP4", ignore=["a.q_proj", "a.k_proj", "a.v_proj"])
    assert fmt(quant, "a.qkv_proj", "attn.qkv") == "bf16"
    partly = modelopt(quant_algo="NVFP4", ignore=["a.q_proj"])
    assert fmt(partly, "a.qkv_proj", "attn.qkv") == "unknown"


def test_part_is_looked_up_by_its_fused_name_and_other_spelling():
    assert fmt(modelopt(quant_algo="NVFP4", ignore=["a.in_proj_qkvz"]), "a.in_proj_z", "gdn.z") == "bf16"
    assert fmt(modelopt(quant_algo="NVFP4", ignore=["a.w1"]), "a.gate_proj", "mlp.gate") == "bf16"


@pytest.mark.parametrize(
    "section",
    [
        [],
        "NVFP4",
        3,
        {"quant_method": 3},
        {"quant_method": "modelopt", "quant_algo": ["NVFP4"]},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": 7},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [1]},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["a\x1b[31m"]},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["a" * 5000]},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": []},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": "NVFP4"}},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"\ud800": {}}},
        {"quant_method": "compressed-tensors", "config_groups": []},
        {"quant_method": "compressed-tensors", "config_groups": {"g": []}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": 3}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": "re:("}}},
        {"quant_method": "compressed-tensors", "ignore": ["re:(a+)+$"]},
    ],
)
def test_section_of_the_wrong_form(section):
    with pytest.raises(InvalidInputError):
        read_quant_config({"quantization_config": section}, None)


@pytest.mark.parametrize("quantization", [[], "x", 3])
def test_hf_quant_config_of_the_wrong_form(quantization):
    with pytest.raises(InvalidInputError, match="quantization"):
        read_quant_config({}, {"quantization": quantization})


@pytest.mark.parametrize("text", ["(a+)+$", "(a*)*b", "([a-z]+)*$", "(x+x+)+y", ".*.*.*.*x", "(a|b+){2,}c", "[a-z]+x[a-z]+y[a-z]+z[a-z]+w[a-z]+", "a" * 1001,
                                  "*" * 9, "(?P<", "[", "(" * 500,
                                  # Alternatives, optional pieces and bounded repeats explode as well.
                                  "(?:.|.)*!", "(.|.)*!", r"(\w)(\1|\w|.)*!", "(?:.?){30}!", "(?:(?:a|.)(?:a|.))*!", ".?" * 40 + "!",
                                  "(?:.|.)" * 30 + "!", "((.|.)|.){1,200}!", "(?x) ( a | b ) *", "(?x: (.|.) * )!", "(?=(?:.|.)*!)",
                                  "[0-9]+" * 6 + "!", "[*]*[+]*[|]*[(]*", ".{0,9}.{0,9}.{0,9}.{0,9}!"])  # fmt: skip
def test_expressions_that_explode_or_are_none(text):
    with pytest.raises(InvalidInputError, match="re:"):
        compile_regex(text)


def test_expressions_of_many_wildcards_take_linear_time():
    """By backtracking each would take centuries: a dozen wildcards on 250 letters."""
    regex, cost = compile_regex(".*a" * 10 + ".*b")
    assert cost.steps(250) < 5_000
    assert not regex.match("a" * 250)
    assert regex.match("a" * 249 + "b")


def test_long_names_are_not_tried_on_expressions():
    quant = compressed({"g": {**NVFP4_GROUP, "targets": ["re:.*proj"]}})
    assert fmt(quant, "a" * 200 + ".up_proj") == "nvfp4"
    assert fmt(quant, "a" * 300 + ".up_proj") == "bf16"


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "b", "ab", "ba", "a.", ".", r"\.", "(a|b)", "a$", "", "b\\"]), min_size=1, max_size=5
    ),
    st.text(alphabet="ab.", max_size=10),
)
def test_expressions_without_backtracking_match_the_same(pieces, name):
    text = ".*".join(pieces)
    try:
        mine, _ = compile_regex(text)
    except InvalidInputError:
        return
    assert bool(mine.match(name)) == bool(re.match(text, name))


@pytest.mark.parametrize(
    "text",
    [".*lm_head", ".*mlp.gate$", ".*ffn.*(gate|up|down)_proj$", "^mtp.*", "model.visual.*",
     r".*layers\.[0-9]+\.mlp\.experts\.\d+\.(gate|up|down)_proj$", ".*layers.*mlp.*experts.*gate.*proj.*",
     r"(?:language_)?model\.layers\.([3-9]|[1-9][0-9]+)\.mlp\.experts\..*", r"^(?!.*mtp).*experts.*", r"(?i).*MLP.*",
     r"model\.layers\.[^.]+\.[^.]+\.[^.]+\.weight$", r"[a-z_]{4}[.]layers[.][0-9]{1,3}[.](?P<mixer>self|linear)_attn"],
)  # fmt: skip
def test_published_expressions_are_taken(text):
    _, cost = compile_regex(text)
    assert cost.steps(100) < 100_000


@pytest.mark.parametrize("entry", ["re:.*a{}.*z[a-z]+[a-z]+$", "*.a{}.*z"])
def test_more_expressions_than_any_list_has(entry):
    entries = [entry.format(i) for i in range(6_000)]
    with pytest.raises(InvalidInputError, match="6000 wildcard expressions"):
        Targets(entries) if entry.startswith("re:") else Globs(entries)


@pytest.mark.parametrize("make", [lambda: Targets(["re:[a-z]+[a-z]+[a-z]+!"]), lambda: Globs(["*.a*.*z"] * 200)])
def test_lists_that_would_take_minutes_are_refused_after_seconds(make, monkeypatch):
    monkeypatch.setattr(patterns, "MAX_STEPS", 1_000_000)
    matcher = make()
    assert matcher.match("a" * 100) is None
    with pytest.raises(InvalidInputError, match="would take minutes"):
        all(matcher.match("a" * 100) is None for _ in range(100))


def test_suffix_patterns_are_looked_up_and_not_tried_one_by_one():
    globs = Globs([f"*.experts.{i}.gate_proj" for i in range(20_000)])
    assert globs._others == []
    assert globs.match("model.layers.3.mlp.experts.19999.gate_proj") == "*.experts.19999.gate_proj"
    assert globs.match("model.layers.3.mlp.experts.19999.up_proj") is None


GLOB = st.text(alphabet="ab.*?", min_size=1, max_size=8)


@settings(deadline=None)
@given(st.lists(GLOB, max_size=6), st.text(alphabet="ab.", max_size=8))
def test_globs_agree_with_fnmatch(patterns, name):
    from fnmatch import fnmatchcase

    matching = {pattern for pattern in patterns if fnmatchcase(name, pattern)}
    found = Globs(patterns).match(name)
    assert (found in matching) if matching else found is None


def test_prefix_patterns_are_looked_up_and_not_tried_one_by_one():
    globs = Globs([f"model.layers.{i}.self_attn*" for i in range(20_000)] + ["lm_head"])
    assert globs._others == []
    assert globs.match("model.layers.19999.self_attn.q_proj") == "model.layers.19999.self_attn*"
    assert globs.match("model.layers.19999.mlp.up_proj") is None


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.text(max_size=6) | st.sampled_from(["NVFP4", "re:.*", "*"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["weights", "targets", "format", "quant_algo", "num_bits", "type", "name", "a.b"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
SECTION = st.dictionaries(
    st.sampled_from(["quant_method", "quant_algo", "ignore", "exclude_modules", "quantized_layers", "config_groups",
                     "producer", "kv_cache_scheme", "moe_quant_algo", "weight_block_size", "format", "version",
                     "modules_to_not_convert", "kv_cache_quant_algo"]),
    VALUE | st.sampled_from(["modelopt", "compressed-tensors", "fp8", "mxfp4", "NVFP4", "MIXED_PRECISION"]),
)  # fmt: skip


@settings(deadline=None)
@given(SECTION | VALUE, st.none() | st.dictionaries(st.just("quantization"), SECTION | VALUE))
def test_random_sections_never_crash(section, other):
    try:
        quant = read_quant_config({"quantization_config": section}, other)
        quant.ruling("model.layers.0.mlp.up_proj")
        declare(quant, "model.layers.0.self_attn.qkv_proj", "attn.qkv")
    except InvalidInputError as error:
        assert str(error)  # noqa: PT017 - any other exception fails the test
