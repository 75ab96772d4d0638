"""The decoders' arithmetic, over every code and every scale, in their own PTX text interpreted on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from fp4tune.kernels.nvfp4 import E2M1_VALUES
from ptx_emulator import InexactError, Tensor, bits_of, emulated, halves, interpret, pair, values_of

pytest.importorskip("triton")

from fp4tune.kernels.triton_gemm import dequant_decode as decoders
from fp4tune.kernels.triton_gemm import dequant_tile

CODES = np.array([(-1.0 if code & 8 else 1.0) * float(E2M1_VALUES[code & 7]) for code in range(16)])
SCALES = np.arange(0x7F, dtype=np.uint8)  # all but NaN, and none has a sign
E4M3 = np.array([((s & 7) + 8 * (s > 7)) * 2.0 ** (max(s >> 3, 1) - 10) for s in SCALES.tolist()])
KINDS = ["f16", "bf16"]
FACTOR = {"f16": 2.0**7, "bf16": 2.0**119}

REGISTER_ORDER = (0, 2, 1, 3)
"""Which of four bytes comes out first, second, ... of a FRAGMENT decoder."""

# Sixteen words in which every nibble takes every code, and no two of a word are bound to be equal.
WORDS = np.array([[(code + 3 * i) % 16 | (5 * code + i) % 16 << 4 for i in range(4)] for code in range(16)], np.uint8)

expand_scale = emulated(decoders.expand_scale)


def expected(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Code times scale times 2^-7, with the sign of a zero."""
    return CODES[codes] * E4M3[scales] / decoders.SCALED_BY.value


def same(tensor: Tensor, values: np.ndarray) -> bool:
    return np.array_equal(tensor.bits, bits_of(values, tensor.kind))


def test_the_tables_are_those_of_the_formats():
    assert sorted(set(np.abs(CODES))) == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert (E4M3.max(), E4M3[1], E4M3[0x38]) == (448, 2.0**-9, 1)
    for low in (0, 4):
        for place in WORDS.T:
            assert {int(b) >> low & 15 for b in place} == set(range(16))


