"""Rows as lines of an export, in an order that depends on nothing but what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ..kernels.errors import BusyError
from . import bulk, places, runs
from . import exchange_lines as as_lines
from .exchange import Line
from .liveness import Owner, is_alive
from .models import ProblemRow, RoofsRow, RunProblemRow, RunRow, StaticFactsRow, TrialRow, WinnerRow
from .records import RunStatus

Row = Mapping[str, Any]

_STREAM = {"yield_per": 1000}
"""Rows are fetched as they are written: an export takes no more memory for a million trials than for a thousand."""


def chosen_runs(
    connection: sa.Connection, names: Sequence[str] | None, *, host: str, now: datetime
) -> tuple[list[Row], list[str]]:
    """The runs to export, by id, and sentences about those that are left out.

    Args:
        connection: in a transaction for reading.
        names: ids or unique beginnings of ids; None for all.
        host: name of this host.
        now: the time.

    Raises:
        BusyError: a run that was named is still running.
        InvalidInputError: a name is too short, or several runs begin with it.
        NotFoundError: there is no such run.
    """
    select = sa.select(RunRow.__table__)
    if names is None:
        found = list(connection.execute(select).mappings())
    else:
        ulids = {runs.find(connection, name).id for name in names}
        found = [connection.execute(select.where(RunRow.ulid == ulid)).mappings().one() for ulid in ulids]
    chosen: list[Row] = []
    notes: list[str] = []
    for row in sorted(found, key=lambda row: str(row["ulid"])):
        if row["status"] == RunStatus.RUNNING.value:
            owner = Owner(row["host"], row["pid"], row["process_scope"], row["process_birth"])
            if is_alive(owner, row["heartbeat_at"], host=host, now=now):
                sentence = f"Run {row['ulid']} is still running as process {row['pid']} on {row['host']}"
                if names is not None:
                    raise BusyError(f"{sentence}: export it when it has ended.")
                notes.append(f"{sentence}, and was left out.")
                continue
        chosen.append(dict(row))
    return chosen, notes


def lines(connection: sa.Connection, chosen: Sequence[Row], *, everything: bool) -> Iterator[Line]:
    """The lines of an export.

    Args:
        connection: in a transaction that sees one moment of the database.
        chosen: the runs, by id.
        everything: also roofs and static facts that have to do with none of these runs.
    """
    run_ids = [row["id"] for row in chosen]
    environment_ids = _environments_of(connection, run_ids)
    roofs = _roofs(connection, None if everything else environment_ids)
    environments = places.environments_by_id(connection, environment_ids | {row["environment_id"] for row in roofs})
    prints = {id_: environment.fingerprint for id_, environment in environments.items()}
    for environment in sorted(environments.values(), key=lambda environment: environment.fingerprint):
        yield "environment", as_lines.environment_line(environment)
    for row in chosen:
        yield from run_lines(connection, row, prints)
    for row in sorted(roofs, key=lambda row: prints[row["environment_id"]]):
        yield "roofs", as_lines.roofs_line(row, prints[row["environment_id"]])
    yield from _static_facts(connection, None if everything else _problems_of(connection, run_ids))


def run_lines(connection: sa.Connection, run: Row, prints: Mapping[int, str]) -> Iterator[Line]:
    """A run, its problems, trials and winners. A run that says it runs is exported as what it is: interrupted.

    Args:
        connection: in a transaction.
        run: the run's columns.
        prints: fingerprints of environments by id.
    """
    if run["status"] == RunStatus.RUNNING.value:
        run = {**run, "status": RunStatus.INTERRUPTED.value, "finished_at": run["heartbeat_at"]}
    ulid = {"run": run["ulid"]}
    yield "run", as_lines.run_line(run, prints[run["environment_id"]])
    by_position = _rows(RunProblemRow).where(RunProblemRow.run_id == run["id"])
    for row in _stream(connection, by_position.order_by(RunProblemRow.position)):
        yield "run_problem", ulid | as_lines.run_problem_line(row, row["problem_key"])
    key = _bytewise(connection, ProblemRow.key)
    by_time = _rows(TrialRow).where(TrialRow.run_id == run["id"])
    for row in _stream(connection, by_time.order_by(TrialRow.started_at, key, TrialRow.number)):
        yield "trial", ulid | as_lines.trial_line(row, row["problem_key"], prints[row["environment_id"]])
    by_time = _rows(WinnerRow).where(WinnerRow.run_id == run["id"])
    same = (WinnerRow.policy, WinnerRow.backend, WinnerRow.config)
    order = [WinnerRow.created_at, key, *(_bytewise(connection, column) for column in same), WinnerRow.trial_number]
    # Two that agree in all of that were stored in one call, and the later one superseded the earlier.
    for row in _stream(connection, by_time.order_by(*order, WinnerRow.superseded_at.is_(None), WinnerRow.id)):
        yield "winner", ulid | as_lines.winner_line(row, row["problem_key"], prints[row["environment_id"]])


def _rows(model: Any) -> Any:
    """A table's columns and the problem's key."""
    columns = model.__table__.c
    select = sa.select(*columns, ProblemRow.key.label("problem_key"))
    return select.join(ProblemRow, columns.problem_id == ProblemRow.id)


def _stream(connection: sa.Connection, select: Any) -> Iterator[Any]:
    return iter(connection.execute(select, execution_options=_STREAM).mappings())


def _bytewise(connection: sa.Connection, column: Any) -> Any:
    """A text column, ordered by its bytes, whatever the locale of the database."""
    return sa.collate(column, "C" if connection.dialect.name == "postgresql" else "BINARY")


def _environments_of(connection: sa.Connection, run_ids: Sequence[int]) -> set[int]:
    """Ids of the environments that runs, their trials and their winners refer to."""
    return (
        _values(connection, RunRow.environment_id, RunRow.id, run_ids)
        | _values(connection, TrialRow.environment_id, TrialRow.run_id, run_ids)
        | _values(connection, WinnerRow.environment_id, WinnerRow.run_id, run_ids)
    )


def _problems_of(connection: sa.Connection, run_ids: Sequence[int]) -> set[int]:
    """Ids of the problems of runs and of their trials."""
    return _values(connection, RunProblemRow.problem_id, RunProblemRow.run_id, run_ids) | _values(
        connection, TrialRow.problem_id, TrialRow.run_id, run_ids
    )


def _values(connection: sa.Connection, column: Any, where: Any, run_ids: Sequence[int]) -> set[int]:
    """What a column holds for runs, each once."""
    found: set[int] = set()
    for some in bulk.chunks(run_ids):
        found |= set(connection.execute(sa.select(column).where(where.in_(some)).distinct()).scalars())
    return found


def _roofs(connection: sa.Connection, environment_ids: set[int] | None) -> list[Row]:
    """The roofs of environments; None for all."""
    rows = connection.execute(sa.select(RoofsRow.__table__)).mappings()
    return [dict(row) for row in rows if environment_ids is None or row["environment_id"] in environment_ids]


def _static_facts(connection: sa.Connection, problem_ids: set[int] | None) -> Iterator[Line]:
    """What compilers said of the configs of problems; None for all."""
    order = (ProblemRow.key, StaticFactsRow.backend, StaticFactsRow.target, StaticFactsRow.key)
    select = _rows(StaticFactsRow).order_by(*(_bytewise(connection, column) for column in order))
    for row in _stream(connection, select):
        if problem_ids is None or row["problem_id"] in problem_ids:
            yield "static_facts", as_lines.static_facts_line(row, row["problem_key"])
