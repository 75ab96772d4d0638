"""What the doctor says on a card and a CUDA installation that are made up: packages, compilers and folders of our choice.

What it looks at them with is what looks at a real machine. Nothing here has a card, so nothing is said of what runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch  # noqa: F401 - before its made-up metadata is in front of it
from fp4tune.api.cli.app import run
from fp4tune.kernels import cuda_stack, device
from fp4tune.kernels._host import usable_cores
from fp4tune.kernels.backend import family, load_backends
from fp4tune.kernels.cards import CARDS

SM120, H200 = CARDS["rtx-pro-6000"], CARDS["h200"]
FLASHINFER = sorted(name for name in load_backends() if family(name) == "flashinfer")


class Machine:
    """A machine with an RTX PRO 6000, nothing on PATH and no toolkit but what is put there."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.site, self.home, self.bin = root / "site", root / "cuda", root / "bin"
        for folder in (self.site, self.home, self.bin):
            folder.mkdir()
        self._root, self._monkeypatch, self._capsys = root, monkeypatch, capsys
        self.card = SM120
        monkeypatch.chdir(root)
        monkeypatch.syspath_prepend(str(self.site))
        monkeypatch.setattr(device, "detect", lambda *_: self.card)
        for name in ("CUDA_PATH", "MAX_JOBS", "CPATH", "CPLUS_INCLUDE_PATH", "CXX", "FP4TUNE_DB"):
            monkeypatch.delenv(name, raising=False)
        self.env(PATH=self.bin, CUDA_HOME=self.home, FP4TUNE_LOCK_DIR=root, FP4TUNE_CUTLASS_INCLUDE=root)

    def env(self, **values: object) -> None:
        for name, value in values.items():
            self._monkeypatch.setenv(name, str(value))

    def install(self, name: str, version: str) -> None:
        folder = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def torch(self, version: str, cuda: str | None) -> None:
        """What a PyTorch of that build says of itself in the file that is read; the one that is imported stays."""
        folder = self.site / "torch"
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('torch was imported before')\n")
        (folder / "version.py").write_text(f"__version__ = {version!r}\ncuda: str | None = {cuda!r}\n")

    def program(self, path: Path, body: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def nvcc(self, release: str) -> None:
        """A compiler that says its version, g++ for it, and the header that every kernel needs."""
        self.program(self.home / "bin/nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.41'")
        self.program(self.bin / "g++", "exit 0")
        (self.home / "include").mkdir()
        (self.home / "include/cuda_runtime.h").write_text("")

    def doctor(self) -> tuple[dict[str, str], dict[str, tuple[bool, str]]]:
        """Reasons by backend, empty if it is available; and checks by name, `ok` and text."""
        cuda_stack.here.cache_clear()  # a process looks once
        assert run(["doctor", "--json"]) == 0
        document = json.loads(self._capsys.readouterr().out)
        reasons = {name: state["reason"] for name, state in document["backends"].items()}
        assert all(state["available"] is not bool(state["reason"]) for state in document["backends"].values())
        assert all(reason.endswith(".") and "\n" not in reason for reason in reasons.values() if reason)
        return reasons, {check["name"]: (check["ok"], check["text"]) for check in document["checks"]}


@pytest.fixture
def machine(tmp_path, monkeypatch, capsys):
    yield Machine(tmp_path, monkeypatch, capsys)
    cuda_stack.here.cache_clear()


def test_without_a_toolkit_each_backend_names_what_it_lacks(machine):
    machine.torch("2.13.0+cpu", None)
    machine.install("flashinfer-python", "0.7.4")
    reasons, checks = machine.doctor()
    no_nvcc = f"There is no nvcc in {machine.home}/bin, which CUDA_HOME names: set CUDA_HOME to a CUDA toolkit"
    assert reasons["cutlass"] == f"{no_nvcc}."
    no_cuda = "It needs PyTorch built for CUDA 12.8 or newer, and PyTorch 2.13.0+cpu is built without CUDA."
    assert reasons["cublaslt"] == no_cuda
    for name in ("b12x", "cutlass", "group_gemm"):
        assert "there is neither nvcc nor a PyTorch with CUDA" in reasons[f"flashinfer.{name}"], name
    assert "PyTorch 2.13.0+cpu is built without CUDA" in reasons["flashinfer.cute_dsl"]
    assert checks["nvcc"] == (False, f"{no_nvcc}; Humming then needs NVRTC")


def test_a_cuda_below_the_minimum_is_named_with_the_minimum(machine):
    machine.torch("2.9.0+cu126", "12.6")
    machine.nvcc("12.6")
    machine.install("flashinfer-python", "0.7.4")
    reasons, checks = machine.doctor()
    found = f"{machine.home}/bin/nvcc is of CUDA 12.6: set CUDA_HOME to a newer toolkit."
    assert reasons["cutlass"] == f"Compiling its kernels needs CUDA 12.8 or newer, and {found}"
    assert reasons["flashinfer.b12x"] == f"flashinfer.b12x needs CUDA 12.9 or newer, and {found}"
    assert reasons["flashinfer.cutlass"] == f"flashinfer.cutlass needs CUDA 12.8 or newer, and {found}"
    for name in ("flashinfer.cute_dsl", "cublaslt"):
        assert "PyTorch 2.9.0+cu126 is built for CUDA 12.6" in reasons[name]
    assert checks["nvcc"] == (True, f"{machine.home}/bin/nvcc, CUDA 12.6")
    assert "needs CUDA 12.9 or newer" in _on_gb10(machine)["cutlass"]


def _on_gb10(machine: Machine) -> dict[str, str]:
    """Reasons on compute capability 12.1, which needs a newer compiler than 12.0."""
    machine.card = CARDS["gb10"]
    return machine.doctor()[0]


def test_headers_that_are_not_there(machine):
    machine.torch("2.13.0+cu130", "13.0")
    machine.nvcc("13.0")
    folder = Path.cwd()
    reasons, _ = machine.doctor()
    assert reasons["cutlass"] == f"FP4TUNE_CUTLASS_INCLUDE names {folder}, and there are no headers of CUTLASS in it."
    (machine.bin / "g++").unlink()
    assert machine.doctor()[0]["cutlass"] == "There is no C++ compiler on PATH, and nvcc needs one: install g++."


def test_a_flashinfer_out_of_range_and_cards_that_are_not_its_own(machine):
    machine.install("flashinfer-python", "0.6.4")
    reasons, _ = machine.doctor()
    for name in FLASHINFER:
        other = f"It is for compute capability 10.0 and 10.3, and {SM120.name} has 12.0."
        unknown = "It knows FlashInfer 0.7.2 to 0.7.4, and 0.6.4 is installed."
        assert reasons[name] == (other if name == "flashinfer.trtllm" else unknown)
    machine.card = H200
    reasons, _ = machine.doctor()
    for name in (*FLASHINFER, "cutlass"):
        assert reasons[name].startswith("It is for compute capability 1"), name
        assert reasons[name].endswith(f", and {H200.name} has 9.0."), name
    for name in ("cublaslt", "triton.native"):
        assert reasons[name].startswith(f"{H200.name} (compute capability 9.0) has no FP4 matrix units"), name


def test_cuda_versions_that_would_meet(machine):
    machine.torch("2.13.0+cu130", "13.0")
    machine.install("nvidia-cuda-runtime", "13.0.48")
    machine.nvcc("13.0")
    assert machine.doctor()[1]["CUDA versions"] == (True, "no two major versions")
    machine.install("nvidia-cuda-runtime-cu12", "12.9.79")
    two = (
        "Two CUDA runtimes are installed, nvidia-cuda-runtime-cu12 12.9.79 and nvidia-cuda-runtime 13.0.48: keep that of "
        "CUDA 13, which PyTorch is built for, and uninstall the other."
    )
    assert machine.doctor()[1]["CUDA versions"] == (False, two)
    machine.program(machine.home / "bin/nvcc", "echo 'Cuda compilation tools, release 12.9, V12.9.41'")
    ok, text = machine.doctor()[1]["CUDA versions"]
    assert not ok
    assert text == (
        f"{two} PyTorch 2.13.0+cu130 is built for CUDA 13.0, and {machine.home}/bin/nvcc is of CUDA 12.9: "
        "set CUDA_HOME to a toolkit of CUDA 13."
    )


def test_cudnn_and_its_frontend(machine):
    """The check and the backend say the same."""
    machine.torch("2.13.0+cu130", "13.0")
    machine.install("flashinfer-python", "0.7.4")
    machine.install("nvidia-cudnn-cu13", "9.8.0.87")
    machine.install("nvidia-cudnn-frontend", "1.12.0")
    reasons, checks = machine.doctor()
    old = "flashinfer.cudnn needs cuDNN 9.10.2 or newer, and 9.8.0.87 is installed: install nvidia-cudnn-cu13>=9.10.2."
    assert checks["cuDNN"] == (False, old)
    assert reasons["flashinfer.cudnn"] == old
    _upgrade(machine, "nvidia-cudnn-cu13", "9.13.0.50")
    reasons, checks = machine.doctor()
    assert checks["cuDNN"][0] is False
    assert (
        "cuDNN's frontend 1.13 or newer, and 1.12.0 is installed: install nvidia-cudnn-frontend" in checks["cuDNN"][1]
    )
    assert reasons["flashinfer.cudnn"] == checks["cuDNN"][1]
    _upgrade(machine, "nvidia-cudnn-frontend", "1.14.0")
    assert machine.doctor()[1]["cuDNN"] == (True, "9.13.0.50, frontend 1.14.0")


def _upgrade(machine: Machine, name: str, version: str) -> None:
    (old,) = machine.site.glob(f"{name.replace('-', '_')}-*.dist-info")
    old.rename(machine._root / f"{old.name}.old")
    machine.install(name, version)


def test_compilers_that_memory_does_not_hold(machine):
    fit = cuda_stack.jobs_that_fit(stack=cuda_stack.CudaStack())
    machine.env(MAX_JOBS=1)
    assert machine.doctor()[1]["MAX_JOBS"] == (True, "1")
    machine.env(MAX_JOBS=fit + 1)
    said = (False, f"{fit + 1}; memory holds {fit} of CUTLASS's kernels: set MAX_JOBS={fit}")
    assert machine.doctor()[1]["MAX_JOBS"] == said
    machine.env(MAX_JOBS="many")
    ok, text = machine.doctor()[1]["MAX_JOBS"]
    assert text.startswith(f"unset, {usable_cores()} compilers at once")
    assert ok == (usable_cores() <= fit)
