"""What published times say of a problem: which is fastest, how sure it is, and what must not be chosen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fp4tune.db.records import ReferenceRow, ReferenceSource
from fp4tune.kernels.problem import Format, OutDtype, Problem, Routing, parse_shape
from fp4tune.tuner.reference.answer import (
    Layer,
    Reference,
    fused_layers,
    fused_note,
    layer_of,
    published,
    sentences,
    why_not,
)
from fp4tune.tuner.reference.curves import (
    BAND,
    POINT_BAND,
    WIDE_BAND,
    Curve,
    curves,
    estimate,
    interpolation_error,
)
from hypothesis import given
from hypothesis import strategies as st
from published_rows import CARD, SYSTEM, layer_rows

ROWS = layer_rows(2048, 7168)
WORKSTATION = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def ask(problem: str | Problem, rows: list[tuple[ReferenceSource, ReferenceRow]] = ROWS) -> Reference:
    found = published(parse_shape(problem) if isinstance(problem, str) else problem, curves(rows), [SYSTEM])
    assert found is not None
    return found


def curve_of(framework: str, precision: str, rows: list[tuple[ReferenceSource, ReferenceRow]] = ROWS) -> Curve:
    (found,) = (c for c in curves(rows) if (c.source.framework, c.precision) == (framework, precision))
    return found


def made(*points: tuple[int, float], **fields: object) -> list[tuple[ReferenceSource, ReferenceRow]]:
    """A curve of our own: rows of one kernel with these (M, microseconds)."""
    source, row = ROWS[0]
    return [(source, replace(row, m=m, time_us=time_us, **fields)) for m, time_us in points]


def test_fp8_is_fastest_where_nvfp4_is_serial_in_k():
    found = ask("16x2048x7168")
    assert (found.fastest.curve.precision, found.fastest.curve.source.framework) == ("fp8", "vllm")
    assert found.fastest.time_us == pytest.approx(14.1, abs=0.05)
    assert found.nvfp4 is not None
    assert found.nvfp4.time_us == pytest.approx(28.4, abs=0.05)
    assert not found.nvfp4_is_fastest
    assert found.nvfp4_over_fastest == pytest.approx(2.02, abs=0.01)
    assert [one.curve.precision for one in found.alternatives] == ["bfloat16", "nvfp4"]


def test_the_sentence_says_who_how_long_and_what_is_part_of_it():
    first = sentences(ask("16x2048x7168"), CARD)[0]
    assert first == (
        "on NVIDIA RTX PRO 6000 Blackwell Server Edition the fastest published kernel for 16x2048x7168 is FP8 "
        "(vLLM 0.24.0, CutlassFP8ScaledMMLinearKernel), 14.1 µs, quantising the activations included; NVFP4's "
        "fastest (SGLang 0.5.14) takes 28.4 µs, 2.02x as long, quantising the activations included"
    )


def test_nvfp4_is_fastest_at_many_rows_and_the_next_precision_is_named():
    found = ask("4096x4096x4096", layer_rows(4096, 4096))
    assert found.nvfp4_is_fastest
    assert found.nvfp4_over_fastest == 1
    assert "the next precision, FP8 (TensorRT-LLM 1.3.0rc20), takes" in sentences(found)[0]


def test_l2_hot_times_are_said_to_be_and_a_cold_one_is_named():
    found = ask("16x2048x7168")
    assert found.fastest.l2_hot_risk
    assert found.cold is not None
    assert not found.cold.l2_hot_risk
    assert found.cold.curve.precision == "bfloat16"
    (said,) = (s for s in sentences(found) if "L2" in s)
    assert "the fastest without that risk is BF16" in said
    cold = ask("16x7168x16384", layer_rows(7168, 16384))
    assert cold.cold is None
    assert not any("L2" in s for s in sentences(cold))


def test_where_every_time_may_be_hot_it_says_so():
    found = ask("1x2048x7168", [(s, replace(r, l2_hot_risk=True)) for s, r in ROWS])
    assert found.cold is None
    assert any("so may those of all others" in s for s in sentences(found))


def test_a_published_m_is_not_interpolated():
    found = estimate(curve_of("sglang", "nvfp4"), 64)
    assert found is not None
    assert not found.interpolated
    assert found.time_us_high / found.time_us == pytest.approx(1 + POINT_BAND)
    assert found.time_us / found.time_us_low == pytest.approx(1 + POINT_BAND)


def test_between_two_m_the_logarithms_are_linear():
    (curve,) = curves(made((8, 10.0), (16, 20.0), (32, 80.0)))
    between = estimate(curve, 24)
    assert between is not None
    assert between.between == (16, 32)
    assert between.time_us == pytest.approx(20 * 4 ** math.log2(24 / 16))
    middle = estimate(replace(curve, m=(8, 16, 64)), 32)
    assert middle is not None
    assert middle.time_us == pytest.approx(40.0)


def test_an_interpolated_time_says_between_what_and_how_sure():
    reasons = sentences(ask("24x2048x7168"))
    assert any(
        s.startswith("M 24 is not published: interpolated between M 17 and 32 of the same kernel") for s in reasons
    )


def test_nothing_is_extrapolated_or_carried_over_a_wide_gap():
    (curve,) = curves(made((8, 10.0), (16, 20.0), (128, 80.0)))
    assert estimate(curve, 4) is None
    assert estimate(curve, 256) is None
    assert estimate(curve, 32) is None
    assert published(parse_shape("4x2048x7168"), [curve], [SYSTEM]) is None
    assert why_not(parse_shape("4x2048x7168"), [curve]) == (
        "published times of this layer are of M 8 to 128, and none near enough to 4"
    )


def test_nothing_is_interpolated_across_frameworks_or_kernels():
    sglang, vllm = (next(pair for pair in ROWS if pair[0].framework == name) for name in ("sglang", "vllm"))
    halves = [
        (sglang[0], replace(sglang[1], m=16, time_us=10.0)),
        (vllm[0], replace(vllm[1], precision=sglang[1].precision, m=32, time_us=20.0)),
        (sglang[0], replace(sglang[1], kernel_source="another", m=32, time_us=20.0)),
    ]
    assert published(parse_shape("24x2048x7168"), curves(halves), [SYSTEM]) is None


def test_bands_have_their_floors_and_grow_with_what_the_curve_shows():
    smooth = curves(made(*((m, float(m)) for m in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096))))[0]
    assert interpolation_error(smooth, 24) == BAND
    assert interpolation_error(smooth, 200) == interpolation_error(smooth, 512) == WIDE_BAND
    assert interpolation_error(smooth, 1500) == BAND
    rough = curves(made(*((m, 100.0 if i % 2 else 50.0) for i, m in enumerate((2, 4, 8, 16, 32, 64)))))[0]
    assert interpolation_error(rough, 12) == pytest.approx(1.0)
    assert interpolation_error(curves(made((16, 10.0), (32, 10.0)))[0], 24) == WIDE_BAND


def test_twins_do_not_flatter_the_band():
    """M and M + 1 of an uneven curve: each predicts the other to the digit, and neither its neighbours."""
    points = [(m + d, 100.0 if i % 2 else 50.0) for i, m in enumerate((32, 64, 128, 256)) for d in (0, 1)]
    (curve,) = curves(made(*points))
    assert interpolation_error(curve, 96) == pytest.approx(1.0, rel=0.05)


def test_a_suspect_time_is_never_chosen_nor_interpolated_from():
    rows = [*made((8, 10.0), (32, 20.0)), *made((16, 1.0), suspect="too fast by far")]
    (curve,) = curves(rows)
    found = estimate(curve, 16)
    assert found is not None
    assert found.between == (8, 32)
    assert found.time_us == pytest.approx(math.sqrt(200))
    assert found.time_us_high / found.time_us == pytest.approx(1 + WIDE_BAND)
    assert found.suspect == "M 16 (too fast by far)"
    reasons = sentences(ask("16x2048x7168", rows))
    assert any(s.startswith("M 16 is published and not used: interpolated between M 8 and 32") for s in reasons)
    assert any("too fast by far" in s for s in reasons)


def test_what_is_all_suspect_answers_nothing_and_says_so():
    rows = made((8, 10.0), (16, 10.0), suspect="odd")
    assert published(parse_shape("16x2048x7168"), curves(rows), [SYSTEM]) is None
    assert why_not(parse_shape("16x2048x7168"), curves(rows)).endswith("none that is not suspect")


def test_bf16_weights_can_only_run_as_bf16():
    found = ask(Problem(16, 2048, 7168, format=Format.BF16))
    assert found.fastest.curve.precision == "bfloat16"
    assert found.alternatives[0].curve.precision == "fp8"
    assert found.nvfp4_over_fastest == pytest.approx(1.26, abs=0.01)
    assert not found.nvfp4_is_fastest
    assert "in BF16 is BF16" in sentences(found)[0]
    assert "with no activations to quantise" in sentences(found)[0]
    bf16_less = [pair for pair in ROWS if pair[1].precision != "bfloat16"]
    assert published(Problem(16, 2048, 7168, format=Format.BF16), curves(bf16_less), [SYSTEM]) is None


def test_other_activations_and_outputs_are_said_to_be_other():
    reasons = sentences(ask(Problem(16, 2048, 7168, format=Format.NVFP4_W4A16, out_dtype=OutDtype.FP32)))
    assert any("not of W4A16" in s for s in reasons)
    assert any("not of fp32" in s for s in reasons)


def test_another_variant_of_the_card_is_said_to_be_one():
    assert any("another variant of" in s for s in sentences(ask("16x2048x7168"), WORKSTATION))
    assert not any("another variant of" in s for s in sentences(ask("16x2048x7168"), CARD))


def test_the_very_card_goes_before_a_faster_one():
    other = [(replace(s, system="other"), replace(r, time_us=r.time_us / 10)) for s, r in ROWS]
    found = published(parse_shape("16x2048x7168"), curves([*other, *ROWS]), [SYSTEM, "other"])
    assert found is not None
    assert found.fastest.curve.source.system == SYSTEM
    assert all(one.curve.source.system == SYSTEM for one in found.alternatives)


def test_where_bands_overlap_it_is_not_certain():
    close = [*made((16, 10.0), precision="fp8"), *made((16, 10.5), precision="nvfp4")]
    assert any("not certain" in s for s in sentences(ask("16x2048x7168", close)))
    apart = [*made((16, 10.0), precision="fp8"), *made((16, 20.0), precision="nvfp4")]
    assert not any("not certain" in s for s in sentences(ask("16x2048x7168", apart)))


def test_without_nvfp4_it_says_so():
    found = ask("16x2048x7168", [pair for pair in ROWS if pair[1].precision != "nvfp4"])
    assert found.nvfp4 is None
    assert found.nvfp4_over_fastest is None
    assert not found.nvfp4_is_fastest
    assert "no NVFP4 time is published for it" in sentences(found)[0]


# Fused layers


TP8 = parse_shape("moe:e512k10:16x128x4096", routing=Routing.POWER_LAW)
EP8 = parse_shape("moe:e64of512k10:16x1024x4096", routing=Routing.POWER_LAW)


def test_a_fused_layer_is_answered_by_its_routing():
    rows = layer_rows(128, 4096, "moe")
    skewed, even = ask(TP8, rows), ask(replace(TP8, routing=Routing.UNIFORM), rows)
    assert skewed.fastest.time_us == pytest.approx(177.8, abs=0.1)
    assert even.fastest.time_us == pytest.approx(212.9, abs=0.1)
    assert any("more even than uniform" in s for s in sentences(even))
    one_hot = replace(TP8, routing=Routing.ONE_HOT)
    assert published(one_hot, curves(rows), [SYSTEM]) is None
    assert why_not(one_hot, curves(rows)).endswith("none of one_hot routing")


def test_sglangs_experts_of_other_ranks_are_not_chosen():
    rows = layer_rows(1024, 4096, "moe")
    assert {s.framework for s, _ in rows} == {"sglang", "vllm"}
    found = ask(EP8, rows)
    assert found.fastest.curve.source.framework == "vllm"
    assert found.alternatives == ()


def test_a_grouped_gemm_is_part_of_a_layer_and_not_that_layer():
    gate_up, down = parse_shape("e512k10:16x256x4096"), parse_shape("e512k10:16x4096x128")
    layer = Layer("moe", 128, 4096, 512, 512, 10)
    assert layer in fused_layers(gate_up)
    assert layer in fused_layers(down)
    assert layer_of(TP8) == layer
    note = fused_note(gate_up, layer, curves(layer_rows(128, 4096, "moe")))
    assert "do not answer it" in note
    assert "NVFP4 by TensorRT-LLM" in note
    asked = parse_shape(note.split("moe:")[1].split(" ")[0].join(["moe:", ""]))
    assert layer_of(asked) == layer
    assert fused_note(gate_up, layer, ()) == ""
    assert fused_layers(parse_shape("16x256x4096")) == ()


points = st.lists(
    st.tuples(st.integers(1, 4096), st.floats(1.0, 1e4)), min_size=1, max_size=30, unique_by=lambda point: point[0]
)


@given(points=points, m=st.integers(1, 5000))
def test_an_estimate_lies_between_its_neighbours_and_inside_its_band(points: list[tuple[int, float]], m: int):
    (curve,) = curves(made(*points))
    found = estimate(curve, m)
    if found is None:
        assert m not in curve.m
        return
    assert found.time_us_low < found.time_us < found.time_us_high
    if found.between is None:
        assert found.time_us == dict(points)[m]
        return
    low, high = found.between
    assert low < m < high <= 4 * low
    assert not any(low < one < high for one in curve.m)
    times = sorted((dict(points)[low], dict(points)[high]))
    assert times[0] * (1 - 1e-9) <= found.time_us <= times[1] * (1 + 1e-9)
    assert interpolation_error(curve, m) >= BAND
