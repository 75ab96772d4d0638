"""The values of a table, for figures that are made of it."""

from __future__ import annotations

from .model import Cell, Row, Table, Value


def value_of(cell: Value | Cell) -> Value:
    """What a cell says."""
    return cell.value if isinstance(cell, Cell) else cell


def number_of(cell: Value | Cell) -> float | None:
    """What a cell says, if it is a number."""
    value = value_of(cell)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def link_of(cell: Value | Cell) -> str:
    """Where a cell leads; empty for nowhere."""
    return cell.link if isinstance(cell, Cell) else ""


def records(table: Table) -> list[dict[str, Value | Cell]]:
    """A table's rows, each by the names of its columns."""
    names = [column.name for column in table.columns]
    return [_record(names, row) for row in table.rows]


def _record(names: list[str], row: Row) -> dict[str, Value | Cell]:
    return dict(zip(names, row, strict=True))
