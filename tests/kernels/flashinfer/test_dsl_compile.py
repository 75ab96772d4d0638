"""Real kernels of b12x and cute-dsl, compiled for cards that are not here."""

from __future__ import annotations

import importlib

import pytest
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm import dsl_compile
from fp4tune.kernels.flashinfer_gemm.backends import B12x, CuteDsl
from fp4tune.kernels.flashinfer_gemm.tactics import CuteDslCodec
from fp4tune.kernels.flashinfer_gemm.versions import NEWEST, installed_version
from fp4tune.kernels.problem import Problem

from .conftest import card

MMA = "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"
"""FP4 by FP4 with E4M3 scales of 16 elements, as SM12x's machine code calls it."""

NEWEST_ALONE = pytest.mark.skipif(
    installed_version() not in ("", NEWEST), reason="it takes seconds; of an older release one of each is enough"
)

SWAPPED = {"tile_m": 64, "tile_n": 32, "cluster": "1x1", "swap_ab": True, "prefetch": True, "pad_m": 0}
WIDE = {"tile_m": 128, "tile_n": 128, "cluster": "1x1", "swap_ab": False, "prefetch": False, "pad_m": 16}


@pytest.mark.parametrize(
    ("capability", "sms", "config"),
    [
        ("12.0", 188, SWAPPED),
        pytest.param("12.0", 170, WIDE, marks=NEWEST_ALONE),
        pytest.param("12.1", 48, WIDE, marks=NEWEST_ALONE),
    ],
)
def test_b12x_compiles_to_fp4_matrix_instructions(flashinfer, capability, sms, config):
    facts = B12x().compile(Problem(1, 512, 4096), card(capability, sms), config)
    assert facts.target == f"sm_{capability.replace('.', '')}a"
    assert set(facts.instructions) == {MMA}
    assert facts.stack_bytes == 0
    assert 0 < facts.registers <= 255
    assert 10_000 < facts.shared_bytes <= 101_376


@pytest.mark.parametrize("kernel", ["independent", pytest.param("independent_tma", marks=NEWEST_ALONE)])
def test_cute_dsl_compiles_and_is_kept(flashinfer, tmp_path, kernel):
    problem, config = Problem(64, 1024, 2048), {**CuteDslCodec().decode((kernel,)), "pad_m": 0}
    facts = CuteDsl().compile(problem, card(), config)
    assert (facts.target, set(facts.instructions), facts.stack_bytes) == ("sm_120a", {MMA}, 0)
    assert 10_000 < facts.shared_bytes <= 101_376
    workspace = importlib.import_module("flashinfer.jit.env").FLASHINFER_JIT_DIR
    kept = [path for path in workspace.rglob(f"*{kernel}_sm120a*/*.o") if "n1024_k2048" in path.name]
    assert len(kept) == 1
    written = kept[0].stat().st_mtime_ns
    assert CuteDsl().compile(problem, card(), config) == facts
    assert kept[0].stat().st_mtime_ns == written


def test_a_config_that_is_not_offered_is_not_compiled(flashinfer):
    with pytest.raises(UnsupportedError, match="offers the tactic for this shape"):
        B12x().compile(Problem(1, 512, 4096), card(), {**SWAPPED, "tile_n": 64})


def test_a_card_of_another_generation_is_refused(flashinfer):
    with pytest.raises(UnsupportedError, match=r"It is for compute capability 12\.0 and 12\.1"):
        B12x().compile(Problem(1, 512, 4096), card("10.0", 148), SWAPPED)


def test_an_object_without_a_kernel_is_refused():
    with pytest.raises(UnsupportedError, match="holds no kernel"):
        dsl_compile.embedded_cubin(b"\x7fELF\x02\x01" + bytes(80))


def test_shared_memory_is_zero_where_the_host_code_does_not_say():
    assert dsl_compile.shared_bytes("llvm.func @main()") == 0
