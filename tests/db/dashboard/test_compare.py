"""Two environments side by side, on both databases and by index."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fp4tune.db import Store
from fp4tune.db.dashboard import compare
from fp4tune.db.dashboard.compare import ComparisonOf, ServedOnlyIn
from fp4tune.db.records import Source
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import InvalidInputError
from query_plans import plans
from store_factory import CARD, GROUPED, LARGE, ON_CARD, SMALL, choice, measured_on_a_card, new_run, new_winner

POLICY = "cuda.graph"
NEWER = Environment(CARD, {**ON_CARD.versions, "driver": "590.12"})
HERE, THERE = ON_CARD.fingerprint, NEWER.fingerprint
BOTH = ComparisonOf(HERE, THERE, POLICY)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


def serve(store: Store, at: Environment, *, trial: bool = False, **more: Any) -> None:
    run = store.create_run(new_run(environment=at))
    more = {"policy": POLICY, **more}
    if trial:
        store.add_trials([measured_on_a_card(run, 7, environment=at, problem=more.get("problem", SMALL))])
    store.add_winner(new_winner(run, environment=at, **more))


# What is not there


def test_nothing_is_shared_in_an_empty_store(store: Store):
    found = store.ask(BOTH)
    assert (found.pairs, found.n_shared, found.n_timed, found.mean_ratio, found.largest_left) == ((), 0, 0, None, None)
    assert store.ask(ServedOnlyIn(HERE, THERE, POLICY)) == []


def test_a_fingerprint_that_no_database_takes_is_bad_input(store: Store):
    with pytest.raises(InvalidInputError):
        store.ask(ComparisonOf("\0", THERE, POLICY))


# What is


def test_what_is_served_in_both_and_in_one_only(store: Store):
    serve(store, ON_CARD, choice=choice(99.0))  # superseded by the next
    serve(store, ON_CARD, choice=choice(10.0), trial=True)
    serve(store, NEWER, choice=choice(20.0))
    serve(store, ON_CARD, problem=LARGE, choice=choice(40.0))
    serve(store, NEWER, problem=GROUPED, choice=choice(5.0))
    serve(store, NEWER, problem=LARGE, policy="cuda.eager")
    serve(store, ON_CARD, problem=GROUPED, source=Source.MODEL)
    found = store.ask(BOTH)
    ((before, after),) = found.pairs
    assert (before.problem_key, after.problem_key) == (SMALL.key, SMALL.key)
    assert (before.time_us, after.time_us, before.n_samples, after.n_samples) == (10.0, 20.0, 30, None)
    assert (found.n_shared, found.n_timed, found.largest_left, found.clipped) == (1, 1, None, False)
    assert found.mean_ratio == pytest.approx(2.0)
    assert set(found.environments) == {HERE, THERE}
    assert [one.problem_key for one in store.ask(ServedOnlyIn(HERE, THERE, POLICY))] == [LARGE.key]
    assert [one.problem_key for one in store.ask(ServedOnlyIn(THERE, HERE, POLICY))] == [GROUPED.key]


def test_the_mean_is_geometric(store: Store):
    for m, (a, b) in enumerate([(10.0, 20.0), (20.0, 10.0), (10.0, 80.0)], start=1):
        serve(store, ON_CARD, problem=replace(SMALL, m=m), choice=choice(a))
        serve(store, NEWER, problem=replace(SMALL, m=m), choice=choice(b))
    assert store.ask(BOTH).mean_ratio == pytest.approx(8 ** (1 / 3))
    assert store.ask(ComparisonOf(THERE, HERE, POLICY)).mean_ratio == pytest.approx(8 ** (-1 / 3))


def test_of_many_those_that_are_furthest_apart_are_read(monkeypatch: pytest.MonkeyPatch, store: Store):
    for m, b in enumerate([10.0, 13.0, 10.5, 8.0, 10.1], start=1):
        serve(store, ON_CARD, problem=replace(SMALL, m=m), choice=choice(10.0))
        serve(store, NEWER, problem=replace(SMALL, m=m), choice=choice(b))
    monkeypatch.setattr(compare, "MAX_PAIRS", 2)
    found = store.ask(BOTH)
    assert sorted(after.time_us for _, after in found.pairs) == [8.0, 13.0]
    assert found.largest_left == pytest.approx(1.05)
    assert (found.n_shared, found.n_timed) == (5, 5)
    assert found.mean_ratio == pytest.approx((1.3 * 1.05 * 0.8 * 1.01) ** 0.2)
    monkeypatch.setattr(compare, "MAX_SHARED", 4)
    assert (store.ask(BOTH).n_shared, store.ask(BOTH).clipped) == (4, True)
    monkeypatch.setattr(compare, "MAX_SHARED", 5)
    assert not store.ask(BOTH).clipped


def test_what_is_only_in_one_is_bounded(monkeypatch: pytest.MonkeyPatch, store: Store):
    run = store.create_run(new_run())
    store.add_winners([new_winner(run, problem=replace(SMALL, m=m), policy=POLICY) for m in range(1, 9)])
    monkeypatch.setattr(compare, "MAX_LONELY", 3)
    assert len(store.ask(ServedOnlyIn(HERE, THERE, POLICY))) == 4


def test_times_that_are_none_are_in_no_mean_and_are_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "damaged.db"
    with Store.open(path) as store:
        for m in range(1, 6):
            serve(store, ON_CARD, problem=replace(SMALL, m=m))
            serve(store, NEWER, problem=replace(SMALL, m=m), choice=choice(20.0))
    with closing(sqlite3.connect(path)) as connection:
        for id_, value in ((1, "9e999"), (3, "-1"), (5, "'x'"), (7, "0")):
            connection.execute(f"UPDATE winners SET time_us = {value} WHERE id = {id_}")
        connection.execute("DELETE FROM runs")
        connection.commit()
    monkeypatch.setattr(compare, "MAX_PAIRS", 4)
    with Store.open(path, mode="read") as store:
        found = store.ask(BOTH)
    assert (found.n_shared, found.n_timed) == (5, 1)
    assert found.mean_ratio == pytest.approx(2.0)
    assert found.largest_left == pytest.approx(2.0)
    assert sorted(str(before.time_us) for before, _ in found.pairs) == ["-1.0", "0.0", "inf", "x"]
    assert math.isinf(next(before.time_us for before, _ in found.pairs if before.time_us == math.inf))


# By index


@pytest.mark.parametrize("analyzed", [False, True])
def test_the_indexes_of_an_environment_and_of_what_is_current_are_used(tmp_path: Path, analyzed: bool):
    path = tmp_path / "filled.db"
    with Store.open(path) as store:
        for at in (ON_CARD, NEWER):
            run = store.create_run(new_run(environment=at))
            problems = [replace(SMALL, m=m) for m in range(1, 60)]
            store.add_trials([measured_on_a_card(run, 7, environment=at, problem=p) for p in problems])
            store.add_winners([new_winner(run, environment=at, problem=p, policy=POLICY) for p in problems] * 3)
    if analyzed:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("ANALYZE")
    theirs = "uq_winners_current (problem_id=? AND environment_id=? AND policy=?)"
    with Store.open(path, mode="read") as store:
        for question in (BOTH, ServedOnlyIn(HERE, THERE, POLICY)):
            found = plans(store, lambda question=question: store.ask(question))
            assert "SEARCH winners_1 USING INDEX ix_winners_current_place (environment_id=? AND policy=?)" in found[0]
            assert "SEARCH winners_2 USING " in found[0]
            assert theirs in found[0]
            assert "SCAN" not in found[0]
            for plan in found:
                assert "SCAN trials" not in plan  # winners are so few here that the planner may scan them for their ids
                assert "TEMP B-TREE" not in plan
