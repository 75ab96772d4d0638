"""Did it get worse? Winners over runs and environments, with a verdict a change."""

from __future__ import annotations

from collections.abc import Sequence

from .....db.dashboard.history import (
    Changes,
    ChangesOf,
    DevicePolicy,
    History,
    HistoryOf,
    PlacesOf,
    Served,
)
from .....kernels.device import Environment
from .....kernels.errors import NotFoundError
from ....dashboard import changes as of
from ....results.figures import shape_text
from ...choices import MAX_OPTIONS, TUNE_FIRST
from ...links import link
from ...model import Cell, Column, Filter, Kind, Mark, NextStep, Option, Row, Section, Table, View
from ...page import CURSOR, DEVICE, POLICY, PROBLEM, Asked, Context, Page, address
from ...place_filters import device_label
from ...verdicts import LEGEND, Verdict
from .figure import history_figure

ROWS = 200
"""Rows of a page: as many as are shown of a table."""

_AGAIN = 20
"""Most problems in one command."""


def view(context: Context, asked: Asked) -> View:
    """The page: a problem's history, or the last change of every problem."""
    key = asked.get(PROBLEM)
    places = context.store.ask(PlacesOf(key or None))
    if not places:
        return View("History", next_steps=(TUNE_FIRST,))
    chosen = _chosen(places, asked)
    return _problem(context, asked, places, chosen, key) if key else _list(context, asked, places, chosen)


def _chosen(places: Sequence[DevicePolicy], asked: Asked) -> DevicePolicy:
    """The device and policy that the address names, or else those that were used last."""
    device, policy = asked.get(DEVICE), asked.get(POLICY)
    for place in places:
        if device in ("", place.device.fingerprint) and policy in ("", place.policy):
            return place
    said = [f"device {device}"] * bool(device) + [f"policy {policy}"] * bool(policy)
    what = " of this problem" if asked.get(PROBLEM) else ""
    raise NotFoundError(f"No winner{what} is stored for {' and '.join(said)}.")


def _filters(
    places: Sequence[DevicePolicy], chosen: DevicePolicy, problems: Sequence[str], key: str
) -> tuple[Filter, ...]:
    devices = {one.device.fingerprint: one.device for one in [chosen, *places]}
    policies = sorted({one.policy for one in places if one.device.fingerprint == chosen.device.fingerprint})
    keys = list(dict.fromkeys([*([key] if key else []), *problems]))[: MAX_OPTIONS - 1]
    return (
        Filter(
            DEVICE.name, "Device", chosen.device.fingerprint,
            tuple(Option(one, device_label(device, one)) for one, device in devices.items())[:MAX_OPTIONS],
        ),
        Filter(POLICY.name, "Measured by", chosen.policy, tuple(Option(one, one) for one in policies)),
        Filter(
            PROBLEM.name, "Problem", key,
            (Option("", "all: the last change of each"), *(Option(one, _name(one)) for one in keys if one)),
        ),
    )  # fmt: skip


def _name(key: str) -> str:
    problem = of.problem_of(key)
    return shape_text(problem) if problem else key


# Every problem


def _list(context: Context, asked: Asked, places: Sequence[DevicePolicy], chosen: DevicePolicy) -> View:
    newest_id, offset = _position(context, asked)
    found = context.store.ask(ChangesOf(chosen.device.fingerprint, chosen.policy, newest_id))
    changes = of.ordered(
        of.change_between(before, after, chosen.policy) for after, before in found.pairs if before is not None
    )
    once = [after for after, before in found.pairs if before is None]
    # Both lists are paged as one, so that a page has ROWS of them together.
    end = offset + ROWS
    more = ""
    if end < len(changes) + len(once):
        more = _more(context, asked, chosen, f"{found.newest_id}:{end}")
    shown = changes[offset:end]
    shown_once = once[max(0, offset - len(changes)) : max(0, end - len(changes))]
    lead = f"Last change of {len(changes):,} problems that were measured more than once: {of.counts_text(changes)}."
    if once:
        lead += f" {len(once):,} more were measured once only."
    warnings: tuple[str, ...] = ()
    if found.clipped:
        warnings = (f"Only the {len(found.pairs):,} problems that were tuned last are looked at.",)
    sections = []
    if shown or not shown_once:
        table = _changes_table(shown, found, chosen, "" if shown_once else more)
        text = (of.rule_text(chosen.policy),)
        sections.append(Section("Last change of each problem", text, table=table, anchor="changes"))
    if shown_once:
        sections.append(
            Section("Measured once", table=_once_table(shown_once, chosen, more), folded=True, anchor="once")
        )
    return View(
        f"Last change of every problem, {chosen.device.name}",
        tuple(sections),
        _filters(places, chosen, [one.problem_key for one, _ in found.pairs], ""),
        _next_steps(changes, once, chosen),
        lead,
        warnings,
    )


