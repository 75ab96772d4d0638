"""What was found? Problems, runs, devices, environments and backends by a word."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ....db.dashboard.search import Found, SearchFor
from ..links import link
from ..model import Cell, Column, Filter, Kind, NextStep, Row, Section, Table, View
from ..page import Asked, Context, Page, Parameter

LIMIT = 50
"""Most of each kind that are shown."""

QUERY = Parameter("q", r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}", "1 to 200 characters, none of them a control character")

WHAT_TO_SEARCH = (
    "Search for a shape (16x4096x7168), an N or K (4096), the beginning of a run's id (01JBXW), a model, a role "
    "(attn.qkv), a format (nvfp4), a card (H200), a version (580.95), the beginning of a fingerprint, or a backend. Of "
    "several words all must be found; upper and lower case are the same."
)


def view(context: Context, asked: Asked) -> View:
    """The page."""
    text = asked.get(QUERY).strip()
    filters = (Filter(QUERY.name, "Search for", text),)
    if not text:
        return View("Search", filters=filters, next_steps=(NextStep(WHAT_TO_SEARCH),))
    found = context.store.ask(SearchFor(text, LIMIT))
    tables = [
        ("Problems", _problems(found)),
        ("Runs", _runs(found)),
        ("Devices", _devices(found)),
        ("Environments", _environments(found)),
        ("Backends", _backends(found)),
    ]
    sections = tuple(Section(name, (), None, table, anchor=table.name) for name, table in tables if table.rows)
    if not sections:
        steps = (NextStep("Nothing stored has that in it."), NextStep(WHAT_TO_SEARCH))
        return View("Search", filters=filters, next_steps=steps)
    counts = ", ".join(_count(table, name.lower()) for name, table in tables if table.rows)
    return View("Search", sections, filters, lead=f"Found: {counts}.")


def _count(table: Table, name: str) -> str:
    """`1 device`, `more than 50 runs`."""
    if table.note:
        return f"more than {LIMIT} {name}"
    return f"{len(table.rows)} {name if len(table.rows) > 1 else name.removesuffix('s')}"


def _table(name: str, title: str, columns: Sequence[Column], rows: Sequence[Row], found: Sequence[object]) -> Table:
    note = f"There are more than these {LIMIT}: add a word to narrow the search." if len(found) > LIMIT else ""
    return Table(name, title, tuple(columns), rows[:LIMIT], note=note)


def _problems(found: Found) -> Table:
    columns = (
        Column("problem", "problem", Kind.CODE),
        Column("roles", "role in models"),
        Column("served", "served", help="Whether a config is served for it somewhere."),
    )
    rows = [
        (Cell(one.key, link=link("problem", problem=one.key)), ", ".join(one.roles[:10]) or None, one.is_served)
        for one in found.problems
    ]
    return _table("problems", "Problems", columns, rows, found.problems)


def _runs(found: Found) -> Table:
    columns = (
        Column("run", "run", Kind.CODE),
        Column("status", "status", help="As it says; its page says whether it was killed."),
        Column("model", "model or shapes"),
        Column("device", "device"),
        Column("started_at", "started", Kind.MOMENT),
        Column("trials", "trials", Kind.INTEGER),
    )
    rows = [
        (
            Cell(one.id, link=link("run", run=one.id)),
            one.status,
            one.checkpoint or "shapes",
            one.device,
            one.started_at,
            one.n_trials,
        )
        for one in found.runs
    ]
    return _table("runs", "Runs", columns, rows, found.runs)


def _devices(found: Found) -> Table:
    columns = (
        Column("device", "device"),
        Column("fingerprint", "fingerprint", Kind.CODE),
        Column("kind", "kind", Kind.CODE),
        Column("power_limit_w", "power limit (W)", Kind.NUMBER),
    )
    rows = [
        (
            Cell(one.name, link=link("environments", device=one.fingerprint)),
            one.fingerprint,
            one.kind,
            one.power_limit_w or None,
        )
        for one in found.devices
    ]
    return _table("devices", "Devices", columns, rows, found.devices)


def _environments(found: Found) -> Table:
    columns = (
        Column("environment", "environment", Kind.CODE),
        Column("device", "device"),
        Column("versions", "versions"),
    )
    rows = [
        (
            Cell(one.fingerprint, link=link("environments", environment=one.fingerprint)),
            one.device,
            _versions(one.versions),
        )
        for one in found.environments
    ]
    return _table("environments", "Environments", columns, rows, found.environments)


def _versions(text: str) -> str:
    """Versions for people: `cuda 13.0, driver 580.95`."""
    try:
        return ", ".join(f"{name} {version}" for name, version in sorted(json.loads(text).items()))
    except (ValueError, AttributeError):
        return text


def _backends(found: Found) -> Table:
    columns = (
        Column("backend", "backend", Kind.CODE),
        Column("trials", "trials", Kind.INTEGER),
        Column("problems", "problems", Kind.INTEGER),
    )
    rows = [
        (Cell(one.name, link=link("failures", backend=one.name)), one.n_trials, one.n_problems)
        for one in found.backends
    ]  # fmt: skip
    return _table("backends", "Backends: how their trials ended", columns, rows, found.backends)


PAGE = Page("search", "", "What was found?", (QUERY,), view)
