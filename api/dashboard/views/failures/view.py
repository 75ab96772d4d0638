"""What failed? Failed trials by class and backend, with their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .....db.dashboard.failures import Ending, EndingsOf
from .....db.records import TrialStatus
from .....kernels.errors import InvalidInputError
from ....dashboard import changes as of
from ...choices import MAX_OPTIONS, TUNE_FIRST
from ...links import link
from ...measures import share_text
from ...model import Cell, Column, Figure, Filter, Kind, NextStep, Option, Row, Section, Table, View
from ...page import BACKEND, CURSOR, ENVIRONMENT, RUN, STATUS, Asked, Context, Page
from ...place_filters import environment_filter
from .reasons import reason_sections

MEANINGS: Mapping[str, str] = {
    "compile_failed": "making the kernel failed: the compiler refused it, died, or took more than its share of memory",
    "wrong": "it ran and its result was not what the reference says, so it was never timed and is never served",
    "crashed": "it raised an error, or took its worker process down with it, as an illegal memory access does",
    "timeout": "it took longer than its deadline, and its worker was stopped and replaced",
}
"""What it means that a trial ended so."""

UNSUPPORTED = TrialStatus.UNSUPPORTED.value

UNSUPPORTED_MEANS = (
    "A backend that does not take a config or a problem says so before anything is timed (it needs more shared memory "
    "than the card has, it spills, it lacks an instruction). Searches meet such configs all the time: it is no failure "
    "of the backend, of the card or of fp4tune, and it costs little."
)

_COLORS = {"compile_failed": "@1", "wrong": "@2", "crashed": "@3", "timeout": "@4", UNSUPPORTED: "@muted"}

_COLUMNS = (
    Column("backend", "backend", Kind.CODE),
    Column("status", "how it ended", Kind.CODE),
    Column("trials", "trials", Kind.INTEGER),
    Column("share", "of its trials", Kind.SHARE, "Share of all trials of this backend here, those that ran included."),
    Column("problems", "problems", Kind.INTEGER, "How many problems had at least one such trial."),
    Column("reason", "newest reason", help="First line of what the newest such trial said."),
    Column("problem", "of problem"),
    Column("started_at", "started (UTC)", Kind.MOMENT),
    Column("run", "run", Kind.CODE),
)


def view(context: Context, asked: Asked) -> View:
    """The page."""
    environment, backend, status, run = (asked.get(one) for one in (ENVIRONMENT, BACKEND, STATUS, RUN))
    if status and status not in _COLORS:
        raise InvalidInputError(f"No trial fails by ending {status!r}: it is one of {', '.join(_COLORS)}.")
    endings = context.store.ask(EndingsOf(environment, run))
    totals = endings.totals
    shown = [
        one for one in endings.failed if backend in ("", one.backend) and status in ("", one.status)
    ]  # fmt: skip
    filters = (
        environment_filter(context, environment),
        _backend_filter(totals, backend),
        Filter(STATUS.name, "How it ended", status, (Option("", "any"), *(Option(one, one) for one in _COLORS))),
        Filter(RUN.name, "Run", run),
    )
    if not totals and run:
        step = NextStep(f"Run {run} has no trials here. Its page says what it does.", link=link("run", run=run))
        return View("Failures", filters=filters, next_steps=(step,))
    if not totals:
        return View("Failures", filters=filters if environment else (), next_steps=(TUNE_FIRST,))
    if not shown and (backend or status):
        whose = f" of {backend}" if backend else ""
        if backend and backend not in totals:
            said = f"No trial{whose} is stored here."
        else:
            said = f"No trial{whose} {f'ended {status}' if status else 'failed'} here."
        step = NextStep(f"{said} Show everything that failed.", link=link("failures", environment=environment, run=run))
        return View("Failures", filters=filters, next_steps=(step,))
    sections = _sections(shown, totals, asked)
    if backend and status:
        sections += reason_sections(context, asked)
    steps = () if backend and status else _choose(shown, asked)
    return View("Failures", sections, filters, steps, _lead(shown, totals, asked))


def _lead(shown: Sequence[Ending], totals: Mapping[str, int], asked: Asked) -> str:
    """How much failed, in a sentence."""
    backend, status, run = (asked.get(one) for one in (BACKEND, STATUS, RUN))
    all_ = totals.get(backend, 0) if backend else sum(totals.values())
    failed = sum(one.n for one in shown if one.status != UNSUPPORTED)
    refused = sum(one.n for one in shown if one.status == UNSUPPORTED)
    of = f"of {all_:,} trials" + (f" of {backend}" if backend else "") + (f" in run {run}" if run else "")
    not_taken = "not supported, which is no failure."
    if status == UNSUPPORTED:
        return f"{refused:,} {of} {_were(refused)} {not_taken}"
    how = f" by ending {status}" if status else ""
    share = f" ({share_text(failed / all_)})" if all_ and failed else ""
    more = f"; {refused:,} more {_were(refused)} {not_taken}" if refused else "."
    return f"{failed:,} {of} failed{how}{share}{more}"


def _were(n: int) -> str:
    return "was" if n == 1 else "were"


def _choose(shown: Sequence[Ending], asked: Asked) -> tuple[NextStep, ...]:
    """Where the reasons are."""
    failed = [one for one in shown if one.status != UNSUPPORTED] or list(shown)
    if not failed:
        return (NextStep("Nothing failed, and no config was refused: look at what is gained.", link=link("")),)
    most = failed[0]
    where = _reasons_at(asked, most.backend, most.status)
    if not where:
        return ()
    return (
        NextStep(f"Choose a backend and how trials ended to read every reason: most are {most.status}.", link=where),
    )


def _backend_filter(totals: Mapping[str, int], chosen: str) -> Filter:
    """Backends that have a trial here, and the chosen one."""
    names = {name for name in totals if name and link("failures", backend=name)}
    names |= {chosen} - {""}
    some = sorted(sorted(names), key=lambda name: name != chosen)[: MAX_OPTIONS - 1]
    return Filter(BACKEND.name, "Backend", chosen, (Option("", "all"), *(Option(one, one) for one in sorted(some))))


def _sections(shown: Sequence[Ending], totals: Mapping[str, int], asked: Asked) -> tuple[Section, ...]:
    """What failed, and apart from it what was not supported."""
    status = asked.get(STATUS)
    failed = [_row(one, totals, asked) for one in shown if one.status != UNSUPPORTED]
    refused = [_row(one, totals, asked) for one in shown if one.status == UNSUPPORTED]
    sections = []
    if status != UNSUPPORTED:
        table = Table(
            "failures", "Failed trials by backend and how they ended", _COLUMNS, failed,
            empty="No trial failed: everything that a backend took was made, ran, and was right.",
        )  # fmt: skip
        there = {one.status for one in shown}
        text = tuple(f"{name}: {meaning}." for name, meaning in MEANINGS.items() if name in there or name == status)
        sections.append(Section("What went wrong", text, _figure(table), table, anchor="failures"))
    if status in ("", UNSUPPORTED):
        table = Table(
            "unsupported", "Trials that a backend did not take", _COLUMNS, refused,
            empty="Every backend took every config that was tried.",
        )  # fmt: skip
        sections.append(
            Section("Not supported", (UNSUPPORTED_MEANS,), _figure(table), table, anchor="unsupported")
        )  # fmt: skip
    return tuple(sections)


def _reasons_at(asked: Asked, backend: str, status: str | None) -> str:
    """Where the reasons of a backend's trials are that ended so, in the same environment and run."""
    place = {"environment": asked.get(ENVIRONMENT), "run": asked.get(RUN)}
    return link("failures", "", **place, backend=backend, status=status)


