"""Runs: their life from start to end, their problems, and who may resume them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ..kernels.errors import BusyError, InvalidInputError, NotFoundError
from . import bulk, places, values
from .faults import from_row
from .ids import ALPHABET, LENGTH
from .listing import check_limit
from .liveness import Owner, is_alive, owner
from .models import DeviceRow, EnvironmentRow, ProblemRow, RunProblemRow, RunRow
from .records import NewRun, Run, RunProblem, RunProblemState, RunStatus

MIN_PREFIX = 6
"""Shortest prefix of an id that is accepted."""

COLUMNS: tuple[Any, ...] = (
    RunRow.ulid, RunRow.status, RunRow.checkpoint, RunRow.settings, RunRow.seed, RunRow.host, RunRow.pid,
    RunRow.version, EnvironmentRow.fingerprint, DeviceRow.fingerprint, DeviceRow.name, RunRow.started_at,
    RunRow.heartbeat_at, RunRow.finished_at, RunRow.n_problems, RunRow.n_done, RunRow.n_trials, RunRow.error,
)  # fmt: skip
"""Select these first, in this order; `run_from` reads them."""


def own_columns(new: NewRun) -> dict[str, Any]:
    """A run's own columns, without those that refer to other tables or come with time.

    Raises:
        InvalidInputError: something in it cannot be stored.
    """
    return said_columns(new) | _owner_columns(new.host, new.pid)


def said_columns(new: NewRun) -> dict[str, Any]:
    """The same, without those that tell which process it is.

    Raises:
        InvalidInputError: something in it cannot be stored.
    """
    return {
        "host": values.name(new.host, "The host"),
        "pid": values.int64(new.pid, "The process id"),
        "checkpoint": values.name(new.checkpoint, "The checkpoint", limit=4096),
        "settings": values.canonical(dict(new.settings), "The settings of a run"),
        "seed": values.int64(new.seed, "The seed"),
        "version": values.name(new.version, "The version"),
        "n_problems": len(new.problems),
    }


def checked_id(ulid: str) -> str:
    """A run's id that comes from elsewhere.

    Raises:
        InvalidInputError: it is none.
    """
    if len(ulid) != LENGTH or not set(ulid) <= set(ALPHABET):
        raise InvalidInputError(f"The id of a run has {LENGTH} characters of {ALPHABET}, and {ulid[:40]!r} has not.")
    return ulid


def item_columns(item: RunProblem) -> dict[str, Any]:
    """The columns of a problem of a run, without those that refer to other tables.

    Raises:
        InvalidInputError: something in it cannot be stored.
    """
    return {
        "role": values.name(item.role, "A role"),
        "phases": values.canonical([values.name(phase, "A phase") for phase in item.phases], "The phases"),
        "layers": values.int64(item.layers, "The number of layers"),
        "done": False,
        "outcome": "",
    }


def create(
    connection: sa.Connection,
    new: NewRun,
    row: Mapping[str, Any],
    items: Sequence[Mapping[str, Any]],
    *,
    ulid: str,
    now: datetime,
) -> None:
    """Store a run that starts now, and mark those of this host that died as interrupted.

    Args:
        connection: in a transaction for writing.
        new: the run.
        row: its `own_columns`.
        items: the `item_columns` of its problems.
        ulid: its id.
        now: the time.
    """
    environment_id, _ = places.environment_ids(connection, [new.environment], now)[new.environment.fingerprint]
    problem_ids = places.problem_ids(connection, [item.problem for item in new.problems])
    interrupt_dead(connection, host=new.host, now=now)
    begin = {"ulid": ulid, "status": RunStatus.RUNNING.value, "environment_id": environment_id, "n_done": 0}
    begin |= {"started_at": now, "heartbeat_at": now, "finished_at": None, "n_trials": 0, "error": ""}
    run_id = connection.execute(sa.insert(RunRow).returning(RunRow.id), {**row, **begin}).scalar_one()
    if items:
        refs = [
            {"run_id": run_id, "position": position, "problem_id": problem_ids[item.problem.key]}
            for position, item in enumerate(new.problems)
        ]
        bulk.insert(connection, RunProblemRow, [{**ref, **item} for ref, item in zip(refs, items, strict=True)])


def _owner_columns(host: str, pid: int) -> dict[str, Any]:
    """Columns that say which process of this host a run belongs to."""
    who = owner(values.name(host, "The host"), values.int64(pid, "The process id"))
    return {"host": who.host, "pid": who.pid, "process_scope": who.scope, "process_birth": who.birth}


OWNER_COLUMNS: tuple[Any, ...] = (RunRow.host, RunRow.pid, RunRow.process_scope, RunRow.process_birth)
"""What makes an `Owner`, in its order."""


def interrupt_dead(connection: sa.Connection, *, host: str, now: datetime) -> None:
    """Mark as interrupted the runs of this host that say they run, and whose process is gone."""
    running = connection.execute(
        sa.select(RunRow.id, RunRow.heartbeat_at, *OWNER_COLUMNS)
        .where(RunRow.status == sa.literal_column("'running'"), RunRow.host == host)
        .order_by(RunRow.id)
        # Whoever sweeps at the same time skips what this one has: both would write the same.
        .with_for_update(skip_locked=True, key_share=True)
    ).all()
    for id_, heartbeat_at, *who in running:
        if not is_alive(Owner(*who), heartbeat_at, host=host, now=now):
            connection.execute(
                sa.update(RunRow)
                .where(RunRow.id == id_)
                .values(status=RunStatus.INTERRUPTED.value, finished_at=heartbeat_at)
            )


def take_over(connection: sa.Connection, ulid: str, *, host: str, pid: int, now: datetime) -> Run:
    """Make a run that is not alive run again, in another process.

    Raises:
        BusyError: it is alive, and the process that asks is not the one it belongs to.
    """
    asking = _owner_columns(host, pid)
    run_id = lock(connection, [ulid])[ulid]
    heartbeat_at, who = _running(connection, run_id)
    if who is not None and who != Owner(*asking.values()) and is_alive(who, heartbeat_at, host=host, now=now):
        seen = (who.host, who.scope) == (host, asking["process_scope"])
        raise BusyError(
            f"Run {ulid} is still running as process {who.pid} on {who.host}: stop that process first"
            + ("." if seen else ", or wait a minute if it is gone.")
        )
    changes = {"status": RunStatus.RUNNING.value, "heartbeat_at": now, "finished_at": None, "error": ""}
    connection.execute(sa.update(RunRow).where(RunRow.id == run_id).values(asking | changes))
    interrupt_dead(connection, host=host, now=now)
    return find(connection, ulid)


def alive(connection: sa.Connection, ulid: str, *, host: str, now: datetime) -> bool:
    """Whether a run says it runs, and does."""
    heartbeat_at, who = _running(connection, _id(connection, ulid))
    return who is not None and is_alive(who, heartbeat_at, host=host, now=now)


def _running(connection: sa.Connection, run_id: int) -> tuple[datetime, Owner | None]:
    """A run's last sign of life, and whose it is; None if it does not say that it is running."""
    heartbeat_at, status, *who = connection.execute(
        sa.select(RunRow.heartbeat_at, RunRow.status, *OWNER_COLUMNS).where(RunRow.id == run_id)
    ).one()
    return heartbeat_at, Owner(*who) if status == RunStatus.RUNNING.value else None


