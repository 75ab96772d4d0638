"""Backends that a run would race but for something missing: it says so, remembers it, and goes on with the others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fp4tune.api.cli.app import run
from fp4tune.api.cli.execution import left_out
from fp4tune.db.records import NewRun, RunProblem, RunStatus, TrialFilter, TrialStatus
from fp4tune.db.store import Store
from fp4tune.kernels.backend import family, load_backends
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.device import current_environment, detect
from fp4tune.kernels.problem import parse_shape

CAPABILITIES = {card.compute_capability: card for card in reversed(CARDS.values())}
QUICK = ["--trials", "2", "--budget-s", "0.5", "--device", "cpu"]
UNBUILT = '''
from fp4tune.kernels.backend import Availability
from fp4tune.kernels.{module} import {base}

class Unbuilt({base}):
    """Looks at the device first, as every backend does, and then misses something."""

    name = "{name}"

    def probe(self, device):
        if device.kind != "cpu":
            return Availability(False, f"It computes on a CPU, and {{device.name}} is a {{device.kind}} device.")
        return Availability(False, "Its library is not built: install unbuilt-kernels.")
'''
NOT_BUILT = "Its library is not built: install unbuilt-kernels."


def _package(folder, name: str, version: str = "1.0", entry_points: str = "") -> None:
    """Metadata of an installed package."""
    lies = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    lies.mkdir()
    (lies / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry_points:
        (lies / "entry_points.txt").write_text(f"[fp4tune.backends]\n{entry_points}\n")


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder whose packages are found before all others."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def broken(packages):
    """Installed here: a backend whose package is broken, and a dense and a MoE backend that were never built."""
    for module, base, name in (("cpu_dequant", "CpuDequant", "dense"), ("torch_moe", "TorchMoe", "moe")):
        (packages / f"unbuilt_{name}.py").write_text(UNBUILT.format(module=module, base=base, name=f"unbuilt.{name}"))
    points = (
        "broken.one = module_that_is_not_there:Backend",
        "unbuilt.dense = unbuilt_dense:Unbuilt",
        "unbuilt.moe = unbuilt_moe:Unbuilt",
    )
    _package(packages, "unbuilt-kernels-of-a-test", entry_points="\n".join(points))


def _names_left_out(device) -> dict[str, str]:
    return left_out(device, [name for name, one in load_backends().items() if one.probe(device).available])


@pytest.mark.usefixtures("broken")
def test_a_run_says_and_remembers_what_it_left_out(tmp_path, capsys):
    database = str(tmp_path / "t.db")
    assert run(["tune", "--shape", "2x32x64", "--shape", "3x32x64", *QUICK, "--db", database]) == 0
    said = capsys.readouterr().err.splitlines()
    notes = [line for line in said if line.startswith("note: ")]
    assert len(notes) == 3, said
    assert notes[0].startswith("note: broken.one is left out: ")
    assert "module_that_is_not_there" in notes[0]
    assert notes[1:] == [f"note: unbuilt.{name} is left out: {NOT_BUILT}" for name in ("dense", "moe")]
    assert not [line for line in said if "unbuilt" in line and line not in notes], "once a run"
    with Store.open(database, mode="read") as store:
        (stored,) = store.runs()
        trials = store.trials().items
    assert stored.status is RunStatus.FINISHED
    assert set(stored.settings["left_out"]) == {"broken.one", "unbuilt.dense", "unbuilt.moe"}
    assert not set(stored.settings["left_out"]) & set(stored.settings["backends"])
    refused = [trial for trial in trials if trial.backend in stored.settings["left_out"]]
    assert {trial.status for trial in refused} == {TrialStatus.UNSUPPORTED}
    assert {trial.error for trial in refused if trial.backend == "unbuilt.dense"} == {NOT_BUILT}
    # One a problem; what is for problems of another kind is not spoken of.
    assert sorted((t.problem.shape, t.backend) for t in refused) == [
        (shape, name) for shape in ("2x32x64", "3x32x64") for name in ("broken.one", "unbuilt.dense")
    ]
    assert run(["runs", "--json", "--db", database]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["settings"]["left_out"]["unbuilt.moe"] == NOT_BUILT


@pytest.mark.usefixtures("broken")
def test_a_resume_goes_on_with_what_was_left_out(tmp_path, capsys):
    """Problems that were open then get the reason that the run was started with, those that were done none again."""
    database = tmp_path / "t.db"
    assert run(["tune", "--shape", "2x32x64", *QUICK, "--db", str(database)]) == 0
    with Store.open(database) as store:
        (done,) = store.runs()
        open_ = NewRun(
            environment=current_environment(detect("cpu"), load_backends().values()),
            problems=[RunProblem(parse_shape("3x32x64"))], checkpoint="", seed=0, host="", pid=0, version="",
            settings={**done.settings, "left_out": {"gone.since": "It was missing then."}},
        )  # fmt: skip
        started = store.create_run(open_)
        for run_id in (done.id, started):
            store.finish_run(run_id, RunStatus.INTERRUPTED)
    capsys.readouterr()
    for run_id in (done.id, started):
        assert run(["tune", "--resume", run_id, "--device", "cpu", "--db", str(database)]) == 0
    assert "is left out" not in capsys.readouterr().err
    with Store.open(database, mode="read") as store:
        ended = [(t.problem.shape, t.backend, t.error) for t in store.trials().items if t.backend == "gone.since"]
        again = [t.backend for t in store.trials(TrialFilter(run_id=done.id)).items if t.backend == "broken.one"]
    assert ended == [("3x32x64", "gone.since", "It was missing then.")]
    assert again == ["broken.one"]


@pytest.mark.usefixtures("broken")
def test_who_names_backends_misses_no_others(tmp_path, capsys):
    database = tmp_path / "t.db"
    assert run(["tune", "--shape", "2x32x64", *QUICK, "--backend", "cpu.dequant", "--db", str(database)]) == 0
    assert "left out" not in capsys.readouterr().err
    with Store.open(database, mode="read") as store:
        (stored,) = store.runs()
        assert {trial.backend for trial in store.trials().items} == {"cpu.dequant"}
    assert "left_out" not in stored.settings


def test_a_cpu_misses_nothing():
    assert _names_left_out(detect("cpu")) == {}


@pytest.mark.parametrize("capability", sorted(CAPABILITIES))
def test_nothing_is_said_of_backends_for_other_devices(capability):
    device = CAPABILITIES[capability]
    of_the_device = ("It is for compute capability", "has no FP4 matrix units", "is a cuda device", "needs compute cap")
    found = _names_left_out(device)
    assert "cpu.dequant" not in found
    assert not [reason for reason in found.values() if any(part in reason for part in of_the_device)]
    fp4 = {"cublaslt", "cutlass", "triton.native"}
    assert not fp4 & set(found) or capability.split(".")[0] in ("10", "12")


def test_nothing_is_said_where_the_card_is_too_old_for_all():
    assert _names_left_out(replace(CARDS["h200"], name="Tesla T4", compute_capability="7.5")) == {}


def test_an_engine_that_is_installed_and_unfit_is_said_and_one_that_is_not_is_opt_in(packages):
    flashinfer = {name for name in load_backends() if family(name) == "flashinfer"}
    _package(packages, "flashinfer-python", "0.6.4")
    found = _names_left_out(CARDS["rtx-pro-6000"])
    assert {name for name in found if family(name) == "flashinfer"} == flashinfer - {"flashinfer.trtllm"}
    assert found["flashinfer.cutlass"] == "It knows FlashInfer 0.7.2 to 0.7.4, and 0.6.4 is installed."
    assert not [name for name in _names_left_out(CARDS["h200"]) if family(name) == "flashinfer"]


def test_an_engine_that_nobody_installed_is_not_missed(monkeypatch):
    from fp4tune.kernels.flashinfer_gemm import versions as flashinfer
    from fp4tune.kernels.humming_gemm import versions as humming

    for module in (flashinfer, humming):
        monkeypatch.setattr(module, "installed_version", lambda *_: "")
    assert not {family(name) for name in _names_left_out(CARDS["rtx-pro-6000"])} & {"flashinfer", "humming"}
