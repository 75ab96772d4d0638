"""`fp4tune model`: on what an H200 really measured, and on databases that give no model."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import results_store
from fp4tune.api.cli.app import run
from fp4tune.db.records import RunProblem
from fp4tune.db.store import Store
from fp4tune.kernels.problem import Problem
from fp4tune.tuner.plausible import with_doubt
from store_factory import CARD, ON_CARD, choice, new_run, new_winner

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "h200.db"
    with Store.open(path) as store:
        for name in ("h200", "h200-dense"):
            store.import_from(RESULTS / f"{name}.fp4tune.gz")
    return path


@pytest.fixture(scope="module")
def document(h200: Path, tmp_path_factory: pytest.TempPathFactory):
    """What --json prints of it."""
    out = tmp_path_factory.mktemp("model") / "out.json"
    with pytest.MonkeyPatch.context() as patch, out.open("w", encoding="utf-8") as stream:
        patch.setattr("sys.stdout", stream)
        assert run(["model", "--db", str(h200), "--json"]) == 0
    return json.loads(out.read_text(encoding="utf-8"))


def fill(path: Path, *environments, m: int = 16, layers: int = 9) -> None:
    """Winners of a few layers in each environment."""
    with Store.open(path) as store:
        for environment in environments:
            problems = [Problem(m, 1024 * (i + 1), 512 * (1 + i % 4)) for i in range(layers)]
            run_id = store.create_run(new_run(environment=environment, problems=[RunProblem(p) for p in problems]))
            for problem in problems:
                served = choice(5 + problem.operand_bytes / 1e6)
                store.add_winner(
                    new_winner(run_id, environment=environment, problem=problem, choice=served, default=served,
                               tie_set=(served,))
                )  # fmt: skip


def test_models_of_what_an_h200_measured(h200: Path, document):
    assert document["left_out"] == []
    dense, grouped = document["models"]
    assert (dense["op"], dense["n_points"], grouped["op"], grouped["n_points"]) == ("dense", 48, "grouped", 20)
    for one in (dense, grouped):
        assert one["source"] == "model"
        assert 2 < one["launch_us"] < 6
        assert 2.5e12 < one["bandwidth_bytes_per_s"] < 4.23e12, "a kernel does not read faster than the card copies"
        assert 0 < one["median_error"] < 0.08
        assert one["median_error"] < one["p90_error"] < 0.25
        assert one["doubtful"] == []
        assert sum(one["binds"].values()) == one["n_points"]
    assert grouped["rate_flops_per_s"] is None
    assert any("rate_flops_per_s is unknown" in sentence for sentence in grouped["undecided"])
    with Store.open(h200, mode="read") as store:
        stored = store.latency_models()
    assert [(one.op, one.median_error, one.rate_flops_per_s) for one in stored] == [
        (one["op"], one["median_error"], one["rate_flops_per_s"]) for one in (dense, grouped)
    ]


def test_the_figures_of_the_document_are_those_of_the_command(document):
    text = (ROOT / "docs" / "latency-model.md").read_text(encoding="utf-8")
    for one in document["models"]:
        (row,) = re.findall(rf"^\| H200, {one['op']} \|.*$", text, re.MULTILINE)
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        rate, serial = one["rate_flops_per_s"], one["serial_us_per_1024_k"]
        assert cells[1:] == [
            str(one["n_points"]),
            f"{one['launch_us']:.1f}",
            f"{one['bandwidth_bytes_per_s'] / 1e12:.2f}",
            "unknown" if rate is None else f"{rate / 1e12:.0f}",
            "unknown" if serial is None else f"{serial:.2f}",
            f"{100 * one['median_error']:.1f} / {100 * one['p90_error']:.0f}",
        ]


def test_a_table_says_what_is_unknown_and_a_model_answers_nothing(h200: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["model", "--db", str(h200), "--device", "NVIDIA H200"]) == 0
    out = capsys.readouterr().out
    assert "estimates, never served" in out
    assert re.search(r"NVIDIA H200 +grouped +nvfp4 +cuda.graph .* unknown", out)
    assert "serial_us_per_1024_k is unknown" in out
    assert run(["best", "--db", str(h200), "--shape", "4x5120x5120"]) == 3
    assert "no answer for 4x5120x5120" in capsys.readouterr().out


def test_fitting_again_replaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "t.db"
    fill(path, ON_CARD)
    assert run(["model", "--db", str(path)]) == run(["model", "--db", str(path)]) == 0
    with Store.open(path, mode="read") as store:
        (stored,) = store.latency_models()
    assert (stored.n_points, stored.m_low, stored.m_high, stored.policy) == (9, 16, 16, "cuda.eager")
    assert stored.bandwidth_bytes_per_s == pytest.approx(1e12, rel=0.01)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence on standard error."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fp4tune: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_no_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["model", "--db", str(tmp_path / "none.db")]) == 3
    assert "There is no database" in said(capsys)
    assert not (tmp_path / "none.db").exists()


def test_nothing_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "t.db"
    Store.open(path).close()
    assert run(["model", "--db", str(path)]) == 3
    assert "run `fp4tune tune` first" in said(capsys)


def test_too_few_problems_and_too_few_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fill(tmp_path / "few.db", ON_CARD, layers=7)
    assert run(["model", "--db", str(tmp_path / "few.db")]) == 4
    assert "Test Card, dense, nvfp4, cuda.eager: 7 problems are measured, and a fit needs 8" in said(capsys)
    for m in range(1, 6):
        fill(tmp_path / "layers.db", ON_CARD, m=m, layers=2)
    assert run(["model", "--db", str(tmp_path / "layers.db")]) == 4
    assert "2 layers are measured (N and K), and a fit needs 3" in said(capsys)
    with Store.open(tmp_path / "few.db", mode="read") as store:
        assert store.latency_models() == []


def test_what_can_be_fitted_is_and_the_rest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "t.db"
    other = replace(ON_CARD, device=replace(CARD, name="Small Card", sms=20))
    fill(path, ON_CARD)
    fill(path, other, layers=3)
    assert run(["model", "--db", str(path)]) == 0
    assert "left out: Small Card, dense, nvfp4, cuda.eager: 3 problems are measured" in capsys.readouterr().out
    assert run(["model", "--db", str(path), "--device", "Small Card"]) == 4
    assert "3 problems are measured" in said(capsys)


def test_a_device_that_is_unknown_or_ambiguous(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "t.db"
    twin = replace(ON_CARD, device=replace(CARD, power_limit_w=300.0))
    fill(path, ON_CARD, twin)
    assert run(["model", "--db", str(path), "--device", "NVIDIA H100"]) == 3
    assert f"There is no device 'NVIDIA H100' (a name, a fingerprint, or at least 8 of its first digits): the database has {CARD.fingerprint}" in said(capsys)  # fmt: skip
    assert run(["model", "--db", str(path), "--device", CARD.fingerprint[:7]]) == 3
    assert "There is no device" in said(capsys)
    assert run(["model", "--db", str(path), "--device", "Test Card"]) == 2
    sentence = said(capsys)
    assert "'Test Card' names 2 devices" in sentence
    assert CARD.fingerprint in sentence
    assert twin.device.fingerprint in sentence
    assert run(["model", "--db", str(path), "--device", CARD.fingerprint[:8], "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert found["device_fingerprint"] == CARD.fingerprint


def test_the_results_page_tells_what_a_run_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "r.db"
    first, _ = results_store.make(path)
    assert run(["results", first, "--db", str(path)]) == 0
    assert "doubtful" not in capsys.readouterr().out
    with Store.open(path) as store:
        store.finish_problem(first, 0, with_doubt("1.20x as fast as the default", "10.2 µs is 3.0 times | too long"))
    assert run(["results", first, "--db", str(path)]) == 0
    assert "- 4x4096x7168: doubtful: 10.2 µs is 3.0 times \\| too long" in capsys.readouterr().out
