"""kill -9 of a process that writes, at random points: what was acknowledged is there, and nothing is there in part."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.db.records import TrialFilter
from store_factory import new_run
from store_workers import BATCH, processes, write_until_killed


def kill_and_check(path: Path, run_id: str, known: set[int], draw: random.Random) -> set[int]:
    """Start a writer, kill it, check everything. Returns the batches that are stored afterwards."""
    first = max(known, default=-1) + 1
    receive, send = processes.Pipe(duplex=False)
    writer = processes.Process(target=write_until_killed, args=(path, run_id, first, send))
    writer.start()
    send.close()
    acknowledged = {receive.recv()}
    # From the middle of the next write to some writes later.
    time.sleep(draw.uniform(0, 0.05))
    writer.kill()
    writer.join(30)
    try:
        while True:
            acknowledged.add(receive.recv())
    except EOFError:
        pass
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        key = "run_id, problem_id, backend, status, environment_id"
        counted = f"SELECT {key}, count(*), max(id) FROM trials GROUP BY {key} ORDER BY {key}"
        counts = f"SELECT {key}, n, last_trial_id FROM trial_counts ORDER BY {key}"
        assert connection.execute(counts).fetchall() == connection.execute(counted).fetchall()
    stored: dict[int, int] = {}
    with Store.open(path, mode="read") as store:
        after: int | None = 0
        while after is not None:
            page = store.trials(TrialFilter(run_id=run_id), limit=5000, after=after)
            for trial in page.items:
                assert trial.number // BATCH == trial.seed
                stored[trial.seed] = stored.get(trial.seed, 0) + 1
            after = page.next_after
        assert store.run(run_id).n_trials == sum(stored.values())
        winners = store.winners().items
        assert len(winners) in (0, 3)
        assert len({winner.created_at for winner in winners}) <= 1, "of a batch of winners a part is served"
    assert set(stored.values()) == {BATCH}, "a batch is stored in part"
    assert set(stored) >= known | acknowledged, "an acknowledged batch is lost"
    assert len(set(stored) - known - acknowledged) <= 1, "at most the last batch was committed and not acknowledged"
    return set(stored)


def kill_often(path: Path, seeds: range) -> None:
    with Store.open(path) as store:
        run_id = store.create_run(new_run())
    known: set[int] = set()
    for seed in seeds:
        known = kill_and_check(path, run_id, known, random.Random(seed))
    assert len(known) >= len(seeds)


def test_ten_kills(tmp_path: Path):
    kill_often(tmp_path / "fp4tune.db", range(10))


@pytest.mark.slow
def test_fifty_kills(tmp_path: Path):
    kill_often(tmp_path / "fp4tune.db", range(100, 150))
