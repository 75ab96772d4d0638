"""What ran? Runs, newest first."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

from ....db.dashboard.runs import RunSeen, RunsSeen
from ....db.records import RunStatus
from ....kernels.errors import InvalidInputError
from .. import changes as of
from ..choices import TUNE_FIRST
from ..links import link
from ..model import Cell, Column, Filter, Kind, NextStep, Option, Row, Section, Table, View
from ..page import CURSOR, DEVICE, STATUS, Asked, Context, Page, address
from ..place_filters import device_filter
from ..views import run_words

PAGE_SIZE = 50
"""Runs on a page."""

LISTING = "dashboard/runs"
"""What the page tokens are for."""

STATUSES = {
    RunStatus.RUNNING.value: "running (or killed)",
    RunStatus.FINISHED.value: "finished",
    RunStatus.INTERRUPTED.value: "interrupted",
    RunStatus.FAILED.value: "failed",
}

_COLUMNS = (
    Column("run", "run", Kind.CODE, "The first ten characters of its id, which name it, too; its page has all of it."),
    Column("status", "status", help="killed: it says that it is running, and its process is gone."),
    Column("started_at", "started", Kind.MOMENT),
    Column(
        "took_s", "took", Kind.SECONDS, "To its end, its last sign of life, or now; pauses between resumes included."
    ),
    Column("model", "model or shapes"),
    Column("tp", "TP", Kind.INTEGER, "Tensor parallelism: over how many GPUs the model's layers are split."),
    Column("device", "device"),
    Column("environment", "environment", Kind.CODE, "Device and versions, by the beginning of their fingerprint."),
    Column("problems_done", "done", Kind.INTEGER, "Problems that came to an end."),
    Column("problems", "of", Kind.INTEGER, "Problems of the run."),
    Column("trials", "trials", Kind.INTEGER),
    Column("failed", "failed", Kind.INTEGER, "Trials that failed; configs that a backend does not take are none."),
)


def view(context: Context, asked: Asked) -> View:
    """The page."""
    device, status, cursor = asked.get(DEVICE), asked.get(STATUS), asked.get(CURSOR)
    if status and status not in STATUSES:
        raise InvalidInputError(f"No run is {status!r}: it is one of {', '.join(STATUSES)}.")
    filters = asked.filters()
    before = str(context.cursors.read(LISTING, filters, cursor)) if cursor else ""
    shown = (
        device_filter(context, device),
        Filter(STATUS.name, "Status", status, (Option("", "any"), *(Option(k, v) for k, v in STATUSES.items()))),
    )
    found = context.store.ask(
        RunsSeen(socket.gethostname(), context.now, status, device, before, limit=PAGE_SIZE + 1)
    )  # fmt: skip
    more = ""
    if len(found) > PAGE_SIZE:
        found = found[:PAGE_SIZE]
        token = context.cursors.make(LISTING, filters, found[-1].run.id)
        more = address("runs", device=device, status=status, cursor=token)
    if not found:
        if not context.store.runs(limit=1):
            return View("Runs", next_steps=(TUNE_FIRST,))
        return View(
            "Runs", filters=shown, next_steps=(NextStep("No run fits these filters: all runs.", link=address("runs")),)
        )
    rows = [_row(one, context) for one in found]
    table = Table("runs", "Tuning runs, newest first", _COLUMNS, rows, more=more)
    alive = any(one.is_alive for one in found)
    return View("Runs", (Section(table=table),), shown, _steps(found), _lead(found), refresh_s=10 if alive else None)


def _lead(found: Sequence[RunSeen]) -> str:
    """What runs now, or when something ran last."""
    running = [one for one in found if one.is_alive]
    if running:
        names = ", ".join(
            f"{run_words.what(one.run)} on {one.run.device_name or 'a lost device'}" for one in running[:3]
        )
        return f"{len(running)} of these {'is' if len(running) == 1 else 'are'} running now: {names}."
    return f"None of these is running. The newest is {run_words.status_word(found[0])}."


def _steps(found: Sequence[RunSeen]) -> tuple[NextStep, ...]:
    """The newest run that was killed can go on."""
    killed = next((one for one in found if one.was_killed), None)
    if killed is None:
        return ()
    return (
        NextStep(
            f"Run {killed.run.id} was killed: its process is gone, its trials are kept. This goes on with it.",
            command=run_words.resume_command(killed.run),
            link=link("run", run=killed.run.id),
        ),
    )


def _row(one: RunSeen, context: Context) -> Row:
    run = one.run
    return (
        of.run_cell(run.id),
        replace(run_words.status_cell(one), note=""),  # the column's help says it
        run.started_at,
        one.seconds(context.now),
        run_words.what(run),
        run_words.tp_of(run),
        Cell(run.device_name, link=link("environments", device=run.device_fingerprint)),
        of.environment_cell(run.environment_fingerprint),
        run.n_done,
        run.n_problems,
        run.n_trials,
        Cell(one.n_failed, link=link("failures", run=run.id) if one.n_failed else ""),
    )


PAGE = Page("runs", "Runs", "What ran?", (DEVICE, STATUS, CURSOR), view)
