from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from conformance import same_bytes, tensors
from fp4tune.kernels import nvfp4, operands
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.errors import OutOfMemoryError
from fp4tune.kernels.operands import (
    COLD_L2,
    MAX_SETS,
    Quantized,
    check_memory,
    make_operands,
    operand_sets,
    required_bytes,
    touched_bytes,
)
from fp4tune.kernels.oracle import reference
from fp4tune.kernels.problem import Format, OutDtype, Routing, parse_shape
from fp4tune.kernels.routing import draw_offsets

CPU = detect("cpu")
SHAPES = ("17x200x208", "e8k2:17x72x80", "e4of16k2:64x72x80", "e1of64k1:1x72x80")


def device_with(gib):
    return Device("cpu", "Small CPU", "", 2, int(gib * 2**30), 0, 0.0)


@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_dtypes_and_layouts(shape, format_):
    p = parse_shape(shape, format=format_, out_dtype=OutDtype.FP16)
    o = make_operands(p, CPU, 0)
    rows = p.m if o.offsets is None else int(o.offsets[-1])
    stack = (p.experts,) if p.experts else ()
    assert o.out.shape == (rows, p.n)
    assert o.out.dtype is torch.float16
    assert o.alpha.shape == (max(1, p.experts),)
    for x, shape_of, quantised in (
        (o.a, (rows, p.k), format_ is Format.NVFP4),
        (o.b, (*stack, p.n, p.k), format_ is not Format.BF16),
    ):
        if not quantised:
            assert x.shape == shape_of
            assert x.dtype is torch.bfloat16
            continue
        assert isinstance(x, Quantized)
        assert x.packed.shape == (*shape_of[:-1], p.k // 2)
        assert x.scale.shape == (*shape_of[:-1], p.k // 16)
        assert x.scale.dtype is torch.float8_e4m3fn
        linear = nvfp4.unswizzle_128x4(x.scale_128x4, shape_of[-2], p.k // 16)
        assert torch.equal(linear, x.scale.view(torch.uint8))
        assert bool(torch.isfinite(x.scale.float()).all())


def test_alpha_is_the_inverse_of_the_global_scales():
    o = make_operands(parse_shape("e8k2:17x72x80"), CPU, 0)
    torch.testing.assert_close(o.alpha, 1 / (o.a.global_scale * o.b.global_scale))
    assert o.alpha.unique().numel() == 8, "an expert's alpha could be mistaken for another's"
    o = make_operands(parse_shape("17x72x80", format=Format.NVFP4_W4A16), CPU, 0)
    torch.testing.assert_close(o.alpha, 1 / o.b.global_scale)
    assert make_operands(parse_shape("17x72x80", format=Format.BF16), CPU, 0).alpha.tolist() == [1.0]


def test_scales_differ_from_group_to_group():
    b = make_operands(parse_shape("17x200x208"), CPU, 0).b
    assert b.scale.view(torch.uint8).unique().numel() > 20
    values = nvfp4.dequantize(b)
    assert 0.5 < float(values.square().mean().sqrt()) < 4
    assert torch.bincount(nvfp4.unpack(b.packed).flatten().int(), minlength=16).min() > 0


@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_seed_decides_every_byte(shape, format_):
    p = parse_shape(shape, format=format_)
    one, two, other = (dict(tensors(make_operands(p, CPU, seed))) for seed in (3, 3, 4))
    assert all(same_bytes(one[name], two[name]) for name in one if name != "out")
    assert any(not same_bytes(one[name], other[name]) for name in one if name not in {"out", "a", "offsets"})


@pytest.mark.parametrize("format_", Format)
def test_large_operands_are_put_together_from_windows_that_differ(monkeypatch, format_):
    monkeypatch.setattr(operands, "_BANK", 1 << 13)  # as if 16 M elements were only 8 k
    o = make_operands(parse_shape("e40k4:50x32x64", format=format_), CPU, 0)
    b = o.b.packed if isinstance(o.b, Quantized) else o.b
    assert b.shape[0] == 40
    for i, j in itertools.combinations(range(40), 2):
        assert not same_bytes(b[i], b[j]), (i, j)
    a = o.a.packed if isinstance(o.a, Quantized) else o.a
    assert a.unique(dim=0).shape[0] > 64, "200 rows are one window again and again"
    dense = make_operands(parse_shape("3x300x64", format=format_), CPU, 0).b
    rows = dense.packed if isinstance(dense, Quantized) else dense
    assert not same_bytes(rows[:100], rows[100:200])


def test_what_is_needed_and_what_there_is_are_named_before_anything_is_allocated():
    p = parse_shape("16384x65536x65536")
    with pytest.raises(OutOfMemoryError) as caught:
        make_operands(p, device_with(8), 0)
    needed = required_bytes(p) / 2**30
    assert needed > 8
    assert str(caught.value) == (
        f"16384x65536x65536 (nvfp4) needs {needed:.1f} GiB, the device has 8.0 GiB (Small CPU)."
    )


def test_the_largest_problem_is_refused_and_a_small_one_is_not():
    with pytest.raises(OutOfMemoryError):
        check_memory(parse_shape(f"{1 << 24}x{1 << 24}x{1 << 24}"), CPU)
    check_memory(parse_shape("16x2560x4096"), device_with(1))
    check_memory(parse_shape("e512k10:16x256x4096"), device_with(2))


@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize("routing", Routing)
def test_required_bytes_covers_the_operands_and_grows(format_, routing):
    for shape in ("e64of512k10:256x512x512", "e512k10:64x128x512"):
        p = parse_shape(shape, format=format_, routing=routing)
        o = make_operands(p, CPU, 0)
        held = sum(t.numel() * t.element_size() for _, t in tensors(o))
        assert held < required_bytes(p)
        assert required_bytes(p) < required_bytes(parse_shape(shape.replace("x512", "x1024"), format=format_))


PEAK = """
import json, re, sys
import torch
torch.set_num_threads(1)
from fp4tune.kernels import nvfp4, oracle, dequant_gemm
from fp4tune.kernels.backend import get_backend
from fp4tune.kernels.device import detect
from fp4tune.kernels.operands import make_operands, required_bytes
from fp4tune.kernels.oracle import reference
from fp4tune.kernels.problem import Format, parse_shape
cpu, backend = detect("cpu"), get_backend("cpu.dequant")

def work(shape):
    problem = parse_shape(shape, format=Format(sys.argv[2]))
    operands = make_operands(problem, cpu, 0)
    expected = oracle.reference(operands)
    config = dict(backend.default(problem, cpu)) | {"threads": 1}
    for decode in {config.get("decode"), "arithmetic"} if "decode" in config else {None}:
        run = backend.prepare(problem, operands, config | ({"decode": decode} if decode else {}))
        run()
        assert oracle.compare(operands.out, operands, expected).ok
        del run
    return required_bytes(problem)

def peak():  # not ru_maxrss, which a child inherits from its parent
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10

work("16x16x16")
before = peak()
print(json.dumps({"needed": work(sys.argv[1]), "used": peak() - before}))
"""


@pytest.mark.parametrize(
    ("shape", "format_"),
    [("512x4096x4096", "nvfp4"), ("e128k8:64x512x1024", "nvfp4_w4a16")],
)
def test_the_estimate_is_above_what_is_really_used(shape, format_):
    done = subprocess.run([sys.executable, "-c", PEAK, shape, format_], check=True, capture_output=True, timeout=120)
    measured = json.loads(done.stdout)
    assert 64 << 20 < measured["used"] < measured["needed"] < 4 * measured["used"] + (256 << 20)


# --- operand sets ------------------------------------------------------------------------------------------------


def gpu(l2_bytes):
    """A device whose kind is cuda, for what does not depend on where the tensors are."""
    return Device("cuda", "GPU", "9.0", 132, 140 << 30, l2_bytes, 700.0)


@pytest.fixture
def memory(monkeypatch):
    """Sets how much device memory is free; plenty at first."""

    def set_free(n_bytes):
        monkeypatch.setattr(operands, "_free_bytes", lambda device: n_bytes)

    set_free(1 << 40)
    return set_free


def storage_of(o):
    return {name: t.untyped_storage().data_ptr() for name, t in tensors(o)}


@pytest.mark.parametrize("format_", Format)
def test_touched_bytes_are_those_of_the_operands_in_one_scale_layout(format_):
    p = parse_shape("17x200x208", format=format_)
    o = make_operands(p, CPU, 0)
    held = {name: t.numel() * t.element_size() for name, t in tensors(o)}
    ignored = {"alpha", "offsets", "a.scale_128x4", "b.scale_128x4", "a.global_scale", "b.global_scale"}
    assert touched_bytes(p, 0) == sum(v for name, v in held.items() if name not in ignored)


@pytest.mark.parametrize("routing", Routing)
def test_of_a_grouped_problem_only_experts_with_rows_are_touched(routing):
    p = parse_shape("e64of256k4:20x72x80", routing=routing)
    for seed in range(3):
        offsets = draw_offsets(p, seed)
        busy, rows = int((offsets.diff() > 0).sum()), int(offsets[-1])
        assert touched_bytes(p, seed) == rows * (80 * 9 // 16 + 72 * 2) + busy * 72 * 80 * 9 // 16
    empty = next(s for s in range(100) if not int(draw_offsets(parse_shape("e1of64k1:1x72x80"), s)[-1]))
    assert touched_bytes(parse_shape("e1of64k1:1x72x80"), empty) == 0


def test_bytes_of_the_largest_problems_can_be_told():
    p = parse_shape(f"e4096k64:{1 << 20}x{1 << 24}x{1 << 24}", routing=Routing.ONE_HOT)
    rows = (1 << 20) * 64
    assert touched_bytes(p, 0) == rows * ((1 << 24) * 9 // 16 + (2 << 24)) + 64 * (1 << 48) * 9 // 16


def test_on_a_cpu_there_is_one_set():
    o = make_operands(parse_shape("17x200x208"), CPU, 0)
    assert operand_sets(o, CPU) == [o]


@pytest.mark.parametrize("format_", Format)
def test_dense_sets_share_nothing_but_alpha_and_are_equal(memory, format_):
    p = parse_shape("17x200x208", format=format_)
    o = make_operands(p, CPU, 0)
    o.packed["layout"] = object()
    touched = touched_bytes(p, 0)
    sets = operand_sets(o, gpu(touched * 5 // COLD_L2))
    assert len(sets) == 1 + 5
    assert sets[0] is o
    assert [s.packed for s in sets[1:]] == [{}] * 5
    assert len({id(s.packed) for s in sets}) == 6
    shared = {name for name, _ in tensors(o) if len({storage_of(s)[name] for s in sets}) < 6}
    assert shared == {"alpha"}
    for s in sets[1:]:
        assert all(same_bytes(t, dict(tensors(s))[name]) for name, t in tensors(o) if name != "out")


@pytest.mark.parametrize("n_others", [1, 3, 7])
def test_between_two_runs_on_a_set_three_l2s_are_touched(memory, n_others):
    p = parse_shape("17x200x208")
    touched = touched_bytes(p, 0)
    l2 = touched * n_others // COLD_L2
    n = len(operand_sets(make_operands(p, CPU, 0), gpu(l2)))
    assert (n - 1) * touched >= COLD_L2 * l2 > (n - 2) * touched


@pytest.mark.parametrize("format_", Format)
def test_grouped_sets_share_b_and_touch_other_experts(memory, format_):
    p = parse_shape("e64k2:7x72x80", format=format_)
    o = make_operands(p, CPU, 0)
    busy = int((o.offsets.diff() > 0).sum())
    per_b = 64 // busy
    assert 3 <= per_b < 64
    sets = operand_sets(o, gpu(touched_bytes(p, 0) * (2 * per_b) // COLD_L2))
    assert len(sets) == 2 * per_b + 1
    for first in (0, per_b):
        group = sets[first : first + per_b]
        own = "a" if format_ is not Format.NVFP4 else "a.packed"
        assert len({storage_of(s)[own] for s in group}) == per_b, "each its own A"
        b = {storage for s in group for name, storage in storage_of(s).items() if name.startswith("b")}
        assert len(b) == len([name for name, _ in tensors(o) if name.startswith("b")])
        assert len({id(s.packed) for s in group}) == 1
        touched = [set((s.offsets.diff() > 0).nonzero().flatten().tolist()) for s in group]
        assert sum(len(t) for t in touched) == len(set().union(*touched)), "an expert is touched twice"
        for s in group:
            assert sorted(s.offsets.diff().tolist()) == sorted(o.offsets.diff().tolist())
            assert int(s.offsets[-1]) == o.out.shape[0]
    assert sets[0].packed is not sets[per_b].packed is not sets[2 * per_b].packed
    assert same_bytes(sets[0].offsets, sets[per_b].offsets)


def test_every_set_has_its_own_right_result(memory):
    p = parse_shape("e16k2:3x72x80")
    sets = operand_sets(make_operands(p, CPU, 0), gpu(touched_bytes(p, 0) * 4 // COLD_L2))
    results = [reference(s) for s in sets]
    for i, j in itertools.combinations(range(len(sets)), 2):
        equal_offsets = same_bytes(sets[i].offsets, sets[j].offsets)
        assert same_bytes(results[i], results[j]) == equal_offsets, (i, j)


def test_when_every_expert_has_rows_b_is_copied_each_time(memory):
    p = parse_shape("e4k4:8x72x80")
    sets = operand_sets(make_operands(p, CPU, 0), gpu(touched_bytes(p, 0) * 2 // COLD_L2))
    assert len({id(s.packed) for s in sets}) == len(sets) == 3
    assert len({s.b.packed.data_ptr() for s in sets}) == 3


def test_as_many_sets_as_half_of_the_free_memory_holds(memory):
    p = parse_shape("17x200x208")
    o = make_operands(p, CPU, 0)
    device = gpu(touched_bytes(p, 0) * 9 // COLD_L2)
    assert len(operand_sets(o, device)) == 10
    memory(0)
    assert operand_sets(o, device) == [o]
    sizes = []
    for kib in (256, 512, 1024):
        memory(kib << 10)
        sets = operand_sets(o, device)
        held = sum(t.numel() * t.element_size() for s in sets[1:] for name, t in tensors(s) if name != "alpha")
        assert held <= (kib << 10) / 2
        sizes.append(len(sets))
    assert 1 < sizes[0] < sizes[1] < sizes[2]
    assert [len(operand_sets(o, device, sharing=n)) for n in (1, 2, 4)] == sizes[::-1], "others take theirs"


def test_a_tiny_problem_does_not_need_thousands_of_sets_and_an_empty_one_needs_one(memory):
    o = make_operands(parse_shape("1x16x16"), CPU, 0)
    assert len(operand_sets(o, gpu(0))) == MAX_SETS
    p = parse_shape("e1of64k1:1x72x80")
    seed = next(s for s in range(100) if not int(draw_offsets(p, s)[-1]))
    assert len(operand_sets(make_operands(p, CPU, seed), gpu(60 << 20))) == 1


def test_a_layout_of_the_weights_is_made_once_for_all_sets_that_share_them(memory):
    p = parse_shape("e64k2:7x72x80")
    sets = operand_sets(make_operands(p, CPU, 0), gpu(touched_bytes(p, 0) // COLD_L2))
    sets[0].packed["mine"] = "layout"
    assert sets[1].packed["mine"] == "layout"
    assert replace(sets[1]).packed is sets[0].packed
