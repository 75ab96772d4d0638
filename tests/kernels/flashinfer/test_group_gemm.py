"""FlashInfer's grouped GEMM without a card: what it is called with, and where every row and scale goes."""

from __future__ import annotations

import importlib

import pytest
import torch
from fp4tune.kernels import nvfp4, oracle
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm.group_gemm import _GEMM, GroupGemm, call_of, laid_out, scale_start
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import OutDtype, Routing, parse_shape

CPU = detect("cpu")
SHAPES = [
    ("e8k2:17x72x128", Routing.UNIFORM),
    ("e6k2:300x72x128", Routing.ONE_HOT),
    ("e64k1:3x40x128", Routing.UNIFORM),
]


def made(shape, routing=Routing.UNIFORM):
    return make_operands(parse_shape(shape, routing=routing), CPU, 0)


@pytest.mark.parametrize(("shape", "routing"), SHAPES)
def test_every_row_and_scale_is_where_the_kernel_looks_for_it(shape, routing):
    o = made(shape, routing)
    laid = laid_out(o)
    indptr = laid.indptr.tolist()
    assert laid.indptr.dtype == torch.int32
    assert not any(start % 4 for start in indptr)
    ends = 0
    for expert, (first, last) in enumerate(zip(o.offsets.tolist(), o.offsets.tolist()[1:], strict=False)):
        start, count = indptr[expert], last - first
        assert torch.equal(laid.a[start : start + count], o.a.packed[first:last])
        assert not laid.a[start + count : indptr[expert + 1]].any(), "rows that were added are zero"
        at = scale_start(start, expert)
        assert at >= ends, "no two experts share scales"
        if count:
            ends = at + -(-count // 128) * 128
            block = laid.a_scale[at:ends].reshape(-1)
            linear = nvfp4.unswizzle_128x4(block, count, o.problem.k // 16)
            assert torch.equal(linear, o.a.scale[first:last].view(torch.uint8))
    assert ends <= laid.a_scale.shape[0]
    assert laid_out(o) is laid, "laid out once for all configs"


def test_the_public_function_gets_what_it_checks_and_the_rows_come_back(flashinfer, monkeypatch):
    o = made("e8k2:17x72x128")
    module = importlib.import_module(_GEMM)
    check = module._check_group_gemm_nvfp4_nt_groupwise_problem_size
    check = getattr(check, "__wrapped__", check)
    laid = laid_out(o)

    def stand_for(a, b, a_scale, b_scale, m_indptr, alpha, **words):
        assert check(a, b, a_scale, b_scale, m_indptr, alpha, **words)
        assert words["tile_n"] == 64
        words["out"][laid.rows] = oracle.reference(o).bfloat16()
        return words["out"]

    monkeypatch.setattr(module, "group_gemm_nvfp4_nt_groupwise", stand_for)
    config = GroupGemm().default_of(o.problem) | {"tile_n": 64}
    call = call_of(flashinfer, laid, o, config)
    oracle.poison(o.out)
    call()
    assert oracle.compare(o.out, o).ok


def test_twelve_configs_as_flashinfer_checks_them(flashinfer):
    problem = parse_shape("e8k2:17x72x128")
    space = GroupGemm().space_of(problem)
    assert len(list(space)) == 12
    import inspect

    (function,) = flashinfer.need(_GEMM, "group_gemm_nvfp4_nt_groupwise")
    found = {
        n: p.default for n, p in inspect.signature(function).parameters.items() if n in GroupGemm().default_of(problem)
    }
    assert found == GroupGemm().default_of(problem)


def test_what_it_cannot_multiply_is_refused(rtx_pro_6000):
    for shape, words, sentence in (
        ("16x72x128", {}, "is for grouped problems in nvfp4"),
        ("moe:e8k2:4x64x128", {}, "is for grouped problems in nvfp4"),
        ("e8k2:17x72x192", {}, "K to be a multiple of 128"),
        ("e8k2:17x70x128", {}, "N to be a multiple of 8"),
        ("e8k2:17x72x128", {"out_dtype": OutDtype.FP32}, "writes bf16 or fp16"),
    ):
        with pytest.raises(UnsupportedError, match=sentence):
            GroupGemm().space_of(parse_shape(shape, **words))
    assert not GroupGemm().probe(rtx_pro_6000).available


def test_a_card_of_another_generation_is_named():
    hopper = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 50 << 20, 700.0)
    assert "It is for compute capability 12.0 and 12.1" in GroupGemm().probe(hopper).reason
