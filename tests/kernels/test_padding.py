"""Padding M: the result is that of the problem as it is, the copies are copies, and nothing else is touched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conformance import same_bytes, tensors
from fp4tune.kernels import nvfp4, oracle
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.padding import pad_values, padded
from fp4tune.kernels.problem import Format, OutDtype, parse_shape
from fp4tune.kernels.torch_dequant import TorchDequant
from torch.utils._python_dispatch import TorchDispatchMode

CPU = replace(detect("cpu"), sms=1)
# Odd M, a multiple of a tile, both sides of a block of 128 scale rows, a step over two blocks; K of 5 and of 13 groups.
CASES = (
    ("1x72x80", 16),
    ("3x40x208", 17),
    ("16x72x80", 32),
    ("17x72x208", 128),
    ("127x40x80", 128),
    ("128x40x80", 256),
    ("100x40x208", 300),
    ("129x72x64", 384),
)


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("1x64x64", (0, 16, 32, 64, 128)),
        ("16x64x64", (0, 32, 64, 128)),
        ("17x64x64", (0, 32, 64, 128)),
        ("100x64x64", (0, 112, 128)),
        ("128x64x64", (0,)),
        ("129x64x64", (0, 144, 160, 192, 256)),
        ("4096x64x64", (0,)),
        ("e8k2:3x64x64", (0,)),
    ],
)
def test_values_are_the_next_multiples_of_the_tiles(shape, values):
    assert pad_values(parse_shape(shape)) == values


def test_values_follow_the_tiles_and_only_nvfp4_is_padded():
    assert pad_values(parse_shape("5x64x64"), tiles=(8, 8, 256)) == (0, 8, 256)
    assert pad_values(parse_shape("5x64x64", format=Format.BF16)) == (0,)
    assert pad_values(parse_shape("5x64x64", format=Format.NVFP4_W4A16)) == (0,)


@pytest.mark.parametrize("out_dtype", [OutDtype.BF16, OutDtype.FP32])
@pytest.mark.parametrize(("shape", "pad_m"), CASES)
def test_a_padded_run_computes_the_problem(shape, pad_m, out_dtype):
    problem = parse_shape(shape, out_dtype=out_dtype)
    operands = make_operands(problem, CPU, 5)
    others = [(name, tensor.clone()) for name, tensor in tensors(operands) if name != "out"]
    wide = padded(operands, pad_m)
    assert wide.operands.problem == replace(problem, m=pad_m)
    assert tuple(wide.operands.out.shape) == (pad_m, problem.n)
    backend = CpuDequant()
    run = backend.prepare(wide.operands.problem, wide.operands, backend.default(wide.operands.problem, CPU))
    whole = wide.around(run)
    for _ in range(2):
        oracle.poison(operands.out)
        oracle.poison(wide.operands.out)
        whole()
        assert oracle.compare(operands.out, operands, oracle.reference(operands)).ok
        assert not wide.operands.out[problem.m :].any(), "rows that were added are zero"
    for name, before in others:
        assert same_bytes(dict(tensors(operands))[name], before), name


def test_another_backend_takes_padded_operands_too():
    operands = make_operands(parse_shape("5x72x80"), CPU, 1)
    wide = padded(operands, 64)
    backend, card = TorchDequant(), CARDS["h200"]  # which computes wherever its operands are
    for config in list(backend.space(wide.operands.problem, card))[::5]:
        oracle.poison(operands.out)
        wide.around(backend.prepare(wide.operands.problem, wide.operands, config))()
        assert oracle.compare(operands.out, operands, oracle.reference(operands)).ok


@pytest.mark.parametrize(("shape", "pad_m"), CASES)
def test_both_scale_layouts_are_those_of_the_padded_matrix(shape, pad_m):
    operands = make_operands(parse_shape(shape), CPU, 2)
    wide = padded(operands, pad_m).operands
    rows = operands.problem.m
    assert same_bytes(wide.a.packed[:rows], operands.a.packed)
    assert same_bytes(wide.a.scale[:rows], operands.a.scale)
    assert not wide.a.packed[rows:].any()
    assert not wide.a.scale.view(torch.uint8)[rows:].any()
    assert same_bytes(wide.a.scale_128x4, nvfp4.swizzle_128x4(wide.a.scale))
    assert wide.a.scale.is_contiguous()
    assert wide.a.packed.is_contiguous()


def test_swizzled_scales_are_shared_only_where_they_are_the_same_blocks():
    for shape, pad_m, shared in (("1x64x64", 128, True), ("127x64x64", 128, True), ("128x64x64", 256, False),
                                 ("129x64x64", 256, True), ("129x64x64", 384, False)):  # fmt: skip
        operands = make_operands(parse_shape(shape), CPU, 0)
        wide = padded(operands, pad_m).operands
        assert (wide.a.scale_128x4 is operands.a.scale_128x4) == shared, (shape, pad_m)


@pytest.mark.parametrize(("m", "pad_m"), [(17, 32), (128, 256)])
def test_new_activations_in_the_same_buffers_are_seen(m, pad_m):
    """As a CUDA graph that is replayed sees what the server has written since."""
    problem = parse_shape(f"{m}x72x80")
    operands, later = make_operands(problem, CPU, 1), make_operands(problem, CPU, 99)
    wide = padded(operands, pad_m)
    backend = CpuDequant()
    run = wide.around(backend.prepare(wide.operands.problem, wide.operands, backend.default(problem, CPU)))
    run()
    for target, source in ((operands.a.packed, later.a.packed), (operands.a.scale_128x4, later.a.scale_128x4),
                           (operands.a.scale.view(torch.uint8), later.a.scale.view(torch.uint8))):  # fmt: skip
        target.copy_(source)
    run()
    assert oracle.compare(operands.out, operands, oracle.reference(operands)).ok


def test_a_kernel_that_reads_the_swizzled_scales_alone_pays_for_no_others():
    """One copy in, if both numbers of rows fill the same blocks of 128; what the kernel does not read stays zero."""
    operands = make_operands(parse_shape("100x72x80"), CPU, 1)
    wide = padded(operands, 128, linear_scale=False)
    a = wide.operands.a
    assert torch.equal(a.packed[:100], operands.a.packed)
    assert a.scale_128x4 is operands.a.scale_128x4
    assert not a.scale.view(torch.uint8).any()
    wide.before()
    assert not a.scale.view(torch.uint8).any()


@pytest.mark.parametrize("pad_m", [128, 256])
def test_before_and_after_are_copies_and_nothing_else(pad_m):
    """No allocation, no conversion, no look at a value: what a CUDA graph can hold."""
    wide = padded(make_operands(parse_shape("100x72x80"), CPU, 1), pad_m)
    seen = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Recorder():
        wide.before()
        wide.after()
    assert set(seen) == {torch.ops.aten.copy_.default}
    assert len(seen) == (3 if pad_m == 128 else 4)


def test_nothing_is_padded_with_zero():
    operands = make_operands(parse_shape("5x72x80"), CPU, 0)
    same = padded(operands, 0)
    assert same.operands is operands

    def run():
        pass

    assert same.around(run) is run


@pytest.mark.parametrize(
    ("shape", "format_", "pad_m", "words"),
    [
        ("e8k2:17x72x80", Format.NVFP4, 32, "is not one"),
        ("16x72x80", Format.BF16, 32, "is not one"),
        ("16x72x80", Format.NVFP4_W4A16, 32, "is not one"),
        ("16x72x80", Format.NVFP4, 16, "pad_m must be 0 or more than M, and is 16 where M is 16"),
        ("16x72x80", Format.NVFP4, -1, "and is -1 where"),
    ],
)
def test_what_cannot_be_padded_is_refused(shape, format_, pad_m, words):
    operands = make_operands(parse_shape(shape, format=format_), CPU, 0)
    with pytest.raises(UnsupportedError, match=words):
        padded(operands, pad_m)
