"""Everything that is known of one problem in one environment: the evidence for its winner, or why there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...kernels.device import Environment
from ...kernels.problem import Problem
from .. import places
from ..models import EnvironmentRow, ProblemRow, RunProblemRow, RunRow, TrialCountRow, TrialRow, WinnerRow
from ..records import RunProblem

MAX_READ = 300
"""Most trials that are looked at from either end of a problem's: defaults are its first, finals its last."""

MAX_ROWS = 100
"""Most rows of any answer here."""

_ERROR_CHARS = 400


@dataclass(frozen=True, slots=True)
class Entrant:
    """A config that was measured for a problem, or was to be.

    Attributes:
        number: of the trial in its run and problem. backend: whose. config: decoded; empty if it cannot be read.
        status: how it ended, as stored. error: the beginning of why; empty if it ran.
        time_us, time_us_low, time_us_high: median and its 95% interval, microseconds; None if it did not run.
        n_samples: how many samples the median is over.
        rel_error: largest relative Frobenius error against the oracle; None if it was not computed.
        roof_share: time that the card's measured roofs allow at least, over the time it took; None if not known.
        policy: how it was measured. seed: of operands and sampler. started_at: UTC.
    """

    number: int
    backend: str
    config: Mapping[str, Any]
    status: str
    error: str
    time_us: float | None
    time_us_low: float | None
    time_us_high: float | None
    n_samples: int
    rel_error: float | None
    roof_share: float | None
    policy: str
    seed: int
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run measured of a problem, as far as it decides what is served.

    Attributes:
        finals: configs of the interleaved finals, fastest first; of several measurements of one config the last.
        defaults: every backend's default, as the search measured it, by backend.
        item: what the problem stands for in the run; None if it is not in the run.
        outcome: the run's sentence about it; empty if there is none.
        n_trials: trials of the problem in the run.
    """

    finals: Sequence[Entrant]
    defaults: Sequence[Entrant]
    item: RunProblem | None
    outcome: str
    n_trials: int


@dataclass(frozen=True, slots=True)
class EvidenceOf:
    """The evidence that a run has for a problem in an environment: a run that was resumed may have measured in two.

    Attributes:
        run_id: the run, by whole id. problem: the problem. environment_fingerprint: where.
    """

    run_id: str
    problem: Problem
    environment_fingerprint: str

    def answer(self, connection: sa.Connection) -> Evidence:
        """See Question. Of a run that is not stored there is none."""
        run_id = connection.execute(sa.select(RunRow.id).where(RunRow.ulid == self.run_id)).scalar_one_or_none()
        problem_id = _problem_id(connection, self.problem.key)
        environment_id = _environment_id(connection, self.environment_fingerprint)
        if run_id is None or problem_id is None:
            return Evidence((), (), None, "", 0)
        at = (run_id, problem_id, environment_id)
        last_first = _entrants(connection, at, "final", TrialRow.number.desc())
        finals = {(one.policy, one.backend, _text(one.config)): one for one in reversed(last_first)}
        defaults = {one.backend: one for one in _entrants(connection, at, "default", TrialRow.number)}
        row = RunProblemRow
        said = connection.execute(
            sa.select(row.role, row.phases, row.layers, row.outcome)
            .where(row.run_id == run_id, row.problem_id == problem_id)
            .order_by(row.position)
            .limit(1)
        ).one_or_none()  # fmt: skip
        last = connection.execute(
            sa.select(sa.func.max(TrialRow.number)).where(TrialRow.run_id == run_id, TrialRow.problem_id == problem_id)
        ).scalar_one_or_none()
        return Evidence(
            sorted(finals.values(), key=lambda one: (one.time_us is None, one.time_us or 0.0, one.number)),
            [defaults[name] for name in sorted(defaults)],
            RunProblem(self.problem, said.role, _words(said.phases), max(1, said.layers)) if said else None,
            said.outcome if said else "",
            0 if last is None else last + 1,
        )


def _entrants(connection: sa.Connection, at: tuple[int, int, int | None], origin: str, order: Any) -> list[Entrant]:
    """Trials of an origin among the first or last MAX_READ of a run, problem and environment, in that order."""
    run_id, problem_id, environment_id = at
    read = connection.execute(
        sa.select(TrialRow.id, TrialRow.origin, TrialRow.environment_id)
        .where(TrialRow.run_id == run_id, TrialRow.problem_id == problem_id)
        .order_by(order)
        .limit(MAX_READ)
    )
    ids = [one.id for one in read if (one.origin, one.environment_id) == (origin, environment_id)][:MAX_ROWS]
    if not ids:
        return []
    rows = connection.execute(
        sa.select(
            TrialRow.number, TrialRow.backend, TrialRow.config, TrialRow.status,
            sa.func.substr(TrialRow.error, 1, _ERROR_CHARS), TrialRow.time_us, TrialRow.time_us_low,
            TrialRow.time_us_high, TrialRow.n_samples, TrialRow.rel_error, TrialRow.roof_share, TrialRow.policy,
            TrialRow.seed, TrialRow.started_at, TrialRow.id,
        ).where(TrialRow.id.in_(ids))
    )  # fmt: skip
    found = {row[-1]: Entrant(row[0], row[1], _object(row[2]), *row[3:-1]) for row in rows}
    return [found[id_] for id_ in ids if id_ in found]


@dataclass(frozen=True, slots=True)
class Attempts:
    """How trials of a problem by one backend ended in one environment.

    Attributes:
        run_id: the run; empty if it is not stored. environment_fingerprint: where; empty if that is not stored.
        backend: whose. status: how they ended, as stored. n: how many.
        error: the beginning of what the last of them said; empty if it ran. last_at: UTC, when that began.
    """

    run_id: str
    environment_fingerprint: str
    backend: str
    status: str
    n: int
    error: str
    last_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptsAt:
    """What was tried for a problem, newest first; at most MAX_ROWS.

    Attributes:
        problem: the problem. environment_fingerprint: where; empty for anywhere.
    """

    problem: Problem
    environment_fingerprint: str = ""

    def answer(self, connection: sa.Connection) -> list[Attempts]:
        """See Question."""
        problem_id = _problem_id(connection, self.problem.key)
        environment_id = _environment_id(connection, self.environment_fingerprint)
        if problem_id is None or (self.environment_fingerprint and environment_id is None):
            return []
        count = TrialCountRow
        here = [count.environment_id == environment_id] if environment_id is not None else []
        rows = connection.execute(
            sa.select(RunRow.ulid, EnvironmentRow.fingerprint, count.backend, count.status, count.n,
                      sa.func.substr(TrialRow.error, 1, _ERROR_CHARS), TrialRow.started_at)
            .select_from(count)
            .outerjoin(RunRow, RunRow.id == count.run_id)
            .outerjoin(EnvironmentRow, EnvironmentRow.id == count.environment_id)
            .outerjoin(TrialRow, TrialRow.id == count.last_trial_id)
            .where(count.problem_id == problem_id, *here)
            .order_by(count.last_trial_id.desc())
            .limit(MAX_ROWS)
        )  # fmt: skip
        return [
            Attempts(run or "", at or "", backend, status, n, error or "", last_at)
            for run, at, backend, status, n, error, last_at in rows
        ]


@dataclass(frozen=True, slots=True)
class TunedElsewhere:
    """Where else something is served.

    Attributes:
        problem: for what. environment: where. policy: measured by what.
        backend: whose config. time_us: its median, microseconds. created_at: UTC.
    """

    problem: Problem
    environment: Environment
    policy: str
    backend: str
    time_us: float
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PlacesOf:
    """Every environment and policy in which a problem is served, newest first; at most MAX_ROWS."""

    problem: Problem

    def answer(self, connection: sa.Connection) -> list[TunedElsewhere]:
        """See Question."""
        problem_id = _problem_id(connection, self.problem.key)
        if problem_id is None:
            return []
        rows = connection.execute(
            sa.select(WinnerRow.environment_id, WinnerRow.policy, WinnerRow.backend, WinnerRow.time_us,
                      WinnerRow.created_at)
            .where(WinnerRow.problem_id == problem_id, WinnerRow.superseded_at.is_(None))
            .order_by(WinnerRow.id.desc())
            .limit(MAX_ROWS)
        ).all()  # fmt: skip
        environments = places.environments_by_id(connection, [row[0] for row in rows])
        return [TunedElsewhere(self.problem, environments[row[0]], *row[1:]) for row in rows if row[0] in environments]


@dataclass(frozen=True, slots=True)
class OtherTokens:
    """The same GEMM at other M that are served in an environment and policy, by M; at most MAX_ROWS.

    Attributes:
        problem: the GEMM. environment_fingerprint, policy: where, and measured how.
    """

    problem: Problem
    environment_fingerprint: str
    policy: str

    def answer(self, connection: sa.Connection) -> list[tuple[Problem, float]]:
        """See Question. Each with its served time, microseconds. Problems are read, thousands; trials are not."""
        environment_id = _environment_id(connection, self.environment_fingerprint)
        if environment_id is None:
            return []
        same = ("n", "k", "op", "experts", "experts_total", "top_k", "routing", "format", "out_dtype")
        problems = connection.execute(
            sa.select(*places.PROBLEM_COLUMNS, ProblemRow.id)
            .where(*(getattr(ProblemRow, name) == getattr(self.problem, name) for name in same))
            .order_by(ProblemRow.m)
            .limit(MAX_ROWS)
        ).all()
        by_id = {row[-1]: places.problem_from(row) for row in problems}
        rows = connection.execute(
            sa.select(WinnerRow.problem_id, WinnerRow.time_us).where(
                WinnerRow.problem_id.in_(list(by_id)),
                WinnerRow.environment_id == environment_id,
                WinnerRow.policy == self.policy,
                WinnerRow.superseded_at.is_(None),
            )
        )
        served = {by_id[id_]: time_us for id_, time_us in rows}
        return sorted(served.items(), key=lambda pair: pair[0].m)


def _problem_id(connection: sa.Connection, key: str) -> int | None:
    return connection.execute(sa.select(ProblemRow.id).where(ProblemRow.key == key)).scalar_one_or_none()


def _environment_id(connection: sa.Connection, fingerprint: str) -> int | None:
    return connection.execute(
        sa.select(EnvironmentRow.id).where(EnvironmentRow.fingerprint == fingerprint)
    ).scalar_one_or_none()


def _text(config: Mapping[str, Any]) -> str:
    """A config as an identity."""
    return json.dumps(config, sort_keys=True)


def _object(text: str) -> Mapping[str, Any]:
    """A JSON object; an empty one for anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _words(text: str) -> tuple[str, ...]:
    """A JSON list of words."""
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else ()
