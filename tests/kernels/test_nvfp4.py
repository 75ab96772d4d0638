"""The format, against a second implementation that shares no code with it: NumPy, tables and searches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fp4tune.kernels import nvfp4
from fp4tune.kernels.errors import InvalidInputError
from hypothesis import given, settings
from hypothesis import strategies as st

shapes = st.tuples(st.integers(1, 150), st.integers(1, 11).map(lambda groups: 16 * groups))
seeds = st.integers(0, 2**31)
few = settings(max_examples=40, deadline=None)


def draw(shape, seed, spread=0.0, dtype=torch.float32):
    """Normal values whose groups of 16 differ in size by up to 2^(2·spread)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    factor = torch.empty(*shape[:-1], shape[-1] // 16).uniform_(-spread, spread, generator=generator).exp2()
    return (values * factor.repeat_interleave(16, dim=-1)).to(dtype)


# --- a second implementation -------------------------------------------------------------------------------------


def e4m3_table():
    """Value of each of the 127 finite non-negative E4M3 codes, from the definition of its fields."""
    table = []
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        table.append(mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.array(table)


E2M1_TABLE = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3_TABLE = e4m3_table()


def nearest(value, table):
    """Code of the nearest entry, ties to the even code: the definition, by looking at every entry."""
    distance = np.abs(table - value)
    candidates = np.flatnonzero(distance == distance.min())
    return int(next(c for c in candidates if c % 2 == 0) if len(candidates) > 1 else candidates[0])


def quantize_by_table(x):
    """(codes, scale codes, global scale) of a float32 matrix, one element at a time."""
    x = x.astype(np.float32)
    amax = np.abs(x).max()
    gs = np.float32(1) if amax == 0 else np.float32(2688) / amax
    codes = np.zeros(x.shape, np.uint8)
    scales = np.zeros((x.shape[0], x.shape[1] // 16), np.uint8)
    for row in range(x.shape[0]):
        for group in range(scales.shape[1]):
            block = x[row, 16 * group : 16 * group + 16]
            target = gs * (np.abs(block).max() * np.float32(1 / 6))
            scale = nearest(float(target), E4M3_TABLE)
            scales[row, group] = scale
            value = np.float32(E4M3_TABLE[scale])
            inverse = np.float32(1) / (value * (np.float32(1) / gs)) if value else np.float32(0)
            for i, element in enumerate(block):
                sign = 8 if np.signbit(element) else 0
                codes[row, 16 * group + i] = sign | nearest(abs(float(element * inverse)), E2M1_TABLE)
    return codes, scales, gs


@settings(max_examples=15, deadline=None)
@given(st.tuples(st.integers(1, 6), st.integers(1, 4).map(lambda g: 16 * g)), seeds, st.sampled_from([0.0, 3.0, 9.0]))
def test_quantize_agrees_with_the_definition(shape, seed, spread):
    x = draw(shape, seed, spread)
    q = nvfp4.quantize(x)
    codes, scales, gs = quantize_by_table(x.numpy())
    assert q.global_scale.tolist() == [float(gs)]
    np.testing.assert_array_equal(q.scale.view(torch.uint8).numpy(), scales)
    np.testing.assert_array_equal(nvfp4.unpack(q.packed).numpy(), codes)


def test_decode_agrees_with_the_definition():
    every_byte = torch.arange(256, dtype=torch.uint8).view(32, 8)
    scale = torch.arange(32, dtype=torch.uint8).mul(3).add(7).view(32, 1)
    decoded = nvfp4.decode(every_byte, scale.view(torch.float8_e4m3fn), torch.float64).numpy()
    for row in range(32):
        for byte in range(8):
            for half, nibble in enumerate((8 * row + byte & 0xF, 8 * row + byte >> 4)):
                value = E2M1_TABLE[nibble & 7] * (-1 if nibble & 8 else 1) * E4M3_TABLE[3 * row + 7]
                assert decoded[row, 2 * byte + half] == value


# --- E2M1 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4), (6, 6), (7, 6), (1e30, 6), (math.inf, 6)],
)
def test_ties_go_to_the_even_code_and_large_values_saturate(value, rounded):
    codes = nvfp4.round_e2m1(torch.tensor([value, -value]))
    assert [nvfp4.E2M1_VALUES[c] for c in codes] == [rounded, -rounded]
    above, below = (torch.nextafter(torch.tensor(value), torch.tensor(x)) for x in (math.inf, 0.0))
    for near in (above, below):
        near_code = int(nvfp4.round_e2m1(near.view(1)))
        assert near_code == nearest(min(float(near), 6.0), E2M1_TABLE)


def test_the_sign_of_zero_is_kept():
    assert nvfp4.round_e2m1(torch.tensor([0.0, -0.0, 0.1, -0.1])).tolist() == [0, 8, 0, 8]


# --- packing and layout ------------------------------------------------------------------------------------------


def test_the_low_nibble_is_the_even_k():
    assert nvfp4.pack(torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8)).tolist() == [[0x21, 0x43]]


@few
@given(shapes, seeds)
def test_unpack_undoes_pack(shape, seed):
    codes = torch.randint(0, 16, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(nvfp4.unpack(nvfp4.pack(codes)), codes)
    packed = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(nvfp4.pack(nvfp4.unpack(packed)), packed)


@few
@given(st.integers(1, 300), st.integers(1, 21))
def test_swizzle_is_the_formula_and_a_permutation_with_zero_padding(rows, cols):
    scale = torch.arange(1, rows * cols + 1) % 255 + 1  # no zero among them
    scale = scale.to(torch.uint8).view(rows, cols)
    swizzled = nvfp4.swizzle_128x4(scale)
    padded_cols = -(-cols // 4) * 4
    assert swizzled.numel() == nvfp4.swizzled_bytes(rows, cols) == -(-rows // 128) * 128 * padded_cols
    r, c = torch.arange(rows).view(-1, 1), torch.arange(cols).view(1, -1)
    offset = (r // 128) * (padded_cols // 4) * 512 + (c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4
    assert offset.unique().numel() == rows * cols
    assert torch.equal(swizzled[offset], scale)
    assert int((swizzled != 0).sum()) == rows * cols
    assert torch.equal(nvfp4.unswizzle_128x4(swizzled, rows, cols), scale)


def test_a_stack_is_laid_out_matrix_by_matrix():
    x = draw((3, 130, 80), 0, 2.0)
    q = nvfp4.quantize(x)
    for i in range(3):
        one = nvfp4.quantize(x[i])
        for name in ("packed", "scale", "scale_128x4"):
            assert torch.equal(getattr(q, name)[i].view(torch.uint8), getattr(one, name).view(torch.uint8)), name
        assert q.global_scale[i] == one.global_scale[0]
    assert torch.equal(nvfp4.unswizzle_128x4(q.scale_128x4, 130, 5), q.scale.view(torch.uint8))
    assert torch.equal(nvfp4.dequantize(q)[1], nvfp4.dequantize(nvfp4.quantize(x[1])))


def test_a_swizzled_tensor_of_the_wrong_size_is_refused():
    with pytest.raises(InvalidInputError, match=r"take 1024 bytes .* there are 512\."):
        nvfp4.unswizzle_128x4(torch.zeros(512, dtype=torch.uint8), 128, 5)


# --- error bounds ------------------------------------------------------------------------------------------------


def assert_within_bounds(x, q):
    """Each element is off by at most half the distance of its neighbours, or by what its block's scale lost.

    With s = scale / global_scale, codes are 0.5 apart below 2s, 1s apart below 4s and 2s apart below 6s. E4M3 keeps
    four significant bits, so 6s may fall below the block's maximum by 1/16 of it, or by half a subnormal step.
    """
    x, s = x.double(), q.scale.double().repeat_interleave(16, dim=-1) / q.global_scale.double()
    error = (nvfp4.dequantize(q).double() - x).abs()
    size = x.abs()
    half_step = torch.where(size <= 2 * s, 0.25 * s, torch.where(size <= 4 * s, 0.5 * s, s))
    amax = size.unflatten(-1, (-1, 16)).amax(-1).repeat_interleave(16, dim=-1)
    half_subnormal = 2.0**-10 / q.global_scale.double()
    lost = torch.maximum(amax / 16, 6 * half_subnormal)
    allowed = half_step + torch.where(size > 6 * s, lost, torch.zeros_like(lost))
    assert bool((error <= allowed * (1 + 1e-5) + 1e-37).all())
    # All of that in terms of the block's maximum: s is at most 17/16 of amax/6, or half a subnormal step above it.
    of_amax = torch.maximum(torch.maximum(amax * (17 / 96), amax / 6 + half_subnormal), lost)
    assert bool((error <= of_amax * (1 + 1e-5) + 1e-37).all())


@few
@given(shapes, seeds, st.sampled_from([0.0, 2.0, 6.0, 12.0]), st.integers(-60, 60))
def test_dequantised_values_are_within_bounds(shape, seed, spread, exponent):
    x = draw(shape, seed, spread) * 2.0**exponent
    assert_within_bounds(x, nvfp4.quantize(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs(dtype):
    x = draw((33, 64), 3, 2.0, dtype)
    assert_within_bounds(x, nvfp4.quantize(x))
    assert torch.equal(nvfp4.quantize(x).packed, nvfp4.quantize(x.float()).packed)


def test_the_largest_value_of_a_matrix_is_kept():
    x = draw((9, 64), 5)
    top = x.abs().argmax()
    assert nvfp4.dequantize(nvfp4.quantize(x)).view(-1)[top] == pytest.approx(float(x.view(-1)[top]), rel=1e-6)


def test_small_blocks_get_subnormal_scales_and_smaller_ones_vanish():
    x = torch.zeros(4, 16)
    x[0, 0] = 448 * 6  # global scale 1
    x[1, 3] = 6 * 3 * 2.0**-9  # three steps of the subnormals
    x[2, 5] = 6 * 2.0**-10 * 1.01  # just above the tie between nothing and one step
    x[3, 7] = 6 * 2.0**-10  # the tie, which goes to nothing
    q = nvfp4.quantize(x)
    assert q.global_scale.tolist() == [1.0]
    assert q.scale.float().view(-1).tolist() == [448.0, 3 * 2.0**-9, 2.0**-9, 0.0]
    assert nvfp4.dequantize(q)[1, 3] == x[1, 3]
    assert nvfp4.dequantize(q)[3].abs().max() == 0


def test_a_given_global_scale_saturates():
    x = draw((4, 32), 1)
    x[0, 0] = 100.0
    q = nvfp4.quantize(x, scale=torch.tensor([2688 / 10.0]))  # calibrated for values up to 10
    assert nvfp4.dequantize(q)[0, 0] == 10.0
    assert q.scale.float().max() == 448.0
    assert bool(torch.isfinite(nvfp4.dequantize(q)).all())


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e-30, 3e-27, 1.0, 1e30, 1e38])
def test_extreme_magnitudes_stay_finite(value):
    x = torch.zeros(3, 32)
    x[1, 4] = value
    q = nvfp4.quantize(x)
    assert bool(torch.isfinite(q.global_scale).all())
    assert bool((q.global_scale > 0).all())
    assert bool(torch.isfinite(nvfp4.dequantize(q)).all())
    if value >= 3e-27:
        assert nvfp4.dequantize(q)[1, 4] == pytest.approx(value, rel=1e-6)


def test_zeros_and_nothing():
    q = nvfp4.quantize(torch.zeros(2, 32))
    assert q.global_scale.tolist() == [1.0]
    assert nvfp4.dequantize(q).abs().max() == 0
    assert nvfp4.quantize(torch.empty(0, 32)).packed.shape == (0, 16)
    assert nvfp4.quantize(torch.empty(2, 0, 32)).scale_128x4.shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_every_code_times_every_scale_is_exact(dtype):
    """Why a backend may multiply in BF16: six significant bits fit into eight."""
    scales = torch.arange(127, dtype=torch.uint8).view(127, 1).view(torch.float8_e4m3fn)
    packed = nvfp4.pack(torch.arange(16, dtype=torch.uint8).repeat(127, 1))
    exact = torch.from_numpy(np.outer(E4M3_TABLE, np.array(nvfp4.E2M1_VALUES)))
    assert torch.equal(nvfp4.decode(packed, scales, dtype).double(), exact)


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(3, 32), (2, 3, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_infinity_are_refused(bad, shape, dtype):
    x = torch.ones(shape, dtype=dtype)
    x[..., 1, 5] = bad
    count = 1 if len(shape) == 2 else 2
    with pytest.raises(InvalidInputError, match=rf"{count} of {x.numel()} values are: the first is {bad}.*1, 5\]\."):
        nvfp4.quantize(x)


@pytest.mark.parametrize("shape", [(16,), (4, 8), (4, 24), (4, 0), (1, 2, 3, 16)])
def test_shapes_that_are_no_matrices_of_groups_are_refused(shape):
    with pytest.raises(InvalidInputError, match="multiple of 16"):
        nvfp4.quantize(torch.zeros(shape))


def test_other_dtypes_are_refused():
    with pytest.raises(InvalidInputError, match="not from torch.int32"):
        nvfp4.quantize(torch.zeros(2, 16, dtype=torch.int32))


@pytest.mark.parametrize("scale", [[0.0], [-1.0], [math.nan], [math.inf], [1.0, 2.0]])
def test_impossible_global_scales_are_refused(scale):
    with pytest.raises(InvalidInputError, match="global scale"):
        nvfp4.quantize(torch.ones(2, 16), scale=torch.tensor(scale))
