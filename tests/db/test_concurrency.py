"""Many processes and threads on one database at once: nobody fails, nothing is lost."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from fp4tune.db import Store, engine
from fp4tune.db.records import TrialFilter
from fp4tune.kernels.errors import StoreError
from store_factory import new_run, new_trial
from store_workers import all_at_once, open_and_write, pool, processes, read_all_the_while, write_all_the_while


def test_eight_processes_make_the_same_database_at_once(empty_url: str):
    run_ids = all_at_once(8, open_and_write, empty_url)
    assert len(set(run_ids)) == 8
    with Store.open(empty_url, mode="read") as store:
        assert {run.id for run in store.runs()} == set(run_ids)
        assert len(store.trials().items) == 8
        assert store.schema().current == store.schema().head


def test_sixteen_readers_while_a_writer_writes(url: str):
    """Readers also open and close all the time, which on SQLite takes locks of its own."""
    with processes.Manager() as manager, pool(17) as executor:
        started, stop, n_written = manager.Event(), manager.Event(), manager.Value("i", 0)
        writer = executor.submit(write_all_the_while, url, started, stop, n_written)
        readers = [executor.submit(read_all_the_while, url, 4, started) for _ in range(16)]
        seen = [reader.result(timeout=120) for reader in readers]
        stop.set()
        writer.result(timeout=60)
        assert n_written.value > 5, "the writer did not get to write"
    assert min(seen) > 0


def test_readers_do_not_wait_for_a_write_that_is_under_way(tmp_path: Path):
    """The transaction stays open for as long as it takes; there is no time in this test."""
    with Store.open(tmp_path / "a.db") as store:
        run_id = store.create_run(new_run())
        with store._writing() as connection:
            connection.exec_driver_sql("DELETE FROM run_problems")
            with Store.open(tmp_path / "a.db", mode="read") as reader:
                assert len(reader.run_problems(run_id)) == 2
        assert store.run_problems(run_id) == []


def test_a_write_that_cannot_get_the_lock_says_so(sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_id = sqlite_store.create_run(new_run())
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0)
    other = sqlite3.connect(tmp_path / "fp4tune.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="was locked by another process for more than 30 s; try again"):
        sqlite_store.heartbeat(run_id)
    other.execute("ROLLBACK")
    other.close()
    sqlite_store.heartbeat(run_id)


def test_threads_share_a_store(store: Store):
    """Each thread's writes are seen by itself at once, and all of them at the end by all."""
    run_id = store.create_run(new_run())
    errors: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for j in range(8):
                (id_,) = store.add_trials([new_trial(run_id, 100 * i + j, backend=f"backend.{i}")])
                mine = store.trials(TrialFilter(backend=f"backend.{i}")).items
                assert [t.number for t in mine] == [100 * i + k for k in range(j + 1)]
                assert mine[-1].id == id_
                store.generation()
                store.runs()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert store.run(run_id).n_trials == 12 * 8
    assert len(store.trials(limit=1000).items) == 12 * 8


def test_more_threads_than_connections_wait_for_their_turn(store: Store):
    n = 80
    start = threading.Barrier(n)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            start.wait(60)
            store.generation()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
