"""The kernel itself, compiled for sm_120a: `make test-cutlass`, minutes. No GPU: nothing here is run on one.

Built one after the other: the default config as a shared object, which is loaded and asked; and two more as machine code
alone. What is built is kept in the cache, so a second run takes seconds.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import time
from dataclasses import replace

import pytest
from fp4tune.api.cli.app import run
from fp4tune.db.records import CompileStatus
from fp4tune.db.store import Store
from fp4tune.kernels import nvfp4
from fp4tune.kernels.cards import card_for
from fp4tune.kernels.cutlass_gemm import builder, facts, library, toolchain
from fp4tune.kernels.cutlass_gemm.backend import Cutlass
from fp4tune.kernels.cutlass_gemm.build_config import BuildConfig
from fp4tune.kernels.cutlass_gemm.facts import FP4_OPCODE
from fp4tune.kernels.cutlass_gemm.library import Library, Product
from fp4tune.kernels.cutlass_gemm.space import MAX_STACK_BYTES, default_config
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.problem import OutDtype, parse_shape
from fp4tune.kernels.triton_gemm.facts import matrix_instructions, resources

CARD = card_for("sm_120a")
PROBLEM = parse_shape("16x4096x4096")
DEFAULT = default_config()
CUBINS = {
    "tokens on a narrow side": ("4.5.0", {"tile": "128x32x256", "swap_ab": True}, OutDtype.BF16),
    "stream-K of the oldest headers": ("4.2.0", {"scheduler": "stream_k"}, OutDtype.FP32),
}

pytestmark = pytest.mark.timeout(1500)

if not os.environ.get("FP4TUNE_TEST_CUTLASS"):
    pytest.skip("builds take minutes: run make test-cutlass", allow_module_level=True)


@pytest.fixture(scope="module")
def own_headers(real_tools):
    """The backend finds the newest headers, whatever is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(toolchain.HEADERS_VARIABLE, str(real_tools["4.5.0"].headers.include))
        yield


@pytest.fixture(scope="module")
def compiled(own_headers):
    """(facts, entry) of the default config."""
    found = Cutlass().compile(PROBLEM, CARD, DEFAULT)
    build = BuildConfig.of(DEFAULT, OutDtype.BF16, "sm_120a")
    return found, builder.ensure_built(build, toolchain.toolchain("sm_120a"))


@pytest.fixture(scope="module")
def kernel(compiled) -> Library:
    return library.load(compiled[1].library)


def product(m=16, n=4096, k=4096, **change) -> Product:
    return Product(**{"m": m, "n": n, "k": k, "splits": 1, "max_swizzle": 1, "raster": 0, "sms": 188, **change})


def test_the_machine_code_has_the_fp4_product_and_no_spills(compiled):
    found, entry = compiled
    assert found.target == "sm_120a"
    assert found.instructions == {FP4_OPCODE: 64}
    assert found.stack_bytes <= MAX_STACK_BYTES
    assert found.registers * 384 <= 65536
    assert found.shared_bytes <= 99 << 10
    cubin = facts.kernel_cubin(entry.library.read_bytes())
    assert resources(cubin) == (found.registers, found.stack_bytes), "as cuobjdump says"


def test_the_second_time_it_is_found(compiled):
    found, entry = compiled
    assert entry.was_cached
    before = {path.name: path.stat().st_mtime_ns for path in entry.folder.iterdir()}
    assert set(before) == {builder.LIBRARY, builder.BUILD_RECORD, facts.FACTS_FILE}
    began = time.monotonic()
    assert Cutlass().compile(parse_shape("64x2048x512"), CARD, {**DEFAULT, "pad_m": 128}) == found
    assert time.monotonic() - began < 2
    assert {path.name: path.stat().st_mtime_ns for path in entry.folder.iterdir()} == before


def test_facts_that_are_lost_or_torn_are_read_again(compiled):
    found, entry = compiled
    (entry.folder / facts.FACTS_FILE).write_text('{"target": ')
    assert facts.static_facts(entry, "sm_120a") == found
    (entry.folder / facts.FACTS_FILE).unlink()
    assert facts.static_facts(entry, "sm_120a") == found


