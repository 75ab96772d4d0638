"""Problems: every text form is read back, and nothing that is no problem becomes one."""

from __future__ import annotations

import pytest
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.kernels.problem import MAX_DIM, MAX_EXPERTS, Format, Op, OutDtype, Problem, Routing, parse_key, parse_shape
from hypothesis import given
from hypothesis import strategies as st

dims = st.integers(1, MAX_DIM)
groups = st.integers(1, MAX_DIM // 16).map(lambda n: 16 * n)
formats, out_dtypes, routings = st.sampled_from(Format), st.sampled_from(OutDtype), st.sampled_from(Routing)
dense = st.builds(Problem, dims, dims, groups, format=formats, out_dtype=out_dtypes)


@st.composite
def grouped(draw):
    total = draw(st.integers(1, MAX_EXPERTS))
    experts, top_k = draw(st.integers(1, total)), draw(st.integers(1, total))
    m, n, k = draw(dims), draw(dims), draw(groups)
    return Problem(
        m, n, k, Op.GROUPED, experts, total, top_k, draw(routings), draw(formats), draw(out_dtypes)
    )  # fmt: skip


@st.composite
def moe(draw):
    p = draw(grouped())
    n = p.n if p.format is Format.BF16 else draw(groups)
    return Problem(
        p.m, n, p.k, Op.MOE, p.experts, p.experts_total, p.top_k, p.routing, p.format, p.out_dtype
    )  # fmt: skip


@given(st.one_of(dense, grouped(), moe()))
def test_shape_and_key_are_read_back(problem):
    again = parse_shape(
        problem.shape, routing=problem.routing, format=problem.format, out_dtype=problem.out_dtype
    )  # fmt: skip
    assert again == problem
    assert parse_key(problem.key) == problem
    assert len(problem.key.split(":")) == (5 if problem.op is Op.DENSE else 6)


@given(st.one_of(dense, grouped(), moe()))
def test_what_a_problem_costs(problem):
    assert problem.rows >= 1
    products = 3 if problem.op is Op.MOE else 1
    assert problem.flops == 2 * problem.rows * problem.n * problem.k * products
    assert problem.weight_bytes < problem.operand_bytes
    if problem.op is not Op.DENSE:
        assert problem.rows <= problem.m * min(problem.top_k, problem.experts)


def test_known_costs():
    problem = parse_shape("e512k10:16x256x4096")
    assert problem.rows == 160
    assert problem.weight_bytes == 512 * 256 * (2048 + 256)
    assert parse_shape("e64of512k10:16x2048x4096").rows == 20
    layer = parse_shape("moe:e512k10:16x128x4096")
    assert layer.weight_bytes == 512 * (256 * (2048 + 256) + 4096 * (64 + 8))
    assert layer.operand_bytes - layer.weight_bytes == 16 * 4096 * (2 + 2)
    assert layer.key == "moe:e512k10:16x128x4096:uniform:nvfp4:bf16"
    assert parse_shape("16x32x64", format=Format.BF16).operand_bytes == 2 * (16 * 64 + 32 * 64 + 16 * 32)
    assert parse_shape("16x32x64", out_dtype=OutDtype.FP32).operand_bytes == (16 + 32) * (32 + 4) + 4 * 16 * 32


@given(st.text(max_size=40))
def test_any_text_is_a_problem_or_one_sentence(text):
    for parse in (parse_shape, parse_key):
        try:
            sentence = f"{parse(text).key}."
        except InvalidInputError as error:
            sentence = str(error)
        assert sentence.endswith(".")
        assert len(sentence) < 400


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "16x2048", "16x2048x4096x1", "16x2048x-4096", "16x2048x4096 ", "16X2048X4096", "1e3x16x16", "٣x16x16",
        "16x16x16\n", "e8:16x16x16", "k2:16x16x16", "e8k2:16x16", "e8of4k2:16x16x16", "e8k9:16x16x16", "e0k1:16x16x16",
        "0x16x16", "16x0x16", "16x16x0", "16x16x24", f"{MAX_DIM + 1}x16x16", f"e{MAX_EXPERTS + 1}k1:1x16x16",
        "9" * 5000 + "x16x16", "moe:16x16x16", "moe:e8k2:16x24x16", "moe:moe:e8k2:16x16x16", "MOE:e8k2:16x16x16",
    ],
)  # fmt: skip
def test_what_is_no_shape(text):
    with pytest.raises(InvalidInputError):
        parse_shape(text)


@pytest.mark.parametrize(
    "key",
    [
        "dense:16x16x16", "grouped:16x16x16:uniform:nvfp4:bf16", "dense:e8k2:16x16x16:uniform:nvfp4:bf16",
        "dense:016x16x16:uniform:nvfp4:bf16", "grouped:e8of8k2:16x16x16:uniform:nvfp4:bf16",
        "dense:16x16x16:uniform:nvfp4:bf17",
        "grouped:moe:e8k2:16x16x16:uniform:nvfp4:bf16", "dense:16x16x16:one_hot:nvfp4:bf16:",
    ],
)  # fmt: skip
def test_what_is_no_key(key):
    with pytest.raises(InvalidInputError, match="is not the key of a problem"):
        parse_key(key)


@pytest.mark.parametrize("field", ["experts", "experts_total", "top_k"])
def test_a_dense_problem_has_no_experts(field):
    with pytest.raises(InvalidInputError, match="A dense problem has no experts"):
        Problem(16, 16, 16, **{field: 1})


def test_bf16_needs_no_groups():
    assert Problem(1, 1, 1, format=Format.BF16).k == 1
    with pytest.raises(InvalidInputError, match="K must be a multiple of 16 for nvfp4_w4a16"):
        Problem(1, 1, 24, format=Format.NVFP4_W4A16)
