"""The reference of fused layers against one written another way, and what the comparison must and must not accept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fp4tune.kernels import moe_oracle, nvfp4, oracle
from fp4tune.kernels.device import detect
from fp4tune.kernels.moe_tolerance import MoeTolerance
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import Format, OutDtype, Routing, parse_shape
from fp4tune.kernels.tolerance import Tolerance, tolerance_for

CPU = detect("cpu")


def made(shape, seed=0, **words):
    return make_operands(parse_shape("moe:" + shape, **words), CPU, seed)


def plainly(o, *, rounded=lambda x: x, requantised=True, experts=None, weights=None):
    """The layer token by token, in float64 from dequantised weights: no shared code but the format's."""
    values = [nvfp4.dequantize(w, torch.float64) if hasattr(w, "packed") else w.double() for w in (o.b, o.b2)]
    n, out = o.problem.n, torch.zeros(o.out.shape, dtype=torch.float64)
    experts, weights = o.experts if experts is None else experts, o.weights if weights is None else weights
    for token, chosen in enumerate(experts.tolist()):
        for at, expert in enumerate(chosen):
            if expert >= o.problem.experts:
                continue
            w13, w2 = values[0][expert], values[1][expert]
            gate, up = (rounded(w @ o.a[token].double()) for w in (w13[:n], w13[n:]))
            middle = gate / (1 + torch.exp(-gate)) * up
            if requantised and o.problem.format is Format.NVFP4:
                q = nvfp4.quantize(middle.float().unsqueeze(0), scale=o.mid_scale[expert].view(1))
                middle = nvfp4.dequantize(q, torch.float64)[0]
            out[token] += weights[token, at].double() * (w2 @ middle)
    return out


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


def faults():
    """What kernels of the field did wrong, or could: a name, and the layer with the fault."""

    def gate_for_up(o):
        half = o.problem.n
        w = replace(
            o.b, packed=o.b.packed.roll(half, 1), scale=o.b.scale.view(torch.uint8).roll(half, 1).view(o.b.scale.dtype)
        )
        return plainly(replace(o, b=w))

    def no_weights(o):
        return plainly(o, weights=torch.full_like(o.weights, 1 / o.problem.top_k))

    def lost_expert(o):
        return plainly(o, weights=o.weights * (o.experts != o.experts[0, 0]))

    def rows_64_to_127_lost(o):
        """Flashinfer PR 3533: rows 64 to 127 of an expert were zero."""
        weights = o.weights.clone()
        for expert in range(o.problem.experts):
            at = (o.experts == expert).nonzero()[64:128]
            weights[at[:, 0], at[:, 1]] = 0
        return plainly(o, weights=weights)

    def neighbours_alpha(o):
        return plainly(replace(o, b=replace(o.b, global_scale=o.b.global_scale.roll(1))))

    def distorted(o):
        """A factor of the first product that plays two parts distorts the sum by about a sixth."""
        return plainly(replace(o, b2=replace(o.b2, global_scale=o.b2.global_scale * 1.17)))

    def zero_column(o):
        out = plainly(o)
        out[:, 5] = 0
        return out

    def zero_tile(o):
        out = plainly(o)
        out[-3:, -16:] = 0
        return out

    return [
        gate_for_up,
        no_weights,
        lost_expert,
        rows_64_to_127_lost,
        neighbours_alpha,
        distorted,
        zero_column,
        zero_tile,
    ]


@pytest.mark.parametrize("fault", faults(), ids=lambda f: f.__name__)
def test_a_wrong_layer_is_found(fault):
    o = made("e4k2:300x64x96")
    expected = oracle.reference(o)
    verdict = oracle.compare(fault(o).bfloat16(), o, expected)
    assert not verdict.ok
    assert verdict.sentence.endswith("rows and tiles are wrong.")
    assert tolerance_for(o, expected).accepts(fault(o).bfloat16()) is None


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
