"""A search of one problem: best so far against trials beside the same trials in random order, and what that advises."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .....db.dashboard.progress import Found, Progress
from .....kernels.backend import config_key
from .....tuner.random_baseline import expected_best, expected_draws
from .....tuner.select import MIN_GAIN
from ...measures import share_text
from ...model import MAX_ROWS, Cell, Column, Figure, Kind, Mark, Row, Table
from ...table_values import number_of, records, value_of
from ...verdicts import band

COLOURS = ("@1", "@2", "@3", "@4", "@5", "@6", "@7", "@8")

IN_TIME = 0.9
"""A search that ended before this share of its seconds, and before its trials were out, had nothing left to try."""

TOP = 4.0
"""The picture ends at this many times the best: beyond, nothing can be told apart that matters."""

ENOUGH = 20
"""Trials from which a search can look settled: before, it has hardly come past its defaults, its seeds and the
sampler's own random trials (`search.STARTUP_TRIALS`)."""

RANDOM_WORDS = (
    "The dashed line is calculated, not measured: what the best would be on average if the same trials had been made "
    "in random order, failures included."
)
BIASED = (
    "The search chose most of them, so good ones are many: random search would have had to find them first. The line "
    "flatters it, and a search that stays below the line did better than it looks."
)
FAIR = (
    "All but the defaults and seeds were enumerated in random order, so the line is what random search of this space "
    "would do."
)


def best_after(progress: Progress, draws: int) -> float | None:
    """The best after so many draws, microseconds; None if nothing had run."""
    best = None
    for one in progress.drawn:
        if one.draw > draws:
            break
        best = one.best_us
    return best


def steps_table(progress: Progress) -> Table:
    """The trials that improved on the best, and an even choice of the others."""
    shown = progress.drawn
    if len(shown) > MAX_ROWS:
        shown = tuple(shown[i * (len(shown) - 1) // (MAX_ROWS - 1)] for i in range(MAX_ROWS))
    randoms = expected_best(
        progress.times_us, max(0, progress.n_draws - len(progress.times_us)), [one.draw for one in shown]
    )
    rows: list[Row] = [
        (
            one.draw,
            one.backend,
            one.origin,
            Cell(one.time_us, marks=(Mark.GOOD,) if one.improved else ()),
            one.best_us,
            random_us,
        )
        for one, random_us in zip(shown, randoms, strict=True)
    ]
    notes = []
    if not progress.are_all:
        notes.append(f"Of so many trials {progress.n_draws:,} are looked at, spread evenly.")
    if len(shown) < progress.n_draws:
        notes.append(
            f"{len(shown):,} of {progress.n_draws:,} trials are drawn, all that improved on the best among them: the "
            "line of the best is exact."
        )
    return Table(
        "steps",
        "The best so far, trial by trial",
        (
            Column("trial", "trial", Kind.INTEGER, "Its place in the search, from 1; the finals are not counted."),
            Column("backend", "backend", Kind.CODE),
            Column("origin", "why tried", help="default, seed (known from elsewhere), sampler, enumerated."),
            Column("time_us", "µs", Kind.TIME_US, "Its median; a dash if it did not run."),
            Column("best_us", "best so far µs", Kind.TIME_US, "Of what can be served, up to this trial."),
            Column("random_us", "in random order µs", Kind.TIME_US, "Calculated: the expected best of so many."),
        ),
        rows,
        legend=(((Mark.GOOD,), "better than all before"),),
        note=" ".join(notes),
        empty="No trial of this problem has ended yet.",
    )


def steps_figure(table: Table) -> Figure | None:
    """Times as points, the best as a step line, random order dashed; None if nothing ran."""
    rows = records(table)
    ran = [row for row in rows if (number_of(row["time_us"]) or 0.0) > 0]
    if not ran:
        return None
    backends = sorted({str(value_of(row["backend"])) for row in ran})
    traces: list[dict[str, Any]] = []
    for i, backend in enumerate(backends):
        own = [row for row in ran if value_of(row["backend"]) == backend]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": backend,
                "x": [number_of(row["trial"]) for row in own],
                "y": [number_of(row["time_us"]) for row in own],
                "marker": {"color": COLOURS[i % len(COLOURS)], "size": 7},
                "opacity": 0.8,
                "hovertemplate": "trial %{x}: %{y:.4g} µs",
            }
        )
    lines = (
        ("best so far", "best_us", "hv", "solid", "@text"),
        ("in random order", "random_us", "linear", "dash", "@bad"),
    )
    for name, column, shape, dash, colour in lines:
        own = [row for row in rows if number_of(row[column]) is not None]
        if own:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "x": [number_of(row["trial"]) for row in own],
                    "y": [number_of(row[column]) for row in own],
                    "line": {"color": colour, "width": 2, "shape": shape, "dash": dash},
                    "hovertemplate": "after %{x} trials: %{y:.4g} µs",
                }
            )
    y_axis: dict[str, Any] = {"title": {"text": "time of one call, µs"}}
    alt = f"Times of trials of {len(backends)} backends, the best so far as steps, and random order dashed."
    times = [number_of(row["time_us"]) or 0.0 for row in ran]
    bests = [best for row in rows if (best := number_of(row["best_us"])) is not None]
    top = TOP * min(bests, default=min(times))
    above = sum(time_us > top for time_us in times)
    if above and math.isfinite(top):
        y_axis["range"] = [0.9 * min(times), top]
        are, them = ("is", "it") if above == 1 else ("are", "them")
        alt += f" {_trials(above)} slower than {TOP:.0f} times the best {are} above its edge: zoom out to see {them}."
    layout = {"xaxis": {"title": {"text": "trial"}}, "yaxis": y_axis, "legend": {"orientation": "h"}}
    return Figure("steps", alt, traces, layout, height_px=420)


