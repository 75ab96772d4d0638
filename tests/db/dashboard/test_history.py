"""Winners by time over runs and environments, on both databases and by index."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fp4tune.db import Store
from fp4tune.db.dashboard import history
from fp4tune.db.dashboard.history import Changes, ChangesOf, HistoryOf, PlacesOf
from fp4tune.db.records import RunStatus, Source
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import InvalidInputError, NotFoundError, StoreError
from query_plans import plans
from store_factory import (
    CARD,
    CONDITIONS,
    LARGE,
    ON_CARD,
    ON_CPU,
    SMALL,
    START,
    Clock,
    choice,
    measured_on_a_card,
    new_run,
    new_winner,
)

POLICY = "cuda.graph"
DEVICE = CARD.fingerprint
NEWER = Environment(CARD, {**ON_CARD.versions, "driver": "590.12"})


def serve(store: Store, *, at: Environment = ON_CARD, trial: bool = False, **more: Any) -> str:
    """A run of one winner; `trial` stores the trial that measured it, too."""
    run = store.create_run(new_run(environment=at))
    more = {"policy": POLICY, **more}
    if trial:
        store.add_trials([measured_on_a_card(run, 7, environment=at, problem=more.get("problem", SMALL))])
    store.add_winner(new_winner(run, environment=at, **more))
    return run


@pytest.fixture
def timed(url: str, clock: Clock) -> Iterator[tuple[Store, Clock]]:
    """An empty store and its clock."""
    with Store.open(url, clock=clock) as store:
        yield store, clock


def times(found: Changes) -> list[tuple[str, float, float | None]]:
    return [(a.problem_key, a.time_us, b and b.time_us) for a, b in found.pairs]


# What is not there


def test_an_empty_store_has_no_places_and_no_changes(timed):
    store, _ = timed
    assert store.ask(PlacesOf()) == []
    found = store.ask(ChangesOf(DEVICE, POLICY))
    assert (found.pairs, found.newest_id, found.clipped, found.environments) == ((), 0, False, {})


def test_a_problem_that_is_not_stored_is_not_found(timed):
    store, _ = timed
    for question in (PlacesOf(LARGE.key), HistoryOf(LARGE.key, DEVICE, POLICY, 10)):
        with pytest.raises(NotFoundError, match="no problem 'dense"):
            store.ask(question)


def test_a_stored_problem_of_another_device_has_no_history(timed):
    store, _ = timed
    serve(store)
    found = store.ask(HistoryOf(SMALL.key, ON_CPU.device.fingerprint, POLICY, 10))
    assert (found.served, found.before) == ((), None)
    assert store.ask(HistoryOf(SMALL.key, DEVICE, "nobody's", 10)).served == ()


def test_a_name_that_no_database_takes_is_bad_input(timed):
    store, _ = timed
    with pytest.raises(InvalidInputError):
        store.ask(ChangesOf("\0", POLICY))


# What is


def test_the_last_change_of_each_problem_over_environments(timed):
    store, clock = timed
    for us, at, problem in (
        (10.0, ON_CARD, SMALL),
        (11.0, ON_CARD, SMALL),
        (20.0, ON_CARD, LARGE),
        (12.0, NEWER, SMALL),
    ):
        serve(store, at=at, problem=problem, choice=choice(us))
        clock.advance(60)
    serve(store, at=ON_CPU, choice=choice(99.0))
    serve(store, choice=choice(98.0), policy="cuda.eager")
    serve(store, choice=choice(97.0), source=Source.MODEL, problem=LARGE)
    found = store.ask(ChangesOf(DEVICE, POLICY))
    assert times(found) == [(SMALL.key, 12.0, 11.0), (LARGE.key, 20.0, None)]
    (after, before), _ = found.pairs
    assert before is not None
    assert (before.environment_fingerprint, after.environment_fingerprint) == (ON_CARD.fingerprint, NEWER.fingerprint)
    assert found.environments == {one.fingerprint: one for one in (ON_CARD, NEWER)}
    assert not found.clipped
    assert [(one.device.name, one.policy) for one in store.ask(PlacesOf())] == [
        (CARD.name, "cuda.eager"), (ON_CPU.device.name, POLICY), (CARD.name, POLICY),
    ]  # fmt: skip
    assert {one.device.fingerprint for one in store.ask(PlacesOf(SMALL.key))} == {DEVICE, ON_CPU.device.fingerprint}
    assert [one.policy for one in store.ask(PlacesOf(LARGE.key))] == [POLICY]


def test_a_page_of_the_list_does_not_see_what_came_later(timed):
    store, _ = timed
    serve(store, choice=choice(10.0))
    serve(store, choice=choice(11.0))
    newest = store.ask(ChangesOf(DEVICE, POLICY)).newest_id
    serve(store, choice=choice(12.0))
    serve(store, problem=LARGE)
    assert times(store.ask(ChangesOf(DEVICE, POLICY, newest))) == [(SMALL.key, 11.0, 10.0)]


def test_what_is_imported_takes_its_place_by_time(tmp_path: Path, timed):
    store, clock = timed
    clock.advance(3600)
    serve(store, choice=choice(12.0))
    with Store.open(tmp_path / "other.db", clock=Clock()) as other:
        other.finish_run(serve(other, choice=choice(10.0)), RunStatus.FINISHED)
        other.export(tmp_path / "other.fp4tune.gz")
    store.import_from(tmp_path / "other.fp4tune.gz")
    assert times(store.ask(ChangesOf(DEVICE, POLICY))) == [(SMALL.key, 12.0, 10.0)]
    assert [one.time_us for one in store.ask(HistoryOf(SMALL.key, DEVICE, POLICY, 10)).served] == [12.0, 10.0]


def test_a_history_comes_in_pages_that_know_the_one_before(timed):
    store, clock = timed
    for us in range(1, 8):
        serve(store, choice=choice(float(us)))
        if us % 2:  # two at the same moment, told apart by their ids
            clock.advance(1)
    seen, before_id = [], None
    for _ in range(3):
        found = store.ask(HistoryOf(SMALL.key, DEVICE, POLICY, 3, before_id))
        seen.append(([one.time_us for one in found.served], found.before and found.before.time_us))
        before_id = found.served[-1].id
    assert seen == [([7.0, 6.0, 5.0], 4.0), ([4.0, 3.0, 2.0], 1.0), ([1.0], None)]


def test_a_winner_brings_its_run_its_samples_and_its_conditions(timed):
    store, _ = timed
    without = serve(store)
    with_trial = serve(store, trial=True, choice=choice(12.0, stages=4), default=choice(15.0, block_m=128))
    new, old = store.ask(HistoryOf(SMALL.key, DEVICE, POLICY, 10)).served
    assert (new.run_id, new.n_samples, new.conditions, new.is_current) == (with_trial, 30, CONDITIONS, True)
    assert new.throttled_share == pytest.approx(len(CONDITIONS.throttled_samples) / 30)
    assert (old.run_id, old.n_samples, old.conditions, old.throttled_share) == (without, None, None, None)
    assert not old.is_current
    assert new.choice == ("triton.native", '{"block_m":64,"stages":4}') != old.choice
    assert new.default_choice == ("triton.native", '{"block_m":128,"stages":3}')
    assert (new.time_us, new.default_time_us, new.created_at) == (12.0, 15.0, START)


def test_more_problems_than_are_looked_at(monkeypatch: pytest.MonkeyPatch, timed):
    store, _ = timed
    for m in range(1, 6):
        serve(store, problem=replace(SMALL, m=m))
    monkeypatch.setattr(history, "MAX_PROBLEMS", 3)
    found = store.ask(ChangesOf(DEVICE, POLICY))
    assert found.clipped
    assert [key.split(":")[1].split("x")[0] for key, _, _ in times(found)] == ["5", "4", "3"]
    monkeypatch.setattr(history, "MAX_PROBLEMS", 5)
    assert not store.ask(ChangesOf(DEVICE, POLICY)).clipped
    monkeypatch.setattr(history, "MAX_WALKED", 2)
    found = store.ask(ChangesOf(DEVICE, POLICY))
    assert found.clipped
    assert len(found.pairs) == 2


# What is damaged


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """An SQLite database with two winners of a problem."""
    path = tmp_path / "damaged.db"
    with Store.open(path) as store:
        for us in (10.0, 11.0):
            serve(store, trial=True, choice=choice(us))
    return path


def test_missing_rows_and_nonsense_leave_the_rest(damaged: Path):
    with closing(sqlite3.connect(damaged)) as connection:
        connection.executescript(
            "DELETE FROM runs; DELETE FROM environments;"
            "UPDATE winners SET time_us = 9e999, time_us_low = 'x', config = '<b>' WHERE id = 2;"
            "UPDATE trials SET conditions = '{', n_samples = 'many';"
        )
        connection.commit()
    with Store.open(damaged, mode="read") as store:
        new, old = store.ask(HistoryOf(SMALL.key, DEVICE, POLICY, 10)).served
        assert (new.run_id, new.environment_fingerprint, new.n_samples, new.conditions) == ("", "", None, None)
        assert (new.time_us, new.time_us_low, new.config_json, old.time_us) == (float("inf"), "x", "<b>", 10.0)
        assert times(store.ask(ChangesOf(DEVICE, POLICY))) == [(SMALL.key, float("inf"), 10.0)]


def test_a_time_that_is_no_time_is_a_fault_of_the_store(damaged: Path):
    with closing(sqlite3.connect(damaged)) as connection:
        connection.executescript("UPDATE winners SET created_at = 'yesterday'")
        connection.commit()
    with Store.open(damaged, mode="read") as store, pytest.raises(StoreError, match="cannot be read"):
        store.ask(HistoryOf(SMALL.key, DEVICE, POLICY, 10))


# By index


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "filled.db"
    with Store.open(path) as store:
        for at in (ON_CARD, NEWER, ON_CPU):
            run = store.create_run(new_run(environment=at))
            problems = [replace(SMALL, m=m) for m in range(1, 60)]
            store.add_trials([measured_on_a_card(run, 7, environment=at, problem=p) for p in problems])
            store.add_winners([new_winner(run, environment=at, problem=p, policy=POLICY) for p in problems] * 3)
    return path


@pytest.mark.parametrize("analyzed", [False, True])
def test_questions_go_by_index_and_never_over_trials(filled: Path, tmp_path: Path, analyzed: bool):
    path = tmp_path / "copy.db"
    path.write_bytes(filled.read_bytes())
    if analyzed:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("ANALYZE")
    key = replace(SMALL, m=5).key
    with Store.open(path, mode="read") as store:
        for question in (
            ChangesOf(DEVICE, POLICY), ChangesOf(DEVICE, POLICY, 50), HistoryOf(key, DEVICE, POLICY, 5),
            HistoryOf(key, DEVICE, POLICY, 5, 100), PlacesOf(key),
        ):  # fmt: skip
            for plan in plans(store, lambda question=question: store.ask(question)):
                assert "SCAN trials" not in plan
                assert "SCAN winners" not in plan
                if "trials" in plan:
                    assert (
                        "SEARCH trials USING INDEX sqlite_autoindex_trials_1 (run_id=? AND problem_id=? AND number=?)"
                        in plan
                    )
        walk, two = plans(store, lambda: store.ask(ChangesOf(DEVICE, POLICY)))[:2]
        assert "SEARCH winners USING INDEX ix_winners_device_id_id (device_id=?)" in walk
        assert "ix_winners_problem_id_id (problem_id=?)" in two
        assert "SEARCH winners USING INTEGER PRIMARY KEY (rowid=?)" in two
        of_one = plans(store, lambda: store.ask(HistoryOf(key, DEVICE, POLICY, 5)))[1]
        assert "SEARCH winners USING INDEX ix_winners_problem_id_id (problem_id=?)" in of_one
