"""What the roofline asks of the store: bounded, by index, and unmoved by what a row may hold."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.db.dashboard.roof import Served, ServedIn, Workload, WorkloadsOf
from fp4tune.db.records import Origin, RunProblem
from fp4tune.kernels.errors import InvalidInputError, NotFoundError, StoreError
from query_plans import plans
from store_factory import (
    CARD,
    GROUPED,
    LARGE,
    ON_CARD,
    ON_CPU,
    SMALL,
    choice,
    measured_on_a_card,
    new_run,
    new_winner,
)

HERE = ON_CARD.fingerprint
POLICY = "cuda.eager"


def fill(store: Store) -> str:
    """A run with a winner for each of two problems, of which one has the trial that measured it."""
    run = store.create_run(new_run())
    store.add_trials([measured_on_a_card(run, 7, problem=SMALL, origin=Origin.FINAL, policy=POLICY)])
    store.add_winners([new_winner(run), new_winner(run, problem=GROUPED, choice=choice(20.0, "humming"))])
    return run


# Bad input


def test_of_what_is_not_there_nothing_is_served(store: Store):
    fill(store)
    assert store.ask(ServedIn("0" * 16, POLICY)) == []
    assert store.ask(ServedIn(HERE, "cuda.graph")) == []
    assert store.ask(ServedIn(ON_CPU.fingerprint, POLICY)) == []
    assert store.ask(WorkloadsOf("0" * 16)) == []


def test_an_unknown_run_is_an_error(store: Store):
    with pytest.raises(NotFoundError, match="There is no run '01UNKNOWN'"):
        store.ask(ServedIn(HERE, POLICY, "01UNKNOWN"))


def test_a_limit_that_cannot_be_is_refused(store: Store):
    for limit in (0, -1, 10_001):
        with pytest.raises(InvalidInputError):
            store.ask(ServedIn(HERE, POLICY, limit=limit))


def test_rows_that_refer_to_nothing_are_left_out(sqlite_store: Store, tmp_path: Path):
    run = fill(sqlite_store)
    with contextlib.closing(sqlite3.connect(tmp_path / "fp4tune.db")) as connection:  # which checks no foreign keys
        connection.execute("DELETE FROM problems WHERE op = 'grouped'")
        connection.execute("DELETE FROM runs")
        connection.commit()
    (only,) = sqlite_store.ask(ServedIn(HERE, POLICY))
    assert (only.problem, only.run_id) == (SMALL, "")
    with pytest.raises(NotFoundError):
        sqlite_store.ask(ServedIn(HERE, POLICY, run))


def test_a_problem_that_is_none_is_damage(sqlite_store: Store):
    fill(sqlite_store)
    with sqlite_store._writing() as connection:
        connection.exec_driver_sql("UPDATE problems SET op = '<script>'")
    with pytest.raises(StoreError, match="cannot be read"):
        sqlite_store.ask(ServedIn(HERE, POLICY))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 100_000, '{"tp": "8", "ep": true}', '{"tp": -1}'])
def test_settings_that_say_nothing_are_no_error(sqlite_store: Store, text: str):
    run = fill(sqlite_store)
    with sqlite_store._writing() as connection:
        connection.exec_driver_sql("UPDATE runs SET settings = ?", (text,))
    assert sqlite_store.ask(WorkloadsOf(HERE)) == [Workload(run, "Qwen3.5-397B-A17B-NVFP4", 0, 0, 2)]


# What is served


def test_served_with_its_share_role_and_layers(store: Store):
    run = fill(store)
    grouped, small = store.ask(ServedIn(HERE, POLICY))
    assert small == Served(SMALL, "triton.native", 10.0, 9.8, 10.3, 0.625, run, small.stored_at, "attn.qkv", 60)
    assert (grouped.problem, grouped.backend, grouped.roof_share) == (GROUPED, "humming", None)
    assert (grouped.role, grouped.layers) == ("moe.w13", 3)


def test_only_what_is_served_here_and_measured_so(store: Store):
    fill(store)
    run = store.create_run(new_run())
    store.add_winners(
        [
            new_winner(run, choice=choice(9.0)),
            new_winner(run, policy="cuda.graph"),
            new_winner(run, environment=replace(ON_CARD, versions={"driver": "590.1"})),
        ]
    )
    found = store.ask(ServedIn(HERE, POLICY))
    assert [(one.problem, one.time_us) for one in found] == [(SMALL, 9.0), (GROUPED, 20.0)]


def test_the_newest_come_first_and_one_more_says_that_there_are_more(store: Store):
    run = store.create_run(new_run())
    store.add_winners([new_winner(run, problem=replace(SMALL, m=m)) for m in range(1, 8)])
    assert [one.problem.m for one in store.ask(ServedIn(HERE, POLICY, limit=3))] == [7, 6, 5, 4]
    assert [one.problem.m for one in store.ask(ServedIn(HERE, POLICY, limit=7))] == [7, 6, 5, 4, 3, 2, 1]


def test_a_problem_of_no_run_stands_for_one_layer(store: Store):
    run = store.create_run(new_run(problems=()))
    store.add_winner(new_winner(run))
    (only,) = store.ask(ServedIn(HERE, POLICY))
    assert (only.role, only.layers) == ("", 1)


def test_of_a_run_its_problems_whoever_measured_them(store: Store):
    fill(store)
    items = (RunProblem(LARGE, "a", (), 2), RunProblem(SMALL, "b", (), 5), RunProblem(SMALL, "c", (), 0))
    later = store.create_run(new_run(problems=items))
    found = store.ask(ServedIn(HERE, POLICY, later))
    assert [(one.problem, one.role, one.layers) for one in found] == [(SMALL, "b", 5), (SMALL, "c", 1)]
    assert found[0].run_id != later
    assert store.ask(ServedIn(HERE, POLICY, later, limit=1)) == found


def test_of_a_run_those_that_are_served_however_late_they_come(store: Store):
    items = [RunProblem(replace(SMALL, m=m)) for m in range(1, 1200)]
    run = store.create_run(new_run(problems=items))
    store.add_winners([new_winner(run, problem=replace(SMALL, m=m)) for m in (700, 1199, 3)])
    assert [one.problem.m for one in store.ask(ServedIn(HERE, POLICY, run, limit=1))] == [3, 700]
    assert [one.problem.m for one in store.ask(ServedIn(HERE, POLICY, run, limit=5))] == [3, 700, 1199]


# Workloads


def test_workloads_are_the_newest_run_of_each_checkpoint_and_settings(store: Store):
    first = store.create_run(new_run(settings={"tp": 8, "ep": 2}))
    second = store.create_run(new_run(settings={"tp": 8, "ep": 2, "budget_s": 9.0}))
    other = store.create_run(new_run(settings={"tp": 4}, checkpoint="/models/<b>x"))
    store.create_run(new_run(checkpoint=""))
    store.create_run(new_run(environment=ON_CPU))
    assert first != second
    assert store.ask(WorkloadsOf(HERE)) == [
        Workload(other, "/models/<b>x", 4, 0, 2),
        Workload(second, "Qwen3.5-397B-A17B-NVFP4", 8, 2, 2),
    ]


# Plans


@pytest.fixture(params=["as made", "analyzed"])
def filled(request: pytest.FixtureRequest, tmp_path: Path):
    path = tmp_path / "plans.db"
    problems = [replace(SMALL, m=m) for m in range(1, 60)]
    with Store.open(path) as store:
        for _ in range(4):
            run = store.create_run(new_run(problems=[RunProblem(problem) for problem in problems]))
            store.add_trials([measured_on_a_card(run, 7, problem=problem, policy=POLICY) for problem in problems])
            store.add_winners([new_winner(run, problem=problem) for problem in problems])
        if request.param == "analyzed":
            with store._writing() as connection:
                connection.exec_driver_sql("ANALYZE")
    with Store.open(path, mode="read") as store:
        yield store


def test_the_newest_are_found_by_index(filled: Store):
    first, *rest = plans(filled, lambda: filled.ask(ServedIn(HERE, POLICY, limit=20)))
    assert first.startswith(
        ("SEARCH winners USING INDEX ix_winners_", "SCAN winners USING INDEX ix_winners_current_id")
    )
    assert "SEARCH trials USING INDEX sqlite_autoindex_trials_1 (run_id=? AND problem_id=? AND number=?)" in first
    for plan in [first, *rest]:
        assert "SCAN trials" not in plan
        assert "TEMP B-TREE" not in plan
    assert all("SEARCH run_problems USING INDEX" in plan for plan in rest)


def test_those_of_a_run_are_found_one_by_one(filled: Store):
    run = filled.runs()[0].id
    found = plans(filled, lambda: filled.ask(ServedIn(HERE, POLICY, run)))
    (winners,) = [plan for plan in found if "winners" in plan]
    assert "SEARCH winners USING INDEX uq_winners_current (problem_id=? AND environment_id=? AND policy=?)" in winners
    assert not [plan for plan in found if "SCAN trials" in plan or "TEMP B-TREE" in plan]


def test_the_device_is_not_mixed_up(store: Store):
    """The environment decides, and not the card."""
    run = store.create_run(new_run())
    other = replace(ON_CARD, device=replace(CARD, name="Other"))
    store.add_winners([new_winner(run), new_winner(run, environment=other)])
    assert len(store.ask(ServedIn(other.fingerprint, POLICY))) == 1
