"""Trial rows a second into one database, written in batches by many processes at once.

    python benchmarks/store_writes.py

Every process is what a tuner is to the store: it opens the database, starts a run of its own and writes batches of
trials with samples, one transaction a batch. Goal: at least 1,000 rows a second with 16 processes on one SQLite file,
and no error. Prints rows per second, errors, and the median, p99 and maximum of a write call; then checks that
every acknowledged row is there. Fails (status 1) if there were errors or a row is missing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from fp4tune.db import Store
from fp4tune.db.records import NewRun, NewTrial, Origin, RunProblem, Timing, TrialFilter, TrialStatus
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.errors import Fp4tuneError
from fp4tune.kernels.problem import Problem

ENVIRONMENT = Environment(Device("cpu", platform.machine(), "", 2, 8 << 30, 32 << 20, 0.0), {"torch": "2.13.0"})
PROBLEM = Problem(16, 2048, 4096)
N_SAMPLES = 50


@dataclass(frozen=True, slots=True)
class Written:
    """What one process did.

    Attributes:
        run_id: its run. rows: acknowledged. errors: sentences. calls_s: how long each call took, seconds.
        seconds: from the common start to its last acknowledgement.
    """

    run_id: str
    rows: int
    errors: list[str]
    calls_s: list[float]
    seconds: float


def trial(run_id: str, number: int) -> NewTrial:
    samples = tuple(100.0 + (number * 31 + i * 17) % 97 / 8 for i in range(N_SAMPLES))
    return NewTrial(
        run_id, PROBLEM, ENVIRONMENT, number, "cpu.dequant",
        {"block_n": 64, "decode": "lookup", "dtype": "bfloat16", "threads": 2}, Origin.SAMPLER, TrialStatus.OK,
        Timing(106.0, 105.0, 107.0, samples, N_SAMPLES), "", 1.5e-3, 7, "optuna.tpe", "5.0.0",
        datetime.now(UTC), 0.5, "cpu.warm",
    )  # fmt: skip


def write(url: str, batch: int, seconds: float, start: Barrier, results: Any) -> None:
    """Write batches for some seconds."""
    with Store.open(url, mode="write") as store:
        new = NewRun(ENVIRONMENT, (RunProblem(PROBLEM),), "", {}, 0, platform.node(), os.getpid(), "benchmark")
        run_id = store.create_run(new)
        number, errors, calls = 0, [], []
        start.wait()
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            trials = [trial(run_id, number + i) for i in range(batch)]
            before = time.perf_counter()
            try:
                number += len(store.add_trials(trials))
            except Fp4tuneError as error:
                errors.append(str(error))
            calls.append(time.perf_counter() - before)
        results.put(Written(run_id, number, errors, calls, time.perf_counter() - begin))


def report(written: list[Written]) -> None:
    calls = sorted(call for one in written for call in one.calls_s)
    rows = sum(one.rows for one in written)
    print(f"{rows / max(one.seconds for one in written):,.0f} rows/s ({rows:,} rows in {len(calls):,} calls)")
    p99 = calls[min(len(calls) - 1, int(0.99 * len(calls)))]
    print(f"call: median {statistics.median(calls) * 1e3:.1f} ms, p99 {p99 * 1e3:.0f} ms, max {calls[-1] * 1e3:.0f} ms")
    per_process = sorted(one.rows for one in written)
    print(f"rows of a process: {per_process[0]:,} to {per_process[-1]:,}")
    errors = [error for one in written for error in one.errors]
    print(f"errors: {len(errors)}", *sorted(set(errors)), sep="\n  ")


def missing(url: str, written: list[Written]) -> int:
    """How many acknowledged rows are not there."""
    lost = 0
    with Store.open(url, mode="read") as store:
        for one in written:
            found, after = 0, 0
            while after is not None:
                page = store.trials(TrialFilter(run_id=one.run_id), limit=10_000, after=after)
                found, after = found + len(page.items), page.next_after
            lost += one.rows - found
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--batch", type=int, default=20, help="trials in a call")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--url", help="an empty PostgreSQL database; default: a new SQLite file in a temporary directory"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = options.url or f"sqlite:///{Path(directory) / 'fp4tune.db'}"
        Store.open(url).close()
        context = multiprocessing.get_context("spawn")
        results, start = context.Queue(), context.Barrier(options.processes)
        arguments = (url, options.batch, options.seconds, start, results)
        workers = [context.Process(target=write, args=arguments) for _ in range(options.processes)]
        for worker in workers:
            worker.start()
        written = [results.get() for _ in workers]
        for worker in workers:
            worker.join()
        print(f"{options.processes} processes, batches of {options.batch}, {N_SAMPLES} samples a trial, ", end="")
        print(f"{os.cpu_count()} cores, {'PostgreSQL' if options.url else 'SQLite ' + sqlite3.sqlite_version}")
        report(written)
        lost = missing(url, written)
        print(f"acknowledged and missing: {lost}")
    return 1 if lost or any(one.errors for one in written) else 0


if __name__ == "__main__":
    sys.exit(main())
