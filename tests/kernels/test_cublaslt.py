"""`cublaslt` without a card that has FP4: PyTorch's own checks of the call, its layouts, refusals, the conformance suite."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from conformance import check_identity, check_probe, check_results, check_space, problems
from fp4tune.kernels import cuda_stack
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.cublaslt import CublasLt, _operator, arguments_of
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.operands import Operands, Quantized, make_operands
from fp4tune.kernels.padding import padded
from fp4tune.kernels.problem import Format, OutDtype, parse_shape

BACKEND = CublasLt()
CPU = detect("cpu")
FP4_CARDS = [card for card in CARDS.values() if float(card.compute_capability) >= 10]
# Any M; K of 6 groups, which the 128x4 layout pads to 8; N of one and of more blocks.
FITTING = ("1x16x32", "17x80x96", "128x144x64", "200x272x1056")
REAL = ("1x2048x4096", "16x5120x6144", "512x6144x4096", "3x1024x4096")

needs_operator = pytest.mark.skipif(_operator() is None, reason="this PyTorch has no scaled_mm")


def on_meta(operands: Operands) -> Operands:
    """The same shapes, dtypes and strides, with no values: what PyTorch checks before a kernel is asked for."""

    def moved(x):
        return Quantized(*(t.to("meta") for t in (x.packed, x.scale, x.scale_128x4, x.global_scale)))

    return replace(
        operands, a=moved(operands.a), b=moved(operands.b), alpha=operands.alpha.to("meta"), out=operands.out.to("meta")
    )


def test_it_is_a_backend():
    check_identity("cublaslt", BACKEND, CARDS["rtx-pro-6000"])


def test_cards_with_and_without_fp4():
    for name, card in CARDS.items():
        check_probe(BACKEND, card)
        assert ("has no FP4 matrix units" in BACKEND.probe(card).reason) == (card not in FP4_CARDS), name
    assert "needs a CUDA device" in BACKEND.probe(CPU).reason


def test_a_probe_names_what_pytorch_lacks_and_imports_none(monkeypatch):
    torch_cuda = {"old": ("2.9.1+cu128", (12, 8)), "cpu": ("2.13.0+cpu", None), "before": ("2.11.0+cu126", (12, 6))}
    words = {
        "old": "needs PyTorch 2.10 or newer, and 2.9.1+cu128 is installed",
        "cpu": "PyTorch 2.13.0+cpu is built without CUDA",
        "before": "PyTorch built for CUDA 12.8 or newer, and PyTorch 2.11.0+cu126 is built for CUDA 12.6",
    }
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it raises
    for name, found in torch_cuda.items():
        monkeypatch.setattr(cuda_stack.here(), "torch", found)
        reason = BACKEND.probe(CARDS["rtx-pro-6000"]).reason
        assert words[name] in reason, reason
    monkeypatch.setattr(cuda_stack.here(), "torch", ("2.10.0+cu128", (12, 8)))
    assert "CUDA 12.9 or newer" in BACKEND.probe(CARDS["gb10"]).reason, "12.1 came with CUDA 12.9"


@pytest.mark.parametrize("device", [CPU, *CARDS.values(), Device("cuda", "Tesla V100", "7.0", 80, 1 << 34, 6 << 20, 300)],
                         ids=lambda d: d.name)  # fmt: skip
def test_space(device):
    for problem in [*problems(), *map(parse_shape, FITTING)]:
        check_space(BACKEND, problem, device)


def test_the_space_is_padding():
    card = CARDS["rtx-pro-6000"]
    assert list(BACKEND.space(parse_shape("1x2048x4096"), card)) == [{"pad_m": v} for v in (0, 16, 32, 64, 128)]
    assert BACKEND.default(parse_shape("1x2048x4096"), card) == {"pad_m": 0}
    assert BACKEND.seeds(parse_shape("1x2048x4096"), card) == [{"pad_m": 128}]
    assert list(BACKEND.space(parse_shape("512x2048x4096"), card)) == [{"pad_m": 0}]
    assert BACKEND.seeds(parse_shape("512x2048x4096"), card) == []


@pytest.mark.parametrize(
    ("shape", "format_", "words"),
    [
        ("16x64x80", Format.NVFP4, "K in multiples of 32"),
        ("16x72x64", Format.NVFP4, "N in multiples of 16"),
        ("e8k2:16x64x64", Format.NVFP4, "dense NVFP4 by NVFP4"),
        ("16x64x64", Format.BF16, "dense NVFP4 by NVFP4"),
        ("16x64x64", Format.NVFP4_W4A16, "dense NVFP4 by NVFP4"),
    ],
)
def test_what_it_does_not_multiply_is_refused(shape, format_, words):
    with pytest.raises(UnsupportedError, match=words):
        BACKEND.space(parse_shape(shape, format=format_), CARDS["rtx-5090"])


def test_nonsense_is_refused():
    operands = make_operands(parse_shape("16x64x64"), CPU, 0)
    for config in ({}, {"pad_m": 16}, {"pad_m": 8}, {"pad_m": False}, {"pad_m": 0, "split": 2}):
        with pytest.raises(UnsupportedError, match=r"\.$"):
            BACKEND.prepare(operands.problem, operands, config)
    with pytest.raises(UnsupportedError, match="the operands are on cpu"):
        BACKEND.prepare(operands.problem, operands, {"pad_m": 0})


@needs_operator
@pytest.mark.parametrize("out_dtype", OutDtype)
@pytest.mark.parametrize("shape", [*FITTING, *REAL])
def test_pytorch_accepts_the_call(shape, out_dtype):
    """Its meta function checks layouts, recipes, swizzles, dtypes and the number of scales as its CUDA function does."""
    problem = parse_shape(shape, out_dtype=out_dtype)
    operands = make_operands(replace(problem, n=min(problem.n, 272)), CPU, 0)
    for pad_m in (0, *(p for p in (128, 256) if p > problem.m)):
        wide = on_meta(padded(operands, pad_m).operands)
        out = torch.ops.aten._scaled_mm_v2.default(*arguments_of(wide))
        assert (out.shape, out.dtype) == (wide.out.shape, wide.out.dtype)


@needs_operator
def test_pytorch_refuses_what_we_refuse_and_a_wrong_call():
    """The check above can fail: by K, by N, and by any argument in another's place."""
    for shape, words in (("16x64x80", "divisible by 16"), ("16x72x64", "divisible by 16")):
        with pytest.raises(RuntimeError, match=words):
            torch.ops.aten._scaled_mm_v2.default(*arguments_of(on_meta(make_operands(parse_shape(shape), CPU, 0))))
    good = arguments_of(on_meta(make_operands(parse_shape("16x64x64"), CPU, 0)))
    linear = make_operands(parse_shape("16x64x64"), CPU, 0).a.scale.to("meta")
    for place, wrong in {1: good[1].t(), 2: [linear, good[2][1]], 3: [2], 4: [0, 0], 5: good[5][:1]}.items():
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            torch.ops.aten._scaled_mm_v2.default(*(wrong if i == place else x for i, x in enumerate(good)))


