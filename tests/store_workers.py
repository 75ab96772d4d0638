"""What processes of the concurrency tests do. A module of its own, because they import it by name."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from fp4tune.db import schema
from fp4tune.db.records import SchemaState, TrialFilter, WinnerFilter
from fp4tune.db.store import Store
from store_factory import SMALL, miss, new_run, new_trial, new_winner

BATCH = 7
"""Trials in a batch of `write_until_killed`: a prime, so that a part of one shows."""

# Forked from a server that has imported the heavy packages once, a process starts in tens of milliseconds.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["alembic.command", "fp4tune.db.store", "psycopg", "sqlalchemy.dialects.postgresql"])


@contextmanager
def pool(n: int):
    with ProcessPoolExecutor(n, mp_context=processes) as executor:
        yield executor


def all_at_once(n: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function in n processes that begin together; its last argument is an event to wait for."""
    with processes.Manager() as manager, pool(n) as executor:
        start = manager.Event()
        ready = manager.Semaphore(0)
        futures = [executor.submit(_when_told, start, ready, function, *arguments) for _ in range(n)]
        for _ in range(n):
            ready.acquire(timeout=60)
        start.set()
        return [future.result(timeout=120) for future in futures]


def _when_told(start: Any, ready: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    ready.release()
    start.wait(60)
    return function(*arguments)


def open_and_write(url: str) -> str:
    """Open (which may make or migrate the database), store a run and a trial."""
    with Store.open(url) as store:
        run_id = store.create_run(new_run(pid=os.getpid()))
        store.add_trials([new_trial(run_id)])
        return run_id


def migrate_and_write(url: str, migrations: Path) -> SchemaState:
    """As an fp4tune that has one more migration: open, which migrates, and store a run and a trial."""
    after = f"{int(schema.HEAD) + 1:04}"
    schema.MIGRATIONS, schema.REVISIONS, schema.HEAD = migrations, (*schema.REVISIONS, after), after
    with Store.open(url) as store:
        store.add_trials([new_trial(store.create_run(new_run(pid=os.getpid())))])
        return store.schema()


def read_all_the_while(url: str, n: int, started: Event) -> int:
    """Open, read a bit of everything and close, n times. Returns how many records were seen."""
    seen = 0
    started.wait(60)
    for _ in range(n):
        with Store.open(url, mode="read") as store:
            store.generation()
            store.check()
            for run in store.runs(limit=5):
                seen += len(store.trials(TrialFilter(run_id=run.id), limit=50).items)
            seen += len(store.winners(WinnerFilter(problem_key=SMALL.key)).items) + len(store.winner_changes())
            seen += len(store.environments()) + len(store.misses())
    return seen


def write_all_the_while(url: str, started: Event, stop: Event, n_written: Any) -> None:
    """Write trials, winners, misses and heartbeats until told to stop."""
    with Store.open(url, mode="write") as store:
        run_id = store.create_run(new_run(pid=os.getpid()))
        for i in itertools.count():
            if stop.is_set():
                break
            store.add_trials([new_trial(run_id, 10 * i + j) for j in range(10)])
            store.add_winner(new_winner(run_id, problem=replace(SMALL, m=i % 50 + 1)))
            store.add_misses([miss(replace(SMALL, m=i % 50 + 1))])
            store.heartbeat(run_id)
            n_written.value += 1
            started.set()


def write_until_killed(path: Path, run_id: str, first: int, acknowledge: Connection) -> None:
    """Write batch after batch; each that is committed is acknowledged by its number."""
    draw = random.Random(first)
    with Store.open(path, mode="write") as store:
        for batch in itertools.count(first):
            store.add_trials([new_trial(run_id, batch * BATCH + i, seed=batch) for i in range(BATCH)])
            if draw.random() < 0.5:
                store.add_winners([new_winner(run_id, problem=replace(SMALL, m=m)) for m in range(1, 4)])
            acknowledge.send(batch)
