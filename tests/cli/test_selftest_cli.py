"""`fp4tune selftest`: bad input, the report file, and what it says of a machine without a card."""

from __future__ import annotations

import json
import os

import pytest
from fp4tune.api.cli.app import run
from fp4tune.api.formats import trial_export as trial_export_module
from fp4tune.kernels.backend import load_backends
from fp4tune.kernels.device import Device
from fp4tune.kernels.errors import Fp4tuneError
from fp4tune.kernels.flashinfer_gemm import versions
from fp4tune.tuner.selftest import Finding, Outcome, job, plan
from fp4tune.tuner.workers.device_lock import DeviceLock

UUID = "GPU-0a000000-0000-0000-0000-000000000000"
H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 50 << 20, 0.0)


@pytest.fixture
def nothing_runs(monkeypatch):
    """What is refused is refused before anything is looked at."""

    def run_selftest(*_, **__):
        raise AssertionError("it must not be begun")

    monkeypatch.setattr("fp4tune.tuner.selftest.run_selftest", run_selftest)


# --- what is refused ------------------------------------------------------------------------------------------------


def refused(capsys, code, *arguments):
    assert run(["selftest", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fp4tune: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--device", "gpu7"], 2, "'gpu7' is not a device"),
        (["--budget-s", "0"], 2, "--budget-s"),
        (["--out", "none/report.json"], 2, "there is no directory none"),
        (["--out", "."], 2, ". is a directory: name a file."),
    ],
)
def test_one_sentence_about_what_is_asked(nothing_runs, tmp_path, monkeypatch, capsys, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, code, *arguments)
    assert not list(tmp_path.iterdir())


def test_somebody_elses_file_is_not_replaced(nothing_runs, tmp_path, capsys):
    theirs = tmp_path / "theirs.json"
    for text in ("theirs", '{"kind": "another"}', "[" * 100_000):
        theirs.write_text(text)
        assert "a selftest replaces nothing but an older report of its own" in refused(capsys, 2, "--out", str(theirs))
        assert theirs.read_text() == text


def test_no_such_device(fp4tune, tmp_path):
    done = fp4tune("selftest", "--device", "cuda:7", "--out", "report.json", count=2)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "fp4tune: There is no device cuda:7: the driver shows cuda:0 to cuda:1.\n"
    assert not list(tmp_path.iterdir())


def test_a_busy_device_names_its_holder_and_no_report_is_begun(fp4tune, tmp_path):
    held = DeviceLock(H200, command="fp4tune tune qwen3", directory=tmp_path, uuid=UUID)
    held.acquire()
    with held:
        done = fp4tune("selftest", "--device", "cuda:0", "--out", "report.json")
    assert (done.returncode, done.stdout) == (6, "")
    assert f"({UUID}) is in use by fp4tune tune qwen3 (pid {os.getpid()}, user " in done.stderr
    assert not (tmp_path / "report.json").exists()


# --- on this machine's CPU --------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """Two small problems, three configs of the one backend that computes on a CPU."""
    monkeypatch.setattr(plan, "SHAPES", ("4x32x64", "e4k2:4x32x64"))
    monkeypatch.setattr(plan, "MAX_CONFIGS", 3)
    monkeypatch.setattr(job, "load_backends", lambda: {"cpu.dequant": load_backends()["cpu.dequant"]})
    monkeypatch.setattr(versions, "installed_version", lambda *_: "")


def test_a_report_that_can_be_attached_to_a_bug(small, tmp_path, capsys):
    out = tmp_path / "report.json"
    assert run(["selftest", "--device", "cpu", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    for words in (
        "Numerics on ", "cpu.dequant e4k2:4x32x64", "3 of 3 configs right", "Not run", "FlashInfer is not installed",
        "numerics and launches of any backend there are not checked", "Nothing was wrong: ",
        "No kernel ran on a GPU, so this says nothing of one.", "report.json has the report",
    ):  # fmt: skip
        assert words in captured.out
    assert "4x32x64: 3 configs of 1 backend" in captured.err
    report = json.loads(out.read_text())
    assert (report["kind"], report["version"], report["ok"]) == ("fp4tune-selftest", 1, True)
    assert {one["status"] for one in report["checked"]} == {"ok"}
    assert [one["outcome"] for one in report["findings"] if one["step"] == "export"] == ["not run"]
    assert str(tmp_path) not in out.read_text()
    # And again, over the older report; with --json the same document is printed.
    assert run(["selftest", "--device", "cpu", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())


def test_something_wrong_is_exit_code_1_and_in_the_report(small, tmp_path, monkeypatch, capsys):
    def broken(backends, device, candidates):
        return [Finding("export", "flashinfer.b12x", Outcome.WRONG, "FlashInfer ignored the file.")]

    monkeypatch.setattr(trial_export_module, "trial_export", broken)
    out = tmp_path / "report.json"
    assert run(["selftest", "--device", "cpu", "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "FlashInfer ignored the file." in printed
    assert "Something is wrong: 1 not run, 2 ok, 1 wrong; " in printed
    assert not json.loads(out.read_text())["ok"]


def test_flashinfer_that_cannot_be_asked_is_a_finding_and_no_end(monkeypatch):
    """Whatever its process does."""

    def dies(*_):
        raise Fp4tuneError("FlashInfer's process was killed by SIGSEGV during start.")

    from fp4tune.kernels.cards import CARDS
    from fp4tune.kernels.flashinfer_gemm.backends import B12x

    monkeypatch.setattr(versions, "installed_version", lambda *_: versions.NEWEST)
    monkeypatch.setattr(trial_export_module, "process", dies)
    (found,) = trial_export_module.trial_export({"flashinfer.b12x": B12x()}, CARDS["rtx-pro-6000"], [])
    assert (found.step, found.outcome) == ("export", Outcome.WRONG)
    assert found.text == "FlashInfer's process was killed by SIGSEGV during start."
    (found,) = trial_export_module.trial_export({"flashinfer.b12x": B12x()}, CARDS["b200"], [])
    assert found.outcome is Outcome.NOT_RUN
