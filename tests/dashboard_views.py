"""What tests ask of views: that one is sound, and what it says."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from fp4tune.api.dashboard.figures import figure_json
from fp4tune.api.dashboard.model import MAX_ROWS, Cell, Section, Table, View
from fp4tune.api.dashboard.page import ROOT


def sound(view: View) -> View:
    """The view, after a look at everything that the renderer relies on."""
    names = [section.table.name for section in view.sections if section.table]
    assert len(names) == len(set(names)), names
    figures = [section.figure for section in view.sections if section.figure]
    assert len(figures) == len({figure.name for figure in figures})
    for figure in figures:
        json.loads(figure_json(figure))
        assert figure.alt
    for section in view.sections:
        if section.figure is not None:
            assert section.table is not None, f"{section.figure.name} has no numbers"
            assert section.table.rows
        if section.table is not None:
            _sound_table(section.table)
        assert all(isinstance(command.text, str) and command.text for command in section.commands)
    for filter_ in view.filters:
        values = [option.value for option in filter_.options]
        assert len(values) <= 200
        assert len(values) == len(set(values))
        assert not values or filter_.value in values, (filter_.name, filter_.value)
    for step in view.next_steps:
        assert step.text
        assert not step.link or step.link.startswith(ROOT)
    assert view.title
    return view


def _sound_table(table: Table) -> None:
    assert len(table.rows) <= MAX_ROWS
    columns = [column.name for column in table.columns]
    assert len(columns) == len(set(columns))
    for row in table.rows:
        assert len(row) == len(columns), (table.name, row)
        for cell in row:
            value = cell.value if isinstance(cell, Cell) else cell
            assert value is None or isinstance(value, str | int | float | bool | datetime), (table.name, value)
            if isinstance(cell, Cell):
                assert isinstance(cell.text, str)
                assert isinstance(cell.note, str)
                assert not cell.link or cell.link.startswith(ROOT), cell.link


def section_of(view: View, anchor: str) -> Section:
    """A view's section by its anchor."""
    return next(section for section in view.sections if section.anchor == anchor)


def table_of(view: View, name: str) -> Table:
    """A view's table by its name."""
    return next(section.table for section in view.sections if section.table and section.table.name == name)


def rows_of(view: View, name: str) -> list[dict[str, Any]]:
    """A table's rows, each by the names of its columns, cells as they are."""
    table = table_of(view, name)
    return [dict(zip((column.name for column in table.columns), row, strict=True)) for row in table.rows]


def value(cell: Any) -> Any:
    """What a cell says."""
    return cell.value if isinstance(cell, Cell) else cell


def pairs_of(view: View, name: str) -> dict[str, Any]:
    """A table of pairs: its cells by the names before them."""
    return {str(value(row[0])): row[1] for row in table_of(view, name).rows}


def words_of(view: View) -> str:
    """Every sentence of a view."""
    texts = [text for section in view.sections for text in section.text]
    return "\n".join([view.lead, *view.warnings, *(step.text for step in view.next_steps), *texts])