def lock(connection: sa.Connection, ulids: Sequence[str]) -> dict[str, int]:
    """Ids of runs by ULID, locked against other writers until the transaction ends (on SQLite they all are).

    Raises:
        NotFoundError: there is no such run.
    """
    # In order, so that two transactions cannot each hold what the other one waits for.
    return _ids(
        connection, ulids, sa.select(RunRow.ulid, RunRow.id).order_by(RunRow.ulid).with_for_update(key_share=True)
    )


def ids(connection: sa.Connection, ulids: Sequence[str]) -> dict[str, int]:
    """Ids of runs by ULID.

    Raises:
        NotFoundError: there is no such run.
    """
    return _ids(connection, ulids, sa.select(RunRow.ulid, RunRow.id))


def _ids(connection: sa.Connection, ulids: Sequence[str], select: Any) -> dict[str, int]:
    wanted = sorted({values.name(ulid, "A run's id") for ulid in ulids})
    found: dict[str, int] = {}
    for some in bulk.chunks(wanted):
        found.update((ulid, id_) for ulid, id_ in connection.execute(select.where(RunRow.ulid.in_(some))))
    for ulid in wanted:
        if ulid not in found:
            raise _not_found(ulid)
    return found


def heartbeat(connection: sa.Connection, ulid: str, now: datetime) -> None:
    """Note that a run lives."""
    run_id = _id(connection, ulid)
    connection.execute(sa.update(RunRow).where(RunRow.id == run_id).values(heartbeat_at=now))


