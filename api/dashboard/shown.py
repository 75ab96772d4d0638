"""A view as the templates show it: everything is text that is clean and clipped, and a page has its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from .figures import figure_json
from .formatting import DASH, MAX_TEXT, MAX_WHOLE, clean, clean_code, clip, format_value
from .model import Cell, Column, Command, Filter, Kind, Layout, Mark, NextStep, Section, Table, Value, View
from .page import CURSOR, ROOT, Asked

MAX_ROWS_SHOWN = 200
"""Most rows of a table on a page; its CSV has all."""

MAX_FIGURE_BYTES = 400_000
"""Most bytes of a figure's JSON; 2,000 points with an address each are about 300,000."""

LEFT_FOR_TABLES = 250_000
"""Bytes of a page that figures leave for tables."""

MAX_PARAGRAPH = 1000
"""Most characters of a paragraph."""

MAX_HEADING = 200
"""Most characters of a heading, a label or a caption."""

MAX_OPTION = 120
"""Most characters of what a filter offers."""

_MEANINGS = {
    Mark.TIE: "tie", Mark.UNTUNED: "never tuned", Mark.REFERENCE: "published", Mark.ESTIMATE: "modelled",
    Mark.SERVED: "served", Mark.GOOD: "good", Mark.BAD: "bad", Mark.UNSURE: "not enough evidence",
}  # fmt: skip
"""What is read out for a mark that the legend of its table does not name alone."""

_LONG_WORD = 40
"""Longest word that is never broken: longer than any key of a problem that is not grouped."""

_SHORT = 14
"""Longest text of several words that is kept on one line: `measured once`."""

_MANY_COLUMNS = 8
"""From more columns on a table is set closer, so that it fits a laptop's screen."""

_NUMERIC = frozenset(Kind) - {Kind.TEXT, Kind.CODE, Kind.MOMENT}


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A cell.

    Attributes:
        text: what stands in it. whole: the whole of a text that was clipped, else empty.
        link: a path of this service, or empty. classes: of CSS. note: small beside it. said: read out, not seen.
    """

    text: str
    whole: str = ""
    link: str = ""
    classes: str = ""
    note: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A heading: what it says, what helps to understand it, and the CSS class of its cells."""

    title: str
    help: str
    css: str


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table.

    Attributes:
        id: of its element. rows: at most MAX_ROWS_SHOWN. cut: a sentence on what is not shown, or empty.
        is_dense: whether it is set closer. csv, json: addresses of all of it.
        The others are those of Table.
    """

    id: str
    title: str
    layout: str
    is_dense: bool
    columns: tuple[ShownColumn, ...]
    rows: Sequence[Sequence[ShownCell]]
    legend: tuple[tuple[str, str], ...]
    more: str
    note: str
    empty: str
    cut: str
    csv: str
    json: str

    @property
    def has_help(self) -> bool:
        """Whether any of its columns is explained."""
        return any(column.help for column in self.columns)


@dataclass(frozen=True, slots=True)
class ShownFigure:
    """A figure: its element's id, its words, how high it is in pixels, and its JSON; `too_large` if there is none."""

    id: str
    alt: str
    height_px: int
    json: str
    too_large: bool


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A section."""

    heading: str
    anchor: str
    text: tuple[str, ...]
    figure: ShownFigure | None
    table: ShownTable | None
    folded: bool
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class ShownFilter:
    """A filter; its options as (value, label, whether it is chosen)."""

    id: str
    name: str
    label: str
    value: str
    options: tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True, slots=True)
class ShownView:
    """A view. `kept` are parameters of the address that are no filters, so that a filter's form keeps them."""

    title: str
    lead: str
    warnings: tuple[str, ...]
    next_steps: tuple[NextStep, ...]
    filters: tuple[ShownFilter, ...]
    kept: tuple[tuple[str, str], ...]
    sections: tuple[ShownSection, ...]
    refresh_s: int | None
    has_figures: bool


