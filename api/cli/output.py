"""How results are printed: one JSON document, or tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

Cell = str | int | float | None

MAX_WIDTH = 10_000
"""Columns, more than any table takes: to ask how many it would like."""


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now, so that redirections made later count.

    Not a terminal: 200 columns, so that tables in files and pipes are not folded.
    """
    stream = sys.stderr if stderr else sys.stdout
    return _Console(file=stream, highlight=False, emoji=False, width=None if stream.isatty() else 200, soft_wrap=False)


class _Console(Console):
    """A console that leaves it to its user what a reader that went away means."""

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError; Rich would end the process, and with it a run that needs no reader."""
        raise  # noqa: PLE0704 - called inside an except clause


def plain(value: object) -> Any:
    """A value as JSON can hold it: dataclasses by field, enums by value, times in ISO 8601."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def print_json(value: object) -> None:
    """Print one JSON document."""
    # Escaped by JSON where the stream could not hold it, so that the document stays one.
    ascii_only = (sys.stdout.encoding or "utf-8").lower() not in ("utf-8", "utf8")
    json.dump(plain(value), sys.stdout, indent=2, ensure_ascii=ascii_only, allow_nan=False)
    sys.stdout.write("\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, caption: str = "", tall: bool = False
) -> None:
    """Print a table. Columns whose cells are all numbers are right-aligned.

    Title and caption are lines of their own, because Rich would fold them to the width of the table.

    Args:
        title: above it.
        columns: their headings.
        rows: their cells.
        caption: below it.
        tall: on a terminal that is too narrow for it print one line a cell instead of folding columns.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_header=any(columns))
    for i, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
        table.add_column(escape(column), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(escape, row))
    screen = console()
    wants = Measurement.get(screen, screen.options.update(max_width=MAX_WIDTH), table).maximum
    print_prose(title, style="bold")
    if tall and wants > screen.width:
        _print_tall(columns, cells)
        print_line()
    else:
        if wants > screen.width:
            _fold(table, columns, cells, wants - screen.width)
        screen.print(table)
    if caption:
        print_prose(caption)
        screen.print()


def _fold(table: Table, columns: Sequence[str], cells: Sequence[Sequence[str]], excess: int) -> None:
    """Take `excess` characters from the widest columns, and only at last from a column's longest word.

    Rich takes them from the widest columns whatever that does to words.
    """
    texts = [[column, *(row[i] for row in cells)] for i, column in enumerate(columns)]
    widths = [max(map(cell_len, column)) for column in texts]
    floors = [max((cell_len(word) for text in column for word in text.split()), default=1) for column in texts]
    for _ in range(excess):
        if all(width <= floor for width, floor in zip(widths, floors, strict=True)):
            floors = [1] * len(floors)
        widths[max(range(len(widths)), key=lambda i: (widths[i] > floors[i], widths[i]))] -= 1
    for column, width in zip(table.columns, widths, strict=True):
        column.width = max(1, width)


def _print_tall(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """One line a cell, rows apart."""
    width = max(map(len, columns))
    for row in cells:
        print_line()
        for column, text in zip(columns, row, strict=True):
            print_line(f"  {column:<{width}}  {text}")


def print_prose(text: str, *, style: str | None = None) -> None:
    """Print a sentence: broken between words on a terminal, on one line for everybody else."""
    out = console()
    out.print(escape(text), style=style, soft_wrap=not out.is_terminal)


def print_line(text: str = "") -> None:
    """Print a line of text."""
    console().print(escape(text), soft_wrap=True)


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def config_text(config: Mapping[str, object]) -> str:
    """A config on one line: `block_n=64 threads=2`."""
    return " ".join(f"{name}={value}" for name, value in sorted(config.items())) or "-"
