"""What failed: counts by backend and how it ended, and the newest trials that ended so, with their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...kernels.errors import NotFoundError
from .. import listing, trial_counts, values
from ..models import EnvironmentRow, ProblemRow, RunRow, TrialCountRow, TrialRow
from ..records import TrialStatus
from ..runs import find, ids

MAX_ENDINGS = 200
"""Most (backend, status) pairs of an answer, those with most trials first: fifteen backends have ninety."""

REASON_CHARS = 600
"""Characters of a reason that are read: its first line is shown, and a compiler's whole log may be behind it."""

CONFIG_CHARS = 2000
"""Characters of a config that are read: no backend has one as long, and the column takes a megabyte."""

_REASON = sa.func.substr(TrialRow.error, 1, REASON_CHARS)

_FAILED: sa.ColumnElement[bool] = sa.literal_column("trials.status <> 'ok'")
"""As the partial index `ix_trials_failed` says it, without which SQLite cannot know that the index has every row."""


def first_line(text: str) -> str:
    """The first line of a reason that says anything."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest trial that ended somehow.

    Attributes:
        trial_id: its id. reason: the first line of its error; empty if it has none.
        problem_key, run_id: whose; None if the database has lost that.
        started_at: UTC.
    """

    trial_id: int
    reason: str
    problem_key: str | None
    run_id: str | None
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Ending:
    """How many trials of a backend did not run, in one way.

    Attributes:
        backend: its name. status: how they ended, a word of TrialStatus.
        n: how many. n_problems: of how many problems.
        latest: the newest of them; None if it was lost.
    """

    backend: str
    status: str
    n: int
    n_problems: int
    latest: Latest | None


@dataclass(frozen=True, slots=True)
class Endings:
    """How trials ended.

    Attributes:
        failed: of those that did not run, by backend and status, most trials first.
        totals: all trials of each backend, those that ran included.
    """

    failed: Sequence[Ending]
    totals: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class EndingsOf:
    """How all trials ended, by backend and status: two scans of the counts, and none of the trials.

    Attributes:
        environment: its fingerprint; empty for all.
        run: a run's id, or the beginning of one that no other has; empty for all.
    """

    environment: str = ""
    run: str = ""

    def answer(self, connection: sa.Connection) -> Endings:
        """See Question.

        Raises:
            NotFoundError: there is no such environment, or no such run.
        """
        count, n = TrialCountRow, trial_counts.total()
        where = []
        if self.environment:
            where.append(count.environment_id == _environment_id(connection, self.environment))
        if self.run:
            where.append(count.run_id == _run_id(connection, self.run))
        totals = connection.execute(sa.select(count.backend, n).where(*where).group_by(count.backend))
        # Apart from the sums over all, because most rows are of trials that ran, and to sort them costs most.
        failed = connection.execute(
            sa.select(
                count.backend, count.status, n,
                sa.func.count(count.problem_id.distinct()), sa.func.max(count.last_trial_id),
            )
            .where(*where, count.status != TrialStatus.OK.value)
            .group_by(count.backend, count.status)
            .order_by(n.desc(), count.backend, count.status)
            .limit(MAX_ENDINGS)
        ).all()  # fmt: skip
        latest = _latest(connection, [row[-1] for row in failed])
        return Endings(
            [
                Ending(backend, status, int(total), n_problems, latest.get(last))
                for backend, status, total, n_problems, last in failed
            ],
            {backend: int(total) for backend, total in totals},
        )


def _environment_id(connection: sa.Connection, fingerprint: str) -> int:
    """The id of an environment.

    Raises:
        NotFoundError: there is none.
    """
    found = connection.execute(
        sa.select(EnvironmentRow.id).where(EnvironmentRow.fingerprint == fingerprint)
    ).scalar_one_or_none()
    if found is None:
        raise NotFoundError(f"There is no environment {fingerprint!r} in the database.")
    return int(found)


def _run_id(connection: sa.Connection, name: str) -> int:
    """The id of a run in the database.

    Raises:
        NotFoundError: there is none. InvalidInputError: the name is too short, or several runs begin with it.
    """
    ulid = find(connection, name).id
    return ids(connection, [ulid])[ulid]


def _with_names(*columns: Any) -> Any:
    """Trials with their problem's key and their run's id, which may be lost."""
    return (
        sa.select(*columns, ProblemRow.key, RunRow.ulid)
        .select_from(TrialRow)
        .outerjoin(ProblemRow, ProblemRow.id == TrialRow.problem_id)
        .outerjoin(RunRow, RunRow.id == TrialRow.run_id)
    )


