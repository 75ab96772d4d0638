"""Databases that a dashboard must bear: hostile strings, odd numbers, dead runs, missing rows, nothing at all.

What the store's own API refuses is written by SQL, as another program or a damaged disk might. Each function makes a new
database at a path. `million` and `analyze` are those of `dashboard_bulk`.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import reference_rows
import results_store
import sqlalchemy as sa
from dashboard_bulk import TWIN_NAME, Big, analyze, fill_trial_counts, million
from fp4tune.db import Store
from fp4tune.db.models import Base
from fp4tune.db.records import RunProblem, RunStatus
from fp4tune.kernels.backend import config_key
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.problem import Problem
from store_factory import CARD, Clock, failed_trial, miss, new_run, new_static_facts, new_trial, new_winner

__all__ = [
    "FLAG",
    "HOSTILE",
    "ODD_NUMBERS",
    "ODD_WHOLE_NUMBERS",
    "TWIN_NAME",
    "Big",
    "analyze",
    "broad",
    "empty",
    "hostile",
    "killed",
    "million",
    "newer",
    "odd",
    "orphans",
    "remove",
    "running",
    "single_failure",
    "spoil",
    "twins",
    "usual",
]  # fmt: skip

FLAG = "fp4tuneHacked"
"""What a hostile string sets on `window` if it is ever executed."""

HOSTILE = {
    "sql": "'; DROP TABLE trials; --\" OR 1=1",
    "script": f"<script>window.{FLAG}=1;alert(1)</script>",
    "attribute": f'"><img src=x onerror="window.{FLAG}=1">\' onmouseover=\'window.{FLAG}=1',
    "end of script": f"</script></title></textarea></style><svg onload=window.{FLAG}=1>",
    "address": f"javascript:window.{FLAG}=1//%0a?&environment=x#",
    "template": "{{ 7 * 7 }}{% raw %}${7*7}<%= 7 %>&lt;&amp;&#60;",
    "plot": "<b>bold</b><br><a href='javascript:alert(1)'>%{x}</a><sup>2</sup>$\\alpha$",
    "comment": "<!-- --!> ]]> <![CDATA[",
    "control": "\x01\x07\x08\x0b\x0c\x1b[31m\x7f\x85\r\n\t\u2028\u2029\ufeff\ufffe",
    "bidi": "\u202e\u2066\u202dgnp.exe\u200f\u200b\u0301\u0301\u0301",
    "formula": '=HYPERLINK("http://example.invalid/","x")',
    "long": "long" * 2500,
    "long and broad": "\u6f22W" * 5000,
    "spaces": " \u00a0\u3000 ",
    "empty": "",
}
"""Strings by what they try."""

ODD_NUMBERS = {
    "infinity": float("inf"), "minus infinity": float("-inf"), "huge": 1e308, "tiny": 5e-324, "zero": 0.0, "negative": -1.5,
}  # fmt: skip
"""Numbers that no measurement gives. SQLite makes NULL of NaN, which a column that needs a number refuses."""

ODD_WHOLE_NUMBERS = {"largest": 2**63 - 1, "smallest": -(2**63), "nothing": 0, "one below": -1}


def empty(path: Path) -> None:
    """Nothing but the schema."""
    with Store.open(path, mode="create"):
        pass


def usual(path: Path) -> tuple[str, str]:
    """Two runs of an H200 with winners, a tie and a refused problem, and something of everything else.

    Returns:
        The ids of the runs.
    """
    runs = results_store.make(path)
    with Store.open(path, clock=Clock()) as store:
        store.import_reference(
            reference_rows.source(device=results_store.CARD.device.name),
            [reference_rows.dense(m, n=4096, k=7168) for m in (4, 8)],
        )
        store.add_static_facts([new_static_facts(problem=results_store.DENSE.problem, backend="triton.dequant")])
        store.add_misses([miss()])
    return runs


def hostile(path: Path, text: str) -> tuple[str, str]:
    """The usual database, in which every string that somebody may choose is `text`.

    So are the measuring policy and the backend of one of the two winners; those of the other stay what they are, because
    an address can name them. A string that must be unique is so by what follows it.

    Returns:
        The ids of the runs.
    """
    runs = usual(path)
    with _raw(path) as connection:
        config = config_key({"block_n": text, text or "x": 1})
        versions = config_key({"driver": text, text or "x": "1", "torch": "2.11.0"})
        connection.execute("UPDATE devices SET name = ?, compute_capability = ?", (text, text[:32]))
        connection.execute("UPDATE environments SET versions = ?", (versions,))
        _name_anew(connection)
        for id_, settings in connection.execute("SELECT id, settings FROM runs").fetchall():
            changed = {
                **json.loads(settings),
                "backends": [text],
                "policy": text,
                "roles": [text],
                text or "x": {text: [text]},
            }
            connection.execute("UPDATE runs SET settings = ? WHERE id = ?", (json.dumps(changed), id_))
        connection.execute(
            "UPDATE runs SET checkpoint = ?, host = ?, version = ?, error = ?, status = 'failed'", (text,) * 4
        )
        connection.execute(
            "UPDATE run_problems SET role = ?, phases = ?, outcome = ?", (text, json.dumps([text]), text)
        )
        connection.execute(
            "UPDATE trials SET backend = ?, config = ?, optimizer = ?, optimizer_version = ? WHERE backend = 'triton.dequant'",
            (text, config, text, text),
        )
        connection.execute("UPDATE trials SET error = ? WHERE status <> 'ok'", (text,))
        connection.execute(
            "UPDATE trials SET conditions = json_set(conditions, '$.throttle_reasons', json_array(?)) WHERE conditions IS NOT NULL",
            (text,),
        )
        tie = {"backend": text, "config": json.loads(config), "time_us": 10.0, "time_us_low": 9.9, "time_us_high": 10.1}
        connection.execute(
            "UPDATE winners SET backend = ?, config = ?, default_backend = ?, default_config = ?, tie_set = ?, depends_on = ?",
            (text, config, text, config, json.dumps([tie, tie]), json.dumps([text, "driver"])),
        )
        grouped = "problem_id = (SELECT id FROM problems WHERE op = 'grouped')"
        connection.execute(f"UPDATE winners SET policy = ? WHERE {grouped}", (text,))
        connection.execute(f"UPDATE trials SET policy = ? WHERE {grouped}", (text,))
        connection.execute(f"UPDATE winners SET backend = 'triton.dequant' WHERE NOT ({grouped})")
        connection.execute(
            "UPDATE static_facts SET backend = ?, config = ?, target = ?, error = ?, versions = ?",
            (text, config, text, text, versions),
        )
        connection.execute(
            "UPDATE reference_sources SET package = ?, system = ?, device = ?, framework = ?, attribution = ?, file = ?",
            (text,) * 6,
        )
        connection.execute(
            "UPDATE reference_curves SET kernel_source = ?, precision = ?, distribution = ?", (text,) * 3
        )
        connection.execute("UPDATE reference_points SET suspect = ?", (text,))
        fill_trial_counts(connection)
    return runs


def odd(path: Path, number: float) -> tuple[str, str]:
    """The usual database, in which a number is everywhere that a column holds a float, or an integer for an integer.

    Keys, M, N and K stay what they are, and so does what tells apart what ran.
    """
    runs = usual(path)
    spoil(path, number)
    return runs


def spoil(path: Path, number: float) -> None:
    """Put a number into every column of its kind, in a database that is there already."""
    kind: type[Any] = sa.Double if isinstance(number, float) else sa.BigInteger
    kept = {"m", "n", "k", "experts", "experts_total", "top_k", "number", "trial_number", "position", "value"}
    with _raw(path) as connection:
        for table in Base.metadata.sorted_tables:
            names = [
                column.name for column in table.columns
                if type(column.type) is kind and not column.primary_key and not column.foreign_keys and column.name not in kept
            ]  # fmt: skip
            for name in names:
                connection.execute(f"UPDATE {table.name} SET {name} = ? WHERE {name} IS NOT NULL", (number,))
        blob = b"\x00\x00\xc0\x7f\x00\x00\x80\x7f\x00\x00\x80\xff\x00\x00\x80\x3f"  # NaN, both infinities, 1
        connection.execute("UPDATE trials SET samples = ? WHERE status = 'ok' AND id % 2", (blob,))
        if isinstance(number, float):
            tie = {
                "backend": "triton.dequant",
                "config": {},
                "time_us": number,
                "time_us_low": number,
                "time_us_high": number,
            }
            connection.execute("UPDATE winners SET tie_set = ?", (json.dumps([tie, tie]),))
        _name_anew(connection)


def single_failure(path: Path) -> str:
    """One run with one trial, which failed; its id."""
    with Store.open(path, mode="create", clock=Clock()) as store:
        run_id = store.create_run(new_run(problems=new_run().problems[:1], pid=0))
        store.add_trials([failed_trial(run_id)])
        store.finish_problem(run_id, 0, "no backend can run it")
        store.finish_run(run_id, RunStatus.FAILED, "The worker died.")
    return run_id


def killed(path: Path) -> str:
    """A run whose process was killed half way: it says that it runs, and its last sign of life is old."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with Store.open(path, mode="create", clock=Clock()) as store:
            run_id = store.create_run(new_run(host=socket.gethostname(), pid=process.pid))
            store.add_trials([new_trial(run_id, number) for number in range(5)])
    finally:
        process.kill()
        process.wait()
    return run_id


