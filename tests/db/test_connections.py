"""What every connection is set to, and that none is left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.db.engine import Mode
from store_factory import new_run


@pytest.mark.parametrize("mode", ["create", "write", "read"])
def test_sqlite_connections_are_set_as_the_contract_says(sqlite_template: Path, tmp_path: Path, mode: Mode):
    expected = {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 1, "busy_timeout": 30_000}
    with Store.open(shutil.copy(sqlite_template, tmp_path), mode=mode) as store:
        assert settings(store, expected) == expected
        assert settings(store, ["query_only"]) == {"query_only": int(mode == "read")}
        if mode != "read":
            store.create_run(new_run())  # which waits for the lock in a way of its own
        assert settings(store, expected) == expected


def settings(store: Store, names) -> dict[str, object]:
    with store._reading() as connection:
        return {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names}


def test_foreign_keys_are_enforced(sqlite_store: Store):
    sqlite_store.create_run(new_run())
    with pytest.raises(Exception, match="FOREIGN KEY"), sqlite_store._writing() as connection:
        connection.exec_driver_sql("DELETE FROM problems")
    assert len(sqlite_store.run_problems(sqlite_store.runs()[0].id)) == 2


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_no_descriptors_are_left_behind(url: str, tmp_path: Path):
    def n_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def use() -> None:
        with Store.open(url) as store:
            store.create_run(new_run())
        with Store.open(url, mode="read") as store:
            store.runs()
        with pytest.raises(Exception, match="directory"):
            Store.open(tmp_path / "no" / "x.db")
        (tmp_path / "junk").write_bytes(b"junk" * 1000)
        with pytest.raises(Exception, match="not an SQLite database"):
            Store.open(tmp_path / "junk")

    use()
    before = n_open()
    for _ in range(10):
        use()
    assert n_open() <= before
