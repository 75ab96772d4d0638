"""A fused layer from the command line to the answer: tuned on the CPU, stored, answered."""

from __future__ import annotations

import json

import pytest
from fp4tune.api.cli.app import run
from fp4tune.api.http.questions import ask
from fp4tune.db.records import Origin, TrialFilter
from fp4tune.db.store import Store
from fp4tune.kernels.problem import parse_shape

SHAPE = "moe:e8k2:4x64x128"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("moe") / "t.db")
    quick = ["--trials", "4", "--budget-s", "5", "--device", "cpu"]
    assert run(["tune", "--shape", SHAPE, *quick, "--db", path]) == 0
    return path


def test_a_layer_has_a_default_finals_and_a_winner(database: str):
    with Store.open(database) as store:
        trials = store.trials(TrialFilter(problem_key=parse_shape(SHAPE).key)).items
        refused = [t for t in trials if t.backend != "torch.moe"]
        trials = [t for t in trials if t.backend == "torch.moe"]
        assert {(t.backend, t.status) for t in refused} <= {("cpu.dequant", "unsupported")}
        assert {Origin.DEFAULT, Origin.FINAL} <= {t.origin for t in trials}
        assert all(t.status == "ok" for t in trials), [t.error for t in trials]
        (winner,) = store.winners().items
    assert winner.problem == parse_shape(SHAPE)


def test_best_answers_for_the_shape_and_not_for_the_grouped_one(database: str, capsys: pytest.CaptureFixture[str]):
    assert run(["best", "--shape", SHAPE, "--db", database, "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["match"], answer["backend"], answer["problem"]["shape"]) == ("exact", "torch.moe", SHAPE)
    assert run(["best", "--shape", SHAPE.removeprefix("moe:"), "--db", database]) != 0


def test_a_question_by_fields_is_the_same_question():
    by_fields = {"op": "moe", "m": "4", "n": "64", "k": "128", "experts": "8", "top_k": "2"}
    assert ask(by_fields).problem == ask({"shape": SHAPE}).problem == parse_shape(SHAPE)
