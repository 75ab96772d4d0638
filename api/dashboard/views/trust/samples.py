"""The samples of what is served and of what it was compared with: a table, its picture, and how they are spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .....db.dashboard.trust import Evidence, Final
from .....db.records import Choice
from .....kernels.backend import config_key
from ...model import Cell, Column, Figure, Kind, Mark, Row, Table
from ...near import Record, left_out, split
from ...table_values import number_of, records, value_of
from .spread import spread

MOST = 1200
"""Most samples that are drawn; of more, of every config as many, spread evenly."""

COLOURS = ("@1", "@2", "@3", "@4", "@5", "@6", "@7", "@8")


@dataclass(frozen=True, slots=True)
class Entrant:
    """A config of the finals with what it is there.

    Attributes:
        final: what was measured. label: `served`, `default`, `tied 1`, `other 1`.
        is_served, is_tied: whether it is what is served, or tied with the fastest.
    """

    final: Final
    label: str
    is_served: bool
    is_tied: bool


def entrants(evidence: Evidence) -> list[Entrant]:
    """The configs of the finals: the served one, the default, those that are tied, and the others, fastest first."""
    winner = evidence.winner
    served, default = choice_key(winner.choice), choice_key(winner.default)
    ties = [choice_key(one) for one in winner.tie_set]
    first = {key: place for place, key in enumerate(dict.fromkeys([served, default, *ties]))}
    last = len(first)
    ordered = sorted(
        evidence.finals, key=lambda one: (first.get(one.key, last), one.time_us is None, one.time_us or 0.0, one.number)
    )
    found: list[Entrant] = []
    n_tied = n_other = 0
    for final in ordered:
        if final.key == served:
            label = "served, the default" if served == default else "served"
        elif final.key == default:
            label = "default"
        elif final.key in ties:
            n_tied += 1
            label = f"tied {n_tied}"
        else:
            n_other += 1
            label = f"other {n_other}"
        found.append(Entrant(final, label, final.key == served, final.key in ties))
    return found


def samples_table(found: Sequence[Entrant]) -> Table:
    """The samples in the order they were taken."""
    sampled = [one for one in found if one.final.samples_us]
    most = MOST // max(1, len(sampled))
    rows = [row for one in sampled for row in _sample_rows(one, most)]
    taken = sum(len(one.final.samples_us) for one in sampled)
    thinned = f" {len(rows):,} of {taken:,} samples are shown, of every config as many, spread evenly."
    return Table(
        "samples",
        "Samples, in the order they were taken",
        (
            Column("config", "config", help="What it is in the finals; the next table has the config itself."),
            Column("round", "round", Kind.INTEGER, "Samples of one round were taken right after each other."),
            Column("time_us", "µs", Kind.TIME_US, "Microseconds a call, of one sample."),
            Column("throttled", "throttled", help="Whether something held the clocks back around it."),
        ),
        rows,
        legend=(((Mark.BAD,), "throttled"),) if any(one.final.conditions for one in sampled) else (),
        note="In the finals configs take turns, in random order: what slows one round slows all of them."
        + (thinned if len(rows) < taken else ""),
        empty="No samples were kept.",
    )


def samples_figure(table: Table) -> Figure | None:
    """Time over round, a line a config, throttled samples crossed; None without samples.

    Without configs that take many times as long as what is served: beside one of 40 times, nothing else has a shape.
    """
    rows = records(table)
    if not rows:
        return None
    near, far, served_us = _near_and_far(rows)
    rows = [row for row in rows if value_of(row["config"]) in near]
    labels = list(near)
    traces: list[dict[str, Any]] = []
    for label, colour in zip(labels, COLOURS * (len(labels) // len(COLOURS) + 1), strict=False):
        own = [row for row in rows if value_of(row["config"]) == label]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label,
                "x": [number_of(row["round"]) for row in own],
                "y": [number_of(row["time_us"]) for row in own],
                "line": {"color": colour, "width": 1},
                "marker": {"color": colour, "size": 5},
                "hovertemplate": "round %{x}: %{y:.4g} µs",
            }
        )
    throttled = [row for row in rows if value_of(row["throttled"]) is True]
    if throttled:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "throttled",
                "x": [number_of(row["round"]) for row in throttled],
                "y": [number_of(row["time_us"]) for row in throttled],
                "marker": {"color": "@bad", "size": 11, "symbol": "x-thin", "line": {"color": "@bad", "width": 2}},
                "hovertemplate": "round %{x}: %{y:.4g} µs",
            }
        )
    alt = f"Time of each sample in the order taken, of {len(labels)} configs; {len(throttled)} samples were throttled."
    alt += left_out(far, "time_us", served_us, lambda row: str(value_of(row["config"])))
    times = [number_of(row["time_us"]) for row in rows]
    layout = {
        "xaxis": {"title": {"text": "round of the finals"}},
        "yaxis": {"title": {"text": "time of one call, µs"}, "type": _axis(times)},
        "legend": {"orientation": "h"},
    }
    return Figure("samples", alt, traces, layout)


def _near_and_far(rows: Sequence[Record]) -> tuple[tuple[str, ...], list[Record], float | None]:
    """(labels of configs to draw, a row with the median of each other one, median of what is served)."""
    times: dict[str, list[float]] = {}
    for row in rows:
        times.setdefault(str(value_of(row["config"])), []).append(number_of(row["time_us"]) or 0.0)
    medians: list[Record] = [
        {"config": label, "time_us": statistics.median(samples)} for label, samples in times.items()
    ]
    served = (number_of(one["time_us"]) for one in medians if str(one["config"]).startswith("served"))
    served_us = next(served, None)
    near, far = split(medians, "time_us", served_us)
    return tuple(str(one["config"]) for one in near), far, served_us


def spread_table(found: Sequence[Entrant]) -> Table:
    """How the samples of each config are spread."""
    return Table(
        "spread",
        "How far they are spread",
        (
            Column("config", "config"),
            Column("n", "samples", Kind.INTEGER, "Samples that the median is over; at most 256 of them were kept."),
            Column("least_us", "least µs", Kind.TIME_US),
            Column("quarter_us", "quarter µs", Kind.TIME_US, "A quarter of the samples are below."),
            Column("median_us", "median µs", Kind.TIME_US),
            Column("three_quarters_us", "3 quarters µs", Kind.TIME_US, "Three quarters of the samples are below."),
            Column("most_us", "most µs", Kind.TIME_US),
            Column("variation", "variation", Kind.SHARE, "Standard deviation over mean."),
            Column("half_width", "±", Kind.SHARE, "Half the 95 % interval of the median, over the median."),
            Column(
                "autocorrelation",
                "neighbours",
                Kind.NUMBER,
                "How much a sample resembles the one before, by ranks: 0 not at all, 1 entirely. Beyond chance an "
                "interval is narrower than it should be.",
            ),
            Column(
                "drift",
                "drift",
                Kind.DIFFERENCE,
                "Median of the later half over that of the earlier half; marked where a trend is more than chance.",
            ),
        ),
        [row for one in found if one.final.samples_us and (row := _spread_row(one))],
        legend=(((Mark.UNSURE,), "more than chance"),),
        empty="No samples were kept.",
    )


def _sample_rows(one: Entrant, most: int) -> list[Row]:
    final = one.final
    throttled = set(final.conditions.throttled_samples) if final.conditions else set()
    n, n_all = len(final.samples_us), max(final.n_samples, len(final.samples_us))
    chosen = range(n) if n <= most else [i * n // most for i in range(most)]
    rows: list[Row] = []
    for i in chosen:
        was = i in throttled if final.conditions else None
        time_us = Cell(final.samples_us[i], marks=(Mark.BAD,) if was else ())
        # Of more samples than are kept, those that are were chosen like this (`db.samples.pack`).
        rows.append((one.label, i * n_all // n + 1, time_us, was))
    return rows


def _spread_row(one: Entrant) -> Row | None:
    found = spread(one.final.samples_us)
    if found is None:
        return None
    return (
        one.label,
        one.final.n_samples,
        found.least,
        found.quarter,
        found.median,
        found.three_quarters,
        found.most,
        found.variation,
        found.half_width,
        Cell(found.autocorrelation, marks=(Mark.UNSURE,) if found.hangs_together else ()),
        Cell(found.drift, marks=(Mark.UNSURE,) if found.drifts else ()),
    )


def _axis(times: Sequence[float | None]) -> str:
    """`log` where times span a decade."""
    known = [one for one in times if one is not None and one > 0]
    return "log" if known and max(known) > 10 * min(known) else "linear"


def choice_key(choice: Choice) -> str:
    """Backend and config: equal for two choices if and only if they are."""
    return f"{choice.backend} {config_key(choice.config)}"


def config_text(choice: Choice) -> str:
    """A config as JSON."""
    return config_key(choice.config)
