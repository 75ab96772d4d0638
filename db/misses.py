"""Misses: shapes that were asked for and not found, counted, in bounded tables.

Anybody may cause a miss, so nothing that a question names may make a table grow without end: at most `cap` rows for
each (device, environment), and TOTAL_CAP rows in all. At a cap, rows that exist go on counting; new ones are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ..kernels.problem import parse_key
from . import bulk, values
from .faults import from_row
from .listing import check_limit
from .models import MetaRow, MissRow
from .records import Miss

TOTAL_CAP = 100_000
"""Most rows in all: ten full (device, environment) pairs, about 20 MB."""

MAX_COUNT = 1 << 40
"""Counts stop here, far below where 64 bits overflow."""

LOCK = "misses"
"""Key in `meta` of the row that whoever adds misses locks on PostgreSQL, so that the caps hold."""

Question = tuple[str, str, str]
"""Device fingerprint, environment fingerprint, problem key."""


def checked(misses: Sequence[Miss]) -> dict[Question, Miss]:
    """Misses by question, those of the same question added up.

    Raises:
        InvalidInputError: a fingerprint or a count cannot be stored.
    """
    merged: dict[Question, Miss] = {}
    for miss in misses:
        values.int64(miss.count, "The count of a miss", least=1)
        question = (
            values.name(miss.device_fingerprint, "A fingerprint", limit=64),
            values.name(miss.environment_fingerprint, "A fingerprint", limit=64),
            miss.problem.key,
        )
        known = merged.get(question)
        merged[question] = miss if known is None else _added(known, miss)
    return merged


def _added(one: Miss, other: Miss) -> Miss:
    """Two misses of the same question as one."""
    first, last = min(one.first_at, other.first_at), max(one.last_at, other.last_at)
    return replace(one, count=one.count + other.count, first_at=first, last_at=last)


def add(connection: sa.Connection, misses: dict[Question, Miss], *, cap: int) -> int:
    """Add counts, and return how many questions were dropped by a cap."""
    connection.execute(sa.select(MetaRow.value).where(MetaRow.key == LOCK).with_for_update())
    known = _known(connection, list(misses))
    total = connection.execute(sa.select(sa.func.count()).select_from(MissRow)).scalar_one()
    sizes: dict[tuple[str, str], int] = {}
    kept, dropped = [], 0
    for question, miss in misses.items():
        pair = question[:2]
        if question not in known:
            if pair not in sizes:
                sizes[pair] = _size(connection, *pair)
            if sizes[pair] >= cap or total >= TOTAL_CAP:
                dropped += 1
                continue
            sizes[pair] += 1
            total += 1
        kept.append(_row(question, miss))
    if kept:
        connection.execute(_upsert(connection), kept)
    return dropped


def _row(question: Question, miss: Miss) -> dict[str, Any]:
    device, environment, key = question
    return {
        "device_fingerprint": device,
        "environment_fingerprint": environment,
        "problem_key": key,
        "count": min(miss.count, MAX_COUNT),
        "first_at": miss.first_at,
        "last_at": miss.last_at,
    }


def _upsert(connection: sa.Connection) -> Any:
    """INSERT that adds to the row which is there already."""
    insert: Any = (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(MissRow)
    new = insert.excluded
    count = MissRow.count + new.count
    return insert.on_conflict_do_update(
        index_elements=["device_fingerprint", "environment_fingerprint", "problem_key"],
        set_={
            "count": sa.case((count > MAX_COUNT, MAX_COUNT), else_=count),
            "first_at": sa.case((new.first_at < MissRow.first_at, new.first_at), else_=MissRow.first_at),
            "last_at": sa.case((new.last_at > MissRow.last_at, new.last_at), else_=MissRow.last_at),
        },
    )


def _known(connection: sa.Connection, questions: Sequence[Question]) -> set[Question]:
    """Those questions that have a row."""
    found: set[Question] = set()
    by_pair: dict[tuple[str, str], list[str]] = {}
    for device, environment, key in questions:
        by_pair.setdefault((device, environment), []).append(key)
    for (device, environment), keys in by_pair.items():
        for some in bulk.chunks(keys):
            rows = connection.execute(
                sa.select(MissRow.problem_key).where(
                    MissRow.device_fingerprint == device,
                    MissRow.environment_fingerprint == environment,
                    MissRow.problem_key.in_(some),
                )
            )
            found.update((device, environment, key) for key in rows.scalars())
    return found


def _size(connection: sa.Connection, device: str, environment: str) -> int:
    """How many rows a (device, environment) has."""
    where = (MissRow.device_fingerprint == device, MissRow.environment_fingerprint == environment)
    return connection.execute(sa.select(sa.func.count()).select_from(MissRow).where(*where)).scalar_one()


def most_asked(
    connection: sa.Connection, *, device_fingerprint: str | None, environment_fingerprint: str | None, limit: int
) -> list[Miss]:
    """Misses by count, most first; those with the same count by key."""
    check_limit(limit)
    row = MissRow
    select = sa.select(
        row.problem_key, row.device_fingerprint, row.environment_fingerprint, row.count, row.first_at, row.last_at
    )
    for column, value in (
        (row.device_fingerprint, device_fingerprint),
        (row.environment_fingerprint, environment_fingerprint),
    ):
        if value is not None:
            select = select.where(column == values.name(value, "A fingerprint"))
    rows = connection.execute(select.order_by(row.count.desc(), row.problem_key, row.id).limit(limit))
    return [_miss_from(found) for found in rows]


def forget(connection: sa.Connection, problem_keys: Sequence[str], *, device_fingerprint: str) -> None:
    """Delete the misses of problems on a device, in every environment."""
    device = values.name(device_fingerprint, "A fingerprint")
    for some in bulk.chunks([values.name(key, "A problem's key") for key in problem_keys]):
        where = (MissRow.device_fingerprint == device, MissRow.problem_key.in_(some))
        connection.execute(sa.delete(MissRow).where(*where))


@from_row
def _miss_from(row: Sequence[Any]) -> Miss:
    return Miss(parse_key(row[0]), *row[1:])
