"""What commands say about devices: of a machine whose driver is a stand-in, and of this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fp4tune.api.cli import noise
from fp4tune.api.cli.app import run
from fp4tune.db.records import RunStatus
from fp4tune.db.store import Store
from fp4tune.kernels.device import Device
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.noise import Noise, Spread
from fp4tune.tuner.workers.device_lock import DeviceLock

UUID = "GPU-0a000000-0000-0000-0000-000000000000"
H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 50 << 20, 0.0)
SHAPE = ["--shape", "2x32x64"]


@pytest.mark.parametrize(
    ("says", "arguments", "sentence"),
    [
        (
            {"count": 2},
            [],
            "There are 2 CUDA devices, so one must be named with --device: cuda:0 (NVIDIA H200), cuda:1",
        ),
        ({"count": 2}, ["--device", "cuda"], "one must be named with --device"),
        ({"count": 2}, ["--device", "cuda:7"], "There is no device cuda:7: the driver shows cuda:0 to cuda:1."),
        ({"version": 12040}, [], "too old for PyTorch"),
        ({"init": 803}, [], "reload the module or reboot"),
        ({"init": 100}, ["--device", "cuda"], "the NVIDIA driver shows none"),
    ],
)
def test_one_sentence_about_the_device(fp4tune, tmp_path, says, arguments, sentence):
    done = fp4tune("tune", *SHAPE, *arguments, **says)
    assert done.returncode == 3
    assert sentence in done.stderr
    assert done.stderr.startswith("fp4tune: ")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "neither a database nor a lock"


def test_a_device_that_is_locked_names_its_holder(fp4tune, tmp_path):
    held = DeviceLock(H200, command="fp4tune tune qwen3", directory=tmp_path, uuid=UUID)
    held.acquire()
    with held:
        for command in ("tune", "noise"):
            done = fp4tune(command, *SHAPE, "--backend", "torch.dequant", "--device", "cuda:0")
            assert done.returncode == 6, done.stderr
            assert f"GPU NVIDIA H200 ({UUID}) is in use by fp4tune tune qwen3 (pid {os.getpid()}, user " in done.stderr
            assert "; wait with --wait." in done.stderr
            assert done.stdout == ""


def test_a_lock_directory_that_is_not_there(fp4tune, tmp_path):
    missing = str(tmp_path / "none")
    done = fp4tune("tune", *SHAPE, "--backend", "torch.dequant", "--device", "cuda:0", "--lock-dir", missing)
    assert (done.returncode, done.stdout) == (4, "")
    assert (
        done.stderr == f"fp4tune: Device locks should lie in {missing} (--lock-dir, FP4TUNE_LOCK_DIR): no directory.\n"
    )


def test_a_doctor_sees_what_is_wrong(fp4tune, tmp_path):
    """Each of these would end a run; here they are what the user wants to know."""
    for says, problem in (
        ({"count": 2}, "one must be named"), ({"version": 12040}, "too old"), ({"init": 803}, "reload the module")
    ):  # fmt: skip
        done = fp4tune("doctor", "--json", **says)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert problem in document["problem"]
        assert document["device"]["kind"] == "cpu"
    done = fp4tune("doctor", "--device", "cuda:3")
    assert done.returncode == 3


def test_a_doctor_looks_at_the_lock_and_takes_nothing(fp4tune, tmp_path):
    document = json.loads(fp4tune("doctor", "--json").stdout)
    checks = {check["name"]: check for check in document["checks"]}
    assert document["device"]["name"] == "NVIDIA H200"
    assert checks["CUDA devices"]["text"] == "cuda:0 NVIDIA H200"
    assert checks["device lock"]["text"].startswith("free (")
    held = DeviceLock(H200, command="fp4tune tune qwen3", directory=tmp_path, uuid=UUID)
    held.acquire()
    with held:
        checks = {one["name"]: one for one in json.loads(fp4tune("doctor", "--json").stdout)["checks"]}
    assert "held by fp4tune tune qwen3 (pid " in checks["device lock"]["text"]
    assert not checks["device lock"]["ok"]


def test_a_doctor_says_that_a_slice_is_one(fp4tune):
    done = fp4tune("doctor", name="NVIDIA H200 MIG 1g.18gb", sms=16, gib=16)
    assert "slice of a card (MIG)" in done.stdout
    assert "a slice is another device than its card" in done.stdout


def test_a_doctor_finds_compilers(fp4tune, tmp_path):
    fake = tmp_path / "cuda" / "bin"
    fake.mkdir(parents=True)
    (fake / "nvcc").write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.41'\n")
    (fake / "nvcc").chmod(0o755)

    def nvcc():
        document = json.loads(fp4tune("doctor", "--json", env={"CUDA_HOME": str(fake.parent)}).stdout)
        return next(one for one in document["checks"] if one["name"] == "nvcc")

    assert nvcc() == {"name": "nvcc", "ok": True, "text": f"{fake}/nvcc, CUDA 12.9"}
    (fake / "nvcc").write_text("#!/bin/sh\nexit 3\n")
    assert "does not run" in nvcc()["text"]
    assert not nvcc()["ok"]


def test_a_doctor_names_a_cache_that_cannot_be_written(fp4tune, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    document = json.loads(fp4tune("doctor", "--json", env={"TRITON_CACHE_DIR": str(blocked / "cache")}).stdout)
    (check,) = [one for one in document["checks"] if one["name"] == "cache of triton"]
    assert not check["ok"]
    assert "set TRITON_CACHE_DIR to a directory that can" in check["text"]


# --- options that mean nothing, or contradict -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tune", *SHAPE, "--policy", "eager"], "--policy is about GPUs"),
        (["tune", *SHAPE, "--compile-workers", "2"], "--compile-workers is about GPUs"),
        (["tune", *SHAPE, "--compile-workers", "0"], "--compile-workers"),
        (["tune", *SHAPE, "--policy", "fast"], "--policy"),
        (["tune", *SHAPE, "--tp", "8"], "--tp is for a checkpoint, and here --shape is named"),
        (["tune", *SHAPE, "--role", "moe.w13"], "--role is for a checkpoint"),
        (["tune", "qwen3-32b-nvfp4", "--format", "bf16"], "--format is for --shape, and here a checkpoint is named"),
        (["tune", "qwen3-32b-nvfp4", "--out-dtype", "fp16"], "--out-dtype is for --shape"),
        (["noise"], "Name at least one --shape"),
        (["noise", *SHAPE, "--pairs", "0"], "--pairs"),
        (["noise", *SHAPE, "--config", "{}"], "--config needs one --backend"),
        (["noise", *SHAPE, "--backend", "cpu.dequant", "--config", "{"], "--config is not JSON"),
        (["noise", *SHAPE, "--backend", "cpu.dequant", "--config", "[1]"], "must be a JSON object"),
        (["noise", *SHAPE, "--backend", "cpu.dequant", "--config", '{"tile": 7}'], "is no config of cpu.dequant"),
        (["noise", *SHAPE, "--policy", "graph"], "--policy is about GPUs"),
    ],
)  # fmt: skip
def test_an_option_is_never_ignored(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run([*arguments, "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """(database, id) of a run that was stopped."""
    database = tmp_path_factory.mktemp("resume") / "t.db"
    shapes = [*SHAPE, "--shape", "3x32x64", "--backend", "cpu.dequant"]
    assert run(["tune", *shapes, "--trials", "2", "--budget-s", "1.5", "--device", "cpu", "--db", str(database)]) == 0
    with Store.open(database) as store:
        (stored,) = store.runs()
        store.finish_run(stored.id, RunStatus.INTERRUPTED)
    return str(database), stored.id


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--trials", "9"], "was started with --trials 2 and goes on as it was started: leave --trials 9 out"),
        (["--budget-s", "30"], "was started with --budget-s 1.5 and"),
        (["--seed", "4"], "leave --seed 4 out"),
        (["--backend", "torch.dequant"], "was started with --backend cpu.dequant and"),
        (["--tp", "8"], "was started without --tp and"),
        (["--tokens", "1,2"], "leave --tokens 1,2 out"),
        (["--bf16"], "was started without --bf16"),
        (["--format", "bf16"], "--format says nothing of a run that exists"),
        (["--shape", "1x64x64"], "Name one of"),
    ],
)
def test_a_resume_is_asked_nothing_else(interrupted, arguments, says, capsys):
    database, run_id = interrupted
    assert run(["tune", "--resume", run_id, *arguments, "--device", "cpu", "--db", database]) == 2
    assert says in capsys.readouterr().err


def test_a_resume_may_repeat_what_was_said(interrupted, capsys):
    database, run_id = interrupted
    same = ["--trials", "2", "--budget-s", "1.5", "--seed", "0", "--backend", "cpu.dequant"]
    assert run(["tune", "--resume", run_id, *same, "--device", "cpu", "--db", database]) == 0


# --- noise, progress ----------------------------------------------------------------------------------------------------


def test_noise_on_this_machine(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = '{"decode":"lookup","block_n":32,"compute_dtype":"float32","swap_ab":false,"threads":1}'
    arguments = ["noise", *SHAPE, "--device", "cpu", "--pairs", "1", "--backend", "cpu.dequant", "--config", config]
    assert run([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (one,) = document["noise"]
    assert one["key"] == "dense:2x32x64:uniform:nvfp4:bf16"
    assert one["config"] == json.loads(config)
    assert [len(pair) for pair in one["times_us"]] == [2, 2]
    assert len(one["within"]["ratios"]) == 2
    assert len(one["across"]["ratios"]) == 1
    assert one["across"]["ratios"][0] == pytest.approx(one["times_us"][1][0] / one["times_us"][0][0])
    assert one["within"]["worst"] >= one["within"]["median"] >= 0
    assert not list(tmp_path.iterdir()), "noise stores nothing"


def test_noise_of_a_backend_that_fails_costs_the_others_nothing(capsys, monkeypatch):
    """Unless it was asked for, or none is left."""

    def measure(device, backends, policy, problem, candidate, *, pairs, seed):
        if candidate.backend in broken:
            raise UnsupportedError(f"{candidate.backend} cannot be measured.")
        spread = Spread((1.0, 1.02))
        return Noise(problem, candidate, policy, ((10.0, 10.2), (10.0, 10.2)), spread, spread)

    monkeypatch.setattr(noise, "_measure", measure)
    monkeypatch.setattr(noise, "_candidates", lambda *_, **__: [Candidate("a.one", {}), Candidate("b.two", {})])
    for broken, told, code in (("a.one", "b.two", 0), ("b.two", "a.one", 0), ("a.one b.two", None, 4)):
        assert run(["noise", *SHAPE, "--device", "cpu", "--json"]) == code
        captured = capsys.readouterr()
        if told:
            assert [one["backend"] for one in json.loads(captured.out)["noise"]] == [told]
            assert f"left out: {broken} cannot be measured." in captured.err
    assert run(["noise", *SHAPE, "--device", "cpu", "--backend", "cpu.dequant"]) == 4


def test_a_log_has_one_line_a_problem(tmp_path):
    """Failures are counted there, and a reason that holds for every problem is said once."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("fp4tune")), "tune", *SHAPE, "--shape", "3x32x64", "--trials", "3",
         "--budget-s", "1", "--device", "cpu"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert len(lines) == 4, lines
    assert lines[0].startswith("run ")
    assert lines[1].startswith("[1/2] 2x32x64: cpu.dequant ")
    assert lines[2].startswith("[2/2] 3x32x64: cpu.dequant ")