def _latest(connection: sa.Connection, ids: list[int]) -> dict[int, Latest]:
    """Trials by id, at most MAX_ENDINGS."""
    rows = connection.execute(
        _with_names(TrialRow.id, _REASON, TrialRow.started_at).where(TrialRow.id.in_(ids))
    )  # fmt: skip
    return {id_: Latest(id_, first_line(reason), key, ulid, at) for id_, reason, at, key, ulid in rows}


@dataclass(frozen=True, slots=True)
class FailedTrial:
    """A trial that did not run.

    Attributes:
        id: database id, growing. number: its number within (run, problem).
        config: as JSON text. reason: the first line of its error; empty if it has none.
        origin: why it was tried. started_at: UTC. wall_s: seconds that it took.
        problem_key, run_id: whose; None if the database has lost that.
    """

    id: int
    number: int
    config: str
    reason: str
    origin: str
    started_at: datetime
    wall_s: float
    problem_key: str | None
    run_id: str | None


@dataclass(frozen=True, slots=True)
class FailedTrials:
    """The newest trials of a backend that ended in one way, by an index that has those only.

    Attributes:
        backend: the backend. status: how they ended; not `ok`.
        environment: its fingerprint; empty for all.
        before: only those with a smaller id; 0 for any. limit: most trials.
        run: as in EndingsOf.
    """

    backend: str
    status: str
    environment: str = ""
    run: str = ""
    before: int = 0
    limit: int = 50

    def answer(self, connection: sa.Connection) -> list[FailedTrial]:
        """See Question. Newest first."""
        columns = (
            TrialRow.id, TrialRow.number, sa.func.substr(TrialRow.config, 1, CONFIG_CHARS), _REASON, TrialRow.origin,
            TrialRow.started_at, TrialRow.wall_s,
        )  # fmt: skip
        which = (self.backend, self.status, self.environment, self.run, self.limit)
        select = _newest(connection, _with_names(*columns), *which)
        if self.before:
            select = select.where(TrialRow.id < self.before)
        return [
            FailedTrial(id_, number, config, first_line(reason), *rest)
            for id_, number, config, reason, *rest in connection.execute(select)
        ]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one trial did not run.

    Attributes:
        trial_id: its id. text: the first line of its error; empty if it has none.
        problem_key: the problem's key; None if the database has lost it.
    """

    trial_id: int
    text: str
    problem_key: str | None


@dataclass(frozen=True, slots=True)
class ReasonsOf:
    """The reasons of the newest trials of a backend that ended in one way, newest first.

    Attributes:
        backend, status, environment, run: as in FailedTrials. limit: most trials that are read.
    """

    backend: str
    status: str
    environment: str = ""
    run: str = ""
    limit: int = 2000

    def answer(self, connection: sa.Connection) -> list[Reason]:
        """See Question."""
        which = (self.backend, self.status, self.environment, self.run, self.limit)
        select = _newest(connection, _with_names(TrialRow.id, _REASON), *which)
        return [Reason(id_, first_line(text), key) for id_, text, key, _ in connection.execute(select)]


def _newest(
    connection: sa.Connection, select: Any, backend: str, status: str, environment: str, run: str, limit: int
) -> Any:
    """The newest trials that ended so: the index gives them in order, and is left as soon as there are enough."""
    listing.check_limit(limit)
    run_id = _run_id(connection, run) if run else None
    environment_id = _environment_id(connection, environment) if environment else None
    filters = [
        (TrialRow.backend, values.name(backend, "The backend")),
        (TrialRow.status, values.name(status, "How a trial ended")),
        (TrialRow.environment_id, environment_id),
        (TrialRow.run_id, run_id),
    ]
    where = listing.conditions(connection, filters, leading=2)
    if run_id is not None:
        # The index knows no runs, but a run's trials lie together: so only failures from its first to its last are
        # looked at, and those among them that are of others ran at the same time.
        ends = (
            sa.select(TrialRow.id).where(TrialRow.run_id == run_id).order_by(order).limit(1)
            for order in (TrialRow.id.asc(), TrialRow.id.desc())
        )
        first, last = (connection.execute(end).scalar() or 0 for end in ends)
        where += [TrialRow.id >= first, TrialRow.id <= last]
    return select.where(*where, _FAILED).order_by(TrialRow.id.desc()).limit(limit)
