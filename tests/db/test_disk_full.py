"""A disk that is full: one sentence, nothing lost, and the same store goes on when there is room again."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.kernels.errors import StoreError
from store_factory import failed_trial, new_run

BIG = "x" * 15_000


def fill(store: Store, run_id: str, first: int = 0) -> int:
    """Write until it fails; how many trials were acknowledged."""
    for number in range(first, 10_000):
        try:
            store.add_trials([failed_trial(run_id, number, error=BIG)])
        except StoreError as error:
            said = str(error)
            break
    else:
        raise AssertionError("the disk did not fill")
    assert "free some space" in said or "check the disk" in said
    assert "what was committed before is kept" in said
    return number


def check(path: Path, store: Store, n: int) -> None:
    """Exactly the acknowledged trials are there."""
    trials = store.trials(limit=10_000).items
    assert [trial.number for trial in trials] == list(range(n))
    assert {trial.error for trial in trials} <= {BIG}
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB. Mounting takes root."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mounted], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    yield mounted
    subprocess.run(["umount", "--lazy", mounted], check=True)


def test_a_full_file_system(small_disk: Path):
    path = small_disk / "fp4tune.db"
    ballast = small_disk / "ballast"
    with Store.open(path) as store:
        run_id = store.create_run(new_run())
        ballast.write_bytes(b"\0" * 500_000)
        n = fill(store, run_id)
        assert n > 0
        with pytest.raises(StoreError, match="no room left on its disk"):
            store.backup(small_disk / "backup.db")
        assert sorted(p.name for p in small_disk.iterdir() if "backup" in p.name) == []
        check(path, store, n)
        ballast.unlink()
        store.add_trials([failed_trial(run_id, n, error=BIG)])
        check(path, store, n + 1)
    with Store.open(path) as store:
        check(path, store, n + 1)


def test_no_room_to_make_a_database(small_disk: Path):
    (small_disk / "ballast").write_bytes(b"\0" * (2 << 20))
    with pytest.raises(StoreError, match=r"no room left on its disk|could not be read or written"):
        Store.open(small_disk / "fp4tune.db")
    (small_disk / "ballast").unlink()
    Store.open(small_disk / "fp4tune.db").close()


def test_a_limit_on_pages(sqlite_store: Store, tmp_path: Path):
    """SQLite's own "database or disk is full", which needs no root."""
    run_id = sqlite_store.create_run(new_run())
    with sqlite_store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=200")
    n = fill(sqlite_store, run_id)
    assert n > 10
    check(tmp_path / "fp4tune.db", sqlite_store, n)
    with sqlite_store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=10000")
    sqlite_store.add_trials([failed_trial(run_id, n, error=BIG)])


LIMITED = """
import resource, sys
from pathlib import Path
from fp4tune.db import Store
from fp4tune.kernels.errors import StoreError
from store_factory import new_run
from test_disk_full import check, fill

path = Path(sys.argv[1])
with Store.open(path) as store:
    run_id = store.create_run(new_run())
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    n = fill(store, run_id)
    check(path, store, n)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert n and fill.__defaults__ == (0,)
    print(n)
"""


def test_a_limit_on_the_size_of_files(tmp_path: Path):
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "fp4tune.db"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with Store.open(tmp_path / "fp4tune.db") as store:
        check(tmp_path / "fp4tune.db", store, int(done.stdout))
