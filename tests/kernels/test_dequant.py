"""What the conformance suite does not see of the two dequantising backends: their decoders, threads and spaces."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from conformance import sample
from fp4tune.kernels import nvfp4, oracle
from fp4tune.kernels._torch_cuda import can_run
from fp4tune.kernels.block_decoders import PlanarCopy, make_decoder
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.dequant_space import MAX_BLOCKS
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.operands import Operands, Quantized, make_operands
from fp4tune.kernels.problem import Format, OutDtype, Routing, parse_shape
from fp4tune.kernels.torch_dequant import TorchDequant

CPU = detect("cpu")
H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 50 << 20, 700.0)
SOME = ("17x200x208", "200x72x80", "e8k2:17x72x80", "e4of16k2:64x200x64", "e6k2:300x72x80", "e1of64k1:1x72x80")


def every_code_under_every_scale() -> Quantized:
    """127 matrices rows... of one stack [2, 127, 96]: all 16 codes in all places, under all finite scales."""
    codes = torch.arange(96, dtype=torch.uint8).remainder(16)
    packed = torch.stack([nvfp4.pack(codes.roll(i)) for i in range(127)])
    scale = torch.arange(127, dtype=torch.uint8).view(127, 1).repeat(1, 6)
    scale[:, ::2] = scale[:, ::2].flip(0)
    packed, scale = torch.stack((packed, packed.flip(0))), torch.stack((scale, scale.roll(5, 0)))
    scale = scale.view(torch.float8_e4m3fn)
    return Quantized(packed, scale, nvfp4.swizzle_128x4(scale), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decode", ["lookup", "arithmetic"])
def test_decoders_are_exact_for_every_code_and_scale(decode, dtype):
    q = every_code_under_every_scale()
    decoder = make_decoder(q, decode, 2, 64, dtype, (0, 1))
    exact = nvfp4.decode(q.packed, q.scale, torch.float64)
    for experts, n0, n1 in (((0,), 0, 64), ((1,), 64, 127), ((0, 1), 100, 127)):
        run, weights = decoder.bind(experts, n0, n1)
        run()
        assert weights.dtype is dtype
        found = torch.empty_like(exact[list(experts), n0:n1])
        for i in range(len(experts)):
            natural = weights[i].double()
            if not decoder.order.natural:
                halves = natural.view(n1 - n0, 2, 3, 16)
                natural = halves.transpose(1, 2).reshape(n1 - n0, 96)
            found[i] = natural / decoder.factor
        assert torch.equal(found, exact[list(experts), n0:n1])


def test_experts_that_are_no_neighbours_are_gathered():
    b = make_operands(parse_shape("e8k2:17x40x80"), CPU, 0).b
    for name in ("lookup", "arithmetic"):
        decode, weights = make_decoder(b, name, 3, 32, torch.float32, (1, 4, 7)).bind((1, 4, 7), 8, 40)
        decode()
        alone = make_decoder(b, name, 1, 32, torch.float32, (1, 4, 7))
        for i, expert in enumerate((1, 4, 7)):
            decode_one, one = alone.bind((expert,), 8, 40)
            decode_one()
            assert torch.equal(weights[i], one[0])
    plain = make_operands(parse_shape("e8k2:17x40x80", format=Format.BF16), CPU, 0).b
    for dtype in (torch.bfloat16, torch.float32):
        decode, weights = make_decoder(plain, "", 3, 32, dtype, (1, 4, 7)).bind((1, 4, 7), 8, 40)
        decode()
        assert torch.equal(weights, plain[[1, 4, 7], 8:40].to(dtype))


@pytest.mark.parametrize("k", [16, 32, 80, 96])
def test_repacking_keeps_every_value_and_pads_with_zero(k):
    q = nvfp4.quantize(torch.randn(2, 5, k, generator=torch.Generator().manual_seed(0)))
    copy = PlanarCopy(q.packed, q.scale)
    copy.add((1,))
    copy.add((0, 1))
    packed, scale = copy.packed, copy.scale
    pairs = -(-k // 32)
    assert packed.shape == (2, 5, 16 * pairs)
    assert scale.shape == (2, 5, 2 * pairs)
    low, high = packed & 15, packed >> 4
    groups = torch.stack((low.view(2, 5, pairs, 16), high.view(2, 5, pairs, 16)), dim=3).view(2, 5, -1)
    assert torch.equal(groups[..., :k], nvfp4.unpack(q.packed))
    assert not groups[..., k:].any()
    of_group = scale.view(torch.uint8).view(2, 5, 2, pairs).transpose(2, 3).reshape(2, 5, -1)
    assert torch.equal(of_group[..., : k // 16], q.scale.view(torch.uint8))
    assert not of_group[..., k // 16 :].any()


@pytest.mark.parametrize("shape", ["17x200x208", "e8k2:17x72x80"])
def test_weights_are_repacked_once_for_all_configs_and_all_sets_that_share_them(shape):
    p = parse_shape(shape)
    o = make_operands(p, CPU, 0)
    backend = TorchDequant()
    config = backend.default(p, H200) | {"decode": "arithmetic"}
    backend.prepare(p, o, config)
    (copy,) = o.packed.values()
    sets = [o]
    if o.offsets is not None:  # the rows go to other experts, whose weights are repacked when they are asked for
        sets.append(replace(o, offsets=make_operands(p, CPU, 1).offsets, out=o.out.clone()))
        assert not torch.equal(sets[0].offsets, sets[1].offsets)
    for one, swap in product(sets, (False, True)):
        run = backend.prepare(p, one, config | {"swap_ab": swap})
        oracle.poison(one.out)
        run()
        assert oracle.compare(one.out, one).ok
    assert list(o.packed.values()) == [copy]


@pytest.mark.parametrize("out_dtype", OutDtype)
@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize("shape", SOME)
def test_what_the_gpu_backend_computes_on_a_cpu(shape, format_, out_dtype):
    """The engine is the same on every device; only where a product is accumulated differs."""
    backend = TorchDequant()
    p = parse_shape(shape, format=format_, out_dtype=out_dtype, routing=_routing(shape))
    o = make_operands(p, CPU, 0)
    expected = oracle.reference(o)
    for config in sample(backend.space(p, H200), 6, 0):
        oracle.poison(o.out)
        backend.prepare(p, o, config)()
        verdict = oracle.compare(o.out, o, expected)
        assert verdict.ok, f"{config}: {verdict.sentence}"


def _routing(shape):
    return Routing.ONE_HOT if shape.startswith("e6") else Routing.UNIFORM


# --- cpu.dequant -------------------------------------------------------------------------------------------------


def prepared(threads, shape="17x200x208"):
    p = parse_shape(shape)
    o = make_operands(p, CPU, 0)
    return o, CpuDequant().prepare(p, o, CpuDequant().default(p, CPU) | {"threads": threads})


@pytest.mark.parametrize("ambient", [1, 3])
def test_the_thread_count_is_restored(ambient):
    torch.set_num_threads(ambient)
    _, run = prepared(2)
    assert torch.get_num_threads() == ambient
    run()
    assert torch.get_num_threads() == ambient


def test_the_thread_count_is_restored_after_an_error(monkeypatch):
    _, run = prepared(2)
    seen = []

    def fail(*args, **kwargs):
        seen.append(torch.get_num_threads())
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "mm", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        run()
    assert seen == [2]
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("shape", ["64x512x512", "e8k2:64x256x256"])
@pytest.mark.parametrize("decode", ["lookup", "arithmetic"])
def test_a_prepared_gemm_allocates_next_to_nothing(shape, decode):
    p = parse_shape(shape)
    o = make_operands(p, CPU, 0)
    run = CpuDequant().prepare(p, o, CpuDequant().default(p, CPU) | {"decode": decode, "threads": 1})
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    assert len(profile.key_averages()) > 3, "the profiler saw nothing"
    assert allocated < 64 << 10, "a decoded block alone takes 512 KiB"


def test_two_prepared_gemms_do_not_disturb_each_other():
    (o1, run1), (o2, run2) = prepared(1, "17x200x208"), prepared(1, "33x72x80")
    for run in (run1, run2, run1, run2):
        run()
    assert oracle.compare(o1.out, o1).ok
    assert oracle.compare(o2.out, o2).ok


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads": 0}, "needs threads, a whole number of at least 1, not 0"),
        ({"threads": True}, "not True"),
        ({"threads": "all"}, "not 'all'"),
        ({"block_n": 100}, r"takes block_n 32, 64, 128, 256 here, not 100"),
        ({"decode": "guess"}, "takes decode lookup, arithmetic here, not 'guess'"),
        ({"swap_ab": 1}, "takes swap_ab False, True here, not 1"),
        ({"experts_per_step": 1}, "takes decode, block_n, compute_dtype, swap_ab, threads here"),
    ],
)
def test_a_bad_config_is_refused_by_name(change, said):
    p = parse_shape("17x200x208")
    o = make_operands(p, CPU, 0)
    with pytest.raises(UnsupportedError, match=said):
        CpuDequant().prepare(p, o, CpuDequant().default(p, CPU) | change)


def test_bf16_products_are_only_offered_for_bf16_results():
    for out_dtype, expected in ((OutDtype.BF16, ("float32", "bfloat16")), (OutDtype.FP32, ("float32",))):
        space = CpuDequant().space(parse_shape("17x200x208", out_dtype=out_dtype), CPU)
        assert next(p.values for p in space.parameters if p.name == "compute_dtype") == expected


def test_operands_on_another_device_are_refused():
    p = parse_shape("17x200x208")
    o = make_operands(p, CPU, 0)
    elsewhere = Operands(p, o.a, o.b, None, o.alpha, o.out.to("meta"), 0)
    with pytest.raises(UnsupportedError, match="the operands are on meta"):
        CpuDequant().prepare(p, elsewhere, CpuDequant().default(p, CPU))


@pytest.mark.parametrize("backend", [CpuDequant(), TorchDequant()], ids=lambda b: b.name)
@pytest.mark.parametrize(
    "shape",
    ["1x16777216x16", "1x16x16777216", "16777216x16x16", "e65536k8:1x64x64", "e512k10:16x2048x4096", "1x248320x8192"],
)
def test_spaces_of_extreme_problems_are_small_and_legal(backend, shape):
    device = CPU if backend.name == "cpu.dequant" else H200
    p = parse_shape(shape)
    space = backend.space(p, device)
    assert 1 <= space.size <= 2000
    assert backend.default(p, device) in space
    blocks = next(q.values for q in space.parameters if q.name == "block_n")
    assert max(1, p.experts) * -(-p.n // blocks[0]) <= max(MAX_BLOCKS, p.experts, p.n // 4000 + 1)


@pytest.mark.parametrize(
    ("cores", "threads"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12))]
)
def test_thread_counts(cores, threads):
    device = Device("cpu", "CPU", "", cores, 8 << 30, 0, 0.0)
    space = CpuDequant().space(parse_shape("1x16x16"), device)
    assert next(p.values for p in space.parameters if p.name == "threads") == threads
    assert CpuDequant().default(parse_shape("1x16x16"), device)["threads"] == cores


# --- torch.dequant -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((12, 0), ["sm_80", "sm_90", "sm_100"], False),
        ((12, 0), ["sm_80", "sm_90", "compute_90"], True),
        ((12, 1), ["sm_120"], True),
        ((8, 0), ["sm_86", "compute_86"], False),
        ((9, 0), [], False),
        ((9, 0), ["gfx942", "sm_?"], False),
    ],
)
def test_which_builds_of_torch_run_where(capability, built_for, runs):
    assert can_run(capability, built_for) is runs


def test_an_old_gpu_is_told_why():
    v100 = Device("cuda", "Tesla V100", "7.0", 80, 32 << 30, 6 << 20, 300.0)
    assert TorchDequant().probe(v100).reason == (
        "It needs compute capability 8.0 (BF16 tensor cores), and Tesla V100 has 7.0."
    )
    with pytest.raises(UnsupportedError, match="needs compute capability 8.0"):
        TorchDequant().space(parse_shape("1x16x16"), v100)
    assert "AMD EPYC is a cpu device" in TorchDequant().probe(Device("cpu", "AMD EPYC", "", 2, 1, 0, 0.0)).reason


def test_activations_in_bf16_are_never_multiplied_in_float16():
    for format_, dtypes in ((Format.NVFP4, ("bfloat16", "float16")), (Format.NVFP4_W4A16, ("bfloat16",))):
        space = TorchDequant().space(parse_shape("16x256x256", format=format_), H200)
        assert next(p.values for p in space.parameters if p.name == "compute_dtype") == dtypes