@needs_operator
def test_the_public_function_makes_the_same_call(monkeypatch):
    """What `scaled_mm` hands to the operator is, argument by argument, what we hand to it."""
    from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

    ours = arguments_of(on_meta(make_operands(parse_shape("17x80x96"), CPU, 3)))
    seen = []
    monkeypatch.setattr(torch, "_scaled_mm_v2", lambda *arguments: seen.append(arguments))
    recipe, swizzle = (
        [ScalingType.BlockWise1x16, ScalingType.TensorWise],
        [SwizzleType.SWIZZLE_32_4_4, SwizzleType.NO_SWIZZLE],
    )
    scaled_mm(
        ours[0], ours[1], ours[2], recipe, ours[5], recipe, swizzle, swizzle, output_dtype=torch.bfloat16
    )  # fmt: skip
    (theirs,) = seen
    assert [list(x) if isinstance(x, list | tuple) else x for x in theirs[3:5]] == [ours[3], ours[4]]
    assert (theirs[0], theirs[1], theirs[2], theirs[5]) == (ours[0], ours[1], ours[2], ours[5])
    assert theirs[8:10] == (None, torch.bfloat16)
    assert (list(theirs[10]), theirs[11]) == ([], False), "what we leave to the operator's defaults"


@needs_operator
def test_the_operator_writes_into_a_result_of_ours():
    """Called on the CPU, which gets as far as PyTorch's sentence that a CPU has no swizzled scales."""
    operands = make_operands(parse_shape("17x80x96"), CPU, 0)
    schema = _operator()._schema
    assert [a.name for a in schema.arguments if a.is_out] == ["out"]
    with pytest.raises(ValueError, match="does not support swizzle"):
        _operator()(*arguments_of(operands), out=operands.out)


def test_views_share_memory_and_alpha_is_passed_once():
    operands = make_operands(parse_shape("17x80x96"), CPU, 0)
    a, b, scales_a, _, _, scales_b, *_ = arguments_of(operands)
    for view, tensor in ((a, operands.a.packed), (b, operands.b.packed), (scales_a[0], operands.a.scale_128x4),
                         (scales_b[0], operands.b.scale_128x4)):  # fmt: skip
        assert view.data_ptr() == tensor.data_ptr()
    assert scales_a[1] is operands.alpha
    assert float(scales_b[1]) == 1


def test_codes_and_scales_are_laid_out_as_pytorch_lays_them_out():
    """PyTorch's own test helpers, which its tests on cards with FP4 use, give our bytes.

    In a process of its own, because importing them changes PyTorch's settings; they are only there beside `expecttest`,
    of which they need a class to inherit from.
    """
    code = textwrap.dedent("""
        import sys, types, unittest
        sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
        import torch
        from torch.testing._internal.common_quantized import _bfloat16_to_float4_e2m1fn_x2, to_blocked
        from fp4tune.kernels import nvfp4

        generator = torch.Generator().manual_seed(0)
        codes = torch.randint(0, 16, (17, 96), generator=generator, dtype=torch.uint8)
        values = torch.tensor(nvfp4.E2M1_VALUES)[codes.int()].to(torch.bfloat16)
        assert torch.equal(_bfloat16_to_float4_e2m1fn_x2(values).view(torch.uint8), nvfp4.pack(codes))
        for rows, k in ((17, 96), (128, 64), (200, 1056)):
            scale = torch.randint(0, 127, (rows, k // 16), generator=generator, dtype=torch.uint8)
            theirs = to_blocked(scale).flatten()
            assert torch.equal(theirs, nvfp4.swizzle_128x4(scale)), (rows, k)
        print("same bytes")
    """)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.stdout == "same bytes\n", done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("out_dtype", OutDtype)
@pytest.mark.parametrize("shape", FITTING)
def test_results_on_a_card_with_fp4(shape, out_dtype):
    """Every padding, straight and from a CUDA graph. The suite's own problems mostly have an N or K that is refused."""
    device = detect("cuda:0")
    availability = BACKEND.probe(device)
    if not availability.available:
        pytest.skip(availability.reason)
    problem = parse_shape(shape, out_dtype=out_dtype)
    assert check_results(BACKEND, problem, device, n_configs=5, replay=True) >= BACKEND.space(problem, device).size
