"""What can be wrong with a GPU and its machine: one clear sentence, an exit code, and nothing lost.

What only a real card can do wrong (memory that runs out, kernels that break it) is in tests/gpu and tests/tuner/workers.
"""

from __future__ import annotations

import ctypes
import json

import pytest
from fp4tune.api.cli.app import run
from fp4tune.db.records import RunStatus, TrialStatus
from fp4tune.db.store import Store
from fp4tune.kernels.backend import load_backends
from fp4tune.kernels.device import detect
from fp4tune.tuner import checkup

SHAPE = ["--shape", "2x32x64", "--device", "cuda:0"]
GONE = 2**22 + 7
"""Above the kernel's largest pid: a process of another pid namespace, which NVML knows by name."""

H200 = "NVIDIA H200"
SLICE = "NVIDIA H200 MIG 1g.18gb"
ENGINE = f"in use by engine (pid {GONE}, 12.0 GiB), at 93 % load"


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="a driver is here")
@pytest.mark.parametrize("command", ["tune", "noise"])
def test_no_driver(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run([command, *SHAPE]) == 3
    captured = capsys.readouterr()
    assert captured.err.startswith("fp4tune: There is no device cuda:0: ")
    assert "driver" in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not list(tmp_path.iterdir()), "neither a database nor a lock"


def test_no_compiler_for_humming(fp4tune, tmp_path):
    """Somebody who asked for it is told what is missing and how to get it."""
    nothing = {"PATH": str(tmp_path), "CUDA_HOME": "", "CUDA_PATH": ""}
    state = json.loads(fp4tune("doctor", "--json", env=nothing).stdout)["backends"]["humming"]
    if state["available"]:
        pytest.skip("a compiler is where it is found without PATH and CUDA_HOME")
    assert "install" in state["reason"]
    done = fp4tune("tune", *SHAPE, "--backend", "humming", env=nothing)
    assert (done.returncode, done.stdout) == (4, "")
    sentence = f"A backend that was asked for cannot be used on NVIDIA H200. humming: {state['reason']}"
    assert done.stderr == f"fp4tune: {sentence}\n"
    assert not list(tmp_path.glob("*.db"))


def test_a_doctor_misses_compilers(monkeypatch, tmp_path):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(checkup, "TOOLKIT", tmp_path)
    checks = {check.name: check for check in checkup.check_up(detect("cpu"), {}).checks}
    assert not checks["nvcc"].ok
    assert "Humming then needs NVRTC" in checks["nvcc"].text
    assert not checks["C compiler"].ok


def test_a_problem_that_is_larger_than_the_device(fp4tune, tmp_path):
    done = fp4tune("tune", "--shape", "16777216x16384x16384", "--device", "cuda:0")
    assert (done.returncode, done.stdout) == (4, "")
    assert " GiB, the device has 140.0 GiB (NVIDIA H200)." in done.stderr
    assert not list(tmp_path.glob("*.db"))


def test_a_slice_and_a_neighbour_are_told(fp4tune):
    done = fp4tune("noise", *SHAPE, "--backend", "torch.dequant", nvml={"pids": GONE, "loads": 93}, name=SLICE)
    lines = done.stderr.splitlines()
    assert lines[0] == f"note: {SLICE} is a slice of a card; what is found holds for such slices alone"
    assert lines[1].startswith(f"warning: {SLICE} is {ENGINE}; ")
    assert "--wait waits until it is idle" in lines[1]
    # It goes on, up to what a stand-in cannot do.
    assert done.returncode == 4
    assert lines[-1].startswith("fp4tune: torch.dequant cannot be measured on this problem: ")


def test_waiting_for_a_neighbour(fp4tune):
    """Who holds memory alone is not waited for, and is warned of."""
    arguments = ["noise", *SHAPE, "--backend", "torch.dequant", "--wait"]
    done = fp4tune(*arguments, nvml={"pids": GONE, "loads": "93,93,0"})
    lines = done.stderr.splitlines()
    assert lines[0] == f"waiting until the device is idle: {ENGINE}"
    assert lines[1].startswith(f"warning: {H200} is in use by engine (pid {GONE}, 12.0 GiB), at 0 % load; ")
    assert "--wait" not in lines[1]
    assert lines[2].startswith("2x32x64: torch.dequant ")


@pytest.mark.skipif("triton.dequant" not in load_backends(), reason="no backend that compiles can run there")
def test_a_cache_that_cannot_be_written_costs_its_family_alone(fp4tune, tmp_path):
    """Here the other family fails, too, because nothing runs on a stand-in; each with its own reason, and all of it stored."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = fp4tune(
        "tune", *SHAPE, "--backend", "triton.dequant", "--backend", "torch.dequant", "--trials", "2", "--budget-s", "1",
        "--db", "t.db", nvml={"pids": GONE, "loads": 93}, env={"TRITON_CACHE_DIR": str(blocked / "cache")},
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stdout == "no winner for 2x32x64: no config passed the correctness gate\n"
    assert "warning: The compiler cache of triton cannot be written" in done.stderr
    assert "set TRITON_CACHE_DIR to a directory that can." in done.stderr
    assert "  most often: " in done.stderr, "a log says why nothing is served"
    with Store.open(tmp_path / "t.db", mode="read") as store:
        (stored,) = store.runs()
        trials = store.trials().items
    assert stored.status is RunStatus.FINISHED
    assert stored.settings["shared_with"] == [ENGINE]
    ended = {trial.backend: (trial.status, trial.error) for trial in trials}
    assert ended["triton.dequant"][0] is TrialStatus.UNSUPPORTED
    assert "TRITON_CACHE_DIR" in ended["triton.dequant"][1]
    assert ended["torch.dequant"][0] is TrialStatus.CRASHED
    assert "TRITON_CACHE_DIR" not in ended["torch.dequant"][1]
