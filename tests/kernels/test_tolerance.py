"""What is accepted in one pass is what the oracle accepts, and costs the same however many experts there are."""

from __future__ import annotations

import math

import pytest
import torch
from fp4tune.kernels import oracle, tolerance
from fp4tune.kernels.device import detect
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import Format, OutDtype, Routing, parse_shape
from fp4tune.kernels.tolerance import Tolerance
from torch.utils._python_dispatch import TorchDispatchMode

CPU = detect("cpu")
SHAPES = ("200x328x208", "17x72x80", "1x1x16", "e8k2:100x200x80", "e4of16k2:64x72x80", "e6k2:300x200x80")


def both(shape, **fields):
    o = make_operands(parse_shape(shape, **fields), CPU, 0)
    expected = oracle.reference(o)
    return o, expected, Tolerance(o, expected)


@pytest.mark.parametrize("out_dtype", OutDtype)
@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_rounded_result_is_accepted_with_the_oracles_error(shape, format_, out_dtype):
    o, expected, tolerance = both(shape, format=format_, out_dtype=out_dtype)
    out = expected.to(o.out.dtype)
    before = out.clone()
    assert tolerance.accepts(out) == pytest.approx(oracle.compare(out, o, expected).rel_error, rel=1e-4, abs=1e-12)
    assert torch.equal(out, before), "it only looks"


def everywhere(o, noise):
    return noise


def last_tile(o, noise):
    """The last columns of the last rows: of the last expert that has any, however few it has."""
    kept = torch.zeros_like(noise)
    rows = o.out.shape[0]
    first = 0 if o.offsets is None else int(o.offsets[:-1][o.offsets.diff() > 0][-1])
    row = first + (rows - 1 - first) // 128 * 128
    col = (o.out.shape[1] - 1) // 128 * 128
    kept[row:, col:] = noise[row:, col:]
    return kept


def smallest_element(o, noise):
    """One element whose own size allows nothing."""
    kept = torch.zeros_like(noise)
    at = int(oracle.reference(o).abs().argmin())
    kept.view(-1)[at] = 1.0
    return kept


@pytest.mark.parametrize("chunk", [1 << 23, 1])
@pytest.mark.parametrize("where", [everywhere, last_tile, smallest_element])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_draws_the_line_a_hair_inside_of_the_oracles(shape, where, chunk, monkeypatch):
    monkeypatch.setattr(tolerance, "_CHUNK", chunk)  # all at once, or a tile's width at a time
    o, expected, tolerant = both(shape, out_dtype=OutDtype.FP32)
    noise = where(o, torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)))
    low, high = 0.0, float(expected.norm())
    for _ in range(50):  # the largest amplitude that the oracle accepts
        middle = (low + high) / 2
        low, high = (middle, high) if oracle.compare(expected + middle * noise, o, expected).ok else (low, middle)
    assert low > 0
    assert tolerant.accepts(expected + 0.998 * low * noise) is not None
    assert tolerant.accepts(expected + 1.0002 * high * noise) is None


@pytest.mark.parametrize("out_dtype", OutDtype)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("value", ["nan", "number", "inf", "-inf"])
def test_what_was_not_written_or_is_not_finite_is_not_accepted(shape, value, out_dtype):
    o, expected, tolerance = both(shape, out_dtype=out_dtype)
    poisoned = torch.empty_like(o.out)
    oracle.poison(poisoned)
    is_nan = poisoned.isnan()
    for at in {0, o.out.numel() // 2, o.out.numel() - 1}:
        out = expected.to(o.out.dtype, copy=True)
        flat = out.view(-1)
        if value in ("nan", "number"):
            same = (is_nan == (value == "nan")).view(-1)
            found = [i for i in (at, at - 1, at + 1) if 0 <= i < flat.numel() and bool(same[i])]
            if not found:
                continue
            flat[found[0]] = poisoned.view(-1)[found[0]]
        else:
            flat[at] = float(value)
        assert tolerance.accepts(out) is None


def test_experts_are_judged_each_by_its_own_size():
    """One percent of a weak expert's rows drowns in a tile that it shares with strong ones."""
    o, expected, tolerance = both("e6k2:300x200x80", routing=Routing.ONE_HOT)
    out = expected.to(o.out.dtype)
    assert tolerance.accepts(out) is not None
    out[300:] *= 1.01
    assert tolerance.accepts(out) is None
    assert not oracle.compare(out, o, expected).ok


def test_nothing_and_zeros():
    empty = next(
        o for o in (make_operands(parse_shape("e1of64k1:1x72x80"), CPU, s) for s in range(9)) if not len(o.out)
    )
    assert Tolerance(empty, oracle.reference(empty)).accepts(empty.out) == 0.0
    o = make_operands(parse_shape("4x32x32", format=Format.BF16), CPU, 0)
    o.a.zero_()
    tolerance = Tolerance(o, oracle.reference(o))
    assert tolerance.accepts(torch.zeros(4, 32, dtype=torch.bfloat16)) == 0.0
    assert tolerance.accepts(torch.full((4, 32), 1e-3, dtype=torch.bfloat16)) is None


def test_a_reference_beyond_float32_accepts_nothing():
    o, expected, _ = both("4x32x32")
    expected[0, 0] = math.inf
    assert Tolerance(o, expected).accepts(expected.bfloat16()) is None


class Count(TorchDispatchMode):
    """Counts what torch is asked to do; on a GPU each is a launch or a wait."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += 1
        return func(*args, **(kwargs or {}))


def test_a_comparison_costs_no_more_for_more_experts():
    operations = set()
    for shape in ("e4k2:8x136x64", "e64k8:40x136x64", "e256k4:300x136x64"):
        o, expected, tolerance = both(shape)
        out = expected.to(o.out.dtype)
        with Count() as count:
            tolerance.accepts(out)
        operations.add(count.n)
    assert len(operations) == 1
    assert operations.pop() < 60