def _position(context: Context, asked: Asked) -> tuple[int | None, int]:
    """The largest id that counts and the first row of this page of the list."""
    cursor = asked.get(CURSOR)
    if not cursor:
        return None, 0
    newest_id, _, offset = str(context.cursors.read("history", asked.filters(), cursor)).partition(":")
    return int(newest_id), int(offset)


def _more(context: Context, asked: Asked, chosen: DevicePolicy, position: int | str) -> str:
    """The address of the next page, which names device and policy: what is newest may be another one by then."""
    given = {name: value for name, value in asked.values.items() if name != CURSOR.name}
    given |= {DEVICE.name: chosen.device.fingerprint, POLICY.name: chosen.policy}
    cursor = context.cursors.make("history", Asked(asked.page, given).filters(), position)
    return address("history", **given, cursor=cursor)


def _changes_table(rows: Sequence[of.Change], found: Changes, chosen: DevicePolicy, more: str) -> Table:
    columns = (
        Column("problem", "problem"),
        *of.VERDICT_COLUMNS,
        Column("time_us_before", "before, µs", Kind.TIME_US, "median of what was served before"),
        Column("time_us", "now, µs", Kind.TIME_US, "median of what is served now"),
        Column("why", "likely from", help="by what the default did meanwhile; the problem's own page says it in full"),
        Column("what_changed", "what changed", help="config and environment, from the earlier to the later"),
        Column("created_at", "measured", Kind.MOMENT),
    )
    return Table(
        "changes",
        f"Last change of each problem, {chosen.device.name}, {chosen.policy}",
        columns,
        [_change_row(one, found.environments, chosen) for one in rows],
        legend=LEGEND,
        more=more,
        empty="No problem was measured more than once here, so there is nothing to compare.",
    )


def _change_row(one: of.Change, environments: dict[str, Environment], chosen: DevicePolicy) -> Row:
    return (
        _linked_problem(one.after, chosen), *of.verdict_cells(one), one.before.time_us, one.after.time_us,
        of.cause_cell(one), _what_changed(one, environments, chosen.policy), one.after.created_at,
    )  # fmt: skip


def _once_table(rows: Sequence[Served], chosen: DevicePolicy, more: str) -> Table:
    columns = (
        Column("problem", "problem"),
        Column("time_us", "now, µs", Kind.TIME_US, "median of what is served now"),
        Column("backend", "backend", Kind.CODE),
        Column("created_at", "measured", Kind.MOMENT),
    )
    return Table(
        "once", f"Problems that were measured once, {chosen.device.name}, {chosen.policy}", columns,
        [(_linked_problem(one, chosen), one.time_us, one.backend, one.created_at) for one in rows], more=more,
    )  # fmt: skip


def _linked_problem(served: Served, chosen: DevicePolicy) -> Cell:
    """A problem, which leads to its history."""
    to = ""
    if served.problem_key:
        to = link("history", device=chosen.device.fingerprint, policy=chosen.policy, problem=served.problem_key)
    return of.problem_cell(served.problem_key, to)


