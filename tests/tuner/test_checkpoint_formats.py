"""The stored verdict: dtypes and shapes of a module's tensors, rule by rule."""

from __future__ import annotations

import pytest
from fp4tune.tuner.inspection.formats import WeightFormat, index_verdict, stored_verdict
from fp4tune.tuner.inspection.safetensors_header import TensorInfo
from hypothesis import given, settings
from hypothesis import strategies as st


def verdict(**tensors):
    return stored_verdict({suffix: TensorInfo(dtype, tuple(shape)) for suffix, (dtype, shape) in tensors.items()})


SCALE, F32 = ("F8_E4M3", (64, 8)), ("F32", ())


def test_modelopt_nvfp4_packed_in_bytes_has_twice_as_many_columns():
    found = verdict(weight=("U8", (64, 64)), weight_scale=SCALE, weight_scale_2=F32, input_scale=F32)
    assert (found.format, found.n, found.k, found.flavour) == (WeightFormat.NVFP4, 64, 128, "modelopt")


def test_modelopt_nvfp4_of_dtype_f4_counts_elements():
    found = verdict(weight=("F4", (64, 128)), weight_scale=SCALE, weight_scale_2=F32, input_scale=F32)
    assert (found.format, found.n, found.k) == (WeightFormat.NVFP4, 64, 128)


@pytest.mark.parametrize("weight", [("U8", (64, 128)), ("F4", (64, 64)), ("F4", (64, 256))])
def test_shape_that_its_scales_contradict_is_unknown(weight):
    found = verdict(weight=weight, weight_scale=SCALE, weight_scale_2=F32, input_scale=F32)
    assert found.format is WeightFormat.UNKNOWN
    assert "weight_scale should be" in found.reason


def test_without_activation_scale_it_is_w4a16():
    found = verdict(weight=("U8", (64, 64)), weight_scale=SCALE, weight_scale_2=F32)
    assert found.format is WeightFormat.NVFP4_W4A16


def test_compressed_tensors_nvfp4():
    parts = {"weight_packed": ("U8", (64, 64)), "weight_scale": SCALE, "weight_global_scale": ("F32", (1,))}
    found = verdict(**parts, input_global_scale=("F32", (1,)))
    assert (found.format, found.k, found.flavour) == (WeightFormat.NVFP4, 128, "compressed-tensors")
    assert verdict(**parts).format is WeightFormat.NVFP4_W4A16


def test_stacked_experts():
    found = verdict(weight=("U8", (8, 64, 64)), weight_scale=("F8_E4M3", (8, 64, 8)), weight_scale_2=("F32", (8,)))
    assert (found.format, found.n, found.k, found.stack) == (WeightFormat.NVFP4_W4A16, 64, 128, 8)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"weight": ("U8", (64, 64)), "weight_scale_2": F32}, "no weight_scale"),
        ({"weight": ("U8", (64, 64)), "weight_scale": SCALE}, "neither NVFP4 nor MXFP4"),
        ({"weight": ("U8", (64, 64))}, "no scale"),
        ({"weight_packed": ("U8", (64, 64)), "weight_scale": SCALE}, "no weight_global_scale"),
        ({"weight_packed": ("BF16", (64, 64)), "weight_scale": SCALE, "weight_global_scale": F32}, "weight_packed is"),
        ({"weight_packed": ("I32", (64, 16)), "weight_scale": ("U8", (64, 4))}, "weight_packed is"),
        ({"weight_packed": ("U8", (64, 64)), "weight_scale": ("U8", (64, 8))}, "neither NVFP4 nor MXFP4"),
        ({"weight": ("U8", (64, 64)), "weight_scale": ("BF16", (64, 8)), "weight_scale_2": F32}, "needs F8_E4M3"),
        ({"weight": ("U8", (64, 60)), "weight_scale": ("F8_E4M3", (64, 7)), "weight_scale_2": F32}, "should be"),
        ({"weight": ("U8", (64, 64)), "weight_scale": ("F8_E4M3", (128, 8)), "weight_scale_2": F32}, "should be"),
        ({"weight": ("F8_E4M3", (64, 128))}, "without a scale"),
        ({"weight": ("BF16", (64, 128)), "weight_scale": SCALE}, "it has a weight_scale"),
        ({"weight": ("I32", (64, 16))}, "dtype I32"),
        ({"weight": ("BF16", (64,))}, "the shape [64]"),
        ({"weight": ("BF16", (1, 2, 3, 4))}, "the shape"),
        ({"weight_scale": SCALE}, "no weight"),
        ({"qweight": ("I32", (8, 8))}, "no weight"),
        ({"blocks": ("U8", (8, 64, 4, 16))}, "without scales"),
        ({"blocks": ("U8", (4, 16)), "scales": ("U8", (4,))}, "its scales have the shape [4]"),
    ],
)
def test_anything_else_is_unknown_and_says_why(tensors, reason):
    found = verdict(**tensors)
    assert found.format is WeightFormat.UNKNOWN
    assert reason in found.reason
    assert found.format.problem_format is None


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("BF16", WeightFormat.BF16), ("F16", WeightFormat.FP16), ("F32", WeightFormat.FP32)],
)
def test_plain(dtype, expected):
    found = verdict(weight=(dtype, (64, 128)))
    assert (found.format, found.n, found.k) == (expected, 64, 128)


