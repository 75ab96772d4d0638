"""What is served in one place, with its share of the roof and how many layers it stands for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...kernels.errors import NotFoundError
from ...kernels.problem import Problem
from .. import bulk, listing, places, values
from ..faults import from_row
from ..models import EnvironmentRow, ProblemRow, RunProblemRow, RunRow, TrialRow, WinnerRow
from ..winners import current_in, own_trial

MAX_WORKLOADS = 100
"""Workloads that are offered: the newest."""

MAX_RUNS = 1000
"""Runs of an environment that are looked through for them: the newest."""


@dataclass(frozen=True, slots=True)
class Served:
    """A winner that is served, light.

    Attributes:
        problem: what it computes. backend: whose config.
        time_us, time_us_low, time_us_high: its median and 95% interval, microseconds.
        roof_share: of the trial that measured it; None without roofs then.
        run_id: the run that measured it. stored_at: UTC, when that was stored.
        role: what the problem is in its run; empty if it was given by hand. layers: how many share it; 1 at least.
    """

    problem: Problem
    backend: str
    time_us: float
    time_us_low: float
    time_us_high: float
    roof_share: float | None
    run_id: str
    stored_at: datetime
    role: str
    layers: int


@dataclass(frozen=True, slots=True)
class Workload:
    """A run of a checkpoint, which stands for its problems: the newest of those with the same settings.

    Attributes:
        run_id: the run. checkpoint: as it was named, maybe a path.
        tp, ep: ranks, as the run's settings say; 0 if they do not.
        n_problems: of the run.
    """

    run_id: str
    checkpoint: str
    tp: int
    ep: int
    n_problems: int


@dataclass(frozen=True, slots=True)
class ServedIn:
    """Winners that are served in an environment under a policy: those of a run's problems, or the newest.

    Attributes:
        environment: its fingerprint. policy: the measuring policy.
        run_id: only problems of this run, whichever run measured them, in its order and with its roles and layers;
            empty for all, newest first.
        limit: most winners.
    """

    environment: str
    policy: str
    run_id: str = ""
    limit: int = 2000

    def answer(self, connection: sa.Connection) -> list[Served]:
        """See Question. At most `limit` and one more, if there are more."""
        listing.check_limit(self.limit)
        if self.run_id:
            return _of_run(connection, self)
        rows = connection.execute(
            _select()
            .where(*current_in(connection, WinnerRow, self.environment, self.policy))
            .order_by(WinnerRow.id.desc())
            .limit(self.limit + 1)
        ).all()
        parts = _parts(connection, [(row.run_row, row.problem_row) for row in rows])
        return [
            _served(row, *parts.get((row.run_row, row.problem_row), ("", 1)))
            for row in rows
            if row.problem_key is not None
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkloadsOf:
    """The workloads that were tuned in an environment, newest first, each once.

    Attributes:
        environment: its fingerprint.
    """

    environment: str

    def answer(self, connection: sa.Connection) -> list[Workload]:
        """See Question."""
        newest = (
            sa.select(RunRow.ulid, RunRow.checkpoint, RunRow.settings, RunRow.n_problems)
            .where(RunRow.environment_id == places.environment_id(self.environment))
            .order_by(RunRow.ulid.desc())  # ids of runs sort by the time of their start
            .limit(MAX_RUNS)
            .subquery()
        )
        rows = connection.execute(sa.select(newest).where(newest.c.checkpoint != "").order_by(newest.c.ulid.desc()))
        found: dict[tuple[Any, ...], Workload] = {}
        for ulid, checkpoint, settings, n_problems in rows:
            said = _settings(settings)
            tp, ep = (_whole(said.get(name)) for name in ("tp", "ep"))
            what = (checkpoint, tp, ep, *(repr(said.get(name)) for name in ("tokens", "phases", "roles", "bf16")))
            found.setdefault(what, Workload(ulid, checkpoint, tp, ep, n_problems))
        return list(found.values())[:MAX_WORKLOADS]


def _select() -> Any:
    """Winners as _served reads them. From the left, for the reason that `listing` gives."""
    return (
        sa.select(
            *places.PROBLEM_COLUMNS, ProblemRow.key.label("problem_key"), WinnerRow.run_id.label("run_row"),
            WinnerRow.problem_id.label("problem_row"), WinnerRow.backend, WinnerRow.time_us, WinnerRow.time_us_low,
            WinnerRow.time_us_high, TrialRow.roof_share, RunRow.ulid,
            WinnerRow.created_at,
        )
        .select_from(WinnerRow)
        .outerjoin(ProblemRow, ProblemRow.id == WinnerRow.problem_id)
        .outerjoin(RunRow, RunRow.id == WinnerRow.run_id)
        .outerjoin(TrialRow, own_trial(WinnerRow))
    )  # fmt: skip


def _of_run(connection: sa.Connection, asked: ServedIn) -> list[Served]:
    """Winners of a run's problems: each by the index of what is current."""
    run_row = connection.execute(
        sa.select(RunRow.id).where(RunRow.ulid == values.name(asked.run_id, "A run's id"))
    ).scalar_one_or_none()
    if run_row is None:
        raise NotFoundError(f"There is no run {asked.run_id[:60]!r}: `fp4tune runs` lists them.")
    items = connection.execute(
        sa.select(RunProblemRow.problem_id, RunProblemRow.role, RunProblemRow.layers)
        .where(RunProblemRow.run_id == run_row)
        .order_by(RunProblemRow.position)
        .limit(listing.MAX_LIMIT)
    ).all()
    environment_row = connection.execute(
        sa.select(EnvironmentRow.id).where(EnvironmentRow.fingerprint == asked.environment)
    ).scalar_one_or_none()
    wanted = list(dict.fromkeys(problem_row for problem_row, _, _ in items))
    found: dict[int, Any] = {}
    for some in bulk.chunks(wanted):
        rows = connection.execute(
            _select().where(
                WinnerRow.problem_id.in_(some),
                WinnerRow.environment_id == environment_row,
                WinnerRow.policy == asked.policy,
                WinnerRow.superseded_at.is_(None),
            )
        )
        found.update((row.problem_row, row) for row in rows if row.problem_key is not None)
        if len(found) > asked.limit:
            break
    served = [_served(found[row], role, layers) for row, role, layers in items if row in found]
    return served[: asked.limit + 1]


def _parts(connection: sa.Connection, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], tuple[str, int]]:
    """Role and layers of problems of runs, by the ids of both; run by run, because a run's problems lie together."""
    by_run: dict[int, list[int]] = {}
    for run_row, problem_row in wanted:
        by_run.setdefault(run_row, []).append(problem_row)
    item = RunProblemRow
    parts: dict[tuple[int, int], tuple[str, int]] = {}
    for run_row, problem_rows in by_run.items():
        for some in bulk.chunks(problem_rows):
            rows = connection.execute(
                sa.select(item.problem_id, item.role, item.layers)
                .where(item.run_id == run_row, item.problem_id.in_(some))
                .order_by(item.position)
            )
            for problem_row, role, layers in rows:
                parts.setdefault((run_row, problem_row), (role, layers))
    return parts


@from_row
def _served(row: Any, role: str, layers: int) -> Served:
    return Served(
        places.problem_from(row), row.backend, row.time_us, row.time_us_low, row.time_us_high, row.roof_share,
        row.ulid or "", row.created_at, role, max(1, layers),
    )  # fmt: skip


def _settings(text: str) -> dict[str, Any]:
    """A run's settings; empty if they cannot be read, for a page is no place to fail for a filter."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
