"""FlashInfer's fused MoE without a card: tactics from the installed sources, keys and calls from the public functions."""

from __future__ import annotations

import importlib
import inspect
import os
from types import SimpleNamespace

import pytest
import torch
from fp4tune.kernels import nvfp4
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm import b12x_moe, cutlass_moe, moe_arguments, moe_tactics
from fp4tune.kernels.flashinfer_gemm.b12x_moe import CUTOVER_ENV, B12xMoe
from fp4tune.kernels.flashinfer_gemm.cutlass_moe import CutlassMoe, captured, offered, package_of
from fp4tune.kernels.flashinfer_gemm.moe_tactics import MoeTactics, tactics_of_sources
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import Format, OutDtype, parse_shape
from fp4tune.tuner.checkpoint import open_checkpoint
from fp4tune.tuner.gemms import derive_gemms
from fp4tune.tuner.inspector import inspect_checkpoint

CPU = detect("cpu")
LAYER = parse_shape("moe:e8k2:4x64x128")
QWEN = parse_shape("moe:e512k10:16x128x4096")
TILES = (
    "128x128x256", "128x128x128", "256x128x128", "128x256x128", "128x32x256", "128x32x128", "128x64x256", "128x64x128",
)  # fmt: skip
"""In the order of cutlass_heuristic.cpp in 0.7.2 and 0.7.4."""


def tactics(flashinfer) -> MoeTactics:
    return tactics_of_sources(package_of(flashinfer), flashinfer.version)


def test_the_tactics_of_the_installed_sources(flashinfer):
    found = tactics(flashinfer)
    assert found.tiles == TILES
    assert (found.n_gemm1, found.n_gemm2(fused=True), found.n_gemm2(fused=False)) == (16, 32, 16)


def test_every_config_is_a_pair_of_tactics_and_back(flashinfer):
    found, space = tactics(flashinfer), CutlassMoe().space_of(QWEN)
    pairs = {}
    for config in space:
        pair, fused = found.encode(config)
        assert found.decode(pair, fused=fused) == config
        pairs[pair, fused] = config
    assert len(pairs) == 2 + 16 * 16 * 2
    assert {pair for pair, fused in pairs if not fused} == {(-1, -1)} | {
        (i, 16 + j) for i in range(16) for j in range(16)
    }
    of_fused = {pair[1] - 16 for pair, fused in pairs if fused and pair != (-1, -1)}
    assert of_fused == {*range(8, 16), *range(24, 32)}, "those without are `separate`"
    assert pairs[(9, 16 + 16 + 8 + 4), True] == {
        "gemm1_tile": "128x128x128", "gemm1_swap_ab": True, "gemm2_tile": "128x32x256", "gemm2_swap_ab": True,
        "finalize": "fused",
    }  # fmt: skip


@pytest.mark.parametrize("pair", [(16, 20), (3, 48), (3, 5), (-1, 20), (3, 20)])
def test_a_pair_of_no_config_is_refused(pair):
    with pytest.raises(UnsupportedError, match="a pair that fp4tune does not know"):
        MoeTactics(TILES).decode(pair, fused=True)


@pytest.mark.parametrize(
    "change", [{"gemm1_tile": "64x64x64"}, {"finalize": "sometimes"}, {"gemm2_swap_ab": "default"}]
)
def test_a_config_of_no_tactic_is_refused(change):
    config = MoeTactics(TILES).decode((3, 24), fused=True)
    with pytest.raises(UnsupportedError, match="FlashInfer's MoE"):
        MoeTactics(TILES).encode(config | change)


@pytest.mark.parametrize(("file", "old", "new"), [
    (0, "result.push_back(CutlassGemmConfig{tile,", "result.push_back(CutlassGemmConfig{tile, true,"),
    (1, "config.swap_ab = true;", "config.swap_ab = false;"),
    (1, "auto finalize_configs = tma_ws_configs;", "auto finalize_configs = others;"),
])  # fmt: skip
def test_sources_that_build_other_lists_are_refused(flashinfer, tmp_path, file, old, new):
    names = (moe_tactics._HEURISTIC, moe_tactics._DISPATCH)
    for i, name in enumerate(names):
        text = (package_of(flashinfer) / name).read_text()
        if i == file:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(UnsupportedError, match="lists its MoE tactics in a way"):
        tactics_of_sources(tmp_path, "0.0")
    with pytest.raises(UnsupportedError, match="lacks the source cutlass_heuristic"):
        tactics_of_sources(tmp_path / "nowhere", "0.0")


