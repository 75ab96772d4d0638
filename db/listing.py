"""Pages by id within a filter, each driven by one index, whatever statistics SQLite's planner has.

Without statistics (nobody runs ANALYZE) SQLite takes `status = 'ok'` for as selective as a run's id; with them, it
may begin with a small table that is only joined for its names, and sort everything afterwards. So:

- the filters of a listing are given most selective first: the first may use its index, and on SQLite the others are
  written `+column = value`, which keeps an index from being used for them
  (https://www.sqlite.org/optoverview.html#disqualifying_where_clause_terms_using_unary_);
- tables that are joined for their names are joined from the left, OUTER, though every row has its partner: then the
  listed table comes first.

PostgreSQL always has statistics, and decides about filters for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from ..kernels.errors import InvalidInputError
from . import values

MAX_LIMIT = 10_000
"""Most rows that one call lists."""


def conditions(
    connection: sa.Connection, filters: Sequence[tuple[Any, Any]], *, leading: int = 1
) -> list[sa.ColumnElement[bool]]:
    """The WHERE of a listing.

    Args:
        connection: decides about the dialect.
        filters: (column, value) or (column, None) for any; most selective first.
        leading: how many of those that are given may use an index.
    """
    given = [(column, value) for column, value in filters if value is not None]
    if connection.dialect.name == "sqlite":
        given[leading:] = [
            (UnaryExpression(column, operator=custom_op("+")), value) for column, value in given[leading:]
        ]
    return [column == value for column, value in given]


def id_of(model: Any, column: Any, value: str | None, what: str) -> Any:
    """A subquery for the id of the row whose natural key is `value`; None if the value is None."""
    if value is None:
        return None
    return sa.select(model.id).where(column == values.name(value, what)).scalar_subquery()


def check_page(limit: int, after: int) -> None:
    """Refuse a page that cannot be.

    Raises:
        InvalidInputError: limit is not 1 to MAX_LIMIT, or after is negative or too large.
    """
    check_limit(limit)
    values.int64(after, "The id to list after", least=0)


def check_limit(limit: object) -> None:
    """Refuse a limit that is not 1 to MAX_LIMIT."""
    if not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidInputError(f"The limit must be an integer from 1 to {MAX_LIMIT}, and is {limit!r}.")
