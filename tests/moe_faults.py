"""A fused layer computed plainly, and as kernels of the field got it wrong, or could."""

from __future__ import annotations

from dataclasses import replace

import torch
from fp4tune.kernels import nvfp4
from fp4tune.kernels.problem import Format


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


def _local(o):
    """Of the token with the most experts on this rank: (token, place of the one with the largest weight)."""
    shares = o.weights * (o.experts < o.problem.experts)
    token = int((shares > 0).sum(dim=1).argmax())
    return token, int(shares[token].argmax())


def _rolled(w):
    """Quantised weights, each expert's those of the one before."""
    packed, scale = (part.view(torch.uint8).roll(1, 0).view(part.dtype) for part in (w.packed, w.scale))
    return replace(w, packed=packed, scale=scale, global_scale=w.global_scale.roll(1))


def gate_for_up(o):
    half = o.problem.n
    w = replace(
        o.b, packed=o.b.packed.roll(half, 1), scale=o.b.scale.view(torch.uint8).roll(half, 1).view(o.b.scale.dtype)
    )
    return plainly(replace(o, b=w))


def no_weights(o):
    return plainly(o, weights=torch.full_like(o.weights, 1 / o.problem.top_k))


def other_weights(o):
    """The weights of a token's experts, each for the next one."""
    return plainly(o, weights=o.weights.roll(1, 1))


def lost_expert(o):
    return plainly(o, weights=o.weights * (o.experts != o.experts[_local(o)]))


def lost_by_one_token(o):
    weights = o.weights.clone()
    weights[_local(o)] = 0
    return plainly(o, weights=weights)


def neighbours_weights(o):
    """Every row is multiplied by another expert's matrices."""
    return plainly(replace(o, **{name: _rolled(getattr(o, name)) for name in ("b", "b2")}))


def zero_row(o):
    out = plainly(o)
    out[_local(o)[0]] = 0
    return out


def remote_experts_too(o):
    """What another rank adds, computed here as well: ids that are not on this rank, taken modulo."""
    return plainly(o, experts=o.experts % o.problem.experts)


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


FAULTS = (
    gate_for_up,
    no_weights,
    other_weights,
    lost_expert,
    lost_by_one_token,
    neighbours_weights,
    zero_row,
    remote_experts_too,
    rows_64_to_127_lost,
    neighbours_alpha,
    distorted,
    zero_column,
    zero_tile,
)
"""Each takes operands and gives the layer with the fault, float64 [M, K]."""