@pytest.mark.parametrize("fused", [True, False])
def test_flashinfer_itself_would_try_these_and_ask_by_these_keys(flashinfer, rtx_pro_6000, fused):
    calls = captured(flashinfer, QWEN, rtx_pro_6000, fused=fused)
    found = tactics(flashinfer)
    first, second = offered(flashinfer, calls)
    assert first == list(range(found.n_gemm1))
    assert second == [found.n_gemm1 + i for i in range(found.n_gemm2(fused=fused))]
    shapes = "((16, 4096), (512, 256, 256), (0,), (512, 4096, 8), (0,))"
    for stage, call in enumerate(calls, start=1):
        key = flashinfer.key(call)
        assert key.startswith(
            f"('trtllm::fused_moe::gemm{stage}', 'MoERunner', {shapes}, (torch.bfloat16, torch.int64, "
        )
        assert key.endswith(f", {fused}))")
        assert flashinfer.policy(call)[-1] == "hot"
    assert importlib.import_module("flashinfer.fused_moe.core").get_cutlass_fused_moe_module.cache_info().currsize == 0


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize(
    "model", ["nvidia/Qwen3.5-397B-A17B-NVFP4", "nvidia/DeepSeek-V3.1-NVFP4", "nvidia/Qwen3-30B-A3B-NVFP4"]
)
def test_the_keys_of_every_layer_of_experts(flashinfer, rtx_pro_6000, model, tp):
    """Both products, at the M that servers run, under FlashInfer's bucket of it."""
    gemms = derive_gemms(inspect_checkpoint(open_checkpoint(model)), tp=tp).gemms
    down = {(g.k, g.n, g.experts, g.top_k) for g in gemms if g.experts and g.role.endswith("w2")}
    assert down
    for n, k, experts, top_k in down:
        for m, bucket in {1: 1, 8: 8, 48: 64, 200: 256, 2048: 2048}.items():
            layer = parse_shape(f"moe:e{experts}k{top_k}:{m}x{n}x{k}")
            for stage, call in enumerate(captured(flashinfer, layer, rtx_pro_6000, fused=True), start=1):
                shapes = f"(({bucket}, {k}), ({experts}, {2 * n}, {k // 16}), (0,), ({experts}, {k}, {n // 16}), (0,))"
                assert flashinfer.key(call).startswith(f"('trtllm::fused_moe::gemm{stage}', 'MoERunner', {shapes}, ")


def test_a_rank_of_several_has_its_number_of_ranks_in_the_key(flashinfer, rtx_pro_6000):
    rank = parse_shape("moe:e128of512k10:16x128x4096")
    one, four = (flashinfer.key(captured(flashinfer, p, rtx_pro_6000, fused=True)[0]) for p in (QWEN, rank))
    assert ", 10, 1, 1, 1, " in one
    assert ", 10, 1, 4, 1, " in four
    with pytest.raises(UnsupportedError, match="ranks with equally many experts"):
        CutlassMoe().default_of(parse_shape("moe:e100of512k10:16x128x4096"))


def test_what_the_native_module_is_called_with(flashinfer, rtx_pro_6000, monkeypatch):
    """The six scales and their shapes, as the binding checks them (getQuantParams in the binding's source)."""
    core, seen = importlib.import_module("flashinfer.fused_moe.core"), {}
    real = inspect.signature(core.cutlass_fused_moe)

    def stand_for(*args, **words):
        seen.update(args=real.bind(*args, **words).args[:7], **words)

    monkeypatch.setattr(core, "cutlass_fused_moe", stand_for)
    o = make_operands(LAYER, CPU, 0)
    cutlass_moe.call(flashinfer, moe_arguments.of_operands(o), LAYER, fused=False, profile_ids=(3, 20))
    x, experts, weights, w13, w2, out_dtype, scales = seen["args"]
    assert x is o.a
    assert (experts.dtype, weights.dtype, out_dtype) == (torch.int32, torch.float32, torch.bfloat16)
    assert (w13.shape, w2.shape, w13.dtype) == ((8, 128, 8), (8, 128, 4), torch.int64)
    assert [tuple(s.shape) for s in scales] == [(), (8, 128, 2), (8,), (8,), (8, 128, 1), (8,)]
    assert [s.dtype for s in scales] == [torch.float32, torch.int32, torch.float32] * 2
    assert (seen["profile_ids"], seen["use_fused_finalize"], seen["ep_size"], seen["output"] is o.out) == (
        [3, 20],
        False,
        1,
        True,
    )


def test_up_comes_before_gate_in_weights_and_scales():
    o = make_operands(LAYER, CPU, 0)
    given = moe_arguments.of_operands(o)
    w13 = nvfp4.dequantize(o.b)
    swapped = nvfp4.dequantize(moe_arguments.up_before_gate(o.b))
    assert torch.equal(swapped, torch.cat([w13[:, 64:], w13[:, :64]], dim=1))
    linear = nvfp4.unswizzle_128x4(given.w13_scale.view(8, -1), 128, 8)
    assert torch.equal(linear, o.b.scale.view(torch.uint8).roll(64, 1))
    assert moe_arguments.of_operands(o).w13 is given.w13, "made once"


