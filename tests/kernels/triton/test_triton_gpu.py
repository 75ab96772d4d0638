"""What only a GPU shows: a kernel that was compiled ahead runs, in a CUDA graph, too; split sums do not race.

`triton.native`'s body runs here with its products decoded explicitly, so that schedules, counters, TMA and tile tables
are tried on any card from SM90 on, with FP4 matrix units or without.
"""

from __future__ import annotations

import pytest
import torch
from fp4tune.kernels import oracle
from fp4tune.kernels.device import detect
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import parse_key
from fp4tune.kernels.triton_gemm.compiler import bind, compile_kernel, launcher
from fp4tune.kernels.triton_gemm.grouping import tile_table
from fp4tune.kernels.triton_gemm.native_plan import NativeConfig, build_of, call_of
from native_cases import BASE, CASES, case

pytestmark = pytest.mark.gpu
kernels = pytest.importorskip("triton_kernels")

REPLAYS = 200
MANY = "dense:64x1024x4096:uniform:nvfp4:bf16"
STRESS = {
    "split-K": {"block_m": 64, "schedule": "split_k", "parts": 8},
    "stream-K": {"block_m": 64, "schedule": "stream_k", "parts": 4},
}


@pytest.fixture(scope="module")
def capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability(0)


def graph_of(call) -> torch.cuda.CUDAGraph:
    """A captured graph of one call, warmed up on a side stream as capturing wants it."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def test_a_kernel_compiled_ahead_runs_eagerly_and_in_a_graph(capability):
    kernel = compile_kernel(
        kernels.scaled_copy,
        signature={"source": "*bf16", "out": "*bf16", "n": "i32", "factor": "fp32"},
        constexprs={"BLOCK": 256},
        divisible_by_16=("source", "out"),
        target=capability,
    )
    x = torch.randn(1000, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    launcher(kernel, (4, 1, 1))(x, y, 1000, 2.0)
    assert torch.equal(y, x * 2)
    graph = graph_of(bind(kernel, (4, 1, 1), (x, y, 1000, 3.0)))
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, (x.float() * 3).to(torch.bfloat16))


def emulated(key: str, config: dict, sms: int):
    """(operands, a call of triton.native's body, its counters) with products that any card has."""
    from fp4tune.kernels.triton_gemm.native_kernels import nvfp4_gemm

    problem, typed = parse_key(key), NativeConfig(**config)
    operands = make_operands(problem, detect("cuda:0"), 5)
    call, build = call_of(operands, typed, sms=sms), build_of(problem, typed, emulate=True)
    if call is None:
        return operands, None, None
    kernel = compile_kernel(
        nvfp4_gemm,
        signature=build.signature,
        constexprs=build.constexprs,
        divisible_by_16=build.aligned,
        target=torch.cuda.get_device_capability(0),
        num_warps=typed.num_warps,
        num_stages=typed.num_stages,
    )
    return operands, bind(kernel, call.grid, list(call.arguments.values())), call.arguments.get("counters")


@pytest.mark.parametrize("name", [*CASES, *STRESS])
def test_the_body_of_native_is_right_and_the_same_in_every_replay(capability, name):
    if capability < (9, 0):
        pytest.skip("E4M3 and TMA came with SM89 and SM90")
    if "128 rows" in name:
        pytest.skip("decoded in FP32 such a tile spills, and takes minutes to compile")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    key, config, sms = (MANY, {**BASE, **STRESS[name]}, sms) if name in STRESS else case(name)
    operands, call, counters = emulated(key, config, sms)
    if call is None:
        assert operands.out.shape[0] == 0
        return
    expected = oracle.reference(operands)
    graph = graph_of(call)
    first = None
    for replay in range(REPLAYS):
        oracle.poison(operands.out)
        graph.replay()
        torch.cuda.synchronize()
        if first is None:
            verdict = oracle.compare(operands.out, operands, expected)
            assert verdict.ok, verdict.sentence
            first = operands.out.clone()
        assert torch.equal(operands.out, first), f"replay {replay} differs"
    assert counters is None or not bool(counters.any())


def test_a_table_of_tiles_is_made_on_the_device_inside_a_graph():
    offsets = torch.tensor([0, 5, 5, 40], device="cuda")
    tile_table(offsets, 40, 16, "cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table = tile_table(offsets, 40, 16, "cuda")
    offsets.copy_(torch.tensor([0, 0, 33, 40]))
    graph.replay()
    torch.cuda.synchronize()
    assert table.count.item() == 4
    assert table.expert[:4].tolist() == [1, 1, 1, 2]
    assert table.rows[:4].tolist() == [16, 16, 1, 7]
