"""Operands of fused layers: an input that can be quantised in one way only, routing as drawn, sets that share weights."""

from __future__ import annotations

from dataclasses import fields, replace

import fp4tune.kernels.operands as operands_module
import pytest
import torch
from conformance import same_bytes, tensors
from fp4tune.kernels import nvfp4, oracle
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import OutOfMemoryError
from fp4tune.kernels.moe_operands import MoeOperands
from fp4tune.kernels.operands import (
    COLD_L2,
    Quantized,
    check_memory,
    make_operands,
    operand_sets,
    required_bytes,
    touched_bytes,
)
from fp4tune.kernels.problem import Format, Routing, parse_shape
from fp4tune.kernels.routing import draw_experts, draw_offsets, drawn_load, drawn_tokens

CPU = detect("cpu")


def made(shape: str, seed: int = 0, **words) -> MoeOperands:
    return make_operands(parse_shape(shape, **words), CPU, seed)


def test_what_a_layer_is_given():
    o = made("moe:e4of8k2:5x48x80")
    assert (o.x.shape, o.x.dtype) == ((5, 80), torch.bfloat16)
    assert o.b.packed.shape == (4, 96, 40)
    assert o.b2.packed.shape == (4, 80, 24)
    assert (o.experts.shape, o.experts.dtype) == ((5, 2), torch.int32)
    assert (o.out.shape, o.offsets) == ((5, 80), None)
    assert o.a_scale.shape == (1,)
    assert {len(t) for t in (o.alpha, o.alpha2, o.mid_scale)} == {4}
    torch.testing.assert_close(o.alpha, 1 / (o.a_scale * o.b.global_scale))
    torch.testing.assert_close(o.alpha2, 1 / (o.mid_scale * o.b2.global_scale))
    torch.testing.assert_close(o.weights.sum(dim=1), torch.ones(5))


@pytest.mark.parametrize("shape", ["moe:e8k2:64x32x128", "moe:e2k1:1x16x16", "moe:e2k1:300x16x208"])
def test_quantising_the_input_again_changes_nothing_and_is_nowhere_near_a_tie(shape):
    o = made(shape)
    q = nvfp4.quantize(o.x, scale=o.a_scale)
    assert same_bytes(nvfp4.dequantize(q, torch.bfloat16), o.x)
    for factor in (1 - 1e-3, 1 + 1e-3):  # a kernel's approximate divisions err by less
        again = nvfp4.quantize(o.x.float() * factor, scale=o.a_scale / factor)
        assert same_bytes(again.packed, q.packed)
        assert same_bytes(again.scale, q.scale)


def test_experts_cannot_be_mistaken_for_each_other():
    o = made("moe:e8k2:5x32x64")
    for factors in (o.alpha, o.alpha2, 1 / o.b.global_scale, 1 / o.b2.global_scale, 1 / o.mid_scale):
        ratios = factors[1:] / factors[:-1]
        assert bool(((ratios > 1.3) | (ratios < 0.5)).all()), ratios
    sizes = nvfp4.dequantize(o.b).flatten(1).norm(dim=1)
    assert float(sizes.max() / sizes.min()) < 1.6, "and none vanishes beside the others"


def test_block_scales_are_the_same_in_both_layouts():
    o = made("moe:e3k2:5x48x80")
    for w in (o.b, o.b2):
        rows, cols = w.scale.shape[1:]
        assert same_bytes(nvfp4.unswizzle_128x4(w.scale_128x4, rows, cols), w.scale)
        swizzled = torch.stack([nvfp4.swizzle_128x4(one) for one in w.scale])
        assert same_bytes(swizzled, w.scale_128x4), "and padding is zero"


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("shape", ["moe:e16k4:200x16x16", "moe:e4of16k3:200x16x16", "moe:e4k4:7x16x16"])
def test_tokens_go_where_a_grouped_problem_sends_as_many(shape, routing):
    problem = parse_shape(shape, routing=routing)
    experts = draw_experts(problem, 3)
    assert all(len(set(row)) == problem.top_k for row in experts.tolist())
    counts = experts.flatten().bincount(minlength=problem.experts_total)[: problem.experts]
    assert counts.tolist() == draw_offsets(problem, 3).diff().tolist()
    assert drawn_load(problem, 3) == (int(counts.sum()), int((counts > 0).sum()))
    assert drawn_tokens(problem, 3) == int((experts < problem.experts).any(dim=1).sum())


