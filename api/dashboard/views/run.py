"""What does this run do? One run and its problems, while it runs, too."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

from ....db.dashboard.run import RunNow, RunNowOf, RunProblemSeen, RunProblemsOf
from ....db.dashboard.runs import RunOf, RunSeen
from ....db.records import RunStatus
from ....kernels.errors import InvalidInputError
from ..formatting import format_value
from ..links import link
from ..model import Cell, Column, Kind, Layout, Mark, NextStep, Row, Section, Table, View
from ..page import CURSOR, RUN, Asked, Context, Page, address
from ..views import run_words

PAGE_SIZE = 100
"""Problems on a page."""

LISTING = "dashboard/run"
"""What the page tokens are for."""

REFRESH_S = 3
"""Seconds until the page of a run in progress asks for itself again."""

MAX_SETTINGS = 50
"""Most settings in the table; `fp4tune` remembers about twelve."""

MAX_VALUE = 300
"""Most characters of a setting."""

_PROBLEM_COLUMNS = (
    Column("position", "place", Kind.INTEGER, "In which order the run tunes, from 0."),
    Column("problem", "problem", Kind.CODE),
    Column("role", "role", help="What it is in the model; a dash for a bare shape."),
    Column("done", "done"),
    Column("outcome", "outcome"),
    Column("backend", "found", Kind.CODE, "The backend of the config that the run found best."),
    Column("time_us", "µs", Kind.TIME_US, "Median time of that config."),
    Column(
        "speedup", "speed-up", Kind.FACTOR, "The fastest default's time over this one, measured in the same rounds."
    ),
    Column("trials", "trials", Kind.INTEGER),
    Column("failed", "failed", Kind.INTEGER, "Trials that failed; configs that a backend does not take are none."),
    Column("progress", "search"),
)


def view(context: Context, asked: Asked) -> View:
    """The page."""
    name = asked.get(RUN)
    if not name:
        raise InvalidInputError("This page is about one run, and needs its id: choose one from the list of runs.")
    seen = context.store.ask(RunOf(name, socket.gethostname(), context.now))
    now = context.store.ask(RunNowOf(seen.run.id))
    sections = [Section("What it does now", (), None, _now_table(seen, now, context), anchor="now")] * seen.is_alive
    sections.append(_problems(context, asked, seen))
    sections.append(
        Section(
            "What it is", (), None, _facts(seen, context), commands=run_words.commands_of(context, seen), anchor="facts"
        )
    )
    if run_words.settings_of(seen.run):
        sections.append(Section("Settings", (), None, _settings(seen), anchor="settings"))
    return View(
        f"Run {seen.run.id}", tuple(sections), (), _steps(seen), _lead(seen, context), _warnings(seen),
        refresh_s=REFRESH_S if seen.is_alive else None,
    )  # fmt: skip


def _lead(seen: RunSeen, context: Context) -> str:
    run = seen.run
    took = format_value(seen.seconds(context.now), Kind.SECONDS)
    said = {
        RunStatus.RUNNING: f"Running for {took}" if seen.is_alive else f"Killed after {took}",
        RunStatus.FINISHED: f"Finished in {took}",
        RunStatus.INTERRUPTED: f"Interrupted after {took}",
        RunStatus.FAILED: f"Failed after {took}",
    }[run.status]
    tail = f", {seen.n_unsupported:,} not supported" if seen.n_unsupported else ""
    return (
        f"{said}: {run.n_done:,} of {run.n_problems:,} problems done, {run.n_trials:,} trials, "
        f"{seen.n_failed:,} of them failed{tail}."
    )


def _warnings(seen: RunSeen) -> tuple[str, ...]:
    run = seen.run
    if seen.was_killed:
        last = format_value(run.heartbeat_at, Kind.MOMENT)
        sentence = (
            f"This run says that it is running, and its process ({run.pid} on {run.host}) is gone: it was killed, or "
            f"its host was. Its last sign of life was at {last}. What it found until then is kept."
        )
        return (sentence,)
    if run.status is RunStatus.FAILED:
        return (f"It failed: {run.error or 'no reason was stored'}",)
    return ()


def _steps(seen: RunSeen) -> tuple[NextStep, ...]:
    if not run_words.can_be_resumed(seen):
        return ()
    left = max(0, seen.run.n_problems - seen.run.n_done)
    are_left = f"{left:,} {'problem is' if left == 1 else 'problems are'} left."
    text = f"{are_left} This goes on where it stopped; trials that are stored are not measured again."
    return (NextStep(text, command=run_words.resume_command(seen.run)),)


def _now_table(seen: RunSeen, now: RunNow, context: Context) -> Table:
    rows: list[Row] = []
    if now.position is not None:
        rows.append(
            ("tuning", Cell(now.key, link=link("progress", run=seen.run.id, problem=now.key), note=now.role or ""))
        )
        rows.append(("place", f"{now.position + 1:,} of {seen.run.n_problems:,}"))
    if now.last_started_at is not None:
        ended = (context.now - now.last_started_at).total_seconds() - (now.last_wall_s or 0.0)
        time = f", {format_value(now.last_time_us, Kind.TIME_US)} µs" if now.last_time_us is not None else ""
        rows.append(("last trial", f"{now.last_backend}: {now.last_status}{time}"))
        rows.append(("of problem", Cell(now.last_problem, link=link("problem", problem=now.last_problem))))
        rows.append(("ended", f"{format_value(max(0.0, ended), Kind.SECONDS)} ago"))
    return _pairs("now", "What it does now", rows, "It has not ended its first trial: compiling takes up to minutes.")


def _problems(context: Context, asked: Asked, seen: RunSeen) -> Section:
    run, cursor = seen.run, asked.get(CURSOR)
    # The whole id, so that a token is good however the run was named.
    filters = {RUN.name: run.id}
    after = int(context.cursors.read(LISTING, filters, cursor)) if cursor else -1
    found = context.store.ask(RunProblemsOf(run.id, after, PAGE_SIZE + 1))
    more = ""
    if len(found) > PAGE_SIZE:
        found = found[:PAGE_SIZE]
        token = context.cursors.make(LISTING, filters, found[-1].position)
        more = address("run", "problems", run=run.id, cursor=token)
    rows = [_problem_row(run.id, one) for one in found]
    table = Table(
        "problems", "Problems of this run, in its order", _PROBLEM_COLUMNS, rows, legend=_legend(found), more=more,
        empty="This run has no problems.",
    )  # fmt: skip
    return Section("Problems", (), None, table, anchor="problems")


def _legend(found: Sequence[RunProblemSeen]) -> tuple[tuple[tuple[Mark, ...], str], ...]:
    if not any(one.winner is not None and one.winner.is_served for one in found):
        return ()
    return (((Mark.SERVED,), "served now; the others were superseded by later runs"),)


def _problem_row(run_id: str, one: RunProblemSeen) -> Row:
    winner = one.winner
    key = Cell(one.key, link=link("problem", problem=one.key))
    backend: Cell | None = None
    if winner is not None:
        served = link("problem", problem=one.key, environment=winner.environment, policy=winner.policy)
        key = Cell(one.key, link=served or key.link)
        backend = Cell(winner.backend, marks=(Mark.SERVED,) if winner.is_served else ())
    return (
        one.position,
        key,
        one.role or None,
        one.done,
        one.outcome or None,
        backend,
        winner.time_us if winner else None,
        winner.default_time_us / winner.time_us if winner and winner.time_us else None,
        one.n_trials,
        one.n_failed,
        Cell("progress", link=link("progress", run=run_id, problem=one.key)) if one.n_trials else None,
    )


def _facts(seen: RunSeen, context: Context) -> Table:
    run = seen.run
    rows: list[Row] = [
        ("run", run.id),
        ("status", run_words.status_cell(seen)),
        ("model or shapes", run_words.what(run)),
        ("TP", run_words.tp_of(run)),
        ("device", Cell(run.device_name, link=link("environments", device=run.device_fingerprint))),
        (
            "environment",
            Cell(run.environment_fingerprint, link=link("environments", environment=run.environment_fingerprint)),
        ),
        ("started", run.started_at),
        ("last sign of life", run.heartbeat_at),
        ("ended", run.finished_at),
        ("took", format_value(seen.seconds(context.now), Kind.SECONDS)),
        ("problems done", f"{run.n_done:,} of {run.n_problems:,}"),
        ("trials", run.n_trials),
        ("failed trials", Cell(seen.n_failed, link=link("failures", run=run.id))),
        ("not supported", Cell(seen.n_unsupported, link=link("failures", "unsupported", run=run.id))),
        ("host", run.host),
        ("process", str(run.pid)),
        ("seed", str(run.seed)),
        ("fp4tune", run.version),
    ]
    return _pairs("run", "What it is", rows)


def _settings(seen: RunSeen) -> Table:
    settings = run_words.settings_of(seen.run)
    rows = [(str(name), _shown(value)) for name, value in sorted(settings.items(), key=lambda item: str(item[0]))]
    note = f"{len(rows) - MAX_SETTINGS:,} more are left out." if len(rows) > MAX_SETTINGS else ""
    return _pairs("settings", "What decides what it does", rows[:MAX_SETTINGS], note=note)


def _shown(value: Any) -> str:
    """A setting as text: JSON, unless it is a text itself."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:MAX_VALUE]


def _pairs(name: str, title: str, rows: Sequence[Row], empty: str = "Nothing.", *, note: str = "") -> Table:
    columns = (Column("name", "what"), Column("value", "value"))
    return Table(name, title, columns, rows, Layout.PAIRS, note=note, empty=empty)


PAGE = Page("run", "", "What does this run do?", (RUN, CURSOR), view)
