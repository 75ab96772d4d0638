"""Tables of what a served config was compared with: the finals, conditions, numerics, and what other runs served."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .....db.dashboard.trust import Earlier, Evidence, Final
from .....kernels.backend import config_key
from .....tuner.stats import Interval, paired_ratio
from ....results.agreement import Verdict, verdict_on
from ...choices import environment_label
from ...formatting import format_value
from ...links import link
from ...model import Cell, Column, Figure, Kind, Mark, Row, Table, Value
from ...numerics import allowed
from ...table_values import number_of, records, value_of
from .doubts import NEAR_LIMIT
from .samples import Entrant

FAR = 1.2
"""The picture of the finals ends so far beyond what is tied and the default; slower ones matter to nobody."""

_ENDS = ("time_us_low", "time_us_high")

VERDICTS = {Verdict.SAME: Mark.GOOD, Verdict.TIED: Mark.GOOD, Verdict.DIFFERENT: Mark.BAD}


def finals_table(found: Sequence[Entrant]) -> Table:
    """What was measured in the same rounds, and whether it can be told apart from what is served."""
    served = next((one.final for one in found if one.is_served), None)
    return Table(
        "finals",
        "What was measured in the same rounds",
        (
            Column("config", "in the finals"),
            Column("tied", "tied", help="Whether it cannot be told apart from the fastest: the tie set."),
            Column("backend", "backend", Kind.CODE),
            Column("time_us", "µs", Kind.TIME_US, "The median over its samples."),
            Column("time_us_low", "low µs", Kind.TIME_US, "Lower end of the median's 95 % interval."),
            Column("time_us_high", "high µs", Kind.TIME_US, "Upper end of it."),
            Column("overlaps", "overlaps", help="Whether its interval overlaps that of what is served."),
            Column(
                "over_served",
                "over served",
                Kind.DIFFERENCE,
                "How much longer it takes, round by round, with its 95 % interval: what decides who is tied.",
            ),
            Column("values", "its config", Kind.CODE),
        ),
        [_final_row(one, served) for one in found],
        legend=(((Mark.SERVED,), "served"), ((Mark.TIE,), "tied with the fastest")),
        note="Tied is what the fastest does not beat, which takes being faster beyond the noise and by at least 1 %, "
        "round by round. Intervals that overlap prove no tie: what slows a whole round widens both.",
        empty="The trials of the finals are not in this database.",
    )


def finals_figure(table: Table) -> Figure | None:
    """The intervals side by side; None if nothing ran."""
    rows = [row for row in records(table) if (number_of(row["time_us"]) or 0.0) > 0]
    if not rows:
        return None
    traces = []
    for name, wanted, colour in (("tied with the fastest", True, "@good"), ("not tied", False, "@muted")):
        own = [row for row in rows if (value_of(row["tied"]) is True) is wanted]
        times = [number_of(row["time_us"]) or 0.0 for row in own]
        if own:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": times,
                    "y": [f"{value_of(row['config'])}: {value_of(row['backend'])}" for row in own],
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": [(number_of(row["time_us_high"]) or t) - t for row, t in zip(own, times, strict=True)],
                        "arrayminus": [
                            t - (number_of(row["time_us_low"]) or t) for row, t in zip(own, times, strict=True)
                        ],
                    },
                    "marker": {"color": colour, "size": 9, "symbol": "circle" if wanted else "circle-open"},
                    "hovertemplate": "%{y}<br>%{x:.4g} µs<extra></extra>",
                }
            )
    order = [f"{value_of(row['config'])}: {value_of(row['backend'])}" for row in rows]
    x_axis: dict[str, Any] = {"title": {"text": "time of one call, µs, with its 95 % interval"}}
    alt = f"Medians of {len(rows)} configs of the finals with their 95 % intervals; those that are tied are filled."
    ends = [end for row in rows for name in _ENDS if (end := number_of(row[name])) is not None and math.isfinite(end)]
    matters = [number_of(row["time_us_high"]) or 0.0 for row in rows if _matters(row)]
    right = FAR * max(matters, default=0.0)
    beyond = sum((number_of(row["time_us"]) or 0.0) > right for row in rows)
    if beyond and ends and math.isfinite(right) and right > 0:
        x_axis["range"] = [0.98 * min(ends), right]
        said = "1 slower one is" if beyond == 1 else f"{beyond} slower ones are"
        alt += f" {said} beyond its right edge: zoom out to see more."
    layout = {
        "xaxis": x_axis,
        "yaxis": {
            "type": "category",
            "autorange": "reversed",
            "automargin": True,
            "categoryorder": "array",
            "categoryarray": order,
        },
        "legend": {"orientation": "h"},
    }
    return Figure("finals", alt, traces, layout, height_px=150 + 26 * len(rows))


def conditions_table(found: Sequence[Entrant]) -> Table:
    """What the card was like meanwhile."""
    seen = [one for one in found if one.final.conditions is not None]
    return Table(
        "conditions",
        "What the card was like meanwhile",
        (
            Column("config", "config"),
            Column("sm_clock_low_mhz", "SM clock, least MHz", Kind.INTEGER),
            Column("sm_clock_high_mhz", "most MHz", Kind.INTEGER),
            Column("memory_clock_low_mhz", "memory clock, least MHz", Kind.INTEGER),
            Column("memory_clock_high_mhz", "most MHz", Kind.INTEGER),
            Column("temperature_c", "°C", Kind.INTEGER, "The highest that was seen."),
            Column("power_w", "W", Kind.NUMBER, "The highest that was seen; the driver's average over up to a second."),
            Column("throttled", "throttled", Kind.INTEGER, "Samples around which something held the clocks back."),
            Column("reasons", "held back by", help="The driver's names: sw_power_cap is the power limit."),
        ),
        [_conditions_row(one) for one in seen],
        legend=(((Mark.BAD,), "throttled"),),
        note="Read from the driver while kernels ran. Idling, and clocks that somebody set, are no throttling.",
        empty="Nobody looked: there is nothing to read on a CPU, and on a GPU it takes NVIDIA's bindings "
        "(pip install 'fp4tune[cuda]').",
    )


def numerics_table(found: Sequence[Entrant], evidence: Evidence) -> Table:
    """How far the results were from the reference."""
    limit = allowed(evidence.winner.problem)
    return Table(
        "numerics",
        "How right the results were",
        (
            Column("config", "config"),
            Column("rel_error", "relative error", Kind.NUMBER, "The largest that the gate saw, over the whole result."),
            Column("allowed", "allowed", Kind.NUMBER, "Beyond, a config is wrong, and is not timed."),
            Column("share", "of what is allowed", Kind.SHARE),
        ),
        [_numerics_row(one, limit) for one in found if one.final.rel_error is not None],
        legend=(((Mark.UNSURE,), "near what is allowed"),),
        note="Before a config is timed, its results are compared with a reference that multiplies the same quantised "
        "operands in FP32: three times alone, three times as it is timed, over all and tile by tile. What is allowed "
        "is what rounding can amount to.",
        empty="No errors were kept.",
    )


def agreement_table(evidence: Evidence) -> Table:
    """What other runs in this environment served."""
    here = evidence.winner.environment.fingerprint
    others = [one for one in evidence.others if one.environment.fingerprint == here]
    return Table(
        "agreement",
        "Other runs in this environment",
        (
            *_RUN_COLUMNS,
            Column("over_served", "over this one", Kind.DIFFERENCE, "Its time over the one that is served now."),
            Column("values", "its config", Kind.CODE),
        ),
        [
            (*_run_cells(evidence, one), _over(one.choice.time_us, evidence.winner.choice.time_us), _text(one))
            for one in others
        ],
        legend=_AGREE_LEGEND,
        note="Two runs are measured at two hours, in other processes: 1 % between them is no difference."
        + (" Older ones are left out." if evidence.more_others else ""),
        empty="No other run has tuned this problem here and stored what it found.",
    )


def elsewhere_table(evidence: Evidence) -> Table:
    """What runs in other environments of the device served."""
    here = evidence.winner.environment.fingerprint
    others = [one for one in evidence.others if one.environment.fingerprint != here]
    return Table(
        "elsewhere",
        "Runs in other environments of this device",
        (*_RUN_COLUMNS, Column("environment", "environment"), Column("values", "its config", Kind.CODE)),
        [
            (
                *_run_cells(evidence, one),
                Cell(
                    environment_label(one.environment),
                    link=link("trust", problem=evidence.winner.problem.key, environment=one.environment.fingerprint,
                              policy=evidence.winner.policy),
                ),
                _text(one),
            )
            for one in others
        ],
        legend=_AGREE_LEGEND,
        note="Other versions may make another config the fastest: here a different choice is no contradiction, and "
        "times are not compared."
        + (" Older ones are left out." if evidence.more_others else ""),
        empty="This problem was tuned in no other environment of this device.",
    )  # fmt: skip


_RUN_COLUMNS = (
    Column("run", "run", Kind.CODE),
    Column("created_at", "stored", Kind.MOMENT),
    Column("verdict", "it served", help="Tied: its config is in this one's tie set, or this one is in its."),
    Column("backend", "backend", Kind.CODE),
    Column("time_us", "µs", Kind.TIME_US, "Its time there and then."),
)

_AGREE_LEGEND = (
    ((Mark.GOOD,), "the same, or inside the tie set"),
    ((Mark.BAD,), "another config"),
    ((Mark.UNSURE,), "another config, in another environment"),
)


def _final_row(one: Entrant, served: Final | None) -> Row:
    final = one.final
    marks = (Mark.SERVED,) if one.is_served else (Mark.TIE,) if one.is_tied else ()
    ratio = None if served is None or one.is_served else _ratio(final, served)
    if ratio is None:
        over = Cell(None)
    else:
        low, high = (format_value(end - 1, Kind.DIFFERENCE) for end in (ratio.low, ratio.high))
        over = Cell(ratio.median - 1, note=f"{low} to {high}")
    return (
        Cell(one.label, marks=marks),
        one.is_tied,
        final.backend,
        final.time_us if final.time_us is not None else Cell(None, note=final.error.split("\n", 1)[0]),
        final.time_us_low,
        final.time_us_high,
        None if served is None or one.is_served else _overlaps(final, served),
        over,
        config_key(final.config),
    )


def _matters(row: Mapping[str, Value | Cell]) -> bool:
    """Whether a final is served, tied or the default."""
    return value_of(row["tied"]) is True or str(value_of(row["config"])).startswith(("served", "default"))


def _ratio(final: Final, served: Final) -> Interval | None:
    """How many times as long as what is served, round by round; None where rounds cannot be told."""
    mine, theirs = final.samples_us, served.samples_us
    if not mine or len(mine) != len(theirs) or final.n_samples != served.n_samples:
        return None
    if not all(0 < one < float("inf") for one in (*mine, *theirs)):
        return None
    return paired_ratio(mine, theirs)


def _overlaps(one: Final, other: Final) -> bool | None:
    ends = (one.time_us_low, one.time_us_high, other.time_us_low, other.time_us_high)
    low, high, other_low, other_high = ends
    if low is None or high is None or other_low is None or other_high is None:
        return None
    return low <= other_high and other_low <= high


def _conditions_row(one: Entrant) -> Row:
    seen = one.final.conditions
    if seen is None:
        return (one.label, *(None,) * 8)
    n_throttled = len(seen.throttled_samples)
    return (
        one.label,
        *(seen.sm_clock_mhz or (None, None)),
        *(seen.memory_clock_mhz or (None, None)),
        seen.temperature_c,
        seen.power_w,
        Cell(n_throttled, marks=(Mark.BAD,) if n_throttled else ()),
        ", ".join(seen.throttle_reasons) or "nothing",
    )


def _numerics_row(one: Entrant, limit: float) -> Row:
    share = (one.final.rel_error or 0.0) / limit
    return (one.label, one.final.rel_error, limit, Cell(share, marks=(Mark.UNSURE,) if share > NEAR_LIMIT else ()))


def _run_cells(evidence: Evidence, other: Earlier) -> Row:
    verdict = verdict_on(evidence.winner, other)
    mark = VERDICTS[verdict]
    if mark is Mark.BAD and other.environment.fingerprint != evidence.winner.environment.fingerprint:
        mark = Mark.UNSURE
    choice = other.choice
    ends = f"{format_value(choice.time_us_low, Kind.TIME_US)} to {format_value(choice.time_us_high, Kind.TIME_US)}"
    return (
        Cell(other.run_id, link=link("run", run=other.run_id)),
        other.created_at,
        Cell(verdict.value, marks=(mark,)),
        choice.backend,
        Cell(choice.time_us, note=ends),
    )


def _over(time_us: float, served_us: float) -> float | None:
    return time_us / served_us - 1 if served_us > 0 else None


def _text(other: Earlier) -> str:
    return config_key(other.choice.config)