class Budget:
    """Bytes that are left for what can be large. Figures and rows take from it and are left out when it is used up."""

    def __init__(self, n_bytes: int) -> None:
        self._left = n_bytes

    def take(self, n_bytes: int, *, leave: int = 0) -> bool:
        """Whether that much is still there, and `leave` more; if so, it is taken."""
        if n_bytes + leave > self._left:
            return False
        self._left -= n_bytes
        return True

    def leave_for(self, n_others: int) -> int:
        """What to leave so that as much remains for each of `n_others` as for one."""
        return self._left * n_others // (n_others + 1)


def show(view: View, asked: Asked, budget: Budget) -> ShownView:
    """Everything of a view, in the order in which it is read.

    Args:
        view: see View.
        asked: what made it; tables' own addresses say the same.
        budget: for figures, rows and filters' options.
    """
    filters = tuple(_filter(one, budget) for one in view.filters)
    names = {one.name for one in filters} | {CURSOR.name}
    figures = [_figure(one, budget) for one in view.sections]
    n_tables = sum(one.table is not None for one in view.sections)
    sections = []
    for section, figure in zip(view.sections, figures, strict=True):
        n_tables -= section.table is not None
        table = None if section.table is None else _table(section.table, asked, budget, budget.leave_for(n_tables))
        sections.append(_section(section, figure, table))
    return ShownView(
        title=_heading(view.title),
        lead=_sentence(view.lead),
        warnings=tuple(map(_sentence, view.warnings)),
        next_steps=tuple(
            NextStep(_sentence(s.text), clean_code(s.command), safe_link(s.link)) for s in view.next_steps
        ),
        filters=filters,
        kept=tuple((name, value) for name, value in asked.values.items() if name not in names),
        sections=tuple(sections),
        refresh_s=None if view.refresh_s is None else max(1, view.refresh_s),
        has_figures=any(one.figure is not None and one.figure.json for one in sections),
    )


def safe_link(link: str) -> str:
    """A path of this service, as it is; empty for anything else, such as `javascript:` or another host."""
    fine = link.startswith("/") and not link.startswith(("//", "/\\")) and len(link) <= MAX_WHOLE and link.isprintable()
    return link if fine else ""


def data_address(asked: Asked, extension: str, table: str) -> str:
    """The address of a table as CSV or JSON, with the filters and the place of its page."""
    return f"{ROOT}/{asked.page or 'index'}.{extension}?{urlencode({'table': table, **asked.values})}"


def _sentence(text: str, limit: int = MAX_PARAGRAPH) -> str:
    return clip(clean(text[: limit + 1]), limit)


def _heading(text: str) -> str:
    return _sentence(text, MAX_HEADING)


def _section(section: Section, figure: ShownFigure | None, table: ShownTable | None) -> ShownSection:
    return ShownSection(
        heading=_heading(section.heading),
        anchor=_id(section.anchor),
        text=tuple(map(_sentence, section.text)),
        figure=figure,
        table=table,
        folded=section.folded and section.table is not None,
        commands=tuple(Command(_heading(one.label), clean_code(one.text)) for one in section.commands),
    )


def _figure(section: Section, budget: Budget) -> ShownFigure | None:
    figure = section.figure
    if figure is None:
        return None
    text = figure_json(figure)
    size = len(text.encode("utf-8", "replace"))
    fits = size <= MAX_FIGURE_BYTES and budget.take(size, leave=LEFT_FOR_TABLES)
    height = min(max(int(figure.height_px), 120), 2000)
    return ShownFigure(f"figure-{_id(figure.name)}", _sentence(figure.alt), height, text if fits else "", not fits)


