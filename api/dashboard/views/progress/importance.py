"""Which parameters of a backend mattered to a search, as a table and its bars."""

from __future__ import annotations

from collections.abc import Sequence

from .....tuner.importance import Importance, Importances
from ...model import Cell, Column, Figure, Kind, Mark, Section, Table
from ...table_values import number_of, records, value_of

MAX_VALUES = 16
"""Most values of a parameter that are listed."""

WORDS = (
    "Optuna's importances (PED-ANOVA): how far a parameter's values among the fastest trials are from its values among "
    "all of them, as a share of what all parameters show. They are about this search: a parameter that it hardly "
    "varied cannot show that it matters."
)


def importance_section(found: Importances, backend: str) -> Section:
    """The section about one backend."""
    table = importance_table(found, backend)
    text: tuple[str, ...] = (WORDS,)
    if found.parameters and all(one.may_be_chance for one in found.parameters):
        text = (
            WORDS,
            f"{found.n_trials:,} trials are too few here: any of these may be chance. More of them would tell.",
        )
    if found.why_not:
        text = (f"{backend}: {found.why_not}",) if backend else (found.why_not,)
    return Section(
        "Which parameters matter", text, importance_figure(table), table if table.rows else None, anchor="importance"
    )


def importance_table(found: Importances, backend: str) -> Table:
    """Most important first, then what never varied."""
    rows = [_row(one) for one in found.parameters]
    fixed = ", ".join(f"{name} = {value}" for name, value in found.fixed[:MAX_VALUES])
    said = f"Of {found.n_trials:,} trials of {backend} the fastest {found.n_top:,} count as fast."
    return Table(
        "importance",
        f"Which parameters of {backend} matter",
        (
            Column("parameter", "parameter", Kind.CODE),
            Column("importance", "importance", Kind.SHARE, "Its share of what all parameters show."),
            Column("best", "in the best", Kind.CODE, "Its value in the fastest trial."),
            Column("values", "values tried", Kind.CODE, "In the order of the fastest trial with each."),
            Column(
                "chance",
                "by chance",
                Kind.SHARE,
                "How often as many trials picked at random differ from all as much as the fastest do. Of 20 parameters "
                "that do not matter, one is below 5 %.",
            ),
        ),
        rows,
        legend=(((Mark.UNSURE,), "may be chance: so few trials show as much where there is nothing"),),
        note=f"{said} Never varied: {fixed}." if fixed else said,
        empty=found.why_not or "Nothing yet.",
    )


def importance_figure(table: Table) -> Figure | None:
    """Bars, the longest on top; None without any."""
    rows = records(table)
    if not rows:
        return None
    traces = []
    for name, unsure, colour in (("unlikely to be chance", False, "@1"), ("may be chance", True, "@muted")):
        own = [row for row in rows if _is_unsure(row["importance"]) is unsure]
        if own:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "y": [str(value_of(row["parameter"])) for row in own],
                    "x": [100 * (number_of(row["importance"]) or 0.0) for row in own],
                    "marker": {"color": colour},
                    "hovertemplate": "%{y}: %{x:.1f} %",
                }
            )
    layout = {
        "xaxis": {"title": {"text": "importance, %"}, "rangemode": "tozero"},
        "yaxis": {
            "type": "category",
            "autorange": "reversed",
            "automargin": True,
            "categoryorder": "array",
            "categoryarray": [str(value_of(row["parameter"])) for row in rows],
        },
        "barmode": "overlay",
        "legend": {"orientation": "h"},
    }
    alt = f"Bars: importance of {len(rows)} parameters, most important first."
    return Figure("importance", alt, traces, layout, height_px=150 + 26 * len(rows))


def _row(one: Importance) -> Sequence[str | float | Cell]:
    more = f" and {len(one.values) - MAX_VALUES} more" if len(one.values) > MAX_VALUES else ""
    share = Cell(one.share, marks=(Mark.UNSURE,) if one.may_be_chance else ())
    return (one.name, share, one.best, ", ".join(one.values[:MAX_VALUES]) + more, one.chance)


def _is_unsure(cell: object) -> bool:
    return isinstance(cell, Cell) and Mark.UNSURE in cell.marks
