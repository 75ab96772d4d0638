"""What the page of gains asks: right on both databases, and by indexes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.db.dashboard.gains import ItemsOf, NewestRuns, ServedFor
from fp4tune.db.records import RunProblem
from query_plans import plans
from store_factory import GROUPED, LARGE, ON_CARD, ON_CPU, SMALL, choice, new_run, new_trial, new_winner

HERE = ON_CARD.fingerprint


# Bad input


def test_nothing_is_served_in_an_environment_that_is_not_stored_or_for_nothing(store: Store):
    assert store.ask(ServedFor("0" * 16, "cuda.graph", [SMALL.key])) == {}
    store.add_winners([new_winner(store.create_run(new_run()))])
    assert store.ask(ServedFor(HERE, "cuda.eager", [])) == {}
    assert store.ask(ServedFor(HERE, "x'; DROP TABLE winners; --", [SMALL.key])) == {}
    assert store.ask(ServedFor(HERE, "cuda.eager", ["'", SMALL.key])).keys() == {SMALL.key}


def test_a_run_that_is_not_stored_has_no_problems(store: Store):
    assert store.ask(ItemsOf(["x"])).items == []
    assert store.ask(ItemsOf([])).items == []


def test_what_cannot_be_read_of_a_run_is_counted_and_left_out(sqlite_store: Store):
    run = sqlite_store.create_run(new_run())
    with sqlite_store._writing() as connection:
        connection.exec_driver_sql("UPDATE run_problems SET phases = '{' WHERE position = 0")
    found = sqlite_store.ask(ItemsOf([run]))
    assert ([item.problem for item in found.items], found.n_unreadable) == ([GROUPED], 1)
    with sqlite_store._writing() as connection:
        connection.exec_driver_sql("UPDATE run_problems SET phases = '[1, \"decode\"]' WHERE position = 0")
        connection.exec_driver_sql("UPDATE problems SET m = -1 WHERE op = 'grouped'")
    found = sqlite_store.ask(ItemsOf([run]))
    assert ([item.phases for item in found.items], found.n_unreadable) == ([("decode",)], 1)


@pytest.mark.parametrize("tie_set", ["{", "[]", "[1]", '[{"backend": 1}]', "null"])
def test_a_tie_set_that_cannot_be_read_holds_nothing(sqlite_store: Store, tie_set: str):
    sqlite_store.add_winners([new_winner(sqlite_store.create_run(new_run()))])
    with sqlite_store._writing() as connection:
        connection.exec_driver_sql("UPDATE winners SET tie_set = ?, n_ties = 2", (tie_set,))
    assert not sqlite_store.ask(ServedFor(HERE, "cuda.eager", [SMALL.key]))[SMALL.key].is_tied


# What is there


def test_runs_come_newest_first_with_their_models(store: Store):
    store.create_run(new_run(checkpoint="/m", settings={"tp": 8, "ep": 2}))
    store.create_run(new_run(checkpoint="", environment=ON_CPU, settings={}))
    newest, oldest = store.ask(NewestRuns())
    assert (newest.checkpoint, newest.tp, newest.ep, newest.environment_fingerprint) == ("", 1, 1, ON_CPU.fingerprint)
    assert (oldest.checkpoint, oldest.tp, oldest.ep, oldest.environment_fingerprint) == ("/m", 8, 2, HERE)
    assert store.ask(NewestRuns(limit=1)) == [newest]


def test_problems_of_the_newest_run_come_first_and_there_is_a_limit(store: Store):
    first = store.create_run(new_run(problems=[RunProblem(SMALL, "a", ("decode",), 1), RunProblem(LARGE, "b", (), 2)]))
    second = store.create_run(new_run(problems=[RunProblem(GROUPED, "c", ("verify",), 3)]))
    found = store.ask(ItemsOf([first, second]))
    assert [(item.role, item.problem, item.phases, item.layers) for item in found.items] == [
        ("c", GROUPED, ("verify",), 3), ("a", SMALL, ("decode",), 1), ("b", LARGE, (), 2),
    ]  # fmt: skip
    assert not found.is_cut
    cut = store.ask(ItemsOf([first, second], limit=2))
    assert ([item.role for item in cut.items], cut.is_cut) == (["c", "a"], True)


def test_only_what_is_served_now_in_this_environment_by_this_policy(store: Store):
    run, other = store.create_run(new_run()), store.create_run(new_run(environment=ON_CPU))
    store.add_winners([
        new_winner(run, choice=choice(11.0)),
        new_winner(run, choice=choice(10.0)),
        new_winner(run, choice=choice(9.0), policy="cuda.graph"),
        new_winner(other, choice=choice(8.0), environment=ON_CPU),
        new_winner(run, problem=LARGE, choice=choice(7.0)),
    ])  # fmt: skip
    store.finish_problem(run, 0, "1.50x as fast as the default")
    found = store.ask(ServedFor(HERE, "cuda.eager", [SMALL.key, GROUPED.key]))
    assert found.keys() == {SMALL.key}
    one = found[SMALL.key]
    assert (one.time_us, one.time_us_low, one.time_us_high, one.default_us) == (10.0, 9.8, 10.3, 15.0)
    assert (one.backend, one.n_ties, one.run_id, one.outcome) == (
        "triton.native",
        2,
        run,
        "1.50x as fast as the default",
    )
    assert not one.is_default
    assert not one.is_tied


@pytest.mark.parametrize(
    ("default", "ties", "is_default", "is_tied"),
    [
        (choice(10.0), [choice(10.0)], True, True),
        (choice(10.0), [], True, True),
        (choice(15.0, block_m=128), [choice(10.0), choice(10.1, block_m=128)], False, True),
        (choice(15.0, block_m=128), [choice(10.1, block_m=128, x=1), choice(10.0)], False, False),
        (choice(15.0, "other"), [choice(10.0), choice(10.0, "other")], False, True),
        (choice(15.0, "other"), [choice(10.0), choice(10.0, stages=4)], False, False),
    ],
)
def test_a_tie_is_a_default_that_is_served_or_in_the_tie_set(
    store: Store, default, ties, is_default: bool, is_tied: bool
):
    store.add_winners([new_winner(store.create_run(new_run()), choice=choice(10.0), default=default, tie_set=ties)])
    one = store.ask(ServedFor(HERE, "cuda.eager", [SMALL.key]))[SMALL.key]
    assert (one.is_default, one.is_tied) == (is_default, is_tied)


def test_thousands_of_problems_at_once(store: Store):
    problems = [replace(SMALL, m=m) for m in range(1, 1301)]
    run = store.create_run(new_run(problems=[RunProblem(one) for one in problems]))
    store.add_winners([new_winner(run, problem=one, choice=choice(float(one.m))) for one in problems])
    found = store.ask(ServedFor(HERE, "cuda.eager", [one.key for one in problems] * 2))
    assert [found[one.key].time_us for one in problems] == [float(one.m) for one in problems]


# Plans


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "template.db"
    with Store.open(path) as store:
        for _ in range(20):
            run = store.create_run(new_run())
            for problem in (SMALL, LARGE, GROUPED):
                store.add_trials([new_trial(run, n, problem=problem) for n in range(20)])
                store.add_winners([new_winner(run, problem=problem) for _ in range(5)])
    return path


@pytest.fixture(params=[False, True], ids=["fresh", "analyzed"])
def filled(template: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    path = shutil.copy(template, tmp_path / "fp4tune.db")
    if request.param:
        with Store.open(path) as store, store._writing() as connection:
            connection.exec_driver_sql("ANALYZE")
    with Store.open(path) as store:
        yield store


def test_every_question_uses_an_index_and_none_reads_trials(filled: Store):
    runs = [run.run_id for run in filled.ask(NewestRuns())]
    keys = [SMALL.key, LARGE.key, GROUPED.key]
    for question in (NewestRuns(), ItemsOf(runs), ServedFor(HERE, "cuda.eager", keys)):
        for plan in plans(filled, lambda question=question: filled.ask(question)):
            assert "trials" not in plan, plan
            assert "TEMP B-TREE" not in plan, plan
            assert "SCAN winners" not in plan, plan
            assert "SCAN run_problems" not in plan, plan
            assert "SCAN problems" not in plan, plan


def test_a_winner_is_one_step_and_the_history_is_passed_by(filled: Store):
    found = plans(filled, lambda: filled.ask(ServedFor(HERE, "cuda.eager", [SMALL.key])))
    (winners,) = [plan for plan in found if "winners" in plan]
    assert "USING INDEX uq_winners_current (problem_id=? AND environment_id=? AND policy=?)" in winners


def test_settings_are_read_as_they_are(sqlite_store: Store):
    sqlite_store.create_run(new_run(settings={"tp": 16, "ep": 16}))
    with sqlite_store._writing() as connection:
        connection.exec_driver_sql("UPDATE runs SET settings = ?", (json.dumps({"tp": True, "ep": 4097}),))
    (run,) = sqlite_store.ask(NewestRuns())
    assert (run.tp, run.ep) == (1, 1)