def finish_problem(connection: sa.Connection, ulid: str, position: int, outcome: str, now: datetime) -> None:
    """Note that a problem of a run is done.

    Raises:
        NotFoundError: there is no such run, or it has no such problem.
    """
    run_id = lock(connection, [ulid])[ulid]
    where = (RunProblemRow.run_id == run_id, RunProblemRow.position == values.int64(position, "The position"))
    done = connection.execute(sa.select(RunProblemRow.done).where(*where)).scalar_one_or_none()
    if done is None:
        raise NotFoundError(f"Run {ulid} has no problem {position}.")
    connection.execute(sa.update(RunProblemRow).where(*where).values(done=True, outcome=values.prose(outcome)))
    connection.execute(
        sa.update(RunRow).where(RunRow.id == run_id).values(n_done=RunRow.n_done + (0 if done else 1), heartbeat_at=now)
    )


def finish(connection: sa.Connection, ulid: str, status: RunStatus, error: str, now: datetime) -> None:
    """Note that a run ended.

    Raises:
        InvalidInputError: the status says that it runs.
    """
    if status == RunStatus.RUNNING:
        raise InvalidInputError("A run that ends is finished, interrupted or failed, and not running.")
    run_id = _id(connection, ulid)
    connection.execute(
        sa.update(RunRow)
        .where(RunRow.id == run_id)
        .values(status=status.value, error=values.prose(error), heartbeat_at=now, finished_at=now)
    )


def find(connection: sa.Connection, ulid: str) -> Run:
    """The run with an id, or with an id that begins like this and no other does.

    Raises:
        NotFoundError: there is none.
        InvalidInputError: the text is shorter than MIN_PREFIX, or several runs begin with it.
    """
    prefix = ulid.upper()
    if len(prefix) < MIN_PREFIX:
        raise InvalidInputError(f"A run is named by at least {MIN_PREFIX} characters of its id, not by {ulid!r}.")
    if len(prefix) > LENGTH or not set(prefix) <= set(ALPHABET):
        raise _not_found(ulid)
    # A range, because an index serves it on either database, which LIKE needs special collations for.
    where = RunRow.ulid.between(prefix, prefix.ljust(LENGTH, ALPHABET[-1]))
    rows = connection.execute(select_runs().where(where).order_by(RunRow.ulid).limit(3)).all()
    if not rows:
        raise _not_found(ulid)
    if len(rows) > 1:
        some = ", ".join(row[0] for row in rows[:2])
        raise InvalidInputError(f"Several runs begin with {ulid!r} ({some}, ...): give more characters.")
    return run_from(rows[0])


def newest(connection: sa.Connection, *, limit: int, before: str | None) -> list[Run]:
    """Runs, newest first, before the one with an id."""
    check_limit(limit)
    select = select_runs().order_by(RunRow.ulid.desc()).limit(limit)
    if before is not None:
        select = select.where(RunRow.ulid < values.name(before, "The id of a run"))
    return [run_from(row) for row in connection.execute(select)]


def problems(connection: sa.Connection, ulid: str) -> list[RunProblemState]:
    """A run's problems, in order."""
    row = RunProblemRow
    rows = connection.execute(
        sa.select(*places.PROBLEM_COLUMNS, row.position, row.role, row.phases, row.layers, row.done, row.outcome)
        .outerjoin(ProblemRow, ProblemRow.id == row.problem_id)
        .where(row.run_id == _id(connection, ulid))
        .order_by(row.position)
    )
    return [_problem_state_from(row) for row in rows]


def _id(connection: sa.Connection, ulid: str) -> int:
    """The database's id of one run."""
    return ids(connection, [ulid])[ulid]


def _not_found(ulid: str) -> NotFoundError:
    return NotFoundError(f"There is no run {ulid[:60]!r}: `fp4tune runs` lists them.")


def select_runs(*more: Any) -> Any:
    """Runs with where they ran, and more columns of theirs after COLUMNS."""
    return sa.select(*COLUMNS, *more).select_from(RunRow).outerjoin(EnvironmentRow).outerjoin(DeviceRow)


@from_row
def run_from(row: Sequence[Any]) -> Run:
    """The run in the first columns of a row that was selected with COLUMNS."""
    ulid, status, checkpoint, settings, *rest = row[: len(COLUMNS)]
    return Run(ulid, RunStatus(status), checkpoint, json.loads(settings), *rest)


@from_row
def _problem_state_from(row: Sequence[Any]) -> RunProblemState:
    position, role, phases, layers, done, outcome = row[places.N_PROBLEM_COLUMNS :]
    item = RunProblem(places.problem_from(row), role, tuple(json.loads(phases)), layers)
    return RunProblemState(position, item, done, outcome)