def test_without_a_disassembler_there_are_no_instructions(compiled, monkeypatch):
    monkeypatch.setattr(facts, "_instructions", lambda cubin: {})
    found = facts.read_facts(compiled[1].library, "sm_120a")
    assert found == replace(compiled[0], instructions={})


@pytest.mark.parametrize("name", CUBINS)
def test_other_configs_compile_to_fp4_products_without_spills(real_tools, name, tmp_path):
    release, change, out_dtype = CUBINS[name]
    tools, build = real_tools[release], BuildConfig.of({**DEFAULT, **change}, out_dtype, "sm_120a")
    kept = builder.cache_folder() / f"{builder.key_of(build, tools)}.cubin"
    if not kept.exists():
        made = tmp_path / "kernel.cubin"
        builder.run_compiler(builder.command(build, tools, made, cubin=True), build, tools, temporary=tmp_path)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(made.read_bytes())
    cubin = kept.read_bytes()
    registers, stack = resources(cubin)
    assert stack <= MAX_STACK_BYTES
    assert registers * 384 <= 65536
    instructions = matrix_instructions(cubin)
    assert set(instructions) == {FP4_OPCODE}
    assert instructions[FP4_OPCODE] > 0


def test_what_the_compiler_rejects_becomes_one_sentence(real_tools, tmp_path, monkeypatch):
    """A tile that a static assertion of CUTLASS forbids, so that it does not take long; once, it is the same twice."""
    monkeypatch.setattr(builder, "ATTEMPTS", 1)
    tools, build = real_tools["4.5.0"], BuildConfig.of({**DEFAULT, "tile": "128x16x128"}, OutDtype.BF16, "sm_120a")
    line = builder.command(build, tools, tmp_path / "none.cubin", cubin=True)
    with pytest.raises(UnsupportedError) as caught:
        builder.run_compiler(line, build, tools, temporary=tmp_path)
    assert re.fullmatch(
        rf"nvcc {re.escape(tools.nvcc_build)} with CUTLASS 4\.5\.0 does not compile 128x16x128 cooperative persistent "
        r'bf16 for sm_120a: static assertion failed with "[^"\n]+"\.?',
        str(caught.value),
    )


def test_the_shared_object_says_what_was_compiled_in(kernel):
    said = kernel.description
    assert (said.tile_m, said.tile_n, said.tile_k) == (128, 128, 128)
    assert (said.pingpong, said.stream_k, said.swap_ab, said.out_bits) == (0, 0, 0, 16)
    assert (said.cutlass_version, said.stages, said.threads) == (450, 4, 384)
    assert said.shared_bytes == 83968


def test_nothing_but_the_interface_is_seen_from_outside(compiled):
    """Several of these share a process with torch and its CUDA runtime."""
    said = subprocess.run(
        ["nm", "-D", "--defined-only", compiled[1].library], capture_output=True, text=True, check=True
    )
    strong = {line.split()[-1] for line in said.stdout.splitlines() if line.split()[-2] == "T"}
    assert strong == {f"fp4tune_{name}" for name, *_ in library._FUNCTIONS}
    needed = subprocess.run(["readelf", "-d", compiled[1].library], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"NEEDED.*(cuda|torch|c10)", needed)


@pytest.mark.parametrize(
    ("shape", "accepted"),
    [
        ((1, 4096, 4096), True), ((16, 4096, 4128), True), ((3, 8, 32), True), ((4097, 72, 96), True),
        ((1, 4096, 4112), False), ((1, 4096, 48), False), ((16, 4100, 4096), False), ((16, 4, 4096), False),
    ],
)  # fmt: skip
def test_it_takes_what_our_rules_take(kernel, shape, accepted):
    assert (kernel.can_implement(product(*shape)) == 0) is accepted


