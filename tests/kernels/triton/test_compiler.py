"""Compiling ahead without a GPU, and launching exactly that kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.triton_gemm import compiler

pytest.importorskip("triton")
kernels = pytest.importorskip("triton_kernels")

SIGNATURE = {"source": "*bf16", "out": "*bf16", "n": "i32", "factor": "fp32"}
COMPILE = """
import json, sys
from triton import knobs
from fp4tune.kernels.triton_gemm.compiler import compile_kernel
import triton_kernels
hits = []
knobs.compilation.listener = lambda **what: hits.append(what["cache_hit"])
kernel = compile_kernel(
    triton_kernels.scaled_copy,
    signature={"factor": "fp32", "n": "i32", "out": "*bf16", "source": "*bf16"},
    constexprs={"BLOCK": 256},
    divisible_by_16=["source", "out"],
    target=(9, 0),
)
json.dump([kernel.hash, hits, sys.modules.get("torch") is None], sys.stdout)
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


def compiled(target=(9, 0), **changes):
    arguments = {"signature": SIGNATURE, "constexprs": {"BLOCK": 256}, "divisible_by_16": ("source", "out"), **changes}
    return compiler.compile_kernel(kernels.scaled_copy, target=target, **arguments)


def test_another_process_in_another_directory_finds_the_kernel_in_the_cache(tmp_path):
    tests = str(Path(kernels.__file__).parent)

    def compile_there() -> list:
        environment = {**os.environ, "PYTHONPATH": tests, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, "-c", COMPILE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    first, first_hits, _ = compile_there()
    second, second_hits, _ = compile_there()
    assert (first_hits, second_hits) == ([False], [True])
    assert compiled().hash == first == second  # also with the signature in another order


@pytest.mark.parametrize(("target", "name"), [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")])
def test_compiles_for_a_target_without_a_device(target, name):
    assert f".target {name}\n" in compiled(target).asm["ptx"]
    assert compiler.target_name(target) == name


def test_a_promise_of_alignment_makes_wide_loads():
    assert "ld.global.v4" in compiled(constexprs={"BLOCK": 1024}, divisible_by_16=("source", "out", "n")).asm["ptx"]
    assert "ld.global.v4" not in compiled(constexprs={"BLOCK": 1024}, divisible_by_16=()).asm["ptx"]


def test_options_reach_the_compiler():
    assert ".maxnreg 64" in compiled(maxnreg=64).asm["ptx"].replace(".maxnreg\t", ".maxnreg ")
    assert compiled(num_warps=8).metadata.num_warps == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"signature": {k: v for k, v in SIGNATURE.items() if k != "n"}},
        {"signature": {**SIGNATURE, "no_such": "i32"}},
        {"divisible_by_16": ("no_such",)},
    ],
)
def test_a_wrong_list_of_parameters_is_a_bug(wrong):
    with pytest.raises(ValueError, match="no_such|'n'"):
        compiled(**wrong)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(occupied))
    with pytest.raises(UnsupportedError, match=rf"{occupied}.*TRITON_CACHE_DIR"):
        compiled()


class Driver:
    """Stands for the driver: keeps what a kernel is launched with."""

    def __init__(self, kernel, monkeypatch):
        self.launched = []
        self.current = 0
        self.launched_on = []
        self.kernel = SimpleNamespace(
            src=kernel.src, name=kernel.name, function="function", packed_metadata="packed", run=self._run
        )
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "device", self._device)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7 + device, raising=False)

    @contextmanager
    def _device(self, index):
        before, self.current = self.current, index
        yield
        self.current = before

    def _run(self, *arguments):
        self.launched.append(arguments)
        self.launched_on.append(self.current)


def test_arguments_go_where_the_kernel_has_them(monkeypatch):
    driver = Driver(compiled(), monkeypatch)
    x, y = torch.zeros(4), torch.zeros(4)
    compiler.launcher(driver.kernel, (3, 2, 1))(x, y, 4, 0.5)
    compiler.bind(driver.kernel, (3, 2, 1), (x, y, 4, 0.5))()
    start = (3, 2, 1, 7, "function", "packed", None, None, None)
    assert driver.launched[0][:9] == driver.launched[1][:9] == start
    assert driver.launched[0][9:] == (x, y, 4, None, 0.5)
    assert driver.launched[1][9:] == (x.data_ptr(), y.data_ptr(), 4, None, 0.5)


def test_a_kernel_is_launched_on_the_device_that_it_was_loaded_on(monkeypatch):
    """On whichever is current then, the driver knows no such function: "invalid resource handle"."""
    driver = Driver(compiled(), monkeypatch)
    driver.current = 1
    launch = compiler.bind(driver.kernel, (1, 1, 1), (torch.zeros(4), torch.zeros(4), 4, 0.5))
    driver.current = 0
    launch()
    assert driver.launched_on == [1]
    assert driver.launched[0][3] == 8
    assert driver.current == 0


def test_a_missing_argument_is_noticed_before_the_launch(monkeypatch):
    driver = Driver(compiled(), monkeypatch)
    with pytest.raises(TypeError, match="takes 4 arguments and got 3"):
        compiler.bind(driver.kernel, (1, 1, 1), (1, 2, 3))
    assert driver.launched == []


def test_a_device_that_is_too_small_is_a_sentence(monkeypatch):
    from triton.runtime.errors import OutOfResources

    kernel = compiled()
    monkeypatch.setattr(type(kernel), "run", property(lambda _: (_ for _ in ()).throw(OutOfResources(9, 5, "threads"))))
    with pytest.raises(UnsupportedError, match="needs 9 of threads, and the device has 5"):
        compiler.bind(kernel, (1, 1, 1), (1, 2, 3, 4.0))


def test_why_triton_cannot_be_used(monkeypatch):
    assert compiler.why_no_triton() == ""
    monkeypatch.setattr(compiler, "_version_text", lambda: "3.5.1")
    assert "3.5 is too old" in compiler.why_no_triton()
    monkeypatch.setattr(compiler, "_version_text", lambda: "")
    assert "not installed" in compiler.why_no_triton()
    assert compiler.triton_versions() == {}
