"""The command line on a real card: what no stand-in can show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fp4tune.db.store import Store
from fp4tune.kernels.device import detect, device_uuid
from fp4tune.tuner.occupants import look
from fp4tune.tuner.workers.device_lock import DeviceLock

pytestmark = pytest.mark.gpu

TUNE = ["tune", "--shape", "4x1024x2048", "--shape", "e8k2:4x256x512", "--trials", "4", "--budget-s", "4"]
TUNE += ["--device", "cuda:0"]
QUICK = ["--backend", "torch.dequant", "--backend", "torch.bf16"]  # nothing to compile: seconds instead of minutes

IN_ONE_PROCESS = """
import ctypes, sys
from fp4tune.api.cli.app import run
code = run(sys.argv[1:])
driver = ctypes.CDLL("libcuda.so.1")
handle, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int(-1)
assert driver.cuInit(0) == 0
assert driver.cuDeviceGet(ctypes.byref(handle), 0) == 0
assert driver.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(active)) == 0
assert active.value == 0, "the tuner made a CUDA context in its own process"
sys.exit(code)
"""

NEIGHBOUR = """
import torch
a = torch.randn(4096, 4096, device="cuda:0")
print("busy", flush=True)
while True:
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
"""


@pytest.fixture
def fp4tune(tmp_path):
    """Runs the command line in a process that must not make a CUDA context."""

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-c", IN_ONE_PROCESS, *arguments], cwd=tmp_path, capture_output=True, text=True,
            check=False, timeout=280, env={**os.environ, "FP4TUNE_LOCK_DIR": str(tmp_path)},
        )  # fmt: skip

    return call


@pytest.fixture(scope="module")
def neighbour():
    """Another process that keeps the card busy."""
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "busy\n"
        time.sleep(2)  # NVML's utilisation is that of a past sample period of up to a second
        yield process
        process.kill()


def test_a_run_stores_what_a_page_needs(fp4tune, tmp_path):
    done = fp4tune(*TUNE, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["winners"]) == 2, result
    assert {base["backend"] for base in result["baselines"]} == {"torch.bf16"}
    assert result["run"]["settings"]["policy"] == "cuda.graph"
    for winner in result["winners"]:
        assert 0 < winner["roof_share"] < 2
    done = fp4tune("results", result["run"]["id"], "--out", "page.md")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "copy bandwidth, measured" in page
    assert "| bf16 µs | x bf16 |" in page
    assert "SM clock" in page


def test_policies_stand_side_by_side(fp4tune, tmp_path):
    for policy in ("graph", "eager"):
        done = fp4tune(*TUNE[:3], *QUICK, "--trials", "2", "--budget-s", "2", "--device", "cuda:0", "--policy", policy)
        assert done.returncode == 0, done.stderr
    with Store.open(tmp_path / "fp4tune.db", mode="read") as store:
        assert {winner.policy for winner in store.winners().items} == {"cuda.graph", "cuda.eager"}


def test_the_lock_is_held_and_its_holder_named(fp4tune, tmp_path):
    lock = DeviceLock(detect("cuda:0"), command="fp4tune tune other", directory=tmp_path)
    lock.acquire()
    with lock:
        done = fp4tune(*TUNE)
    assert done.returncode == 6
    assert f"in use by fp4tune tune other (pid {os.getpid()}, " in done.stderr


def test_noise(fp4tune):
    done = fp4tune("noise", "--shape", "4x1024x2048", *QUICK[:2], "--device", "cuda:0", "--pairs", "1", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {one["policy"] for one in document["noise"]} == {"cuda.graph"}
    assert all(one["across"]["worst"] >= 0 for one in document["noise"])


def test_the_doctor(fp4tune):
    done = fp4tune("doctor", "--device", "cuda:0", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    checks = {one["name"]: one for one in document["checks"]}
    assert checks["NVIDIA driver"]["ok"]
    assert checks["PyTorch with CUDA"]["ok"]
    assert document["device"]["kind"] == "cuda"
    assert document["backends"]["torch.bf16"]["available"]


def test_the_uuid_is_nvmls():
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    try:
        assert pynvml.nvmlDeviceGetHandleByUUID(device_uuid(detect("cuda:0")))
    finally:
        pynvml.nvmlShutdown()


def test_a_neighbour_is_warned_of_and_remembered(fp4tune, tmp_path, neighbour):
    pytest.importorskip("pynvml")
    seen = look(device_uuid(detect("cuda:0")))
    if seen is None:
        pytest.skip("NVML does not know this device")
    assert seen.shared
    done = fp4tune(*TUNE[:3], *QUICK, "--device", "cuda:0", "--trials", "1", "--budget-s", "1")
    assert done.returncode == 0, done.stderr
    assert "in use by " in done.stderr
    assert "--wait waits until it is idle" in done.stderr
    with Store.open(tmp_path / "fp4tune.db", mode="read") as store:
        (run,) = store.runs()
    assert run.settings["shared_with"]
    assert Path(tmp_path / "fp4tune.db").exists()