@pytest.mark.parametrize(
    "change",
    [{"m": 0}, {"n": -8}, {"sms": 0}, {"splits": 0}, {"splits": 2}, {"max_swizzle": 0}, {"raster": 3}, {"m": 1 << 24, "k": 1 << 20}],
)  # fmt: skip
def test_nonsense_is_a_status_and_no_crash(kernel, change):
    status = kernel.can_implement(product(**change))
    assert kernel.status_text(status) == "a dimension or a run-time parameter is out of range"
    assert kernel.workspace_bytes(product(**change)) == 0


def test_one_tile_a_block_needs_no_workspace(kernel):
    assert kernel.workspace_bytes(product()) == 0


@pytest.mark.parametrize("raster", range(len(library.RASTERS)))
@pytest.mark.parametrize("max_swizzle", [1, 2, 4, 8])
def test_every_run_time_parameter_is_taken(kernel, raster, max_swizzle):
    assert kernel.can_implement(product(m=4096, raster=raster, max_swizzle=max_swizzle)) == 0


def test_a_status_has_a_text(kernel):
    texts = {kernel.status_text(status) for status in range(12)}
    assert len(texts) == 12
    assert kernel.status_text(1002) == "out of memory"


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="a card is here")  # noqa: PTH110
def test_without_a_card_a_plan_is_a_sentence_and_nothing_is_dumped(kernel, capfd):
    memory = ctypes.create_string_buffer(4096)
    address = ctypes.addressof(memory) + -ctypes.addressof(memory) % 16
    pointers = dict.fromkeys(("a", "b", "a_scale", "b_scale", "alpha", "out"), address)
    with pytest.raises(UnsupportedError, match=r"^cutlass cannot launch its kernel: \S.* \(status 1\d\d\d?\)\.$"):
        kernel.plan(product(**pointers))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("wrong", [{}, {"a": 8}, {"out": 24}, {"alpha": 18}, {"workspace": 8}])
def test_pointers_are_looked_at_before_anything_is_done_with_them(kernel, wrong):
    pointers = dict.fromkeys(("a", "b", "a_scale", "b_scale", "alpha", "out"), 64) if wrong else {}
    with pytest.raises(UnsupportedError, match="an operand is null or not aligned to 16 bytes"):
        kernel.plan(product(**{**pointers, **wrong}))


@pytest.mark.parametrize(("rows", "groups"), [(1, 2), (5, 4), (128, 4), (129, 5), (300, 22), (257, 64)])
def test_the_scales_lie_where_our_swizzle_puts_them(kernel, rows, groups):
    """Numbered scales are swizzled by us, a byte of the number at a time; CUTLASS is asked for each of them."""
    import torch

    k = groups * 16
    assert kernel.sf_elems(rows, k) == nvfp4.swizzled_bytes(rows, groups)
    numbers = torch.arange(1, rows * groups + 1).view(rows, groups)
    planes = [nvfp4.swizzle_128x4(((numbers >> shift) & 0xFF).to(torch.uint8)).long() << shift for shift in (0, 8, 16)]
    where = sum(planes)
    assert int((where > 0).sum()) == rows * groups
    for row in range(rows):
        for group in range(groups):
            assert int(where[kernel.sf_index(rows, k, row, group)]) == row * groups + group + 1


def test_another_version_of_the_interface_is_refused(compiled, monkeypatch):
    monkeypatch.setattr(library, "ABI", 2)
    with pytest.raises(UnsupportedError, match="speaks version 1 of its interface and not 2"):
        Library(compiled[1].library)


def test_the_command_compiles_and_stores(compiled, tmp_path):
    database = str(tmp_path / "t.db")
    arguments = ["compile", "--backend", "cutlass", "--arch", "sm_120a", "--shape", PROBLEM.shape, "--configs", "0"]
    assert run([*arguments, "--db", database]) == 0
    with Store.open(database, mode="read") as store:
        (stored,) = store.static_facts().items
    assert (stored.status, stored.backend, stored.target) == (CompileStatus.OK, "cutlass", "sm_120a")
    assert stored.facts == compiled[0]
    assert set(stored.versions) == {"cutlass", "nvcc"}
    assert stored.versions["cutlass"] == "4.5.0"
