"""The evidence for what is served: its own finals with samples, and what other runs of the device served."""

from __future__ import annotations

import contextlib
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from dashboard_stores import HOSTILE, ODD_NUMBERS, ODD_WHOLE_NUMBERS, analyze, hostile, odd, orphans
from fp4tune.db import Store
from fp4tune.db.dashboard.scopes import ScopesOf
from fp4tune.db.dashboard.trust import MAX_DRAWN, MAX_SERVED, EvidenceOf, ServedOf
from fp4tune.db.records import Choice, Origin, RunStatus
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import InvalidInputError, NotFoundError, StoreError
from query_plans import plans
from store_factory import (
    CARD,
    CONDITIONS,
    CPU,
    GROUPED,
    LARGE,
    ON_CARD,
    SMALL,
    Clock,
    measured_on_a_card,
    new_run,
    new_trial,
    new_winner,
    timing,
)  # fmt: skip

POLICY = "cuda.graph"
OTHER = Environment(CARD, {"driver": "590.1", "torch": "2.11.0", "triton": "3.6.0"})
ASKED = EvidenceOf(SMALL.key, ON_CARD.fingerprint, POLICY)


def config(i: int) -> dict[str, int]:
    return {"block_m": i}


def as_choice(i: int, time_us: float | None = None) -> Choice:
    us = time_us or 10.0 + i
    return Choice("triton.native", config(i), us, 0.99 * us, 1.01 * us)


def finals(store: Store, run_id: str, first: int, configs: range, **fields) -> None:
    store.add_trials(
        [
            measured_on_a_card(
                run_id, first + n, config=config(i), origin=Origin.FINAL, timing=timing(10.0 + i), **fields
            )
            for n, i in enumerate(configs)
        ]
    )  # fmt: skip


def tuned(store: Store, *, served: int = 0, ties: int = 2, n_finals: int = 6, **fields) -> str:
    """A run with a search of 20 trials and finals; config 5 is the default."""
    run_id = store.create_run(new_run(environment=fields.get("environment", ON_CARD)))
    store.add_trials([new_trial(run_id, n, config=config(n), **fields) for n in range(20)])
    finals(store, run_id, 20, range(n_finals), **fields)
    store.add_winners(
        [
            new_winner(
                run_id, choice=as_choice(served), default=as_choice(5), policy=POLICY, trial_number=20 + served,
                tie_set=tuple(as_choice(i) for i in range(ties)), **fields,
            )
        ]
    )  # fmt: skip
    store.finish_problem(run_id, 0, "1.50x as fast as the default")
    return run_id


@pytest.mark.parametrize(
    "asked",
    [ASKED, replace(ASKED, problem_key="nonsense"), replace(ASKED, environment_fingerprint="0" * 16), replace(ASKED, policy="x")],
)  # fmt: skip
def test_where_nothing_is_served_there_is_no_evidence(store: Store, asked: EvidenceOf):
    store.create_run(new_run())
    with pytest.raises(NotFoundError, match="Nothing is served"):
        store.ask(asked)


@pytest.mark.parametrize("text", ["x\x00", "x" * 300, "\ud800"])
def test_names_that_cannot_be_stored_are_refused(store: Store, text: str):
    for asked in (
        replace(ASKED, problem_key=text),
        replace(ASKED, policy=text),
        replace(ASKED, environment_fingerprint=text),
    ):
        with pytest.raises(InvalidInputError):
            store.ask(asked)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_strings_come_back_as_they_are(tmp_path: Path, text: str):
    hostile(tmp_path / "x.db", text)
    with Store.open(tmp_path / "x.db") as store:
        for scope in store.ask(ScopesOf()):
            served = store.ask(ServedOf(scope.environment.fingerprint, scope.policy))
            assert len(served) == scope.n_winners
            for one in served if len(scope.policy) <= 255 else ():
                evidence = store.ask(EvidenceOf(one.problem_key, scope.environment.fingerprint, scope.policy))
                assert evidence.outcome == text


@pytest.mark.parametrize("number", [*ODD_NUMBERS.values(), *ODD_WHOLE_NUMBERS.values()])
def test_odd_numbers_come_back_as_they_are(tmp_path: Path, number: float):
    odd(tmp_path / "x.db", number)
    with Store.open(tmp_path / "x.db") as store:
        (scope, *_) = store.ask(ScopesOf())
        (one, *_) = store.ask(ServedOf(scope.environment.fingerprint, scope.policy))
        evidence = store.ask(EvidenceOf(one.problem_key, scope.environment.fingerprint, scope.policy))
        assert any(len(final.samples_us) in (4, 20) for final in evidence.finals)


@pytest.mark.parametrize("table", ["devices", "environments", "problems", "runs"])
def test_missing_rows_are_damage_or_left_out(tmp_path: Path, table: str):
    orphans(tmp_path / "x.db", table)
    with Store.open(tmp_path / "x.db") as store, contextlib.suppress(StoreError):
        for scope in store.ask(ScopesOf()):
            for one in store.ask(ServedOf(scope.environment.fingerprint, scope.policy)):
                store.ask(EvidenceOf(one.problem_key, scope.environment.fingerprint, scope.policy))


