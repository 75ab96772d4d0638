"""The oracle catches every planted fault, says where it is, and lets what is right pass."""

from __future__ import annotations

import math

import pytest
import torch
from fp4tune.kernels import nvfp4, oracle
from fp4tune.kernels.device import detect
from fp4tune.kernels.operands import Operands, Quantized, make_operands
from fp4tune.kernels.problem import Format, OutDtype, Routing, parse_shape

CPU = detect("cpu")
SHAPES = ("200x328x208", "17x72x80", "e8k2:100x200x80", "e4of16k2:64x72x80")


def problem(shape, **fields):
    return make_operands(parse_shape(shape, **fields), CPU, 0)


def right(o: Operands, dtype=torch.float64) -> torch.Tensor:
    """The result, rounded once to the output's dtype."""
    return oracle.reference(o, dtype=dtype).to(o.out.dtype)


def by_definition(o: Operands) -> torch.Tensor:
    """D row by row in float64 from dequantised operands: another way to the reference."""

    def values(x):
        return nvfp4.dequantize(x).double() if isinstance(x, Quantized) else x.double()

    a, b = values(o.a), values(o.b)
    if o.offsets is None:
        return a @ b.T
    expert_of_row = torch.repeat_interleave(torch.arange(o.problem.experts), o.offsets.diff())
    return torch.stack([b[e] @ row for e, row in zip(expert_of_row, a, strict=True)])


@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize("shape", SHAPES)
def test_reference_is_the_product_of_the_dequantised_operands(shape, format_):
    o = problem(shape, format=format_)
    exact = by_definition(o)
    torch.testing.assert_close(oracle.reference(o, dtype=torch.float64), exact, rtol=1e-6, atol=1e-5)
    error = (oracle.reference(o).double() - exact).norm() / exact.norm()
    assert error < 1e-6


@pytest.mark.parametrize("shape", ["300x520x96", "e4k2:300x264x96"])
def test_reference_does_not_depend_on_the_chunks(monkeypatch, shape):
    o = problem(shape)
    whole = oracle.reference(o)
    right_out = right(o)
    monkeypatch.setattr(oracle, "_CHUNK_BYTES", 128 * 96 * 4)  # one tile of B, one of A
    assert len(list(oracle._chunks(o, torch.float32))) > 5
    torch.testing.assert_close(oracle.reference(o), whole, rtol=1e-5, atol=1e-4)
    assert oracle.compare(right_out, o).ok
    right_out[-1, -1] = 77.0
    assert not oracle.compare(right_out, o).ok


@pytest.mark.parametrize("out_dtype", OutDtype)
@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize("shape", [*SHAPES, "1x1x16", "1x129x4096", "3x5x16"])
def test_a_rounded_result_passes(shape, format_, out_dtype):
    o = problem(shape, format=format_, out_dtype=out_dtype)
    verdict = oracle.compare(right(o), o)
    assert verdict.ok, verdict.sentence
    assert verdict.sentence == ""
    assert verdict.bound == oracle.BOUNDS[o.out.dtype]
    assert oracle.compare(right(o), o, oracle.reference(o)).ok


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shape", ["1x1x16", "1x3x32", "2x129x16", "e8k2:3x1x16", "40x40x16"])
def test_two_roundings_pass_even_on_a_handful_of_elements(shape, seed):
    o = make_operands(parse_shape(shape), CPU, seed)
    alpha = o.alpha if o.offsets is None else torch.repeat_interleave(o.alpha, o.offsets.diff()).unsqueeze(1)
    unscaled = (oracle.reference(o, dtype=torch.float64) / alpha).bfloat16()
    verdict = oracle.compare((unscaled.float() * alpha).bfloat16(), o)
    assert verdict.ok, verdict.sentence


def test_truncating_accumulation_passes_for_float32():
    o = problem("64x128x4096", out_dtype=OutDtype.FP32)
    a, b = nvfp4.decode(o.a.packed, o.a.scale), nvfp4.decode(o.b.packed, o.b.scale)
    total = torch.zeros(64, 128)
    for k in range(0, 4096, 32):
        total += a[:, k : k + 32] @ b[:, k : k + 32].T
        total = (total.view(torch.int32) & ~1).view(torch.float32)  # drop the last bit towards zero
    verdict = oracle.compare(total * o.alpha, o)
    assert verdict.ok, verdict.sentence


# --- planted faults ----------------------------------------------------------------------------------------------


def zeroed_tile_column(o, out):
    out[:, 0:64] = 0
    return "columns 0:"


def one_wrong_row(o, out):
    out[3] = out[3].flip(0)
    return "differ from the reference"


def rows_of_another_expert_or_matrix(o, out):
    out[:] = out.roll(1, dims=0)
    return "tiles are wrong"


def one_wrong_element(o, out):
    row, col = divmod(int(out.abs().argmax()), out.shape[1])
    out[row, col] = 0
    return "1 of "


def unwritten_element(o, out):
    poisoned = torch.empty_like(out)
    oracle.poison(poisoned)
    out[2, 5] = poisoned[2, 5]
    return f"1 of {out.numel()} elements were not written (or only added to), first row 2, column 5"


