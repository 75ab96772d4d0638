"""Keys and tactics of every dense problem of three models, at two tensor-parallel sizes and the M that servers run."""

from __future__ import annotations

import pytest
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm import arguments
from fp4tune.kernels.flashinfer_gemm.backends import B12x, Cudnn, CuteDsl, Cutlass
from fp4tune.kernels.flashinfer_gemm.dense import offers
from fp4tune.kernels.flashinfer_gemm.tactics import plain
from fp4tune.kernels.problem import Problem
from fp4tune.tuner.checkpoint import open_checkpoint
from fp4tune.tuner.gemms import derive_gemms
from fp4tune.tuner.inspector import inspect_checkpoint

from .conftest import card

MODELS = ("nvidia/Qwen3.5-397B-A17B-NVFP4", "nvidia/DeepSeek-V3.1-NVFP4", "nvidia/Qwen3-30B-A3B-NVFP4")
TOKENS = {1: 1, 8: 8, 48: 64, 200: 256, 2048: 2048}
"""M -> FlashInfer's bucket of it."""

RUNNERS = {
    "b12x": ("B12xFp4GemmRunner", "()"),
    "cutlass": ("CutlassFp4GemmRunner", "()"),
    "cudnn": ("CudnnFp4GemmRunner", "(torch.bfloat16, 16, True, True)"),
    "cute-dsl": (
        "Sm12xCuTeFp4GemmRunner",
        "('sm12x_cute_nvfp4_v5', (12, 0), 'torch.uint8', 'torch.uint8', 'torch.uint8', 'torch.bfloat16', False)",
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def weights(request):
    """Every (N, K) of a dense layer on one rank, at TP 1 and 8; as NVFP4, however the checkpoint stores it."""
    inspection = inspect_checkpoint(open_checkpoint(request.param))
    tables = [derive_gemms(inspection, tp=tp) for tp in (1, 8)]
    found = {(g.n, g.k) for table in tables for g in table.gemms if not g.experts and not g.error}
    assert len(found) > 5
    return sorted(found)


def up(value, multiple):
    return -(-value // multiple) * multiple


def expected_key(backend, bucket, n, k, alpha):
    runner, extras = RUNNERS[backend]
    shapes = (
        f"(({bucket}, {k // 2}), ({k // 2}, {n}), (-1, {up(k // 16, 4)}), ({up(k // 16, 4)}, {up(n, 128)}), "
        f"{alpha}, (0,), (-1, {n}), (0,), (0,), (-1,))"
    )
    return f"('fp4_gemm', '{runner}', {shapes}, {extras})"


@pytest.mark.parametrize("backend", [B12x(), Cutlass(), Cudnn(), CuteDsl()], ids=lambda backend: backend.name)
def test_every_key_is_captured_for_both_shapes_of_alpha(flashinfer, with_cudnn, weights, backend):
    captured = 0
    with flashinfer.on((12, 0), 188):
        for n, k in weights:
            for m, bucket in TOKENS.items():
                problem = Problem(m, n, k)
                try:
                    backend.check_problem(problem)
                except UnsupportedError:
                    continue
                for alpha_shape, alpha in (((1,), "(1,)"), ((), "()")):
                    call = arguments.stand_ins(problem, m, alpha_shape=alpha_shape).call(flashinfer, backend.backend)
                    assert flashinfer.key(call) == expected_key(backend.backend, bucket, n, k, alpha)
                    captured += 1
    refused = {(n, k) for n, k in weights if n % backend.n_multiple or k % backend.k_multiple}
    assert captured == 2 * len(TOKENS) * (len(weights) - len(refused))


@pytest.mark.parametrize("sms", [188, 170])
@pytest.mark.parametrize("backend", [B12x(), Cutlass(), CuteDsl()], ids=lambda backend: backend.name)
def test_every_enumerated_tactic_is_decoded_and_encoded_back(flashinfer, weights, backend, sms):
    codec = backend.codec(flashinfer)
    seen = 0
    with flashinfer.on((12, 0), sms):
        for n, k in weights:
            if n % backend.n_multiple or k % backend.k_multiple:
                continue
            for m in TOKENS:
                problem = Problem(m, n, k)
                for tactic in flashinfer.tactics(arguments.stand_ins(problem, m).call(flashinfer, backend.backend)):
                    assert codec.encode(codec.decode(plain(tactic))) == tactic
                    seen += 1
    assert seen >= len(weights)


@pytest.mark.parametrize("backend", [B12x(), Cutlass(), CuteDsl()], ids=lambda backend: backend.name)
def test_a_space_holds_its_default_its_seeds_and_every_padding(flashinfer, backend):
    problem, device = Problem(1, 512, 4096), card()
    found = offers(backend, problem, device)
    assert found.default in found.space
    assert all(seed in found.space for seed in backend.seeds(problem, device))
    assert {config["pad_m"] for config in found.space} == {0, 16, 32, 64, 128}
    assert all(config in found.space for config in found.space)


def test_b12x_is_seeded_with_its_own_plan_and_prefetch(flashinfer):
    (seed,) = B12x().seeds(Problem(1, 512, 4096), card())
    assert seed == {"tile_m": 64, "tile_n": 32, "cluster": "1x1", "swap_ab": True, "prefetch": True, "pad_m": 0}


def test_padding_to_128_rows_gives_cute_dsl_its_persistent_kernels(flashinfer):
    space = offers(CuteDsl(), Problem(100, 6144, 4096), card()).space
    assert {config["pad_m"] for config in space if config["kernel"] == "raw"} == {128}


@pytest.mark.parametrize(
    ("backend", "problem", "sentence"),
    [
        (B12x(), Problem(16, 512, 48), "flashinfer.b12x needs K to be a multiple of 32, and it is 48."),
        (Cutlass(), Problem(16, 500, 64), "flashinfer.cutlass needs N to be a multiple of 8, and it is 500."),
        (CuteDsl(), Problem(16, 96, 64), "flashinfer.cute_dsl needs N to be a multiple of 64, and it is 96."),
    ],
)
def test_a_shape_that_a_backend_does_not_take_is_refused_by_its_number(flashinfer, backend, problem, sentence):
    with pytest.raises(UnsupportedError) as caught:
        offers(backend, problem, card())
    assert str(caught.value) == sentence
