"""`torch.moe`, and that no other backend takes a fused layer for a GEMM."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conformance import same_bytes
from fp4tune.kernels import oracle
from fp4tune.kernels.backend import load_backends
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import Op, OutDtype, parse_shape
from fp4tune.kernels.torch_moe import TorchMoe

CPU = detect("cpu")
BACKEND = TorchMoe()
H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 50 << 20, 700.0)
OLD_GPU = Device("cuda", "Tesla V100", "7.0", 80, 32 << 30, 6 << 20, 300.0)
CARDS = [Device("cuda", f"card of {c}", c, 100, 96 << 30, 60 << 20, 600.0) for c in ("9.0", "10.0", "12.0", "12.1")]
LAYER = parse_shape("moe:e8k2:17x48x80")


@pytest.mark.parametrize("name", load_backends())
@pytest.mark.parametrize("device", [CPU, *CARDS], ids=lambda d: d.name)
def test_only_backends_of_fused_layers_take_one(name, device):
    backend = load_backends()[name]
    if name.endswith("moe"):
        return
    for ask in (backend.space, backend.default):
        with pytest.raises(UnsupportedError, match=r"\.$"):
            ask(LAYER, device)


def test_gemms_are_refused():
    for shape in ("17x48x80", "e8k2:17x48x80"):
        with pytest.raises(UnsupportedError, match=r"torch.moe computes fused mixture-of-experts layers, not"):
            BACKEND.space(parse_shape(shape), CPU)


def test_every_config_of_a_layer_is_right():
    o = make_operands(LAYER, CPU, 0)
    expected = oracle.reference(o)
    for config in BACKEND.space(LAYER, replace(CPU, sms=1)):
        run = BACKEND.prepare(LAYER, o, config)
        for _ in range(2):
            oracle.poison(o.out)
            run()
            verdict = oracle.compare(o.out, o, expected)
            assert verdict.ok, f"{config}: {verdict.sentence}"


def test_it_quantises_as_the_reference_does():
    p = replace(LAYER, out_dtype=OutDtype.FP32)
    o = make_operands(p, CPU, 0)
    config = BACKEND.default(p, CPU)
    BACKEND.prepare(p, o, config)()
    assert float((o.out - oracle.reference(o)).norm() / o.out.norm()) < 1e-3


def test_the_input_is_read_at_every_call():
    o = make_operands(LAYER, CPU, 0)
    run = BACKEND.prepare(LAYER, o, BACKEND.default(LAYER, CPU))
    run()
    first = o.out.clone()
    o.a.mul_(0.5)  # the codes stay, their block scales are halved
    run()
    assert not same_bytes(o.out, first)
    assert oracle.compare(o.out, o).ok


def test_both_products_have_their_own_layouts_of_the_weights():
    o = make_operands(LAYER, CPU, 0)
    config = BACKEND.default(LAYER, CPU) | {"decode": "arithmetic"}
    BACKEND.prepare(LAYER, o, config)
    assert set(o.packed) == {"torch.moe.w13", "torch.moe.w2"}
    held = {name: dict(layouts) for name, layouts in o.packed.items()}
    BACKEND.prepare(LAYER, o, config | {"swap_ab": True})
    assert all(o.packed[name].keys() == held[name].keys() for name in held), "made once"


def test_on_a_card_as_many_experts_as_fit_are_taken_together():
    space, default = BACKEND.space(LAYER, H200), BACKEND.default(LAYER, H200)
    assert default in space
    assert "threads" not in default
    assert default["experts_per_step"] == 4
    assert all(seed in space for seed in BACKEND.seeds(LAYER, H200))
    with pytest.raises(UnsupportedError, match=r"compute capability 8\.0"):
        BACKEND.space(LAYER, OLD_GPU)


def test_operands_of_a_gemm_are_refused():
    grouped = make_operands(parse_shape("e8k2:17x48x80"), CPU, 0)
    with pytest.raises(UnsupportedError, match="needs the operands of a moe problem"):
        BACKEND.prepare(LAYER, grouped, BACKEND.default(LAYER, CPU))


def test_threads_are_as_before_afterwards():
    o = make_operands(LAYER, CPU, 0)
    before = torch.get_num_threads()
    BACKEND.prepare(LAYER, o, BACKEND.default(LAYER, CPU) | {"threads": 1})()
    assert torch.get_num_threads() == before
    with pytest.raises(UnsupportedError, match="needs threads"):
        BACKEND.prepare(LAYER, o, BACKEND.default(LAYER, CPU) | {"threads": 0})
    assert LAYER.op is Op.MOE
