"""What the page of a problem asks: right on both databases, and by indexes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.db.dashboard.problem import MAX_READ, MAX_ROWS, AttemptsAt, EvidenceOf, OtherTokens, PlacesOf
from fp4tune.db.records import Origin, RunProblem, TrialStatus
from fp4tune.kernels.device import Environment
from query_plans import plans
from store_factory import (
    CARD,
    GROUPED,
    LARGE,
    ON_CARD,
    ON_CPU,
    SMALL,
    choice,
    failed_trial,
    new_run,
    new_trial,
    new_winner,
)  # fmt: skip

HERE = ON_CARD.fingerprint


# Bad input


def test_of_what_is_not_stored_nothing_is_known(store: Store):
    assert store.ask(EvidenceOf("", SMALL, HERE)).finals == ()
    assert store.ask(AttemptsAt(SMALL, HERE)) == []
    assert store.ask(AttemptsAt(SMALL)) == []
    assert store.ask(PlacesOf(SMALL)) == []
    assert store.ask(OtherTokens(SMALL, HERE, "cuda.graph")) == []
    run = store.create_run(new_run())
    store.add_trials([new_trial(run)])
    assert store.ask(AttemptsAt(SMALL, "0" * 16)) == []
    assert store.ask(EvidenceOf(run, LARGE, HERE)).n_trials == 0


@pytest.mark.parametrize("text", ["{", "[]", "null", '"x"'])
def test_configs_and_phases_that_cannot_be_read_are_empty(sqlite_store: Store, text: str):
    run = sqlite_store.create_run(new_run())
    sqlite_store.add_trials([new_trial(run, origin=Origin.FINAL)])
    with sqlite_store._writing() as connection:
        connection.exec_driver_sql("UPDATE trials SET config = ?", (text,))
        connection.exec_driver_sql("UPDATE run_problems SET phases = ?", (text,))
    found = sqlite_store.ask(EvidenceOf(run, SMALL, HERE))
    assert [one.config for one in found.finals] == [{}]
    assert found.item == RunProblem(SMALL, "attn.qkv", (), 60)


# What is there


def test_the_evidence_is_the_finals_and_the_defaults(store: Store):
    run = store.create_run(new_run())
    other = Environment(CARD, {**ON_CARD.versions, "driver": "1"})
    store.add_trials([
        new_trial(run, 0, origin=Origin.DEFAULT, config={"x": 0}),
        failed_trial(run, 1, origin=Origin.DEFAULT, backend="other", error="no\nway" * 300),
        new_trial(run, 2, origin=Origin.SAMPLER, config={"x": 2}),
        new_trial(run, 3, origin=Origin.FINAL, config={"x": 2}),
        new_trial(run, 4, origin=Origin.FINAL, config={"x": 2}, rel_error=0.25),
        new_trial(run, 5, origin=Origin.FINAL, config={"x": 0}, environment=other),
        new_trial(run, 6, origin=Origin.FINAL, config={"x": 0}, problem=LARGE),
    ])  # fmt: skip
    store.finish_problem(run, 0, "the default is the fastest")
    found = store.ask(EvidenceOf(run, SMALL, HERE))
    assert [(one.number, one.config, one.rel_error) for one in found.finals] == [(4, {"x": 2}, 0.25)]
    assert [(one.backend, one.status, one.time_us) for one in found.defaults] == [
        ("other", "crashed", None), ("triton.native", "ok", 10.0),
    ]  # fmt: skip
    assert len(found.defaults[0].error) == 400
    assert found.item == RunProblem(SMALL, "attn.qkv", ("decode", "verify"), 60)
    assert (found.outcome, found.n_trials) == ("the default is the fastest", 6)


def test_finals_are_found_behind_many_trials(store: Store):
    run = store.create_run(new_run())
    n = 2 * MAX_READ
    store.add_trials(
        [
            new_trial(run, number, origin=Origin.DEFAULT if number < 2 else Origin.SAMPLER, backend=f"b{number % 2}")
            for number in range(n)
        ]
    )
    store.add_trials([new_trial(run, n + i, origin=Origin.FINAL) for i in range(3)])
    found = store.ask(EvidenceOf(run, SMALL, HERE))
    assert [one.number for one in found.finals] == [n, n + 1, n + 2]
    assert [one.number for one in found.defaults] == [0, 1]


def test_attempts_are_counted_by_backend_and_status(store: Store):
    run = store.create_run(new_run())
    at_home = store.create_run(new_run(environment=ON_CPU))
    store.add_trials([
        *(new_trial(run, n) for n in range(3)),
        *(failed_trial(run, n, status=TrialStatus.WRONG, error=f"tile {n}") for n in range(3, 5)),
        failed_trial(run, 5, problem=LARGE),
        failed_trial(at_home, 0, environment=ON_CPU),
    ])  # fmt: skip
    found = store.ask(AttemptsAt(SMALL, HERE))
    assert [(one.run_id, one.backend, one.status, one.n, one.error) for one in found] == [
        (run, "triton.native", "wrong", 2, "tile 4"), (run, "triton.native", "ok", 3, ""),
    ]  # fmt: skip
    assert [one.environment_fingerprint for one in store.ask(AttemptsAt(SMALL))] == [ON_CPU.fingerprint, HERE, HERE]


def test_places_are_where_it_is_served_now(store: Store):
    run, at_home = store.create_run(new_run()), store.create_run(new_run(environment=ON_CPU))
    store.add_winners([
        new_winner(run), new_winner(run, choice=choice(9.0)), new_winner(run, policy="cuda.graph"),
        new_winner(at_home, environment=ON_CPU, policy="cpu.warm"), new_winner(run, problem=LARGE),
    ])  # fmt: skip
    assert [(one.environment, one.policy, one.time_us) for one in store.ask(PlacesOf(SMALL))] == [
        (ON_CPU, "cpu.warm", 10.0), (ON_CARD, "cuda.graph", 10.0), (ON_CARD, "cuda.eager", 9.0),
    ]  # fmt: skip


def test_other_m_are_those_of_the_very_gemm(store: Store):
    run = store.create_run(new_run())
    others = [replace(SMALL, m=m) for m in (512, 8, 32)]
    store.add_winners([
        *(new_winner(run, problem=one, choice=choice(float(one.m))) for one in others),
        new_winner(run, problem=replace(SMALL, m=64), policy="cuda.graph"),
        new_winner(run, problem=replace(SMALL, n=64)),
        new_winner(run, problem=replace(SMALL, out_dtype=type(SMALL.out_dtype).FP16)),
        new_winner(run, problem=GROUPED),
    ])  # fmt: skip
    assert store.ask(OtherTokens(SMALL, HERE, "cuda.eager")) == [(replace(SMALL, m=m), float(m)) for m in (8, 32, 512)]


# Plans


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "template.db"
    with Store.open(path) as store:
        for _ in range(20):
            run = store.create_run(new_run())
            for problem in (SMALL, LARGE, GROUPED):
                store.add_trials([new_trial(run, n, problem=problem) for n in range(20)])
                store.add_trials([failed_trial(run, n, problem=problem) for n in range(20, 25)])
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


def test_trials_are_read_by_the_unique_index_and_by_id_only(filled: Store):
    run = filled.runs()[0].id
    unique = "USING INDEX sqlite_autoindex_trials_1 (run_id=? AND problem_id=?)"
    by_id = "USING INTEGER PRIMARY KEY (rowid=?)"
    for plan in plans(filled, lambda: filled.ask(EvidenceOf(run, SMALL, HERE))):
        assert "SCAN" not in plan, plan
        assert "TEMP B-TREE" not in plan, plan
        if "trials" in plan:
            covering = unique.replace("INDEX", "COVERING INDEX")
            assert any(f"SEARCH trials {way}" in plan for way in (unique, covering, by_id)), plan


def test_attempts_read_counts_and_one_trial_each(filled: Store):
    for question in (AttemptsAt(SMALL, HERE), AttemptsAt(SMALL)):
        (plan,) = [one for one in plans(filled, lambda q=question: filled.ask(q)) if "trial_counts" in one]
        assert not re.search(r"SCAN (?!environments)", plan), plan  # of which there is one here
        assert "SEARCH trial_counts USING INDEX" in plan or "SEARCH trial_counts USING PRIMARY KEY" in plan, plan
        assert "SEARCH trials USING INTEGER PRIMARY KEY (rowid=?)" in plan, plan


def test_winners_are_read_by_their_indexes(filled: Store):
    for question in (PlacesOf(SMALL), OtherTokens(SMALL, HERE, "cuda.eager")):
        for plan in plans(filled, lambda q=question: filled.ask(q)):
            assert "SCAN winners" not in plan, plan
            assert "trials" not in plan, plan
            if "winners" in plan:
                assert "SEARCH winners USING INDEX" in plan, plan


def test_no_answer_is_long(sqlite_store: Store):
    environments = [Environment(CARD, {"torch": str(i)}) for i in range(MAX_ROWS + 5)]
    for at in environments:
        sqlite_store.add_winners([new_winner(sqlite_store.create_run(new_run(environment=at)), environment=at)])
    assert len(sqlite_store.ask(PlacesOf(SMALL))) == MAX_ROWS