def running(path: Path) -> str:
    """A run that is alive: it belongs to this process; its id. The database may be there already."""
    with Store.open(path, mode="create") as store:
        run_id = store.create_run(new_run(host=socket.gethostname(), pid=os.getpid()))
        store.add_trials([new_trial(run_id, number) for number in range(3)])
    return run_id


def twins(path: Path) -> tuple[str, str]:
    """Winners of two devices of the same name, of different power limits; the fingerprints of their environments."""
    made = []
    with Store.open(path, mode="create", clock=Clock()) as store:
        for watts in (600.0, 300.0):
            at = Environment(
                replace(CARD, power_limit_w=watts), {"driver": "580.95", "torch": "2.11.0", "triton": "3.6.0"}
            )
            run_id = store.create_run(new_run(environment=at))
            store.add_trials([new_trial(run_id, number, environment=at) for number in range(10)])
            store.add_winners([new_winner(run_id, environment=at)])
            store.finish_problem(run_id, 0, "1.50x as fast as the default")
            store.finish_run(run_id, RunStatus.FINISHED)
            made.append(at.fingerprint)
    return made[0], made[1]


def broad(path: Path) -> None:
    """More than a page of rows where a page is long: 10 shapes given by hand, at 100 M, served in two environments."""
    problems = [Problem(m, 256 * n, 4096) for n in range(1, 11) for m in range(1, 101)]
    with Store.open(path, mode="create", clock=Clock()) as store:
        for driver in ("580.95", "590.44"):
            at = Environment(CARD, {"driver": driver, "torch": "2.11.0", "triton": "3.6.0"})
            asked = tuple(RunProblem(one, "", (), 1) for one in problems)
            run_id = store.create_run(new_run(environment=at, problems=asked, checkpoint="", pid=0))
            store.add_winners([new_winner(run_id, environment=at, problem=one) for one in problems])
            store.finish_run(run_id, RunStatus.FINISHED)