def _table(table: Table, asked: Asked, budget: Budget, leave: int) -> ShownTable:
    said = {marks[0]: text for marks, text in table.legend if len(marks) == 1}
    if table.layout is Layout.PAIRS:  # it shows no headings
        table = replace(table, columns=tuple(replace(c, kind=_without_heading(c.kind)) for c in table.columns))
    rows: list[list[ShownCell]] = []
    for row in table.rows[:MAX_ROWS_SHOWN]:
        cells = [_cell(value, column, said) for column, value in zip(table.columns, row, strict=False)]
        if not budget.take(sum(map(_size, cells)), leave=leave):
            break
        rows.append(cells)
    more, less = len(table.rows), len(rows)
    return ShownTable(
        id=f"table-{_id(table.name)}",
        title=_heading(table.title),
        layout=table.layout.value,
        is_dense=table.layout is Layout.ROWS and len(table.columns) > _MANY_COLUMNS,
        columns=tuple(ShownColumn(_column_title(c), _sentence(c.help), _column_css(c)) for c in table.columns),
        rows=rows,
        legend=tuple((_classes(marks), _heading(text)) for marks, text in table.legend),
        more=safe_link(table.more),
        note=_sentence(table.note),
        empty=_sentence(table.empty) if less == more else f"Its {more:,} rows are too large for this page.",
        cut=f"The first {less:,} of {more:,} rows; the CSV and the JSON have more." if less < more else "",
        csv=data_address(asked, "csv", table.name),
        json=data_address(asked, "json", table.name),
    )


def _cell(value: Value | Cell, column: Column, said: Mapping[Mark, str]) -> ShownCell:
    cell = value if isinstance(value, Cell) else Cell(value)
    raw = cell.text or format_value(cell.value, column.kind)
    if column.kind is Kind.MOMENT:
        raw = raw.removesuffix(" UTC")  # stands in the heading
    text = clean(raw[:MAX_WHOLE])
    read_out = ", ".join(said.get(mark) or _MEANINGS[mark] for mark in cell.marks if mark in _MEANINGS)
    clipped = clip(text)
    css = [_classes(cell.marks), "none" if raw == DASH else "", *_wrapping(clipped, column.kind)]
    return ShownCell(
        text=clipped,
        whole=text if len(raw) > MAX_TEXT else "",
        link=safe_link(cell.link),
        classes=" ".join(filter(None, css)),
        note=clip(clean(cell.note[:MAX_WHOLE]), 120),
        said=clip(clean(read_out), 120),
    )


def _wrapping(text: str, kind: Kind) -> list[str]:
    """Where a text may be broken: a name nowhere, a sentence in a wide column, what is no word anywhere."""
    if len(text) <= _LONG_WORD:
        return [] if kind in _NUMERIC or (" " in text and len(text) > _SHORT) else ["word"]
    return ["wordy"] + ["long"] * any(len(word) > _LONG_WORD for word in text.split(" "))


def _size(cell: ShownCell) -> int:
    """Bytes of a cell in HTML, at most: what is escaped is five times as long, what is not ASCII up to four times."""
    parts = (cell.text, cell.whole, cell.link, cell.note, cell.said)
    return 120 + len(cell.classes) + sum(_text_size(part) for part in parts)


def _text_size(text: str) -> int:
    return (
        len(text)
        if text.isalnum() and text.isascii()
        else len(text.encode("utf-8", "replace")) + 4 * sum(c in "<>&'\"" for c in text)
    )


def _filter(one: Filter, budget: Budget) -> ShownFilter:
    options = []
    for option in one.options:
        value, chosen = clean(option.value), option.value == one.value
        label = clip(clean(option.label[:MAX_WHOLE]), MAX_OPTION) or DASH
        if budget.take(60 + _text_size(value) + _text_size(label)) or chosen:
            options.append((value, label, chosen))
    if one.options and not any(chosen for *_, chosen in options):
        options.insert(0, (clean(one.value), clip(clean(one.value), MAX_OPTION) or DASH, True))
    return ShownFilter(f"filter-{_id(one.name)}", one.name, _heading(one.label), clip(clean(one.value)), tuple(options))


def _classes(marks: Sequence[Mark]) -> str:
    return " ".join(f"m-{mark.value}" for mark in marks)


def _without_heading(kind: Kind) -> Kind:
    """A kind whose values say all of their unit."""
    return Kind.TEXT if kind is Kind.MOMENT else kind


def _column_title(column: Column) -> str:
    """Its title; a column of times says that they are UTC."""
    is_silent = column.kind is Kind.MOMENT and "UTC" not in column.title
    return _heading(f"{column.title} (UTC)" if is_silent else column.title)


def _column_css(column: Column) -> str:
    if column.kind is Kind.CODE:
        return "code"
    return "number" if column.kind in _NUMERIC else column.kind.value


def _id(name: str) -> str:
    """A name as part of an element's id."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name[:80])