def _what_changed(change: of.Change, environments: dict[str, Environment], policy: str) -> Cell:
    """Config and environment; it leads to the two environments side by side."""
    moved, to = _moved(change.before, change.after, environments, policy)
    config = of.config_change(change.before, change.after)
    return Cell(f"{config}; {moved}" if moved else config, link=to)


def _moved(before: Served, after: Served, environments: dict[str, Environment], policy: str) -> tuple[str, str]:
    """How the environment differs, in words, and where the two are side by side; empty if it does not."""
    a, b = before.environment_fingerprint, after.environment_fingerprint
    words = of.environment_change(environments.get(a), environments.get(b))
    return words, link("compare", a=a, b=b, policy=policy) if words and a and b else ""


def _next_steps(changes: Sequence[of.Change], once: Sequence[Served], chosen: DevicePolicy) -> tuple[NextStep, ...]:
    """What to measure again: what is unclear; where there is no change at all, what was measured once."""
    unclear = [one.after.problem_key for one in changes if one.judgement.verdict is Verdict.NOT_ENOUGH][:_AGAIN]
    if unclear:
        command = of.measure_again(unclear, chosen.policy)
        return (NextStep("More measurements may settle what is not enough evidence. On that device:", command),)
    if not changes and once:
        command = of.measure_again([one.problem_key for one in once[:_AGAIN]], chosen.policy)
        text = "Every problem was measured once, so there is nothing to compare. Measure again, on that device:"
        return (NextStep(text, command),)
    return ()


# One problem


def _problem(context: Context, asked: Asked, places: Sequence[DevicePolicy], chosen: DevicePolicy, key: str) -> View:
    before_id = None
    if cursor := asked.get(CURSOR):
        before_id = int(context.cursors.read("history", asked.filters(), cursor))
    found = context.store.ask(HistoryOf(key, chosen.device.fingerprint, chosen.policy, ROWS, before_id))
    more = ""
    if found.before is not None:
        more = _more(context, asked, chosen, found.served[-1].id)
    earlier = [*found.served[1:], found.before][: len(found.served)]
    changes = [
        None if before is None else of.change_between(before, after, chosen.policy)
        for after, before in zip(found.served, earlier, strict=True)
    ]
    times = _times_table(found, earlier, chosen)
    name = _name(key)
    winners = _winners_table(found, changes, chosen, more)
    figure = history_figure(times, name) if times.rows else None
    sections = (
        Section("Times", (_BESIDE,), figure, times, folded=True, anchor="times"),
        Section("Winners", (of.rule_text(chosen.policy),), table=winners, anchor="winners"),
        Section("Configs", table=_configs_table(found), anchor="configs"),
    )
    again = of.measure_again([key], chosen.policy)
    steps: tuple[NextStep, ...] = ()
    newest = changes[0] if changes else None
    if newest is None and before_id is None:
        text = "It was measured once, which is not enough evidence of any change. Measure it again, on that device:"
        steps = (NextStep(text, again),)
    elif newest is not None and newest.judgement.verdict is Verdict.NOT_ENOUGH:
        steps = (NextStep("More measurements may settle it. On that device:", again),)
    return View(
        name,
        sections,
        _filters(places, chosen, [], key),
        steps,
        _lead(newest),
    )


_BESIDE = (
    "What was served, and the fastest default, measured in the same rounds: where both move, the machine or its "
    "software changed; where only what was served does, it is about its config."
)


def _lead(newest: of.Change | None) -> str:
    if newest is None:
        return ""
    word = newest.judgement.verdict.value
    return f"{word[0].upper()}{word[1:]}: {newest.sentence}"