@pytest.mark.parametrize("kind", KINDS)
def test_scales_are_moved_and_multiplied_exactly(kind: str):
    assert same(expand_scale(Tensor(SCALES, "u8"), kind == "bf16"), E4M3 * FACTOR[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_fragments_come_out_times_their_scale_in_register_order(kind: str):
    scales = np.repeat(SCALES, 16 * 4).reshape(-1, 16, 4)
    codes = np.broadcast_to(WORDS, scales.shape)
    decode = emulated(decoders.decode)
    even, odd = decode(Tensor(codes, "u8"), expand_scale(Tensor(scales, "u8"), kind == "bf16"), kind == "bf16")
    assert even.kind == odd.kind == kind
    assert same(even, expected(codes & 15, scales)[..., REGISTER_ORDER])
    assert same(odd, expected(codes >> 4, scales)[..., REGISTER_ORDER])


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_come_out_in_place_each_element_times_its_own_scale(kind: str):
    """A compiler may give one thread elements of several groups."""
    scales = np.stack([np.roll(SCALES, 31 * i) for i in range(4)], -1)[:, None, :].repeat(16, 1)
    codes = np.broadcast_to(WORDS, scales.shape)
    factor = expand_scale(Tensor(scales, "u8"), kind == "bf16")
    words = np.ascontiguousarray(codes.reshape(-1, 4)).view(np.uint32)[:, 0]
    pairs = [pair(factor.bits[..., i], factor.bits[..., i + 1]).ravel() for i in (0, 2)]
    assembly = decoders.TILE_BF16 if kind == "bf16" else decoders.TILE_FP16
    out = interpret(assembly.value, [words, *pairs], 4)
    values = [np.stack([*halves(out[i]), *halves(out[i + 1])], -1).reshape(codes.shape) for i in (0, 2)]
    assert same(Tensor(values[0], kind), expected(codes & 15, scales))
    assert same(Tensor(values[1], kind), expected(codes >> 4, scales))


@pytest.mark.parametrize("kind", KINDS)
def test_the_tile_decoder_gives_every_group_its_scale(kind: str):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (32, 64), np.uint8)
    scales = rng.permuted(np.resize(SCALES, 32 * 8)).reshape(32, 8)
    decode = emulated(dequant_tile._decode)
    even, odd = decode(Tensor(codes, "u8"), Tensor(scales, "u8"), 32, 64, kind == "bf16")
    assert same(even, expected(codes & 15, scales.repeat(8, 1)))
    assert same(odd, expected(codes >> 4, scales.repeat(8, 1)))


def test_activations_that_are_not_decoded_keep_the_order_of_the_weights():
    numbers = np.arange(8, dtype=np.uint16)  # elements k = 0 to 7: four pairs
    pairs = [pair(numbers[2 * i : 2 * i + 1], numbers[2 * i + 1 : 2 * i + 2]) for i in range(4)]
    for assembly, order in ((decoders.FRAGMENT_PAIRS, REGISTER_ORDER), (decoders.TILE_PAIRS, (0, 1, 2, 3))):
        out = [int(half[0]) for register in interpret(assembly.value, pairs, 4) for half in halves(register)]
        assert out == [2 * byte for byte in order] + [2 * byte + 1 for byte in order]


def test_what_the_docstring_says_of_the_range():
    products = np.abs(np.outer(CODES, E4M3)) / 128
    assert products.max() == 21
    assert np.array_equal(products * 2**17, np.round(products * 2**17))
    assert values_of(np.array([1]), "f16")[0] == 2.0**-24 < 2.0**-17
    assert np.log2(E4M3.max() * FACTOR["bf16"]) < 127.81
    assert products[products > 0].min() >= 2.0**-126  # a normal BF16, where flushing subnormals to zero does no harm
    assert same(expand_scale(Tensor(np.array([0x7F], np.uint8), "u8"), False), np.array([480.0 * 128]))


def test_the_emulator_notices_what_is_wrong():
    one = np.array([0x3F8], np.uint16)
    with pytest.raises(InexactError):
        bits_of(np.array([1 + 2.0**-9]), "bf16")
    with pytest.raises(InexactError):
        bits_of(np.array([70000.0]), "f16")
    with pytest.raises(KeyError):
        interpret("xor.b32 $0, $1, $1;", [one], 1)
    with pytest.raises(AssertionError, match="v is not declared"):
        interpret("mov.b32 v, $1; mov.b32 $0, v;", [one], 1)
    a, b = np.array([0x33221100], np.uint32), np.array([0x77665544], np.uint32)
    assert [hex(x[0]) for x in interpret("prmt.b32 $0, $1, $2, 0x7050;", [a, b], 1)] == ["0x77005500"]
    masks = (np.array([m], np.uint32) for m in (0xF0, 0xCC, 0xAA))
    assert interpret("lop3.b32 $0, $1, $2, $3, 0xEA;", list(masks), 1)[0][0] == 0xEA


@pytest.mark.parametrize("wrong", [("w, 9", "w, 8"), ("0x0E000E00", "0x06000E00"), ("$5", "$6"), ("0x3120", "0x3210")])
def test_a_wrong_decoder_is_noticed(wrong: tuple[str, str]):
    """What the tests above rest on: a planted fault in the text changes what comes out."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 1 << 32, 64, np.uint32)
    scales = [np.full(64, 0x3C003C00, np.uint32), np.full(64, 0x40004000, np.uint32)]
    text = decoders.TILE_FP16.value
    assert wrong[0] in text
    right, planted = (interpret(t, [words, *scales], 4) for t in (text, text.replace(*wrong)))
    assert not all(np.array_equal(a, b) for a, b in zip(right, planted, strict=True))
