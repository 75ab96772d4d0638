"""`torch.bf16`, as far as a CPU shows it: spaces, what is served, exact copies made once, every path's result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conformance import sample
from fp4tune.kernels import nvfp4, oracle
from fp4tune.kernels.backend import Baseline, can_serve
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.errors import OutOfMemoryError, UnsupportedError
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import Format, OutDtype, Routing, parse_shape
from fp4tune.kernels.torch_bf16 import TorchBf16

CPU = detect("cpu")
H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 50 << 20, 700.0)
RTX_PRO_6000 = Device("cuda", "NVIDIA RTX PRO 6000", "12.0", 188, 96 << 30, 128 << 20, 600.0)
SMALL = Device("cuda", "NVIDIA A10", "8.6", 72, 8 << 30, 6 << 20, 150.0)
BACKEND = TorchBf16()
ODD = (
    ("1x72x80", Routing.UNIFORM),
    ("17x200x208", Routing.UNIFORM),
    ("3x129x80", Routing.UNIFORM),
    ("e8k2:17x72x80", Routing.UNIFORM),
    ("e4of16k2:64x200x64", Routing.POWER_LAW),
    ("e6k2:300x72x80", Routing.ONE_HOT),
    ("e64k1:3x40x32", Routing.UNIFORM),
    ("e1of64k1:1x72x80", Routing.UNIFORM),
    ("e8k2:17x13x80", Routing.UNIFORM),
)


def values(space, name):
    return next(p.values for p in space.parameters if p.name == name)


@pytest.mark.parametrize("format_", Format)
def test_it_serves_bf16_and_is_a_baseline_elsewhere(format_):
    problem = parse_shape("16x256x256", format=format_)
    assert isinstance(BACKEND, Baseline)
    assert can_serve(BACKEND, problem) == (format_ is Format.BF16)
    assert can_serve(CpuDequant(), problem)


@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize(("shape", "routing"), ODD)
def test_every_config_is_right(shape, routing, format_):
    problem = parse_shape(shape, format=format_, routing=routing)
    operands = make_operands(problem, CPU, 3)
    expected = oracle.reference(operands)
    space = BACKEND.space(problem, H200)
    ran = 0
    for config in space:
        run = BACKEND.prepare(problem, operands, config)
        for _ in range(2):
            oracle.poison(operands.out)
            run()
            verdict = oracle.compare(operands.out, operands, expected)
            assert verdict.ok, f"{config}: {verdict.sentence}"
        ran += 1
    assert ran == 8 + ("grouped_mm" in values(space, "method") if problem.experts else 0)


def test_copies_are_exact_and_made_once_for_all_configs_and_all_sets_that_share_weights():
    problem = parse_shape("e8k2:17x72x80")
    first = make_operands(problem, CPU, 0)
    second = replace(first, a=make_operands(problem, CPU, 1).a, out=first.out.clone())
    for operands in (first, second):
        for config in sample(BACKEND.space(problem, H200), 4, 0):
            oracle.poison(operands.out)
            BACKEND.prepare(problem, operands, config)()
            assert oracle.compare(operands.out, operands).ok
    weights = first.packed["torch.bf16"]
    assert torch.equal(weights.double(), nvfp4.decode(first.b.packed, first.b.scale, torch.float64))
    assert len(first.packed) == 3, "the weights, and the activations of two sets"
    again = BACKEND.prepare(problem, first, BACKEND.default(problem, H200))
    again()
    assert first.packed["torch.bf16"] is weights


def test_bf16_operands_are_used_where_they_lie():
    problem = parse_shape("17x72x80", format=Format.BF16)
    operands = make_operands(problem, CPU, 0)
    BACKEND.prepare(problem, operands, BACKEND.default(problem, H200))()
    assert operands.packed == {}


def test_weights_are_decoded_in_pieces(monkeypatch):
    """Larger weights than a chunk holds: the pieces must meet."""
    import fp4tune.kernels.torch_bf16

    problem = parse_shape("e8k2:17x72x80")
    operands = make_operands(problem, CPU, 0)
    monkeypatch.setattr(fp4tune.kernels.torch_bf16, "_CHUNK", 7 * 80)
    BACKEND.prepare(problem, operands, BACKEND.default(problem, H200))()
    assert oracle.compare(operands.out, operands).ok


def test_where_torch_has_a_grouped_product():
    aligned, ragged = parse_shape("e8k2:16x72x80"), parse_shape("e8k2:16x70x80")
    assert values(BACKEND.space(aligned, H200), "method") == ("grouped_mm", "loop")
    assert values(BACKEND.space(aligned, RTX_PRO_6000), "method") == ("loop",)
    assert values(BACKEND.space(ragged, H200), "method") == ("loop",)
    assert values(BACKEND.space(parse_shape("e2048k8:16x64x64"), H200), "method") == ("loop",)
    configs = [c for c in BACKEND.space(aligned, H200) if c["method"] == "grouped_mm"]
    assert configs == [BACKEND.default(aligned, H200)]


def test_weights_that_do_not_fit_in_bf16_are_refused_with_the_figures():
    """397B's w13 at TP1: 2.4 GB in NVFP4 and 8.6 in BF16."""
    problem = parse_shape("e512k10:16x2048x4096")
    assert BACKEND.space(problem, H200).size
    with pytest.raises(OutOfMemoryError, match=r"weights in BF16 needs \d+\.\d GiB, the device has 8\.0 GiB"):
        BACKEND.space(problem, SMALL)


@pytest.mark.parametrize("out_dtype", [OutDtype.FP16, OutDtype.FP32])
def test_wide_results_need_a_torch_that_can(out_dtype, monkeypatch):
    problem = parse_shape("16x72x80", out_dtype=out_dtype)
    import fp4tune.kernels._torch_cuda

    monkeypatch.setattr(fp4tune.kernels._torch_cuda, "wide_products", lambda: False)
    with pytest.raises(UnsupportedError, match=r"needs PyTorch 2\.8 or newer"):
        BACKEND.space(problem, H200)
    monkeypatch.setattr(fp4tune.kernels._torch_cuda, "wide_products", lambda: True)
    assert values(BACKEND.space(problem, H200), "reduction") == ("float32",)


def test_a_bad_config_is_refused_by_name():
    problem = parse_shape("16x72x80")
    operands = make_operands(problem, CPU, 0)
    default = BACKEND.default(problem, H200)
    with pytest.raises(UnsupportedError, match="takes library cublas, cublaslt here, not 'mkl'"):
        BACKEND.prepare(problem, operands, default | {"library": "mkl"})
    grouped = parse_shape("e8k2:16x72x80")
    config = BACKEND.default(grouped, H200) | {"swap_ab": True}
    with pytest.raises(UnsupportedError, match="which grouped_mm does not ask"):
        BACKEND.prepare(grouped, make_operands(grouped, CPU, 0), config)


def test_torchs_switches_are_as_they_were_after_a_call_and_after_an_error(monkeypatch):
    problem = parse_shape("16x72x80")
    operands = make_operands(problem, CPU, 0)
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    run = BACKEND.prepare(problem, operands, BACKEND.default(problem, H200) | {"reduction": "float32"})
    seen = []
    real = torch.addmm

    def watched(*args, **kwargs):
        seen.append(matmul.allow_bf16_reduced_precision_reduction)
        if len(seen) > 1:
            raise RuntimeError("planted")
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, "addmm", watched)
    run()
    with pytest.raises(RuntimeError, match="planted"):
        run()
    assert seen == [False, False]
    assert matmul.allow_bf16_reduced_precision_reduction is before
