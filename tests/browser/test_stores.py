"""The databases that the other tests look at are what they say."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import dashboard_stores
import pytest
from fp4tune.db import Store
from fp4tune.db.records import RunStatus, TrialStatus


def test_a_big_database_is_as_consistent_as_one_that_the_store_wrote(tmp_path: Path):
    big = dashboard_stores.million(tmp_path / "big.db", 5_000)
    with closing(sqlite3.connect(big.path)) as raw:
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert raw.execute("SELECT count(*) FROM trials").fetchone() == (5_000,)
        assert raw.execute("SELECT sum(n_trials), count(*) FROM runs").fetchone() == (5_000, big.n_runs)
        key = "run_id, problem_id, backend, status, environment_id"
        counted = raw.execute(f"SELECT {key}, count(*), max(id) FROM trials GROUP BY {key} ORDER BY {key}").fetchall()
        assert raw.execute(f"SELECT {key}, n, last_trial_id FROM trial_counts ORDER BY {key}").fetchall() == counted
        served = raw.execute(
            "SELECT count(*), count(t.id) FROM winners w LEFT JOIN trials t ON t.run_id = w.run_id AND t.problem_id = w.problem_id"
            " AND t.number = w.trial_number AND t.config = w.config AND t.time_us = w.time_us AND t.origin = 'final'"
        ).fetchone()
        assert served[0] == served[1] > 100
        (superseded,) = raw.execute("SELECT count(*) FROM winners WHERE superseded_at IS NOT NULL").fetchone()
        assert superseded > 10
        names = raw.execute("SELECT name FROM sqlite_master WHERE type = 'index' ORDER BY name").fetchall()
    dashboard_stores.empty(tmp_path / "empty.db")
    with closing(sqlite3.connect(tmp_path / "empty.db")) as raw:
        assert raw.execute("SELECT name FROM sqlite_master WHERE type = 'index' ORDER BY name").fetchall() == names
    with Store.open(big.path, mode="read") as store:
        assert {trial.status for trial in store.trials(limit=5_000).items} == set(TrialStatus)
        assert store.winners(limit=2_000).items
        assert len(store.devices()) == 4
        assert {device.name for device, _ in store.devices() if device.fingerprint in big.twins} == {
            dashboard_stores.TWIN_NAME
        }
        assert store.run(big.deep_run).n_trials == 500


def test_a_big_database_is_the_same_every_time(tmp_path: Path):
    one, two = (dashboard_stores.million(tmp_path / f"{i}.db", 2_000) for i in range(2))
    with closing(sqlite3.connect(one.path)) as first, closing(sqlite3.connect(two.path)) as second:
        for table in ("runs", "trials", "winners"):
            select = f"SELECT * FROM {table} ORDER BY id"
            assert first.execute(select).fetchall() == second.execute(select).fetchall()


@pytest.mark.parametrize("kind", dashboard_stores.HOSTILE)
def test_a_hostile_database_can_be_read(kind: str, tmp_path: Path):
    text = dashboard_stores.HOSTILE[kind]
    dashboard_stores.hostile(tmp_path / "hostile.db", text)
    with Store.open(tmp_path / "hostile.db", mode="read") as store:
        assert {run.checkpoint for run in store.runs()} == {text}
        assert {one.environment.device.name for one in store.environments()} == {text}
        assert text in {winner.choice.backend for winner in store.winners().items}
        assert text in {trial.error for trial in store.trials().items}
        for one in store.environments():
            assert store.environment(one.environment.fingerprint) == one.environment


def test_a_killed_run_is_not_alive_and_a_running_one_is(tmp_path: Path):
    killed, alive = dashboard_stores.killed(tmp_path / "k.db"), dashboard_stores.running(tmp_path / "a.db")
    for path, run_id, lives in ((tmp_path / "k.db", killed, False), (tmp_path / "a.db", alive, True)):
        with Store.open(path, mode="read") as store:
            assert store.run(run_id).status is RunStatus.RUNNING
            assert store.is_alive(store.run(run_id)) is lives


def test_odd_numbers_are_everywhere(tmp_path: Path):
    for i, number in zip(itertools.count(), [float("inf"), -1], strict=False):
        dashboard_stores.odd(tmp_path / f"{i}.db", number)
    with closing(sqlite3.connect(tmp_path / "0.db")) as raw:
        assert raw.execute("SELECT DISTINCT time_us, default_time_us FROM winners").fetchall() == [(float("inf"),) * 2]
    with closing(sqlite3.connect(tmp_path / "1.db")) as raw:
        assert raw.execute("SELECT DISTINCT n_trials, n_done FROM runs").fetchall() == [(-1, -1)]
