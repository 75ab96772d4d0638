"""Compiled without a GPU, for Hopper and for SM12x: figures of the machine code, the cache, the filter of spills."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.humming_gemm import backend, cubin
from fp4tune.kernels.humming_gemm.backend import Humming, known
from fp4tune.kernels.humming_gemm.schedule import encode, gemm_type_of, threads
from fp4tune.kernels.problem import Format, parse_shape
from humming_cases import DEVICES, draw

BACKEND = Humming()
HOPPER = ("h200", parse_shape("16x4096x7168"))
HOPPER_GROUPED = ("h200", parse_shape("e64k8:16x2048x4096", format=Format.NVFP4_W4A16))
BLACKWELL = ("rtx_pro_6000", parse_shape("16x4096x7168"))
BLACKWELL_W4A16 = ("rtx_pro_6000", parse_shape("17x129x80", format=Format.NVFP4_W4A16))
WORK = {
    "sm_90a, default": (*HOPPER, None),
    "sm_90a grouped, drawn": (*HOPPER_GROUPED, 3),
    "sm_120a w4a4, default": (*BLACKWELL, None),
    "sm_120a w4a16 padded, drawn": (*BLACKWELL_W4A16, 3),
}
SPILLED = "sm_90a grouped, drawn"


def config_of(name):
    device, problem, seed = WORK[name]
    default = BACKEND.default(problem, DEVICES[device])
    return default if seed is None else draw(BACKEND.space(problem, DEVICES[device]), 1, seed=seed)[0]


@pytest.fixture(scope="module")
def compiled(humming, compiler, cache):
    """name -> (facts, cubin), each compiled once."""
    done = {}
    for name, (device, problem, _) in WORK.items():
        before = cubins(cache)
        facts = BACKEND.compile(problem, DEVICES[device], config_of(name))
        (path,) = cubins(cache) - before
        done[name] = (facts, path)
    return done


def cubins(cache: Path) -> set[Path]:
    return set(cache.glob("*/kernel.cubin"))


@pytest.mark.parametrize("name", WORK)
def test_facts_are_those_that_cuobjdump_finds(compiled, name):
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    facts, path = compiled[name]
    said = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    used = dict(re.findall(r"(REG|STACK):(\d+)", said))
    assert (facts.registers, facts.stack_bytes) == (int(used["REG"]), int(used["STACK"]))
    arch = subprocess.run([tool, "-lelf", path], capture_output=True, text=True, check=True).stdout
    assert facts.target == name.split()[0].rstrip(",")
    assert facts.target in arch


@pytest.mark.parametrize("name", WORK)
def test_registers_and_shared_memory_are_within_what_the_rules_allow(compiled, name):
    device, problem, _ = WORK[name]
    facts, _ = compiled[name]
    space = known(problem, DEVICES[device]).space
    config = config_of(name)
    assert config in space
    figures = backend.figures_of(DEVICES[device])
    assert 0 < facts.shared_bytes <= figures.max_smem_size
    assert facts.registers * threads(config) * int(config["ctas_per_sm"]) <= figures.max_registers_per_sm


def test_what_is_compiled_is_found(compiled, cache, humming):
    """By the next process, too: by everything that decides the code, among it the folder of the sources."""
    device, problem, _ = WORK[SPILLED]
    before = cubins(cache)
    times = {path: path.stat().st_mtime_ns for path in before}
    assert BACKEND.compile(problem, DEVICES[device], config_of(SPILLED)) == compiled[SPILLED][0]
    assert {path: path.stat().st_mtime_ns for path in cubins(cache)} == times


def test_an_unregistered_kernel_is_forgotten(compiled, humming):
    """A launch in this process must not find one that the driver was never told of."""
    kernels = humming._of["KernelRuntime"]._instances.values()
    assert not [kernel for kernel in kernels if isinstance(kernel, humming._of["HummingKernel"])]


def test_a_config_that_spills_is_refused_unless_it_is_the_default(compiled, monkeypatch):
    monkeypatch.setattr(backend, "MAX_STACK_BYTES", -1)
    device, problem, _ = WORK[SPILLED]
    stack = compiled[SPILLED][0].stack_bytes
    with pytest.raises(
        UnsupportedError, match=rf"^humming compiled this schedule for sm_90a with {stack} bytes of stack"
    ):
        BACKEND.compile(problem, DEVICES[device], config_of(SPILLED))
    device, problem, _ = WORK["sm_90a, default"]
    assert BACKEND.compile(problem, DEVICES[device], config_of("sm_90a, default"))


def test_a_compiler_that_fails_says_so_itself(compiled, humming, monkeypatch):
    """Not an UnsupportedError: the trial is a failed compilation."""
    device, problem, _ = WORK["sm_90a, default"]
    found = known(problem, DEVICES[device])
    other = draw(found.space, 1, seed=9)[0]
    with humming.seen_as(DEVICES[device]):
        compilers = humming._of["KernelRuntime"]._get_compiler()
        flags = compilers.get_flags
        monkeypatch.setattr(compilers, "get_flags", lambda *a: [*flags(*a), "--no-such-option"])
        with pytest.raises(RuntimeError):
            humming.compile(found.plan, gemm_type_of(other), encode(other, fields=humming.fields))


@pytest.mark.parametrize(
    ("contents", "why"), [(b"", "no 64-bit ELF"), (b"\x7fELF\x02\x01" + b"\0" * 8, "unpack"), (None, "No such file")]
)
def test_a_broken_cubin_is_refused(tmp_path, contents, why):
    path = tmp_path / "kernel.cubin"
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(
        UnsupportedError, match=f"^The compiled kernel .*kernel.cubin cannot be read .*{why}.*empty Humming"
    ):
        cubin.kernel_facts(path, target="sm_90a", shared_bytes=0)


def test_a_cubin_without_kernels_is_refused(compiled, tmp_path):
    _, path = compiled["sm_90a, default"]
    copy = tmp_path / "kernel.cubin"
    shutil.copy(path, copy)
    data = copy.read_bytes()
    copy.write_bytes(data.replace(b"\0.nv.info\0", b"\0.nv.inf_\0"))
    with pytest.raises(UnsupportedError, match="it has no section .nv.info"):
        cubin.kernel_facts(copy, target="sm_90a", shared_bytes=0)