def test_fp8_weight_is_fp8_although_nvfp4_has_a_weight_scale_too():
    found = verdict(weight=("F8_E4M3", (64, 128)), weight_scale=F32, input_scale=F32)
    assert (found.format, found.k) == (WeightFormat.FP8, 128)


def test_fp8_block():
    assert verdict(weight=("F8_E4M3", (256, 256)), weight_scale_inv=("F32", (2, 2))).format is WeightFormat.FP8_BLOCK
    # DeepSeek-V4 calls its block scales `scale`
    assert verdict(weight=("F8_E4M3", (256, 256)), scale=("F8_E8M0", (2, 2))).format is WeightFormat.FP8_BLOCK


def test_mxfp8():
    found = verdict(weight=("F8_E4M3", (64, 128)), weight_scale=("U8", (64, 4)))
    assert found.format is WeightFormat.MXFP8


def test_mxfp4_of_deepseek_v4():
    # 3072 x 7168 experts as I8 [3072, 3584] with one E8M0 scale per 32: [3072, 224]
    found = verdict(weight=("I8", (3072, 3584)), scale=("F8_E8M0", (3072, 224)))
    assert (found.format, found.n, found.k) == (WeightFormat.MXFP4, 3072, 7168)


@pytest.mark.parametrize("scale", ["U8", "F8_E8M0"])
def test_mxfp4_of_compressed_tensors(scale):
    """mxfp4-pack-quantized: the names of NVFP4, but no weight_global_scale and one E8M0 scale per 32."""
    found = verdict(weight_packed=("U8", (64, 64)), weight_scale=(scale, (64, 4)))
    assert (found.format, found.n, found.k) == (WeightFormat.MXFP4, 64, 128)


def test_mxfp4_of_gpt_oss():
    # gate_up 5760 x 2880: blocks [128, 5760, 90, 16], scales [128, 5760, 90]
    found = verdict(blocks=("U8", (128, 5760, 90, 16)), scales=("U8", (128, 5760, 90)), bias=("BF16", (128, 5760)))
    assert (found.format, found.n, found.k, found.stack) == (WeightFormat.MXFP4, 5760, 2880, 128)


@pytest.mark.parametrize(
    ("suffixes", "expected"),
    [
        ({"weight", "weight_scale", "weight_scale_2", "input_scale"}, WeightFormat.NVFP4),
        ({"weight", "weight_scale", "weight_scale_2"}, WeightFormat.NVFP4_W4A16),
        ({"weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"}, WeightFormat.NVFP4),
        ({"weight_packed", "weight_scale", "weight_global_scale"}, WeightFormat.NVFP4_W4A16),
        ({"weight", "weight_scale_inv"}, WeightFormat.FP8_BLOCK),
        ({"weight", "weight_scale"}, WeightFormat.FP8),
        ({"blocks", "scales", "bias"}, WeightFormat.MXFP4),
        ({"weight"}, WeightFormat.BF16),
        ({"weight", "bias"}, WeightFormat.BF16),
        ({"weight", "scale"}, WeightFormat.UNKNOWN),  # DeepSeek-V4: FP8 or MXFP4, names do not tell
        ({"weight_packed", "weight_scale"}, WeightFormat.UNKNOWN),
        ({"qweight", "qzeros"}, WeightFormat.UNKNOWN),
    ],
)
def test_index_alone(suffixes, expected):
    found = index_verdict(suffixes)
    assert found.format is expected
    assert (found.n, found.k) == (0, 0)


def test_only_three_formats_become_problems():
    tunable = {fmt for fmt in WeightFormat if fmt.problem_format is not None}
    assert tunable == {WeightFormat.NVFP4, WeightFormat.NVFP4_W4A16, WeightFormat.BF16}


SUFFIX = st.sampled_from(["weight", "weight_packed", "weight_scale", "weight_scale_2", "weight_global_scale", "scale",
                          "input_scale", "weight_scale_inv", "blocks", "scales", "bias"])  # fmt: skip
INFO = st.builds(
    TensorInfo,
    st.sampled_from(["U8", "I8", "F4", "F8_E4M3", "F8_E8M0", "BF16", "F32", "I32", "Q4"]),
    st.lists(st.integers(0, 64), max_size=4).map(tuple),
)


@settings(deadline=None)
@given(st.dictionaries(SUFFIX, INFO, min_size=1))
def test_random_tensors_get_a_verdict_with_a_reason(tensors):
    found = stored_verdict(tensors)
    assert (found.format is WeightFormat.UNKNOWN) == bool(found.reason)
    if found.format in {WeightFormat.NVFP4, WeightFormat.NVFP4_W4A16}:
        assert found.k % 16 == 0
        assert tensors["weight_scale"].shape[-1] * 16 == found.k
