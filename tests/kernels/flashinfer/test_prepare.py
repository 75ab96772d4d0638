"""What FlashInfer's kernels are handed, by FlashInfer's own public call: real operands, in CPU memory that says it is a card.

In the kernel's place stands a product in float32 that reads the bytes as the kernel's documented layout says. So what is
tested is everything but the kernel: operands, layouts, alpha, padding, the forced tactic.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fp4tune.kernels import device as device_module
from fp4tune.kernels import nvfp4, oracle
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm.backends import B12x, Cutlass, Trtllm
from fp4tune.kernels.flashinfer_gemm.stand_ins import replaced
from fp4tune.kernels.operands import Quantized, make_operands
from fp4tune.kernels.problem import Problem

from .conftest import card

PROBLEM = Problem(3, 136, 160)
"""Odd on purpose: rows and columns of the scales are padded in both operands."""


class OnCard(torch.Tensor):
    """CPU memory that says it is on a card."""

    device = torch.device("cuda", 0)
    is_cuda = True


def on_card(x):
    if isinstance(x, Quantized):
        return Quantized(*(on_card(part) for part in (x.packed, x.scale, x.scale_128x4, x.global_scale)))
    return x.as_subclass(OnCard)


@pytest.fixture
def operands():
    made = make_operands(PROBLEM, detect("cpu"), 7)
    return replace(made, a=on_card(made.a), b=on_card(made.b), alpha=on_card(made.alpha), out=on_card(made.out))


def product(a, b, a_scale, b_scale, alpha):
    """A · Bᵀ · alpha in float32 from packed values and 128x4 scale bytes of any shape."""
    decoded = []
    for packed, swizzled in ((a, a_scale), (b, b_scale)):
        rows, columns = packed.shape[0], packed.shape[1] // 8
        scale = nvfp4.unswizzle_128x4(plain(swizzled).flatten(), rows, columns).view(torch.float8_e4m3fn)
        decoded.append(nvfp4.decode(plain(packed), scale))
    return decoded[0] @ decoded[1].T * plain(alpha).item()


def plain(x):
    return x.as_subclass(torch.Tensor)


def bytes_at(address, count):
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


@pytest.fixture
def seen(flashinfer, monkeypatch):
    """FlashInfer as on a card, with our product in the place of its kernels; what they were told, call by call."""
    base = importlib.import_module("flashinfer.gemm.gemm_base")
    told = []

    def compile_b12x(cache, key, make_kernel, **_):
        def kernel(a, b, out, sf_m, sf_n, sf_k, a_scale, b_scale, alpha):
            told.append((a.shape[0], key[1:5]))
            scales = [bytes_at(at, blocks * 128 * sf_k * 4) for at, blocks in ((a_scale, sf_m), (b_scale, sf_n))]
            plain(out).copy_(product(a, b, *scales, alpha))

        return kernel, 188

    def fp4_gemm(a, b, a_scale, b_scale, alpha, out, workspace, tactic):
        assert (tuple(a_scale.shape), tuple(b_scale.shape)) == ((128, 12), (256, 12))
        assert (alpha.dtype, alpha.numel()) == (torch.float32, 1)
        told.append((a.shape[0], tactic))
        if tactic == 30:
            raise RuntimeError("[Error] the tile does not fit into shared memory")
        plain(out).copy_(product(a, b, a_scale, b_scale, alpha))

    monkeypatch.setattr(base, "_compile_block_scaled_gemm", compile_b12x)
    for backend in (B12x, Cutlass):
        monkeypatch.setattr(backend, "why_not_here", lambda self, device: "")
        monkeypatch.setattr(backend, "why_not_ready", lambda self, flashinfer: "")
    monkeypatch.setattr(device_module, "detect_once", lambda name: card())
    with flashinfer.on((12, 0), 188), replaced(flashinfer, "_standing_in", False):
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        native = SimpleNamespace(fp4_gemm=fp4_gemm, fp4_gemm_tactic_num=lambda: 32)
        module = base._create_cutlass_fp4_gemm_module(native, "", "")
        monkeypatch.setattr(base, "get_cutlass_fp4_gemm_module", lambda *_: module)
        yield told
        monkeypatch.undo()


B12X = {"tile_m": 64, "tile_n": 128, "cluster": "1x1", "swap_ab": False, "prefetch": True}
CUTLASS = {"tile_m": 128, "tile_n": 64, "tile_k": 256, "swap_ab": True, "scheduler": "stream_k"}


@pytest.mark.parametrize("pad_m", [0, 16, 128])
@pytest.mark.parametrize(
    ("backend", "fields", "tactic"),
    [(B12x(), B12X, ((64, 128), (1, 1), False, True)), (Cutlass(), CUTLASS, 14)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_result_is_right_and_the_forced_tactic_ran(seen, operands, backend, fields, tactic, pad_m):
    run = backend.prepare(PROBLEM, operands, {**fields, "pad_m": pad_m})
    oracle.poison(plain(operands.out))
    run()
    assert seen == [(pad_m or 3, tactic)] * 2
    expected = oracle.reference(make_operands(PROBLEM, detect("cpu"), 7))
    torch.testing.assert_close(plain(operands.out).float(), expected, rtol=0.01, atol=0.01)


def test_new_rows_are_read_by_every_padded_run(seen, operands):
    run = B12x().prepare(PROBLEM, operands, {**B12X, "pad_m": 16})
    run()
    before = plain(operands.out).clone()
    plain(operands.a.packed).bitwise_xor_(0x88)  # every sign flipped
    run()
    assert torch.equal(plain(operands.out), -before)


def test_the_default_is_flashinfers_own_choice(seen, operands):
    backend = Cutlass()
    backend.prepare(PROBLEM, operands, backend.default(PROBLEM, card()))
    assert seen == [(3, -1)]


def test_what_flashinfer_cannot_launch_is_refused_with_its_words(seen, operands):
    config = {**CUTLASS, "tile_n": 256, "tile_k": 128, "pad_m": 0}
    with pytest.raises(UnsupportedError, match=r"refuses the tactic 30 of flashinfer\.cutlass") as caught:
        Cutlass().prepare(PROBLEM, operands, config)
    assert "does not fit into shared memory" in str(caught.value)


def test_a_config_that_is_not_offered_is_not_run(seen, operands):
    with pytest.raises(UnsupportedError, match="takes tile_n"):
        Cutlass().prepare(PROBLEM, operands, {**CUTLASS, "tile_n": 48, "pad_m": 0})
    assert seen == []


def test_operands_on_a_cpu_are_refused():
    made = make_operands(PROBLEM, detect("cpu"), 7)
    with pytest.raises(UnsupportedError, match="runs on CUDA devices"):
        B12x().prepare(PROBLEM, made, {**B12X, "pad_m": 0})


def test_weights_for_trtllm_have_their_rows_shuffled_and_their_scales_with_them(flashinfer):
    problem = Problem(4, 256, 512)
    made = make_operands(problem, detect("cpu"), 7)
    given = Trtllm().arguments(made)
    (row_indices,) = flashinfer.need("flashinfer.utils", "get_shuffle_matrix_a_row_indices")
    rows = row_indices(made.b.packed, 128)
    assert not torch.equal(rows, torch.arange(256))
    assert torch.equal(given.b, made.b.packed[rows])
    scale = nvfp4.unswizzle_128x4(given.b_scale.flatten(), 256, 32)
    assert torch.equal(scale.view(torch.uint8), made.b.scale.view(torch.uint8)[rows])
    shuffled = product(given.a, given.b, given.a_scale, given.b_scale, given.alpha)
    torch.testing.assert_close(shuffled, oracle.reference(made)[:, rows], rtol=1e-4, atol=1e-4)
    assert Trtllm().arguments(made).b is given.b