@pytest.mark.parametrize("format_", Format)
def test_a_seed_means_the_same_bytes(format_):
    one, two, other = (dict(tensors(made("moe:e4k2:9x32x48", seed, format=format_))) for seed in (3, 3, 4))
    assert all(same_bytes(one[name], two[name]) for name in one if name != "out")
    assert not same_bytes(one["a"], other["a"])
    assert not same_bytes(one["experts"], other["experts"])


@pytest.mark.parametrize("format_", Format)
def test_touched_bytes_are_those_of_the_busy_experts_and_the_tokens(format_):
    o = made("moe:e2k2:9x32x48", format=format_)
    held = {name: t.numel() * t.element_size() for name, t in tensors(o)}
    weights = [n for n in held if n.split(".")[-1] in {"packed", "scale"} and n.startswith("b")] or ["b", "b2"]
    assert touched_bytes(o.problem, 0) == sum(held[n] for n in (*weights, "a", "out"))


def test_a_rank_without_rows_still_writes():
    p = parse_shape("moe:e1of64k1:2x16x48")
    seed = next(s for s in range(99) if not drawn_load(p, s)[0])
    assert touched_bytes(p, seed) == 2 * 48 * 2
    o = make_operands(p, CPU, seed)
    assert not oracle.reference(o).any()


def test_sets_share_weights_and_give_the_tokens_to_other_experts(monkeypatch):
    monkeypatch.setattr(operands_module, "_free_bytes", lambda device: 1 << 40)
    p = parse_shape("moe:e32k2:3x32x64")
    o = make_operands(p, CPU, 0)
    busy = len(set(o.routed))
    per_weights = 32 // busy
    gpu = replace(CPU, kind="cuda", l2_bytes=touched_bytes(p, 0) * 2 * per_weights // COLD_L2)
    sets = operand_sets(o, gpu)
    assert len(sets) > per_weights
    first = sets[:per_weights]
    assert len({s.b.packed.data_ptr() for s in first}) == 1
    assert len({s.a.data_ptr() for s in sets}) == len({s.out.data_ptr() for s in sets}) == len(sets)
    used = [set(s.routed) for s in first]
    assert sum(map(len, used)) == len(set().union(*used)), "no expert twice"
    assert sets[per_weights].b.packed.data_ptr() != o.b.packed.data_ptr()
    assert sets[per_weights].b2.packed.data_ptr() != o.b2.packed.data_ptr()
    assert sets[per_weights].packed is not o.packed
    assert sets[per_weights].routed == o.routed
    same = oracle.reference(sets[per_weights])
    assert same_bytes(same, oracle.reference(o))
    assert not same_bytes(oracle.reference(sets[1]), same), "other weights, another result"


def test_experts_of_other_ranks_stay_there(monkeypatch):
    monkeypatch.setattr(operands_module, "_free_bytes", lambda device: 1 << 40)
    o = made("moe:e8of64k4:3x32x64")
    for deal in o.deals()[1:]:
        moved = deal["experts"] != o.experts
        assert not bool((moved & (o.experts >= 8)).any())
        assert int(deal["experts"][moved].max()) < 8


def test_a_layer_that_does_not_fit_is_refused():
    small = replace(CPU, memory_bytes=1 << 30)
    with pytest.raises(OutOfMemoryError, match=r"moe:e512k10:16x2048x7168 \(nvfp4\) needs .* GiB"):
        check_memory(parse_shape("moe:e512k10:16x2048x7168"), small)
    p = parse_shape("moe:e64k4:16x256x512")
    held = sum(t.numel() * t.element_size() for _, t in tensors(make_operands(p, CPU, 0)))
    assert held < required_bytes(p)


def test_every_field_is_a_tensor_the_conformance_suite_watches():
    o = made("moe:e2k1:3x16x16")
    watched = {name.split(".")[0] for name, _ in tensors(o)}
    assert watched == {f.name for f in fields(o)} - {"problem", "offsets", "seed", "packed"}
    assert isinstance(o.b, Quantized)