def _times_table(found: History, earlier: Sequence[Served | None], chosen: DevicePolicy) -> Table:
    columns = (
        Column("created_at", "measured", Kind.MOMENT),
        Column("run", "run", Kind.CODE),
        Column("time_us", "served, µs", Kind.TIME_US, "median of what was served"),
        Column("time_us_low", "from", Kind.TIME_US, "lower end of its 95 % interval"),
        Column("time_us_high", "to", Kind.TIME_US, "upper end of its 95 % interval"),
        Column("default_time_us", "default, µs", Kind.TIME_US, "median of the fastest default, in the same rounds"),
        Column("default_time_us_low", "from", Kind.TIME_US, "lower end of its 95 % interval"),
        Column("default_time_us_high", "to", Kind.TIME_US, "upper end of its 95 % interval"),
        Column("environment_change", "new environment", help="what differs from the environment before"),
    )
    rows: list[Row] = []
    for one, before in zip(found.served, earlier, strict=True):
        words, to = ("", "") if before is None else _moved(before, one, found.environments, chosen.policy)
        rows.append(
            (one.created_at, of.run_cell(one.run_id), one.time_us, one.time_us_low, one.time_us_high,
             one.default_time_us, one.default_time_us_low, one.default_time_us_high, Cell(words or None, link=to))
        )  # fmt: skip
    return Table("times", f"Times on {chosen.device.name}, {chosen.policy}, newest first", columns, rows)


def _winners_table(found: History, changes: Sequence[of.Change | None], chosen: DevicePolicy, more: str) -> Table:
    columns = (
        Column("created_at", "measured", Kind.MOMENT),
        Column("run", "run", Kind.CODE),
        Column("environment", "environment", Kind.CODE),
        Column("verdict", "verdict", help="against the winner before"),
        Column("change", "change", Kind.DIFFERENCE, "against the time before, with its 95 % interval; + is slower"),
        Column("time_us", "served, µs", Kind.TIME_US, "median; its interval is in the numbers of the picture"),
        Column("default_time_us", "default, µs", Kind.TIME_US, "the fastest default, in the same rounds"),
        Column("against", "config", help="against what was served before"),
        Column("why", "in words"),
    )
    rows: list[Row] = []
    for one, change in zip(found.served, changes, strict=True):
        verdict, ratio, low, high = of.verdict_cells(change)
        against = one.backend if change is None else of.config_change(change.before, change.after)
        rows.append(
            (
                one.created_at, of.run_cell(one.run_id), of.environment_cell(one.environment_fingerprint), verdict,
                Cell(ratio, note=_interval(low, high)),
                Cell(one.time_us, link=_evidence(one, chosen)),
                one.default_time_us,
                Cell(against, marks=(Mark.SERVED,) if one.is_current else ()), of.words_cell(change),
            )
        )  # fmt: skip
    return Table(
        "winners", "Winners, newest first, each against the one before", columns, rows,
        legend=(*LEGEND, ((Mark.SERVED,), "served now in its environment")), more=more,
    )  # fmt: skip


def _evidence(one: Served, chosen: DevicePolicy) -> str:
    """Where the evidence of a winner is, while it is served."""
    if not one.is_current or not one.environment_fingerprint:
        return ""
    return link("problem", problem=one.problem_key, environment=one.environment_fingerprint, policy=chosen.policy)


def _configs_table(found: History) -> Table:
    """What was served in all of that: each config once, the one that was served last first."""
    columns = (
        Column("backend", "backend"),
        Column("config", "config", Kind.CODE),
        Column("n_winners", "measured", Kind.INTEGER, "how many of these winners serve it"),
        Column("first_at", "first", Kind.MOMENT),
        Column("last_at", "last", Kind.MOMENT),
    )
    by_choice: dict[tuple[str, str], list[Served]] = {}
    for one in found.served:
        by_choice.setdefault(one.choice, []).append(one)
    rows: list[Row] = [
        (backend, Cell(config, of.config_text(config)), len(every), every[-1].created_at, every[0].created_at)
        for (backend, config), every in by_choice.items()
    ]
    return Table("configs", "Configs that these winners serve", columns, rows)


def _interval(low: float | None, high: float | None) -> str:
    """A change's interval, for beside it."""
    if low is None or high is None or high > 1e3:
        return ""
    return f"{low:+.1%} to {high:+.1%}".replace("%", " %")


PAGE = Page("history", "History", "Did it get worse?", (DEVICE, POLICY, PROBLEM, CURSOR), view)
