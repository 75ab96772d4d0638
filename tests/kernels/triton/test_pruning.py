"""The rules that leave configs out, against kernels that were really compiled; and what is refused afterwards."""

from __future__ import annotations

import pytest
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.problem import parse_shape
from fp4tune.kernels.triton_gemm import facts, pruning
from fp4tune.kernels.triton_gemm.compiler import compile_kernel
from fp4tune.kernels.triton_gemm.native_plan import NativeConfig, build_of
from fp4tune.kernels.triton_gemm.native_space import shared_bytes
from native_cases import BASE

pytest.importorskip("triton")
kernels = pytest.importorskip("triton_kernels")

SM120 = (12, 0)


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def native(**changes):
    """A kernel of triton.native for sm_120a, in the space or not."""
    from fp4tune.kernels.triton_gemm.native_kernels import nvfp4_gemm

    config = NativeConfig(**{**BASE, **changes})
    build = build_of(parse_shape("1024x1024x1024"), config)
    return compile_kernel(
        nvfp4_gemm,
        signature=build.signature,
        constexprs=build.constexprs,
        divisible_by_16=build.aligned,
        target=SM120,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def test_what_the_rule_calls_spilling_spills():
    config = {"block_m": 256, "block_n": 128, "block_k": 64, "num_warps": 4}
    assert pruning.native_spills(256, 128, 64, 4)
    kernel = native(**config)
    registers, stack = facts.resources(kernel.asm["cubin"])
    assert stack > pruning.SMALL_STACK_BYTES
    found = facts.StaticFacts("sm_120a", registers, stack, kernel.metadata.shared, {})
    with pytest.raises(UnsupportedError, match=rf"spills: {stack} bytes .* {pruning.SMALL_STACK_BYTES} are accepted"):
        facts.refuse_unfit(kernel, found, max_stack_bytes=pruning.SMALL_STACK_BYTES)


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"block_m": 64, "block_n": 256, "block_k": 256, "num_warps": 8, "num_stages": 3}, True),
        ({"block_m": 64, "block_n": 256, "block_k": 256, "num_warps": 8, "num_stages": 4}, False),
    ],
)
def test_the_rule_for_shared_memory_is_right_on_both_sides_of_the_limit(changes, fits):
    limit = pruning.shared_limit_bytes(SM120)
    assert (shared_bytes({**BASE, **changes}) <= limit) == fits
    kernel = native(**changes)
    assert (kernel.metadata.shared <= limit) == fits
    found = facts.StaticFacts("sm_120a", 64, 0, kernel.metadata.shared, {})
    if fits:
        facts.refuse_unfit(kernel, found, max_stack_bytes=0, ptx_words=facts.native_ptx(SM120))
    else:
        with pytest.raises(UnsupportedError, match=r"bytes of shared memory, a block can have 101376"):
            facts.refuse_unfit(kernel, found, max_stack_bytes=0)


def test_byte_typed_scales_never_pass(recwarn):
    """Triton 3.9 compiles them, to a product that reads half of the scales as powers of two; 3.6 refuses."""
    from triton.compiler.errors import CompilationError

    for scale, words in (("*fp8e4nv", []), ("*u8", ["scale_vec::4X", "ue4m3"])):
        signature = {"a": "*u8", "b": "*u8", "a_scale": scale, "b_scale": scale, "out": "*fp32"}
        try:
            kernel = compile_kernel(
                kernels.dot_scaled_of, signature=signature, constexprs={"SIZE": 128}, target=SM120, num_warps=8
            )
        except CompilationError:
            assert scale == "*u8"
            continue
        assert facts.missing_from_ptx(kernel.asm["ptx"], facts.native_ptx(SM120)) == words
        if words:
            with pytest.raises(UnsupportedError, match=r"without scale_vec::4X, ue4m3 in its PTX"):
                facts.refuse_unfit(
                    kernel, facts.static_facts(kernel), max_stack_bytes=0, ptx_words=facts.native_ptx(SM120)
                )


@pytest.mark.parametrize(
    ("capability", "kib"),
    [((8, 0), 163), ((8, 6), 99), ((8, 9), 99), ((9, 0), 227), ((10, 0), 227), ((10, 3), 227), ((12, 0), 99),
     ((12, 1), 99), ((7, 5), 99), ((13, 0), 99)],
)  # fmt: skip
def test_shared_memory_of_a_block(capability, kib):
    assert pruning.shared_limit_bytes(capability) == kib * 1024


def test_figures_of_tiles():
    assert pruning.nvfp4_tile_bytes(128, 128) == 128 * 72
    assert pruning.pipeline_bytes(3, 100, 28) == 256
    assert pruning.pipeline_bytes(1, 100) == 100
    assert pruning.accumulators_per_thread(128, 128, 4) == 128
    assert not pruning.native_spills(128, 128, 128, 4)
    assert pruning.native_spills(128, 128, 512, 4)


def test_facts_are_read_from_the_machine_code_and_kept_beside_it(monkeypatch):
    kernel = native(block_m=16, block_n=32)
    found = facts.static_facts(kernel)
    assert found.target == "sm_120a"
    assert found.shared_bytes == kernel.metadata.shared > 0
    assert found.registers > 16
    assert found.instructions == {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": sum(found.instructions.values())}
    monkeypatch.setattr(facts, "_run_tool", lambda *_: pytest.fail("read a second time"))
    assert facts.static_facts(kernel) == found


def test_a_tool_that_is_missing_is_named(monkeypatch):
    def run(command, **_):
        raise FileNotFoundError(2, "No such file or directory", command[0])

    monkeypatch.setattr(facts.subprocess, "run", run)
    with pytest.raises(UnsupportedError, match=r"^cuobjdump, which comes with Triton, does not work here"):
        facts.resources(b"")


def test_a_file_that_is_no_kernel_is_a_sentence():
    with pytest.raises(UnsupportedError, match="cuobjdump"):
        facts.resources(b"not a cubin")
