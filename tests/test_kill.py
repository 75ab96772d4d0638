"""kill -9 of the tuner at random points, then --resume: nothing committed is lost, nothing is left running."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fp4tune.db.records import RunStatus, Trial, TrialFilter
from fp4tune.db.store import Store

FP4TUNE = str(Path(sys.executable).with_name("fp4tune"))
SHAPES = [word for shape in ("2x64x64", "e4k2:3x32x48", "9x48x128") for word in ("--shape", shape)]
JOB = ["tune", *SHAPES, "--trials", "12", "--budget-s", "3", "--device", "cpu"]


def start(database: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [FP4TUNE, *arguments, "--db", str(database)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_the_run(database: Path, process: subprocess.Popen[str]) -> None:
    """Until the run's row is there: before that there is nothing to lose and nothing to resume."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if database.exists():
            try:
                with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
                    if connection.execute("SELECT count(*) FROM runs").fetchone()[0]:
                        return
            except sqlite3.OperationalError:
                pass  # the schema is being created
        time.sleep(0.02)
    pytest.fail(f"no run appeared: {process.communicate()[0]}")


def stored(database: Path) -> list[Trial]:
    with Store.open(database, mode="read") as store:
        (run,) = store.runs()
        return list(store.trials(TrialFilter(run_id=run.id), limit=1000).items)


def kill_and_resume(database: Path, delays_s: list[float]) -> None:
    """Start, kill after the first delay, resume and kill after each other one, then resume to the end."""
    kept: list[Trial] = []
    for i, delay_s in enumerate(delays_s):
        process = start(database, *(JOB if i == 0 else ["tune", "--resume", "last", "--device", "cpu"]))
        wait_for_the_run(database, process)
        time.sleep(delay_s)
        process.kill()
        output, _ = process.communicate()
        if process.returncode != -signal.SIGKILL:  # it was done before the kill
            assert process.returncode == 0, output
            break
        with sqlite3.connect(database) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        now = stored(database)
        assert now[: len(kept)] == kept, "a committed trial is lost or changed"
        kept = now
        with Store.open(database, mode="read") as store:
            if store.runs()[0].status is RunStatus.FINISHED:  # killed between the end of the run and its own
                break
    else:
        done = start(database, "tune", "--resume", "last", "--device", "cpu")
        output, _ = done.communicate(timeout=120)
        assert done.returncode == 0, output
    with Store.open(database) as store:
        (run,) = store.runs()
        assert run.status is RunStatus.FINISHED
        assert (run.n_done, run.n_problems) == (3, 3)
        trials = list(store.trials(TrialFilter(run_id=run.id), limit=1000).items)
        assert trials[: len(kept)] == kept
        assert len({(t.problem, t.number) for t in trials}) == len(trials)
        assert len(store.winners().items) == 3


@pytest.mark.parametrize("seed", range(5))
def test_killed_twice_at_random_points_and_resumed(seed: int, tmp_path: Path):
    """Ten kills in all."""
    draw = random.Random(seed)
    kill_and_resume(tmp_path / "t.db", [draw.uniform(0, 1.5) for _ in range(2)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 125))
def test_killed_at_fifty_random_points(seed: int, tmp_path: Path):
    draw = random.Random(seed)
    kill_and_resume(tmp_path / "t.db", [draw.uniform(0, 1.5) for _ in range(2)])


def test_ctrl_c_keeps_what_was_found(tmp_path: Path):
    database = tmp_path / "t.db"
    process = start(database, "tune", *SHAPES, "--trials", "5000", "--budget-s", "60", "--device", "cpu")
    wait_for_the_run(database, process)
    deadline = time.monotonic() + 60
    while not stored(database) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "--resume" in output
    with Store.open(database) as store:
        (run,) = store.runs()
        assert run.status is RunStatus.INTERRUPTED
        assert store.winners().items, "the winner among what was found is served"


def test_sixteen_readers_while_a_run_writes(tmp_path: Path):
    database = tmp_path / "t.db"
    process = start(database, *JOB)
    wait_for_the_run(database, process)
    errors: list[Exception] = []
    reads = [0] * 16

    def read(i: int) -> None:
        try:
            with Store.open(database, mode="read") as store:
                while process.poll() is None:
                    (run,) = store.runs()
                    store.trials(TrialFilter(run_id=run.id), limit=50)
                    store.winners()
                    reads[i] += 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    output, _ = process.communicate(timeout=120)
    for thread in threads:
        thread.join()
    assert process.returncode == 0, output
    assert not errors
    assert min(reads) > 0
