"""One run: its problems with what became of each, and what it does now."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from .. import listing, runs, trial_counts
from ..models import EnvironmentRow, ProblemRow, RunProblemRow, TrialCountRow, TrialRow, WinnerRow
from ..records import TrialStatus


@dataclass(frozen=True, slots=True)
class RunWinner:
    """What a run found for a problem.

    Attributes:
        backend: its backend. policy: the measuring policy of the times. environment: fingerprint; None if it is lost.
        time_us, default_time_us: medians, microseconds. is_served: whether nothing superseded it since.
    """

    backend: str
    policy: str
    environment: str | None
    time_us: float
    default_time_us: float
    is_served: bool


@dataclass(frozen=True, slots=True)
class RunProblemSeen:
    """A problem of a run.

    Attributes:
        position: its place, from 0. key: the problem's key; None if the database has lost it.
        role: in the model; empty for a bare shape. phases: of an inference server. layers: that share it.
        done: whether it came to an end. outcome: one sentence about that.
        winner: what the run found last; None if nothing.
        n_trials, n_failed, n_unsupported: its trials in this run; the last two are among the first.
    """

    position: int
    key: str | None
    role: str
    phases: tuple[str, ...]
    layers: int
    done: bool
    outcome: str
    winner: RunWinner | None
    n_trials: int
    n_failed: int
    n_unsupported: int


@dataclass(frozen=True, slots=True)
class RunProblemsOf:
    """A page of a run's problems, in order: by keys that begin with the run.

    Attributes:
        run_id: the run's whole id. after: only those at a higher position; -1 for any. limit: most problems.
    """

    run_id: str
    after: int = -1
    limit: int = 100

    def answer(self, connection: sa.Connection) -> list[RunProblemSeen]:
        """See Question.

        Raises:
            NotFoundError: there is no such run.
        """
        listing.check_limit(self.limit)
        id_ = runs.ids(connection, [self.run_id])[self.run_id]
        row = RunProblemRow
        rows = connection.execute(
            sa.select(
                row.position, row.problem_id, ProblemRow.key, row.role, row.phases, row.layers, row.done, row.outcome
            )
            .outerjoin(ProblemRow, ProblemRow.id == row.problem_id)
            .where(row.run_id == id_, row.position > self.after)
            .order_by(row.position)
            .limit(self.limit)
        ).all()
        problem_ids = sorted({found.problem_id for found in rows})
        winners = _winners(connection, id_, problem_ids)
        counts = _counts(connection, id_, problem_ids)
        return [
            RunProblemSeen(
                position, key, role, tuple(map(str, json.loads(phases))), layers, done, outcome,
                winners.get(problem_id), *counts.get(problem_id, (0, 0, 0)),
            )
            for position, problem_id, key, role, phases, layers, done, outcome in rows
        ]  # fmt: skip


def _winners(connection: sa.Connection, run_id: int, problem_ids: list[int]) -> dict[int, RunWinner]:
    """The last winner of each of some problems that a run stored, by the index on the run's winners."""
    winner = WinnerRow
    last = (
        sa.select(sa.func.max(winner.id))
        .where(winner.run_id == run_id, winner.problem_id.in_(problem_ids))
        .group_by(winner.problem_id)
    )
    rows = connection.execute(
        sa.select(
            winner.problem_id, winner.backend, winner.policy, EnvironmentRow.fingerprint, winner.time_us,
            winner.default_time_us, winner.superseded_at,
        )
        .select_from(winner)
        .outerjoin(EnvironmentRow, EnvironmentRow.id == winner.environment_id)
        .where(winner.id.in_(last))
    )  # fmt: skip
    return {
        row.problem_id: RunWinner(
            row.backend, row.policy, row.fingerprint, row.time_us, row.default_time_us, row.superseded_at is None
        )
        for row in rows
    }


def _counts(connection: sa.Connection, run_id: int, problem_ids: list[int]) -> dict[int, tuple[int, int, int]]:
    """How many trials of each of some problems there are, failed, and were not supported."""
    count = TrialCountRow
    rows = connection.execute(
        sa.select(count.problem_id, count.status, trial_counts.total())
        .where(count.run_id == run_id, count.problem_id.in_(problem_ids))
        .group_by(count.problem_id, count.status)
    )
    found: dict[int, tuple[int, int, int]] = {}
    for problem_id, status, n in rows:
        all_, failed, unsupported = found.get(problem_id, (0, 0, 0))
        is_unsupported = status == TrialStatus.UNSUPPORTED
        failed += 0 if is_unsupported or status == TrialStatus.OK else int(n)
        found[problem_id] = (all_ + int(n), failed, unsupported + (int(n) if is_unsupported else 0))
    return found


@dataclass(frozen=True, slots=True)
class RunNow:
    """What a run does, as far as the database can tell: it hears of a trial when that has ended.

    Attributes:
        position: place of the first problem that is not done; None if all are.
        key: that problem's key. role: its role.
        last_problem, last_backend, last_status: of the trial that ended last; None without trials.
        last_time_us: its median, microseconds; None if it did not run.
        last_started_at: UTC. last_wall_s: seconds that it took. None without trials.
    """

    position: int | None
    key: str | None
    role: str | None
    last_problem: str | None
    last_backend: str | None
    last_status: str | None
    last_time_us: float | None
    last_started_at: datetime | None
    last_wall_s: float | None


@dataclass(frozen=True, slots=True)
class RunNowOf:
    """What a run does now.

    Attributes:
        run_id: the run's whole id.
    """

    run_id: str

    def answer(self, connection: sa.Connection) -> RunNow:
        """See Question.

        Raises:
            NotFoundError: there is no such run.
        """
        id_ = runs.ids(connection, [self.run_id])[self.run_id]
        row = RunProblemRow
        first = connection.execute(
            sa.select(row.position, ProblemRow.key, row.role)
            .outerjoin(ProblemRow, ProblemRow.id == row.problem_id)
            .where(row.run_id == id_, row.done.is_(False))
            .order_by(row.position)
            .limit(1)
        ).one_or_none()
        last: Any = connection.execute(
            sa.select(
                ProblemRow.key,
                TrialRow.backend,
                TrialRow.status,
                TrialRow.time_us,
                TrialRow.started_at,
                TrialRow.wall_s,
            )
            .select_from(TrialRow)
            .outerjoin(ProblemRow, ProblemRow.id == TrialRow.problem_id)
            .where(TrialRow.run_id == id_)
            .order_by(TrialRow.id.desc())
            .limit(1)
        ).one_or_none()
        return RunNow(*(first or (None,) * 3), *(last or (None,) * 6))
