"""What a page says, apart from how it looks: tables, figures made of them, filters, and what to do next.

A view makes these, `rendering` turns them into HTML, CSV and JSON, and nothing in here knows of any of the three.
Everything is plain text: escaping is the renderer's, and a string from the store may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

Value = str | int | float | bool | datetime | None


class Kind(StrEnum):
    """How the values of a column are written, and on which side they stand.

    Numbers are stored in the unit that their column's name says. NaN and infinities are shown as a dash.
    """

    TEXT = "text"
    CODE = "code"  # monospaced: keys, configs, fingerprints, ids
    INTEGER = "integer"  # 1,234
    NUMBER = "number"  # four significant digits
    TIME_US = "time_us"  # microseconds: 12.34
    FACTOR = "factor"  # 1.05x
    SHARE = "share"  # 0.56 as 56 %
    DIFFERENCE = "difference"  # 0.0123 as +1.2 %
    SECONDS = "seconds"  # 1.2 s, 3 min 20 s
    BYTES = "bytes"  # 96.0 GiB
    MOMENT = "moment"  # a datetime, shown in UTC to the second


class Mark(StrEnum):
    """What a cell looks like, and never by colour alone: each is said in the legend, and read out in the cell.

    `heat-0` to `heat-8` are steps of a scale, least to most; a view chooses them with `heat`.
    """

    HEAT_0 = "heat-0"
    HEAT_1 = "heat-1"
    HEAT_2 = "heat-2"
    HEAT_3 = "heat-3"
    HEAT_4 = "heat-4"
    HEAT_5 = "heat-5"
    HEAT_6 = "heat-6"
    HEAT_7 = "heat-7"
    HEAT_8 = "heat-8"
    TIE = "tie"  # hatched: cannot be told apart from the default
    UNTUNED = "untuned"  # grey
    REFERENCE = "reference"  # published by somebody else: dashed outline
    ESTIMATE = "estimate"  # a latency model's: dotted outline
    SERVED = "served"  # bold
    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"


def heat(value: float, edges: Sequence[float]) -> Mark:
    """The step of a scale: as many of its (at most 8, ascending) edges as `value` reaches."""
    return Mark(f"heat-{sum(value >= edge for edge in edges[:8])}")


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        name: in CSV and JSON, with its unit: `time_us`, `speedup`.
        title: its heading: `µs`, `speed-up`.
        kind: how values are written.
        help: one sentence for who does not know the heading; empty if it speaks for itself.
    """

    name: str
    title: str
    kind: Kind = Kind.TEXT
    help: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with more to it than the value.

    Attributes:
        value: as in CSV and JSON. text: shown instead of the formatted value; empty for that.
        link: where it leads, a path with query of this service; empty for nowhere.
        marks: what it looks like. note: a few words more, shown small beside it and read out: the interval, why.
    """

    value: Value
    text: str = ""
    link: str = ""
    marks: tuple[Mark, ...] = ()
    note: str = ""


Row = Sequence[Value | Cell]


class Layout(StrEnum):
    """How a table is laid out."""

    ROWS = "rows"
    GRID = "grid"  # the heatmap: the first column is a row's heading, the others are its cells
    PAIRS = "pairs"  # two columns, name and value


@dataclass(frozen=True, slots=True)
class Table:
    """A table. It has a CSV and a JSON of its own, under the page's address.

    Attributes:
        name: in addresses and files, unique on its page: `gains`.
        title: what it shows, also its caption.
        columns: its columns.
        rows: one value or Cell a column. At most MAX_ROWS.
        layout: see Layout.
        legend: what marks mean, in order.
        more: address of the next page of rows; empty on the last.
        note: a sentence below it; empty for none.
        empty: what is said where there are no rows.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    layout: Layout = Layout.ROWS
    legend: tuple[tuple[tuple[Mark, ...], str], ...] = ()
    more: str = ""
    note: str = ""
    empty: str = "Nothing yet."


MAX_ROWS = 2000
"""Most rows of a table, and so most points of a figure: what is drawn of more is thinned where it is read."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture of a table, as Plotly draws it.

    Attributes:
        name: unique on its page.
        alt: what it shows in a sentence, for who does not see it.
        traces: Plotly's, made of the table's values alone. A colour is a role that the style sheet decides, light or
            dark: `@1` to `@8` for series, `@text`, `@muted`, `@reference`, `@good`, `@bad`, `@band` (a pale area).
            `customdata` holds an address for each point that leads somewhere.
        layout: Plotly's, without colours, fonts, margins and sizes, which are the same for all.
        height_px: how high it is.
    """

    name: str
    alt: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height_px: int = 380


@dataclass(frozen=True, slots=True)
class Command:
    """Something to copy: a command, or a line of curl.

    Attributes:
        label: what it does. text: the command itself, as it is typed.
    """

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page.

    Attributes:
        heading: its heading; empty for the only one of a page.
        text: sentences above everything, a paragraph each.
        figure: a picture of `table`. table: the numbers.
        folded: whether the table is folded away, below the figure if there is one.
        commands: to copy.
        anchor: its id in addresses (`#trust`); empty for none.
    """

    heading: str = ""
    text: tuple[str, ...] = ()
    figure: Figure | None = None
    table: Table | None = None
    folded: bool = False
    commands: tuple[Command, ...] = ()
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """A value that a filter offers.

    Attributes:
        value: in the address; empty for any. label: what is shown.
    """

    value: str
    label: str


@dataclass(frozen=True, slots=True)
class Filter:
    """A choice above a page, sent as a parameter of its address.

    Attributes:
        name: the parameter. label: what is shown. value: what is chosen.
        options: what there is; empty for a text field. At most 200, the chosen one among them.
    """

    name: str
    label: str
    value: str
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do now: on a page with nothing to show, or where there is more to know.

    Attributes:
        text: a sentence. command: to type; empty for none. link: an address of this service; empty for none.
    """

    text: str
    command: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A page.

    Attributes:
        title: its title, of the page and of what it is about.
        sections: what it shows.
        filters: what can be chosen.
        next_steps: what to do where there is nothing to show; shown before the sections.
        lead: a sentence that answers the page's question in numbers; empty if there is none.
        warnings: what casts doubt on what it shows, a sentence each.
        refresh_s: seconds until it asks for itself again, while something in it still changes; None for never.
    """

    title: str
    sections: tuple[Section, ...] = ()
    filters: tuple[Filter, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    lead: str = ""
    warnings: tuple[str, ...] = ()
    refresh_s: int | None = None