def unwritten_columns(o, out):
    poisoned = torch.empty_like(out)
    oracle.poison(poisoned)
    out[:, -7:] = poisoned[:, -7:]
    return f"{7 * out.shape[0]} of {out.numel()} elements were not written (or only added to), first row 0, column {out.shape[1] - 7}"


def one_nan(o, out):
    out[1, 4] = math.nan
    return f"1 of {out.numel()} elements are NaN or infinite, first row 1, column 4"


def an_overflow(o, out):
    out[1, 4] = -math.inf
    return "elements are NaN or infinite, first row 1, column 4"


def swapped_nibbles(o, out):
    swapped = (o.b.packed << 4) | (o.b.packed >> 4)
    b = Quantized(swapped, o.b.scale, o.b.scale_128x4, o.b.global_scale)
    out[:] = right(Operands(o.problem, o.a, b, o.offsets, o.alpha, o.out, o.seed))
    return "differ from the reference by 1."


def ignored_alpha(o, out):
    ones = torch.ones_like(o.alpha)
    out[:] = right(Operands(o.problem, o.a, o.b, o.offsets, ones, o.out, o.seed))
    return "tiles are wrong" if bool(torch.isfinite(out).all()) else "elements are NaN or infinite"  # in float16


def shifted_scales(o, out):
    scale = o.b.scale.view(torch.uint8).roll(1, dims=-1).view(torch.float8_e4m3fn)
    b = Quantized(o.b.packed, scale, o.b.scale_128x4, o.b.global_scale)
    out[:] = right(Operands(o.problem, o.a, b, o.offsets, o.alpha, o.out, o.seed))
    return "differ from the reference"


def added_to_what_was_there(o, out):
    poisoned = torch.empty_like(out)
    oracle.poison(poisoned)
    out += poisoned
    return f"of {out.numel()} elements were not written (or only added to)"


FAULTS = [
    zeroed_tile_column, one_wrong_row, rows_of_another_expert_or_matrix, one_wrong_element, unwritten_element,
    unwritten_columns, one_nan, an_overflow, swapped_nibbles, ignored_alpha, shifted_scales, added_to_what_was_there,
]  # fmt: skip


@pytest.mark.parametrize("out_dtype", OutDtype)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_a_planted_fault_is_caught_and_named(fault, shape, out_dtype):
    o = problem(shape, out_dtype=out_dtype)
    out = right(o)
    words = fault(o, out)
    for expected in (None, oracle.reference(o)):
        verdict = oracle.compare(out, o, expected)
        assert not verdict.ok
        assert words in verdict.sentence
        assert verdict.sentence.endswith(".")
        assert verdict.rel_error > 0


def test_the_sentence_says_which_tile_of_which_expert():
    o = problem("e6k2:300x200x80", routing=Routing.ONE_HOT)
    out = right(o)
    out[300 + 64 : 300 + 128] = 0  # rows 64 to 127 of the second expert
    sentence = oracle.compare(out, o).sentence
    assert sentence.startswith("Rows 300:428, columns ")
    assert "(expert 1) differ from the reference by" in sentence
    assert sentence.endswith("5.0e-03 is allowed; 2 of 12 tiles are wrong.")


def test_a_result_that_is_off_by_a_factor_is_recognised():
    o = problem("200x328x208")
    assert "It is 3 times the reference everywhere" in oracle.compare(3 * right(o), o).sentence
    out = right(o)
    out[0] *= 3
    assert "times the reference" not in oracle.compare(out, o).sentence


def test_one_small_tile_does_not_drown():
    o = problem("8x8192x64")
    out = right(o)
    out[:, 8064:8192] *= 1.02
    verdict = oracle.compare(out, o)
    assert verdict.rel_error < verdict.bound, "the whole looks right"
    assert not verdict.ok
    assert "columns 8064:8192" in verdict.sentence


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_poison_is_nan_and_a_number_in_every_row_and_column(dtype):
    out = torch.zeros(5, 7, dtype=dtype)
    oracle.poison(out)
    nan = torch.isnan(out)
    assert all(0 < int(line.sum()) < line.numel() for line in (*nan, *nan.T))
    assert out[~nan].unique().numel() == 1
    assert out[~nan].float().min() > 6e4
    assert bool(torch.isfinite(out[~nan]).all())


def test_poison_of_a_single_element_is_seen():
    o = problem("1x1x16")
    oracle.poison(o.out)
    assert oracle.compare(o.out, o).n_unwritten == 1


def test_nothing_to_compare_is_right():
    o = next(o for o in (make_operands(parse_shape("e1of64k1:1x72x80"), CPU, s) for s in range(9)) if not len(o.out))
    assert oracle.reference(o).shape == (0, 72)
    assert oracle.compare(o.out, o).ok


def test_a_matrix_of_zeros_is_compared():
    o = problem("4x32x32", format=Format.BF16)
    o.a.zero_()
    assert oracle.compare(torch.zeros(4, 32, dtype=torch.bfloat16), o).ok
    verdict = oracle.compare(torch.full((4, 32), 1e-3, dtype=torch.bfloat16), o)
    assert not verdict.ok
    assert verdict.rel_error == math.inf
