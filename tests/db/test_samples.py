"""Samples: packed, unpacked, thinned."""

from __future__ import annotations

import itertools
import re

import pytest
from fp4tune.db import samples
from fp4tune.kernels.errors import InvalidInputError
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=samples.MAX_SAMPLES))
def test_samples_come_back_in_order(values: list[float]):
    blob = samples.pack(values)
    assert len(blob) == 4 * len(values)
    assert samples.unpack(blob) == tuple(values)


@given(st.floats(1e-3, 1e9))
def test_a_sample_keeps_24_bits(value: float):
    assert samples.unpack(samples.pack([value]))[0] == pytest.approx(value, rel=2**-24, abs=0)


def test_the_blob_is_little_endian_whatever_the_machine():
    assert samples.pack([1.0, -2.0]) == bytes.fromhex("0000803f 000000c0")


@pytest.mark.parametrize("n", [257, 300, 511, 512, 100_000])
def test_of_many_samples_evenly_spaced_ones_are_kept(n: int):
    kept = samples.unpack(samples.pack([float(i) for i in range(n)]))
    assert len(kept) == 256
    assert kept[0] == 0
    gaps = {b - a for a, b in itertools.pairwise(kept)}
    assert gaps <= {n // 256, n // 256 + 1}
    assert n - kept[-1] <= n // 256 + 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.5e38])
def test_a_sample_that_float32_cannot_hold_is_refused(value: float):
    with pytest.raises(InvalidInputError, match=re.escape(f"one is {value}.")):
        samples.pack([1.0, value])


@pytest.mark.parametrize("blob", [b"x", b"12345"])
def test_half_a_sample_is_no_sample(blob: bytes):
    with pytest.raises(ValueError, match="multiple"):
        samples.unpack(blob)
