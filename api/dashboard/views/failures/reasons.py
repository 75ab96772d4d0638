"""Why trials of one backend failed in one way: kinds of reasons, and the trials themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .....db.dashboard.failures import FailedTrial, FailedTrials, Reason, ReasonsOf
from ....dashboard import changes as of
from ...links import link
from ...model import Column, Kind, Section, Table
from ...page import BACKEND, CURSOR, ENVIRONMENT, RUN, STATUS, Asked, Context, address

N_REASONS = 2000
"""Newest trials whose reasons are grouped."""

MAX_KINDS = 50
"""Most kinds of reasons in the table, those with most trials first."""

PAGE_SIZE = 50
"""Trials on a page."""

LISTING = "dashboard/failures"
"""What the page tokens are for."""

NO_REASON = "(no reason was given)"

_NUMBER = re.compile(
    r"(?<![\w.])(?:0x[0-9a-fA-F]+|[0-9]+(?:x[0-9]+)+|[0-9]+(?:[.,][0-9]+)*(?:e[+-]?[0-9]+)?)", re.ASCII
)
"""Numbers, hexadecimal addresses and shapes; not the digits of a name such as sm_90a, bf16 or tile.3."""


def kind_of(reason: str) -> str:
    """A reason without what differs from one trial to the next: `needs # bytes` of `needs 131072 bytes`."""
    return _NUMBER.sub("#", reason) or NO_REASON


@dataclass(slots=True)
class _Kind:
    """Reasons of one kind.

    Attributes:
        newest: the newest of them. n: how many. problems: of which problems.
    """

    newest: Reason
    n: int = 0
    problems: set[str | None] = field(default_factory=set)


def kinds_of(reasons: Sequence[Reason]) -> list[tuple[str, _Kind]]:
    """Reasons by kind, most first; the newest of each first comes first of `reasons`."""
    kinds: dict[str, _Kind] = {}
    for reason in reasons:
        kind = kinds.setdefault(kind_of(reason.text), _Kind(reason))
        kind.n += 1
        kind.problems.add(reason.problem_key)
    return sorted(kinds.items(), key=lambda item: -item[1].n)


def reason_sections(context: Context, asked: Asked) -> tuple[Section, ...]:
    """The sections for a backend and a status that were both chosen."""
    which = (asked.get(BACKEND), asked.get(STATUS), asked.get(ENVIRONMENT), asked.get(RUN))
    filters, cursor = asked.filters(), asked.get(CURSOR)
    before = int(context.cursors.read(LISTING, filters, cursor)) if cursor else 0
    reasons = context.store.ask(ReasonsOf(*which, limit=N_REASONS))
    found = context.store.ask(FailedTrials(*which, before=before, limit=PAGE_SIZE + 1))
    more = ""
    if len(found) > PAGE_SIZE:
        found = found[:PAGE_SIZE]
        given = {parameter.name: asked.get(parameter) for parameter in (ENVIRONMENT, BACKEND, STATUS, RUN)}
        more = address("failures", "trials", **given, cursor=context.cursors.make(LISTING, filters, found[-1].id))
    return (
        Section("Reasons", (), None, _kinds_table(reasons), anchor="reasons"),
        Section("Trials", (), None, _trials_table(found, more), anchor="trials"),
    )


def _kinds_table(reasons: Sequence[Reason]) -> Table:
    kinds = kinds_of(reasons)
    note = f"Of the newest {len(reasons):,} such trials; a # stands for a number."
    if len(kinds) > MAX_KINDS:
        note += f" {len(kinds) - MAX_KINDS:,} rarer kinds are left out."
    columns = (
        Column("trials", "trials", Kind.INTEGER),
        Column("share", "share", Kind.SHARE, "Of the trials whose reasons were read."),
        Column("problems", "problems", Kind.INTEGER),
        Column("kind", "kind of reason"),
        Column("newest", "newest of them"),
        Column("problem", "of problem"),
    )
    rows = [
        (
            kind.n,
            kind.n / len(reasons),
            len(kind.problems),
            text,
            kind.newest.text or None,
            of.problem_cell(kind.newest.problem_key, link("problem", problem=kind.newest.problem_key)),
        )
        for text, kind in kinds[:MAX_KINDS]
    ]
    return Table("reasons", "Reasons, numbers apart", columns, rows, note=note, empty="No such trial.")


def _trials_table(found: Sequence[FailedTrial], more: str) -> Table:
    columns = (
        Column("trial_id", "trial", Kind.CODE, "The trial's id in the database."),
        Column("problem", "problem"),
        Column("number", "number", Kind.INTEGER, "Which trial of this problem in its run, from 0."),
        Column("origin", "why tried", Kind.CODE, "default, seed, sampler, enumerated, or final (a re-measurement)."),
        Column("config", "config", Kind.CODE),
        Column("reason", "reason", help="The first line; `GET /v1/trials` has all of it."),
        Column("started_at", "started (UTC)", Kind.MOMENT),
        Column("wall_s", "took", Kind.SECONDS),
        Column("run", "run", Kind.CODE),
    )
    rows = [
        (
            str(one.id),
            of.problem_cell(one.problem_key, link("problem", problem=one.problem_key)),
            one.number,
            one.origin,
            one.config,
            one.reason or None,
            one.started_at,
            one.wall_s,
            of.run_cell(one.run_id),
        )
        for one in found
    ]
    return Table("trials", "Newest such trials first", columns, rows, more=more, empty="No such trial.")