def quarters_table(progress: Progress, counts: float = MIN_GAIN) -> Table:
    """What each quarter of the trials brought; a gain from `counts` on is marked."""
    n = progress.n_draws
    ends = sorted({max(1, n * part // 4) for part in range(1, 5)}) if n else []
    randoms = expected_best(progress.times_us, max(0, n - len(progress.times_us)), ends)
    rows: list[Row] = []
    earlier: float | None = None
    for end, random_us in zip(ends, randoms, strict=True):
        best = best_after(progress, end)
        gain = gain_of(earlier, best)
        rows.append(
            (end, best, Cell(gain, marks=(Mark.GOOD,) if gain is not None and gain >= counts else ()), random_us)
        )
        earlier = best
    return Table(
        "quarters",
        "What each quarter of the trials brought",
        (
            Column("trials", "after trials", Kind.INTEGER),
            Column("best_us", "best µs", Kind.TIME_US),
            Column("gain", "faster by", Kind.SHARE, "Over the best a quarter before."),
            Column("random_us", "in random order µs", Kind.TIME_US, "Calculated: see the picture above."),
        ),
        rows,
        legend=(((Mark.GOOD,), f"{share_text(counts)} or more, which is what counts"),),
        empty="No trial of this problem has ended yet.",
    )


def finals_table(progress: Progress, served: Found | None) -> Table:
    """The re-measurements, fastest first; `served` is what the run served."""
    key = None if served is None else (served.backend, config_key(served.config))
    ordered = sorted(progress.finals, key=lambda one: (one.time_us is None, one.time_us or 0.0, one.number))
    return Table(
        "finals",
        "The finals: measured again, in turns",
        (
            Column("backend", "backend", Kind.CODE),
            Column("time_us", "µs", Kind.TIME_US),
            Column("time_us_low", "low µs", Kind.TIME_US, "Lower end of the median's 95 % interval."),
            Column("time_us_high", "high µs", Kind.TIME_US, "Upper end of it."),
            Column("config", "config", Kind.CODE),
        ),
        [
            (
                Cell(one.backend, marks=(Mark.SERVED,) if (one.backend, config_key(one.config)) == key else ()),
                one.time_us,
                one.time_us_low,
                one.time_us_high,
                config_key(one.config),
            )
            for one in ordered
        ],
        legend=(((Mark.SERVED,), "what this run served"),),
        note="The fastest of many trials looks a little faster than it is, so the best ones are measured again beside "
        "the defaults: these times decide, those of the search do not.",
        empty="No finals: the search has not come to its end, or nothing ran that could be served.",
    )


def gain_of(before: float | None, after: float | None) -> float | None:
    """By how much less time the later one takes: 0.01 for one percent; None if either is missing."""
    return before / after - 1 if before is not None and after is not None and after > 0 else None


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether more tuning is worth it.

    Attributes:
        lead: the answer with its numbers.
        goes_on: whether more trials are worth a try.
        is_exhausted: whether there was nothing left to try.
        facts: further numbers, a sentence each.
    """

    lead: str
    goes_on: bool
    is_exhausted: bool
    facts: tuple[str, ...]


def what_counts(settings: Mapping[str, Any]) -> float:
    """By how much less time counts, 0.01 for 1 %: what two trials, of two moments, can be told apart by."""
    policy = settings.get("policy")
    return band(policy) if isinstance(policy, str) and policy else MIN_GAIN


def advise(progress: Progress, n_ties: int | None, settings: Mapping[str, Any], *, ended: bool) -> Advice:
    """What a search so far says of more of it.

    What the last quarter brought is no forecast: of trials in random order the best is among the last quarter one time
    in four, whatever is left to find. So it says what happened, and how far that goes: `may`, `unlikely`.

    Args:
        progress: of the problem.
        n_ties: size of the tie set of what the run served; None if it served nothing.
        settings: of the run.
        ended: whether the run came to an end with the problem.
    """
    n = progress.n_draws
    best = best_after(progress, n)
    if best is None:
        tried = "Nothing was tried yet" if not n else f"None of {_trials(n)} ran that could be served"
        return Advice(f"{tried}, so nothing can be said of more.", n == 0, is_exhausted=False, facts=())
    counts = what_counts(settings)
    n_last = max(1, n // 4)
    last, half = (gain_of(best_after(progress, n - some), best) for some in (n_last, n - n // 2))
    brought = f"the last {n_last:,} of {_trials(n)} brought {_percent(last)}"
    ties = "" if n_ties is None else f"; the tie set has {n_ties}"
    exhausted = ended and _is_exhausted(progress, settings)
    if exhausted:
        said = (
            f"No: after {_trials(n)} there was nothing left to try, with trials and seconds to spare; {brought}{ties}."
        )
    elif not ended:
        said = f"The search has not come to its end: {brought}{ties}."
    elif last is None or last >= counts:
        said = f"Perhaps: {brought}{ties}. It still got faster when it ended, so more trials may pay."
    elif n < ENOUGH:
        said = f"Too early to say: {brought}{ties}. So few trials do not show whether more would pay."
    else:
        said = f"Hardly: {brought}{ties}. A gain of {share_text(counts)} counts, so more trials are unlikely to pay."
    goes_on = not exhausted and (not ended or last is None or last >= counts or n < ENOUGH)
    return Advice(said, goes_on, exhausted, tuple(_facts(progress, best, half, counts)))


def _facts(progress: Progress, best: float, half: float | None, counts: float) -> Sequence[str]:
    n = progress.n_draws
    found_at = next((one.draw for one in progress.drawn if one.best_us == best), n)
    near_at = next((one.draw for one in progress.drawn if one.best_us and one.best_us <= (1 + counts) * best), n)
    facts = [
        f"The best was found by trial {found_at:,} of {n:,}; the second half of the trials brought {_percent(half)}.",
    ]
    near = sum(time_us <= (1 + counts) * best for time_us in progress.times_us)
    within = share_text(counts)
    if near == 1:
        facts.append(
            f"No other trial came within {within} of it: it was found once, so a better one may have been missed."
        )
    elif near:
        facts.append(
            f"The first within {within} of it came at trial {near_at:,}; in random order it would have come at trial "
            f"{expected_draws(n, near):,.0f} on average, as {near:,} of the {_trials(n)} are that good."
        )
    if failed := n - progress.n_ran - progress.n_baselines:
        facts.append(f"{_trials(failed)} did not run; what failed is told on the page of failures.")
    if progress.n_baselines:
        facts.append(
            f"{progress.n_baselines:,} of the {_trials(n)} measured what others are compared with. That cannot be "
            "served, so it is no best so far."
        )
    return facts


def _is_exhausted(progress: Progress, settings: Mapping[str, Any]) -> bool:
    """Whether a search that ended had trials and seconds left: then its candidates were out."""
    trials, budget_s = settings.get("trials"), settings.get("budget_s")
    if progress.first_at is None or progress.last_at is None or not progress.are_all:
        return False
    if type(trials) is not int or not isinstance(budget_s, int | float):
        return False
    took_s = (progress.last_at - progress.first_at).total_seconds()
    return progress.n_draws < trials and took_s < IN_TIME * budget_s


def _percent(gain: float | None) -> str:
    if gain is None:
        return "all there is"
    return "nothing" if gain == 0 else share_text(gain) if gain >= 0.0005 else "less than 0.1 %"


def _trials(n: int) -> str:
    return f"{n:,} trial{'s' * (n != 1)}"