def _row(one: Ending, totals: Mapping[str, int], asked: Asked) -> Row:
    total, latest = totals.get(one.backend, 0), one.latest
    # Another fp4tune may have written a word that this one has never heard of.
    known = one.status if one.status in _COLORS else None
    reasons = _reasons_at(asked, one.backend, known)
    found: Row = (
        Cell(one.backend, link=reasons),
        Cell(one.status, link=reasons),
        one.n,
        one.n / total if total else None,
        one.n_problems,
    )
    if latest is None:
        return (*found, None, None, None, None)
    return (
        *found,
        latest.reason or None,
        of.problem_cell(latest.problem_key, link("problem", problem=latest.problem_key)),
        latest.started_at,
        of.run_cell(latest.run_id),
    )


def _figure(table: Table) -> Figure | None:
    """Bars of trials by backend, stacked by how they ended; of the table alone. None if it has no rows."""
    if not table.rows:
        return None
    cells = [[one.value if isinstance(one, Cell) else one for one in row] for row in table.rows]
    links = [row[0].link if isinstance(row[0], Cell) else "" for row in table.rows]
    traces = []
    others = {str(row[1]): "@8" for row in cells if row[1] not in _COLORS}
    for status, color in {**_COLORS, **others}.items():
        rows = [(row, where) for row, where in zip(cells, links, strict=True) if row[1] == status]
        if rows:
            traces.append(
                {
                    "type": "bar",
                    "name": status,
                    "x": [row[0] for row, _ in rows],
                    "y": [row[2] for row, _ in rows],
                    "customdata": [where for _, where in rows],
                    "marker": {"color": color},
                    "hovertemplate": "%{x}<br>%{y:,} trials<extra>%{fullData.name}</extra>",
                }
            )
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "backend"}, "type": "category"},
        "yaxis": {"title": {"text": "trials (count)"}, "rangemode": "tozero"},
    }
    alt = f"{table.title}: bars of the number of trials, one a backend, stacked by how they ended."
    return Figure(f"{table.name}_by_backend", alt, traces, layout)


PAGE = Page("failures", "Failures", "What failed?", (ENVIRONMENT, BACKEND, STATUS, RUN, CURSOR), view)
