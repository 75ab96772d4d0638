"""`fp4tune tune` and what reads its results, in this process, on the CPU, on small shapes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fp4tune.api.cli.app import run
from fp4tune.api.cli.winners import print_result
from fp4tune.db.records import Miss, RunStatus, TrialFilter
from fp4tune.db.store import Store
from fp4tune.kernels.problem import parse_shape
from fp4tune.tuner.job import JobResult

QUICK = ["--trials", "4", "--budget-s", "2", "--device", "cpu"]


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "t.db")


def tuned(database: str, *shapes: str) -> None:
    arguments = [word for shape in shapes for word in ("--shape", shape)]
    assert run(["tune", *arguments, *QUICK, "--db", database]) == 0


@pytest.fixture(scope="module")
def tuned_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which 3x64x128 is tuned, to be copied."""
    path = tmp_path_factory.mktemp("tuned") / "t.db"
    tuned(str(path), "3x64x128")
    return path


@pytest.fixture
def with_winner(tuned_once: Path, database: str) -> str:
    """A database of one's own in which 3x64x128 is tuned."""
    shutil.copy(tuned_once, database)
    return database


def test_shapes_in_winners_out(database: str, capsys: pytest.CaptureFixture[str]):
    shapes = ["--shape", "3x64x128", "--shape", "e4k2:3x32x64"]
    assert run(["tune", *shapes, *QUICK, "--db", database, "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["run"]["status"] == "finished"
    assert {w["problem"]["n"] for w in result["winners"]} == {64, 32}
    for winner in result["winners"]:
        assert winner["choice"]["time_us"] > 0
        assert winner["default"]["backend"] == "cpu.dequant"
    assert "2 problems" in captured.err
    assert "[2/2]" in captured.err


def test_the_same_shape_twice_is_one_problem(database: str, capsys: pytest.CaptureFixture[str]):
    assert run(["tune", "--shape", "3x64x128", "--shape", "3x64x128", *QUICK, "--db", database, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["n_problems"] == 1


def test_best_tells_what_was_found(with_winner: str, capsys: pytest.CaptureFixture[str]):
    assert run(["best", "--shape", "3x64x128", "--db", with_winner, "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["match"] == "exact"
    assert answer["backend"] == "cpu.dequant"
    assert run(["best", "--shape", "3x64x128", "--db", with_winner]) == 0
    assert "cpu.dequant" in capsys.readouterr().out


def test_best_says_what_is_nearest_when_there_is_nothing(with_winner: str, capsys: pytest.CaptureFixture[str]):
    assert run(["best", "--shape", "3x64x256", "--db", with_winner]) == 3
    captured = capsys.readouterr()
    assert "3x64x128" in captured.out + captured.err


def test_runs_lists_it(with_winner: str, capsys: pytest.CaptureFixture[str]):
    assert run(["runs", "--db", with_winner]) == 0
    assert "finished" in capsys.readouterr().out
    assert run(["runs", "--db", with_winner, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["n_done"] == 1


def test_misses_are_worked_off_by_demand(with_winner: str, capsys: pytest.CaptureFixture[str]):
    with Store.open(with_winner) as store:
        (device, seen_at) = store.devices()[0]
        (environment,) = store.environments()
        fingerprints = (device.fingerprint, environment.environment.fingerprint)
        wanted = [parse_shape("2x32x64"), parse_shape("5x48x64")]
        store.add_misses([Miss(p, *fingerprints, i + 1, seen_at, seen_at) for i, p in enumerate(wanted)])
        store.add_misses([Miss(parse_shape("7x16x16"), "0" * 16, "", 9, seen_at, seen_at)])
    capsys.readouterr()
    assert run(["tune", "--from-misses", *QUICK, "--db", with_winner, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(p["item"]["problem"]["m"]) for p in result["problems"]] == [5, 2], "most wanted first, own device only"
    with Store.open(with_winner) as store:
        assert [miss.problem.m for miss in store.misses()] == [7], "the other device's demand stays"
    # A nightly run with nothing to do is no failure, and no run either.
    with Store.open(with_winner) as store:
        runs = len(store.runs())
    assert run(["tune", "--from-misses", *QUICK, "--db", with_winner]) == 0
    assert "nothing to tune" in capsys.readouterr().out
    assert run(["tune", "--from-misses", *QUICK, "--db", with_winner, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": None, "problems": [], "winners": [], "baselines": []}
    with Store.open(with_winner) as store:
        assert len(store.runs()) == runs


def test_misses_that_named_no_device_are_worked_off_once(with_winner: str, capsys: pytest.CaptureFixture[str]):
    """A server on a new database can assume no device, so it counts such misses; demand is added up over both kinds."""
    with Store.open(with_winner) as store:
        (device, at) = store.devices()[0]
        asked = [("2x32x64", "", 2), ("2x32x64", device.fingerprint, 2), ("5x48x64", "", 3)]
        store.add_misses([Miss(parse_shape(shape), name, "", count, at, at) for shape, name, count in asked])
    capsys.readouterr()
    assert run(["tune", "--from-misses", *QUICK, "--db", with_winner, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [p["item"]["problem"]["m"] for p in result["problems"]] == [2, 5]
    with Store.open(with_winner) as store:
        assert store.misses() == []


def test_a_shape_that_was_tuned_by_name_is_missing_no_more(with_winner: str):
    """So a run of --from-misses that was interrupted may be resumed, and its demand ends with it."""
    with Store.open(with_winner) as store:
        (device, at) = store.devices()[0]
        store.add_misses([Miss(parse_shape("2x32x64"), device.fingerprint, "", 1, at, at)])
    tuned(with_winner, "2x32x64")
    with Store.open(with_winner) as store:
        assert store.misses() == []


def test_a_run_shows_its_winners_although_another_run_has_superseded_them(database: str, capsys):
    tuned(database, "2x32x64")
    tuned(database, "2x32x64")
    capsys.readouterr()
    with Store.open(database) as store:
        (_, first) = store.runs()
        print_result(store, JobResult(first.id, first.status, 1, 1), as_json=False, database=database)
    shown = capsys.readouterr().out
    assert "cpu.dequant" in shown
    assert "no winner" not in shown


@pytest.mark.parametrize("option", [["--resume", "last"], ["--from-misses"]])
def test_what_needs_a_database_does_not_create_one(option: list[str], tmp_path: Path, capsys):
    assert run(["tune", *option, "--db", str(tmp_path / "typo.db")]) == 3
    assert "typo.db" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_resume_last_without_anything_to_resume(with_winner: str, capsys: pytest.CaptureFixture[str]):
    assert run(["tune", "--resume", "last", "--db", with_winner]) == 3
    assert "no unfinished run" in capsys.readouterr().err


def test_resume_takes_the_settings_of_the_run(with_winner: str, capsys: pytest.CaptureFixture[str]):
    with Store.open(with_winner) as store:
        (finished,) = store.runs()
        store.finish_run(finished.id, RunStatus.INTERRUPTED)
    capsys.readouterr()
    assert run(["tune", "--resume", finished.id[:10], "--device", "cpu", "--db", with_winner, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["run"]["settings"]["trials"] == 4
    with Store.open(with_winner) as store:
        assert len(store.trials(TrialFilter(run_id=finished.id), limit=100).items) == result["run"]["n_trials"]


def test_a_preset_by_name_at_tp8(database: str, capsys: pytest.CaptureFixture[str]):
    arguments = ["tune", "qwen3.5-397b-a17b-nvfp4", "--tp", "8", "--tokens", "1", "--phase", "decode"]
    narrowed = ["--role", "moe.w2", "--trials", "2", "--budget-s", "1", "--device", "cpu"]
    assert run([*arguments, *narrowed, "--db", database, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (winner,) = result["winners"]
    assert (winner["problem"]["n"], winner["problem"]["k"], winner["problem"]["experts"]) == (4096, 128, 512)
    assert result["problems"][0]["item"]["role"] == "moe.w2"
    assert result["problems"][0]["item"]["layers"] == 60