def test_the_finals_that_decided_with_the_samples_of_what_is_drawn(store: Store):
    run_id = tuned(store)
    found = store.ask(ASKED)
    assert (found.winner.choice, found.run.id, found.done) == (as_choice(0), run_id, True)
    assert found.outcome == "1.50x as fast as the default"
    assert [(one.number, one.config) for one in found.finals] == [(20 + i, config(i)) for i in range(6)]
    assert [len(one.samples_us) for one in found.finals] == [30, 30, 0, 0, 0, 30], "served, tied, and the default"
    assert found.finals[0].samples_us == tuple(10.0 + i / 64 for i in range(30))
    assert found.finals[0].conditions == CONDITIONS
    assert found.finals[0].n_samples == 30
    assert found.finals[0].rel_error == 1.5e-3


def test_at_most_so_many_are_drawn_the_served_one_and_the_default_first(store: Store):
    tuned(store, served=11, ties=12, n_finals=12)
    found = store.ask(ASKED)
    drawn = [one.config["block_m"] for one in found.finals if one.samples_us]
    assert len(drawn) == MAX_DRAWN
    assert {11, 5, 0} <= set(drawn)


def test_what_stands_alone_is_drawn_beside_what_came_next(store: Store):
    run_id = store.create_run(new_run())
    finals(store, run_id, 0, range(3))
    alone = as_choice(0)
    store.add_winners(
        [new_winner(run_id, choice=alone, default=alone, tie_set=(alone,), policy=POLICY, trial_number=0)]
    )  # fmt: skip
    assert [bool(one.samples_us) for one in store.ask(ASKED).finals] == [True, True, False]


def test_finals_of_before_a_resume_are_others(store: Store):
    """Trials of the search between them part the two."""
    run_id = store.create_run(new_run())
    finals(store, run_id, 0, range(3))
    store.add_trials([new_trial(run_id, 3, config=config(9))])
    finals(store, run_id, 4, range(2))
    store.add_winners([new_winner(run_id, choice=as_choice(0), policy=POLICY, trial_number=4)])
    assert [one.number for one in store.ask(ASKED).finals] == [4, 5]


def test_a_winner_whose_trial_is_missing_has_no_finals(store: Store):
    run_id = store.create_run(new_run(problems=()))
    store.add_winners([new_winner(run_id, policy=POLICY)])
    found = store.ask(ASKED)
    assert (found.finals, found.done, found.outcome, found.others) == ((), None, "", ())


def test_other_runs_are_those_of_the_device_and_policy_with_their_last_word(store: Store, clock: Clock):
    mine = tuned(store)
    first, elsewhere = tuned(store, served=1), tuned(store, served=2, environment=OTHER)
    store.add_winners([new_winner(first, choice=as_choice(3), policy=POLICY, tie_set=(as_choice(3), as_choice(0)))])
    store.add_winners([new_winner(mine, policy="cuda.eager")])
    store.add_winners([new_winner(mine, environment=Environment(CPU, {}), policy=POLICY)])
    last = tuned(store, served=4)
    found = store.ask(ASKED)
    assert found.run.id == last
    assert [(one.run_id, one.choice.config, one.is_served) for one in found.others] == [
        (first, config(3), False),
        (elsewhere, config(2), True),
        (mine, config(0), False),
    ]
    assert [one.environment for one in found.others] == [ON_CARD, OTHER, ON_CARD]
    assert [len(one.tie_set) for one in found.others] == [2, 2, 2]
    assert not found.more_others


def test_served_problems_are_told_at_a_glance(store: Store):
    tuned(store)
    run_id = store.create_run(new_run())
    store.add_winners([new_winner(run_id, problem=LARGE, policy=POLICY), new_winner(run_id, problem=GROUPED)])
    found = store.ask(ServedOf(ON_CARD.fingerprint, POLICY))
    assert [(one.problem_key, one.n_samples, one.n_throttled, one.n_ties) for one in found] == [
        (LARGE.key, None, None, 2),
        (SMALL.key, 30, 3, 2),
    ]
    assert store.ask(ServedOf("0" * 16, POLICY)) == store.ask(ServedOf(ON_CARD.fingerprint, "x")) == []


def test_samples_that_are_no_floats_are_damage(sqlite_store: Store, tmp_path: Path):
    tuned(sqlite_store)
    with closing(sqlite3.connect(tmp_path / "fp4tune.db")) as connection, connection:
        connection.execute("UPDATE trials SET samples = x'010203'")
    with pytest.raises(StoreError, match="cannot be read"):
        sqlite_store.ask(ASKED)


@pytest.mark.parametrize("analyzed", [False, True])
def test_plans_read_what_belongs_to_one_problem(sqlite_store: Store, tmp_path: Path, analyzed: bool):
    for _ in range(12):
        run_id = tuned(sqlite_store)
        for problem in (LARGE, GROUPED):
            sqlite_store.add_trials([new_trial(run_id, n, problem=problem) for n in range(100)])
            sqlite_store.add_winners([new_winner(run_id, problem=problem, policy=POLICY)])
        sqlite_store.finish_run(run_id, RunStatus.FINISHED)
    if analyzed:
        sqlite_store.close()
        analyze(tmp_path / "fp4tune.db")
    with Store.open(tmp_path / "fp4tune.db", mode="read") as store:
        for asked in (ASKED, ServedOf(ON_CARD.fingerprint, POLICY)):
            for plan in plans(store, lambda asked=asked: store.ask(asked)):
                for table in ("trials", "winners", "runs", "run_problems"):
                    assert f"SCAN {table}" not in plan, plan
                assert "TEMP B-TREE" not in plan, plan
                if "SEARCH trials" in plan:
                    assert "SEARCH trials USING INDEX sqlite_autoindex_trials_1 (run_id=? AND problem_id=?" in plan


def test_at_most_so_many_served_problems_are_listed():
    assert MAX_SERVED <= 500, "a row joins its trial, and the page shows 200"
