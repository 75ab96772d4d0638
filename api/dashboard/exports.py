"""A table as CSV and as JSON: the values themselves, not what is shown of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ..plain import Document, encode, time_text
from .model import Cell, Row, Table, Value

MAX_BYTES = 1_000_000
"""Most bytes of a table: rows that do not fit are left out, and it is said that they are."""

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


@dataclass(frozen=True, slots=True)
class Export:
    """A table in a format.

    Attributes:
        text: all of it, UTF-8 encodable.
        truncated: what is in it if that is not everything, `1200 of 2000 rows`; else empty.
    """

    text: str
    truncated: str = ""


def to_csv(table: Table) -> Export:
    """The table as RFC 4180 says, with a line of column names.

    What is missing, NaN or infinite is empty; a text that a spreadsheet would take for a formula begins with an
    apostrophe.
    """
    lines = [_line([_csv_value(column.name) for column in table.columns])]
    size = len(lines[0].encode())
    for row in table.rows:
        line = _line([_csv_value(value) for value in _values(row)])
        size += len(line.encode())
        if size > MAX_BYTES:
            break
        lines.append(line)
    return Export("".join(lines), _truncated(len(lines) - 1, len(table.rows)))


def to_json(table: Table) -> Export:
    """`{"table", "title", "columns": [{"name", "title", "kind"}], "rows": [{name: value}]}`.

    NaN and infinities are null, times ISO 8601 in UTC. With rows left out there is `"truncated": true`.
    """
    columns = [{"name": c.name, "title": c.title, "kind": c.kind.value} for c in table.columns]
    head = _encodable(encode({"table": table.name, "title": table.title, "columns": columns}))[:-1]
    rows: list[str] = []
    size = len(head.encode()) + 100
    for row in table.rows:
        text = _encodable(encode(_json_row(table, row)))
        size += len(text.encode()) + 1
        if size > MAX_BYTES:
            break
        rows.append(text)
    truncated = _truncated(len(rows), len(table.rows))
    tail = ',"truncated":true}' if truncated else "}"
    return Export(f'{head},"rows":[{",".join(rows)}]{tail}', truncated)


def _truncated(n_there: int, n_all: int) -> str:
    return f"{n_there} of {n_all} rows" if n_there < n_all else ""


def _values(row: Row) -> Iterator[Value]:
    for value in row:
        yield value.value if isinstance(value, Cell) else value


def _json_row(table: Table, row: Row) -> Document:
    return {c.name: _json_value(value) for c, value in zip(table.columns, _values(row), strict=False)}


def _json_value(value: Value) -> Value:
    if isinstance(value, datetime):
        return time_text(value)
    return None if _is_no_number(value) else value


def _csv_value(value: Value) -> str:
    if value is None or _is_no_number(value):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA_STARTS) else value
    return repr(value)


def _is_no_number(value: Value) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _line(values: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(values)
    return _encodable(out.getvalue())


def _encodable(text: str) -> str:
    """The text without lone surrogates, which UTF-8 has not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
