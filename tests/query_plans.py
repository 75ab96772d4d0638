"""How SQLite finds what a call of the store asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from fp4tune.db import Store


def plans(store: Store, call: Callable[[], object]) -> list[str]:
    """The plan of every SELECT that a call sends, its steps joined by "; "."""
    sent: list[tuple[str, Any]] = []

    def note(connection, cursor, statement, parameters, context, executemany):
        if statement.startswith("SELECT"):
            sent.append((statement, parameters))

    sa.event.listen(store._engine, "before_cursor_execute", note)
    call()
    sa.event.remove(store._engine, "before_cursor_execute", note)
    assert sent
    with store._reading() as connection:
        return [
            "; ".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters))
            for statement, parameters in sent
        ]
