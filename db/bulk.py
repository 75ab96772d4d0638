"""Many rows at once: what the two databases do best differs, and is settled here.

SQLite runs in this process and is fastest with one prepared statement executed for each row. PostgreSQL is fastest with
one statement whose parameters are arrays, one a column (`unnest`): the statement is parsed once, whatever the number
of rows, and nothing travels row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

T = TypeVar("T")

CHUNK = 500
"""Values in one IN list: below the smallest limit on parameters that SQLite is built with (999)."""


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items, CHUNK at a time."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def insert(connection: sa.Connection, model: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows; all have the same keys."""
    _insert(connection, model, rows, "")


def insert_new(connection: sa.Connection, model: Any, key: str, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, leaving alone those whose natural key is there already.

    In the order of their keys: two PostgreSQL transactions that insert the same ones then wait for each other in one
    direction, and cannot deadlock.
    """
    _insert(connection, model, sorted(rows, key=lambda row: str(row[key])), f"ON CONFLICT ({key}) DO NOTHING")


def replace(connection: sa.Connection, model: Any, key: str, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, each in place of the one with its natural key, which keeps its id. No key twice."""
    if rows:
        sets = ", ".join(f"{name} = excluded.{name}" for name in rows[0] if name != key)
        ordered = sorted(rows, key=lambda row: str(row[key]))
        _insert(connection, model, ordered, f"ON CONFLICT ({key}) DO UPDATE SET {sets}")


def merge(
    connection: sa.Connection, model: Any, key: Sequence[str], rows: Sequence[dict[str, Any]], sets: dict[str, str]
) -> None:
    """Insert rows, each added to the one with its natural key if that is there. No key twice.

    Args:
        connection: in a transaction for writing.
        model: the table.
        key: names of the columns of the key.
        rows: all have the same keys.
        sets: what columns become, as SQL that names the old row by its table and the new one `excluded`.
    """
    ordered = sorted(rows, key=lambda row: tuple(row[name] for name in key))
    assignments = ", ".join(f"{name} = {expression}" for name, expression in sets.items())
    _insert(connection, model, ordered, f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {assignments}")


def _insert(connection: sa.Connection, model: Any, rows: Sequence[dict[str, Any]], tail: str) -> None:
    if not rows:
        return
    table: sa.Table = model.__table__
    columns = [table.c[name] for name in rows[0]]
    names = ", ".join(column.name for column in columns)
    if connection.dialect.name != "postgresql":
        values = ", ".join(f":{column.name}" for column in columns)
        statement = sa.text(f"INSERT INTO {table.name} ({names}) VALUES ({values}) {tail}")  # noqa: S608 - no input in it
        connection.execute(statement.bindparams(*(sa.bindparam(c.name, type_=c.type) for c in columns)), rows)
        return
    arrays = ", ".join(array(connection, column) for column in columns)
    statement = sa.text(f"INSERT INTO {table.name} ({names}) SELECT * FROM unnest({arrays}) {tail}")  # noqa: S608 - as above
    connection.execute(statement, {c.name: _column(connection, c, [row[c.name] for row in rows]) for c in columns})


def _column(connection: sa.Connection, column: Any, values: list[Any]) -> list[Any]:
    """The values of a column, converted as its own type says; an array would only be passed on."""
    if isinstance(column.type, sa.types.TypeDecorator):
        return [column.type.process_bind_param(value, connection.dialect) for value in values]
    return values


def array(connection: sa.Connection, column: Any) -> str:
    """PostgreSQL: the parameter that is called like a column and holds an array of its type."""
    return f"CAST(:{column.key} AS {column.type.compile(connection.dialect)}[])"


def next_ids(connection: sa.Connection, model: Any, n: int) -> list[int]:
    """Ids for n rows that are about to be inserted, growing.

    The caller holds a lock that keeps others from inserting (on SQLite, every transaction for writing does). For SQLite
    the table has AUTOINCREMENT, so that an id is never given twice, whatever becomes of its row.
    """
    name = model.__table__.name
    if connection.dialect.name == "postgresql":
        statement = sa.text("SELECT nextval(pg_get_serial_sequence(:name, 'id')) FROM generate_series(1, :n)")
        return sorted(connection.execute(statement, {"name": name, "n": n}).scalars())
    statement = sa.text("SELECT seq FROM sqlite_sequence WHERE name = :name")
    last = connection.execute(statement, {"name": name}).scalar_one_or_none() or 0
    return list(range(last + 1, last + 1 + n))