def newer(path: Path) -> None:
    """A database that a later fp4tune has upgraded."""
    usual(path)
    with _raw(path) as connection:
        connection.execute("UPDATE fp4tune_schema SET version_num = '9999'")


def orphans(path: Path, table: str) -> tuple[str, str]:
    """The usual database without the rows of a table that others refer to (`devices`, `environments`, `problems`, `runs`)."""
    runs = usual(path)
    remove(path, table)
    return runs


def remove(path: Path, table: str) -> None:
    """Remove every row of a table, whatever refers to it."""
    with _raw(path) as connection:
        connection.execute(f"DELETE FROM {table}")


@contextmanager
def _raw(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that enforces no foreign keys; what it does is committed in the end."""
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def _name_anew(connection: sqlite3.Connection) -> None:
    """Give devices and environments the fingerprints of what their rows now say."""
    names = "kind, name, compute_capability, sms, memory_bytes, l2_bytes, power_limit_w"
    devices = {row[0]: Device(*row[1:]) for row in connection.execute(f"SELECT id, {names} FROM devices")}
    for id_, device in devices.items():
        connection.execute("UPDATE devices SET fingerprint = ? WHERE id = ?", (device.fingerprint, id_))
    for id_, device_id, versions in connection.execute("SELECT id, device_id, versions FROM environments").fetchall():
        named = Environment(devices[device_id], json.loads(versions)).fingerprint
        connection.execute("UPDATE environments SET fingerprint = ? WHERE id = ?", (named, id_))
