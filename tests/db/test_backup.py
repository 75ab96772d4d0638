"""Backups: complete, verified, never over something else, and while others write."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.kernels.errors import Fp4tuneError, InvalidInputError, NotFoundError, StoreError, UnsupportedError
from store_factory import new_run, new_trial, new_winner


@pytest.fixture
def filled(sqlite_store: Store) -> Store:
    run_id = sqlite_store.create_run(new_run())
    sqlite_store.add_trials([new_trial(run_id, n) for n in range(50)])
    sqlite_store.add_winner(new_winner(run_id))
    return sqlite_store


def test_a_backup_has_everything_in_one_file(filled: Store, tmp_path: Path):
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "backup.db"
    filled.backup(path)
    assert [p.name for p in path.parent.iterdir()] == ["backup.db"]
    with Store.open(path, mode="read") as copy:
        assert copy.runs() == filled.runs()
        assert copy.trials() == filled.trials()
        assert copy.winners() == filled.winners()
        assert copy.generation() == filled.generation()


@pytest.mark.parametrize("mode", ["create", "write"])
def test_a_backup_that_is_used_is_an_ordinary_database(filled: Store, tmp_path: Path, mode):
    filled.backup(tmp_path / "backup.db")
    with Store.open(tmp_path / "backup.db", mode=mode) as copy, copy._reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"


def test_a_store_that_is_open_for_reading_can_be_backed_up(filled: Store, tmp_path: Path):
    with Store.open(tmp_path / "fp4tune.db", mode="read") as store:
        store.backup(tmp_path / "backup.db")
    with Store.open(tmp_path / "backup.db") as copy:
        assert copy.trials() == filled.trials()


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_a_backup_never_overwrites(filled: Store, tmp_path: Path, make: Callable[[Path], None]):
    path = tmp_path / "backup.db"
    make(path)
    with pytest.raises(InvalidInputError, match="exists already"):
        filled.backup(path)
    assert os.path.lexists(path)
    with pytest.raises(InvalidInputError, match="exists already"):
        filled.backup(tmp_path / "fp4tune.db")


def test_a_backup_into_a_missing_directory(filled: Store, tmp_path: Path):
    with pytest.raises(NotFoundError, match="directory .* does not exist"):
        filled.backup(tmp_path / "no" / "backup.db")


def test_of_several_backups_to_one_name_exactly_one_succeeds(filled: Store, tmp_path: Path):
    outcomes: list[str] = []
    start = threading.Barrier(4)

    def work(i: int) -> None:
        with Store.open(tmp_path / "fp4tune.db", mode="read") as store:
            start.wait(30)
            try:
                store.backup(tmp_path / "backup.db")
                outcomes.append("made")
            except Fp4tuneError as error:
                outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["InvalidInputError"] * 3 + ["made"]
    assert not list(tmp_path.glob("*partial*"))
    assert not list(tmp_path.glob(".*partial*"))
    with Store.open(tmp_path / "backup.db", mode="read") as copy:
        copy.check()


def test_a_backup_while_somebody_writes_is_one_moment(filled: Store, tmp_path: Path):
    run_id = filled.runs()[0].id
    stop = threading.Event()

    def write() -> None:
        number = 1000
        while not stop.is_set():
            filled.add_trials([new_trial(run_id, number + i, seed=number) for i in range(10)])
            number += 10

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for i in range(5):
            filled.backup(tmp_path / f"{i}.db")
    finally:
        stop.set()
        thread.join()
    for i in range(5):
        with Store.open(tmp_path / f"{i}.db", mode="read") as copy:
            n_trials = copy.runs()[0].n_trials
            assert n_trials % 10 == 0
            assert sum(len(page) for page in all_trials(copy)) == n_trials


def all_trials(store: Store):
    after: int | None = 0
    while after is not None:
        page = store.trials(limit=1000, after=after)
        yield page.items
        after = page.next_after


def test_a_damaged_database_is_not_backed_up_as_if_it_were_whole(filled: Store, tmp_path: Path):
    filled.close()
    with sqlite3.connect(tmp_path / "fp4tune.db") as connection:
        # An index that disagrees with its table: each page is fine by itself.
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, '(backend', '(policy') WHERE name = 'ix_trials_backend_id'"
        )
    with (
        Store.open(tmp_path / "fp4tune.db", mode="read") as store,
        pytest.raises(StoreError, match="is damaged .* so no backup was made"),
    ):
        store.backup(tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()
    assert not list(tmp_path.glob(".*partial*"))


def test_postgresql_has_a_tool_of_its_own(postgres, shared_postgres: str, tmp_path: Path):
    with Store.open(postgres.url(shared_postgres)) as store, pytest.raises(UnsupportedError, match="pg_dump"):
        store.backup(tmp_path / "backup.db")