def test_what_is_no_layer_for_cutlass_is_refused():
    for shape, words, sentence in (
        ("16x2048x4096", {}, "is for moe problems in nvfp4"),
        ("e8k2:16x2048x4096", {}, "is for moe problems in nvfp4"),
        ("moe:e8k2:4x64x128", {"format": Format.NVFP4_W4A16}, "is for moe problems in nvfp4"),
        ("moe:e8k2:4x64x128", {"out_dtype": OutDtype.FP32}, "writes bf16 or fp16"),
        ("moe:e8k2:4x48x128", {}, "N to be a multiple of 64"),
        ("moe:e8k2:4x64x48", {}, "K to be a multiple of 32"),
    ):
        with pytest.raises(UnsupportedError, match=sentence):
            CutlassMoe().space_of(parse_shape(shape, **words))


def test_on_a_card_without_the_library_it_says_so(flashinfer, rtx_pro_6000, monkeypatch):
    monkeypatch.setattr(CutlassMoe, "why_not_here", lambda self, device: "")
    assert "Its library is not built" in CutlassMoe().probe(rtx_pro_6000).reason
    with pytest.raises(UnsupportedError, match=r"flashinfer\.cutlass_moe cannot be used"):
        CutlassMoe().space(QWEN, rtx_pro_6000)


def test_a_module_with_other_counts_is_refused(flashinfer, monkeypatch):
    runner = SimpleNamespace(get_gemm1_tactic_count=lambda: 16, get_gemm2_tactic_count=lambda: 30)
    key = (torch.bfloat16, torch.int64, torch.bfloat16, False, False, False, False, True, False)
    module = SimpleNamespace(MoERunner=SimpleNamespace(runner_dict={key: runner}))
    core = importlib.import_module("flashinfer.fused_moe.core")
    monkeypatch.setattr(core, "get_cutlass_fused_moe_module", lambda _: module)
    with pytest.raises(UnsupportedError, match="built with 16 and 30 MoE tactics, and its sources list 16 and 32"):
        cutlass_moe.check_counts(flashinfer, MoeTactics(TILES))
    runner.get_gemm2_tactic_count = lambda: 32
    cutlass_moe.check_counts(flashinfer, MoeTactics(TILES))


def test_b12x_needs_a_release_that_can_quantise_the_input(flashinfer, monkeypatch):
    assert B12xMoe().why_not_ready(flashinfer) == ""
    monkeypatch.setattr(importlib.import_module(b12x_moe._API), "b12x_fused_moe", lambda x, w1_alpha: None)
    assert "has no input_global_scale: it quantises the input with w1_alpha" in B12xMoe().why_not_ready(flashinfer)


def test_b12x_offers_the_environments_and_sets_them_for_the_call_alone(flashinfer, monkeypatch):
    backend = B12xMoe()
    assert [c["cutover_pairs"] for c in backend.space_of(QWEN)] == ["default", 0, 160]
    select = importlib.import_module(b12x_moe._DISPATCH).select_sm120_moe_backend
    layer = {"num_tokens": 16, "num_topk": 10, "quant_mode": "nvfp4"}
    for cutover, kernel in ((None, "static"), (0, "dynamic"), (160, "static"), (159, "dynamic")):
        with b12x_moe.environment(flashinfer, cutover):
            assert select(**layer) == kernel
    assert CUTOVER_ENV not in os.environ
    monkeypatch.setenv(CUTOVER_ENV, "7")
    with b12x_moe.environment(flashinfer, 0):
        assert os.environ[CUTOVER_ENV] == "0"
    assert os.environ[CUTOVER_ENV] == "7"


def test_what_b12x_is_called_with_undoes_every_scale_once(flashinfer, monkeypatch):
    api, seen = importlib.import_module(b12x_moe._API), {}
    real = inspect.signature(api.b12x_fused_moe)
    monkeypatch.setattr(api, "b12x_fused_moe", lambda *a, **w: seen.update(real.bind(*a, **w).arguments))
    o = make_operands(LAYER, CPU, 0)
    b12x_moe.call_of(flashinfer, moe_arguments.of_operands(o), LAYER)()
    torch.testing.assert_close(seen["w1_alpha"] * seen["input_global_scale"], o.alpha)
    torch.testing.assert_close(seen["w2_alpha"], o.alpha2)
    torch.testing.assert_close(seen["fc2_input_scale"] * o.mid_scale, torch.ones(8))
    assert (seen["num_experts"], seen["top_k"], seen["quant_mode"]) == (8, 2, "nvfp4")
    assert seen["w1_weight_sf"].shape == (32, 4, 1, 4, 2, 8)
    assert set(real.bind(**dict(seen)).arguments) == set(seen)


def test_what_is_no_layer_for_b12x_is_refused():
    for shape, sentence in (
        ("moe:e8k2:4x64x192", "K to be a multiple of 128"),
        ("moe:e4of8k2:4x64x128", "no expert parallelism in nvfp4, and 4 of 8"),
    ):
        with pytest.raises(UnsupportedError, match=sentence):
            B12xMoe().default_of(parse_shape(shape))
