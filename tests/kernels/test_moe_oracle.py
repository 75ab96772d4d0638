"""The reference of fused layers against one written another way, and what the comparison must and must not accept."""

from __future__ import annotations

import pytest
import torch
from fp4tune.kernels import moe_oracle, oracle
from fp4tune.kernels.device import detect
from fp4tune.kernels.moe_tolerance import MoeTolerance
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import Format, OutDtype, Routing, parse_shape
from fp4tune.kernels.tolerance import Tolerance, tolerance_for
from moe_faults import FAULTS, plainly

CPU = detect("cpu")


def made(shape, seed=0, **words):
    return make_operands(parse_shape("moe:" + shape, **words), CPU, seed)


def as_bf16(x):
    return x.bfloat16().double()


@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize("shape", ["e4k2:9x32x48", "e2of8k3:17x48x80"])
def test_the_reference_is_the_layer(shape, format_):
    o = made(shape, format=format_)
    expected = plainly(o)
    error = (oracle.reference(o, dtype=torch.float64) - expected).norm() / expected.norm()
    assert error < 1e-6
    assert (oracle.reference(o).double() - expected).norm() / expected.norm() < 2e-2
    assert oracle.compare(expected.to(o.out.dtype), o).ok


def test_large_layers_are_computed_in_parts(monkeypatch):
    o = made("e4k2:40x64x96")
    whole = oracle.reference(o)
    monkeypatch.setattr(moe_oracle, "_CHUNK_BYTES", 4096)
    assert len(list(moe_oracle.routes(o))) == 4
    assert oracle.compare(oracle.reference(o).bfloat16(), o, whole).rel_error < 5e-3


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("shape", "routing"),
    [
        ("e8k2:4x64x128", Routing.UNIFORM), ("e8k2:64x128x256", Routing.UNIFORM), ("e6k6:1x16x16", Routing.UNIFORM),
        ("e8k1:40x16x128", Routing.UNIFORM), ("e6k2:300x32x48", Routing.ONE_HOT),
        ("e4of16k2:64x48x80", Routing.UNIFORM), ("e16k4:200x64x96", Routing.POWER_LAW),
        ("e32k8:40x64x256", Routing.UNIFORM),
    ],
)  # fmt: skip
def test_an_intermediate_in_bf16_is_right_and_one_that_is_not_requantised_is_not(shape, routing, seed):
    o = made(shape, seed, routing=routing)
    expected = oracle.reference(o)
    tolerance = MoeTolerance(o, expected)
    found = tolerance.judge(plainly(o, rounded=as_bf16).bfloat16())
    assert found.ok, found.sentence
    groups = int((o.experts < o.problem.experts).sum()) * o.problem.n // 16
    if groups >= 512:  # of fewer, chance has too large a part
        assert not tolerance.judge(plainly(o, requantised=False).bfloat16()).ok


@pytest.mark.parametrize("format_", [Format.NVFP4_W4A16, Format.BF16])
@pytest.mark.parametrize("out_dtype", OutDtype)
def test_where_nothing_is_requantised_little_is_allowed(format_, out_dtype):
    o = made("e8k2:40x64x128", format=format_, out_dtype=out_dtype)
    expected = oracle.reference(o)
    assert oracle.compare(plainly(o, rounded=as_bf16).to(o.out.dtype), o, expected).ok
    assert not oracle.compare((expected * 1.02).to(o.out.dtype), o, expected).ok


NEEDS = {"rows_64_to_127_lost": "many rows an expert", "remote_experts_too": "other ranks"}
LAYERS = {
    "many rows an expert": "e4k2:300x64x96",
    "other ranks": "e4of8k3:60x64x96",
    "most experts empty": "e64k2:9x64x96",
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_wrong_layer_is_found(fault, kind):
    if NEEDS.get(fault.__name__, kind) != kind:
        pytest.skip("there is nothing that it changes")
    o = made(LAYERS[kind])
    expected = oracle.reference(o)
    found = fault(o).bfloat16()
    verdict = oracle.compare(found, o, expected)
    assert not verdict.ok
    assert verdict.sentence.endswith("rows and tiles are wrong.")
    assert tolerance_for(o, expected).accepts(found) is None


def test_what_was_not_written_is_found():
    o = made("e4k2:40x32x48")
    out = oracle.reference(o).bfloat16()
    right = out.clone()
    oracle.poison(o.out)
    out[7, 3] = o.out[7, 3]
    verdict = oracle.compare(out, o)
    assert (verdict.ok, verdict.n_unwritten) == (False, 1)
    assert "row 7, column 3" in verdict.sentence
    right[39, 0] = float("inf")
    assert oracle.compare(right, o).sentence.startswith(
        "1 of 1920 elements are NaN or infinite, first row 39, column 0"
    )


def test_a_token_without_an_expert_here_must_be_zero():
    o = made("e1of8k1:64x32x48")
    expected = oracle.reference(o)
    none = (o.experts >= 1).all(dim=1).nonzero().flatten()
    assert len(none)
    assert not expected[none].any()
    out = expected.bfloat16()
    assert oracle.compare(out, o, expected).ok
    out[none[0]] = 0.05
    assert f"Row {int(none[0])}, columns 0:48 differs" in oracle.compare(out, o, expected).sentence


def test_gemms_are_judged_as_before():
    o = make_operands(parse_shape("e8k2:17x72x80"), CPU, 0)
    assert isinstance(tolerance_for(o, oracle.reference(o)), Tolerance)
