"""Runs, newest first, each with whether it lives and how many of its trials failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from .. import listing, trial_counts, values
from ..liveness import Owner, is_alive
from ..models import DeviceRow, EnvironmentRow, RunRow, TrialCountRow
from ..records import Run, RunStatus, TrialStatus
from ..runs import COLUMNS, OWNER_COLUMNS, find, run_from, select_runs


@dataclass(frozen=True, slots=True)
class RunSeen:
    """A run.

    Attributes:
        run: the run.
        is_alive: whether it says that it is running, and is.
        n_failed: trials that failed. n_unsupported: configs that a backend did not take, which is no failure.
    """

    run: Run
    is_alive: bool
    n_failed: int
    n_unsupported: int

    @property
    def was_killed(self) -> bool:
        """Whether it says that it is running, and its process is gone."""
        return self.run.status is RunStatus.RUNNING and not self.is_alive

    def seconds(self, now: datetime) -> float:
        """Seconds from its start to its end, its last sign of life if it was killed, or now if it runs.

        Of a run that was resumed, the time in between is in it.
        """
        run = self.run
        end = now if self.is_alive else run.finished_at or run.heartbeat_at
        return max(0.0, (end - run.started_at).total_seconds())


@dataclass(frozen=True, slots=True)
class RunsSeen:
    """A page of runs, by the index on their ids, which sort by the time of their start.

    A filter that few runs fit makes it pass by others: there are thousands of runs, not millions.

    Attributes:
        host: name of this host. now: the time, UTC. Both decide who is alive.
        status: a word of RunStatus; empty for any. device: fingerprint of their device; empty for any.
        before: only those whose id is smaller; empty for any. limit: most runs.
    """

    host: str
    now: datetime
    status: str = ""
    device: str = ""
    before: str = ""
    limit: int = 50

    def answer(self, connection: sa.Connection) -> list[RunSeen]:
        """See Question. Newest first."""
        listing.check_limit(self.limit)
        select = select_runs(RunRow.id, *OWNER_COLUMNS).order_by(RunRow.ulid.desc()).limit(self.limit)
        if self.status:
            select = select.where(RunRow.status == values.name(self.status, "A run's status"))
        if self.device:
            device = sa.select(DeviceRow.id).where(DeviceRow.fingerprint == values.name(self.device, "A fingerprint"))
            environments = sa.select(EnvironmentRow.id).where(EnvironmentRow.device_id == device.scalar_subquery())
            select = select.where(RunRow.environment_id.in_(environments))
        if self.before:
            select = select.where(RunRow.ulid < values.name(self.before, "The id of a run"))
        return _seen(connection, connection.execute(select).all(), self.host, self.now)


@dataclass(frozen=True, slots=True)
class RunOf:
    """One run.

    Attributes:
        name: its id, or the beginning of one that no other has. host, now: as in RunsSeen.
    """

    name: str
    host: str
    now: datetime

    def answer(self, connection: sa.Connection) -> RunSeen:
        """See Question.

        Raises:
            InvalidInputError: the name is too short, or several runs begin with it.
        """
        ulid = find(connection, self.name).id
        rows = connection.execute(select_runs(RunRow.id, *OWNER_COLUMNS).where(RunRow.ulid == ulid)).all()
        return _seen(connection, rows, self.host, self.now)[0]


def _seen(connection: sa.Connection, rows: Any, host: str, now: datetime) -> list[RunSeen]:
    """Runs, at most a page of them, with their failures counted in one statement."""
    ids = [row[len(COLUMNS)] for row in rows]
    count = TrialCountRow
    failed, unsupported = Counter[int](), Counter[int]()
    grouped = connection.execute(
        sa.select(count.run_id, count.status, trial_counts.total())
        .where(count.run_id.in_(ids), count.status != TrialStatus.OK.value)
        .group_by(count.run_id, count.status)
    )
    for run_id, status, n in grouped:
        (unsupported if status == TrialStatus.UNSUPPORTED else failed)[run_id] += int(n)
    seen = []
    for row in rows:
        run, id_ = run_from(row), row[len(COLUMNS)]
        who = Owner(*row[len(COLUMNS) + 1 :])
        alive = run.status is RunStatus.RUNNING and is_alive(who, run.heartbeat_at, host=host, now=now)
        seen.append(RunSeen(run, alive, failed[id_], unsupported[id_]))
    return seen
