"""What a word finds: problems, runs, devices, environments and backends, each within a bound, and never trials.

There is no index for "contains", so each kind is looked for among its newest rows, and no more of them than are read
at once: with 100,000 problems, and 60,000 problems of runs, a search takes 0.2 to 0.3 s on two busy cores.
Keys that are given as a whole, and ids of runs that are given from their beginning, are found by an index, however old.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from .. import trial_counts, values
from ..ids import ALPHABET, LENGTH
from ..models import (
    DeviceRow,
    EnvironmentRow,
    ProblemRow,
    RunProblemRow,
    RunRow,
    TrialCountRow,
    WinnerRow,
)
from ..runs import MIN_PREFIX

MAX_PROBLEMS = 100_000
"""Newest problems that are looked through."""

MAX_ROLES = 50_000
"""Newest problems of runs whose role is looked at."""

MAX_RUNS = 20_000
"""Newest runs that are looked through."""

MAX_PLACES = 5_000
"""Newest devices, and environments, that are looked through."""

MAX_WORDS = 8
"""Most words of a search; all of them must be found."""


@dataclass(frozen=True, slots=True)
class ProblemFound:
    """A problem.

    Attributes:
        key: its key. roles: in models, as runs called it; empty for bare shapes.
        is_served: whether a config is served for it somewhere.
    """

    key: str
    roles: tuple[str, ...]
    is_served: bool


@dataclass(frozen=True, slots=True)
class RunFound:
    """A run.

    Attributes:
        id: its id. status: as it says. checkpoint: model as it was named; empty for shapes. started_at: UTC.
        n_trials: trials. device: its name; None if the database has lost it.
    """

    id: str
    status: str
    checkpoint: str
    started_at: datetime
    n_trials: int
    device: str | None


@dataclass(frozen=True, slots=True)
class DeviceFound:
    """A device: its fingerprint, name, kind, and power limit in watts."""

    fingerprint: str
    name: str
    kind: str
    power_limit_w: float


@dataclass(frozen=True, slots=True)
class EnvironmentFound:
    """An environment: its fingerprint, the name of its device, and its versions as JSON text."""

    fingerprint: str
    device: str
    versions: str


@dataclass(frozen=True, slots=True)
class BackendFound:
    """A backend: its name, how many trials it has, and of how many problems."""

    name: str
    n_trials: int
    n_problems: int


@dataclass(frozen=True, slots=True)
class Found:
    """What was found, of each kind at most one more than the limit, which says that there are more."""

    problems: Sequence[ProblemFound]
    runs: Sequence[RunFound]
    devices: Sequence[DeviceFound]
    environments: Sequence[EnvironmentFound]
    backends: Sequence[BackendFound]


@dataclass(frozen=True, slots=True)
class SearchFor:
    """Everything that has all words in it, whatever their case.

    Attributes:
        text: words with spaces between. limit: most of each kind.
    """

    text: str
    limit: int = 50

    def answer(self, connection: sa.Connection) -> Found:
        """See Question.

        Raises:
            InvalidInputError: a text that no database can look for.
        """
        words = values.name(self.text, "What to search for").split()[:MAX_WORDS]
        if not words:
            return Found((), (), (), (), ())
        most = self.limit + 1
        return Found(
            _problems(connection, words, most),
            _runs(connection, words, most),
            _devices(connection, words, most),
            _environments(connection, words, most),
            _backends(connection, words, most),
        )


def _has(column: Any, word: str) -> Any:
    """Whether a text has a word in it: % and _ are themselves."""
    return column.icontains(word, autoescape=True)


def _newest(limit: int, order: Any, *columns: Any) -> Any:
    """Some columns of the newest rows of a table, to look through."""
    return sa.select(*columns).order_by(order.desc()).limit(limit).subquery().c


def _problems(connection: sa.Connection, words: Sequence[str], limit: int) -> list[ProblemFound]:
    """Problems whose key has every word in it, or whose role has; a number is M, N or K as a whole.

    Those whose N or K it is come first, and then the newest.
    """
    by_role = _ids_by_role(connection, words, limit)
    some = _newest(
        MAX_PROBLEMS, ProblemRow.id, ProblemRow.id, ProblemRow.key, ProblemRow.m, ProblemRow.n, ProblemRow.k
    )  # fmt: skip
    each = [
        sa.or_(some.n == int(word), some.k == int(word), some.m == int(word))
        if _is_size(word)
        else _has(some.key, word)
        for word in words
    ]
    fits = sa.or_(sa.and_(*each), some.id.in_(by_role)) if by_role else sa.and_(*each)
    numbers = [int(word) for word in words if _is_size(word)]
    order = [sa.case((sa.or_(some.n.in_(numbers), some.k.in_(numbers)), 0), else_=1)] if numbers else []
    rows = connection.execute(
        sa.select(some.id, some.key).where(fits).order_by(*order, some.id.desc()).limit(limit)
    ).all()
    exact = sa.select(ProblemRow.id, ProblemRow.key).where(ProblemRow.key == words[0])
    whole = connection.execute(exact).all() if len(words) == 1 and ":" in words[0] else []
    keys: dict[int, str] = {row.id: row.key for row in [*whole, *rows]}
    roles, served = _roles(connection, list(keys)), _served(connection, list(keys))
    return [ProblemFound(key, roles.get(id_, ()), id_ in served) for id_, key in list(keys.items())[:limit]]


def _is_size(word: str) -> bool:
    """Whether a word is a number that M, N or K may be."""
    return word.isascii() and word.isdecimal() and len(word) <= 9


def _ids_by_role(connection: sa.Connection, words: Sequence[str], limit: int) -> list[int]:
    """Problems whose role in a model has every word in it, newest runs first."""
    some = _newest(MAX_ROLES, RunProblemRow.run_id, RunProblemRow.run_id, RunProblemRow.problem_id, RunProblemRow.role)
    select = sa.select(some.problem_id).where(*(_has(some.role, word) for word in words))
    rows = connection.execute(select.group_by(some.problem_id).order_by(sa.func.max(some.run_id).desc()).limit(limit))
    return list(rows.scalars())


def _roles(connection: sa.Connection, ids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """What newest runs called these problems."""
    some = _newest(MAX_ROLES, RunProblemRow.run_id, RunProblemRow.problem_id, RunProblemRow.role)
    found: dict[int, tuple[str, ...]] = {}
    select = sa.select(some.problem_id, some.role).where(some.problem_id.in_(ids), some.role != "").distinct()
    for id_, role in connection.execute(select.limit(1000)):
        found[id_] = (*found.get(id_, ()), role)
    return {id_: tuple(sorted(roles)) for id_, roles in found.items()}


def _served(connection: sa.Connection, ids: Sequence[int]) -> set[int]:
    """Which of these problems have a current winner, by the index of those."""
    select = sa.select(WinnerRow.problem_id).where(WinnerRow.problem_id.in_(ids), WinnerRow.superseded_at.is_(None))
    return set(connection.execute(select.distinct()).scalars())


def _runs(connection: sa.Connection, words: Sequence[str], limit: int) -> list[RunFound]:
    """The run whose id begins with the word, and runs of models that have every word in their name."""
    columns = (RunRow.ulid, RunRow.status, RunRow.checkpoint, RunRow.started_at, RunRow.n_trials, DeviceRow.name)
    select = sa.select(*columns).select_from(RunRow).outerjoin(EnvironmentRow).outerjoin(DeviceRow)
    rows: list[Any] = []
    prefix = words[0].upper()
    if len(words) == 1 and MIN_PREFIX <= len(prefix) <= LENGTH and set(prefix) <= set(ALPHABET):
        # As `runs.find`: a range, which the index serves on either database.
        named = RunRow.ulid.between(prefix, prefix.ljust(LENGTH, ALPHABET[-1]))
        rows += connection.execute(select.where(named).order_by(RunRow.ulid.desc()).limit(limit)).all()
    some = _newest(MAX_RUNS, RunRow.id, RunRow.ulid, RunRow.checkpoint)
    fitting = (
        sa.select(some.ulid)
        .where(*(_has(some.checkpoint, word) for word in words))
        .order_by(some.ulid.desc())
        .limit(limit)
    )
    rows += connection.execute(select.where(RunRow.ulid.in_(fitting)).order_by(RunRow.ulid.desc())).all()
    return [RunFound(*row) for row in {row[0]: row for row in rows}.values()][:limit]


def _devices(connection: sa.Connection, words: Sequence[str], limit: int) -> list[DeviceFound]:
    """Devices with every word in their name, or whose fingerprint begins with it."""
    some = _newest(
        MAX_PLACES, DeviceRow.id, DeviceRow.id, DeviceRow.fingerprint, DeviceRow.name, DeviceRow.kind,
        DeviceRow.power_limit_w,
    )  # fmt: skip
    fits = [sa.or_(_has(some.name, word), some.fingerprint.startswith(word.lower(), autoescape=True)) for word in words]
    columns = (some.fingerprint, some.name, some.kind, some.power_limit_w)
    rows = connection.execute(sa.select(*columns).where(*fits).order_by(some.id.desc()).limit(limit))
    return [DeviceFound(*row) for row in rows]


def _environments(connection: sa.Connection, words: Sequence[str], limit: int) -> list[EnvironmentFound]:
    """Environments with every word in their versions or their device's name, or whose fingerprint begins with it."""
    row = EnvironmentRow
    some = _newest(MAX_PLACES, row.id, row.id, row.fingerprint, row.device_id, row.versions)
    fits = [
        sa.or_(
            # As it stands in JSON of ASCII.
            _has(some.versions, json.dumps(word)[1:-1]),
            _has(DeviceRow.name, word),
            some.fingerprint.startswith(word.lower(), autoescape=True),
        )
        for word in words
    ]
    select = sa.select(some.fingerprint, DeviceRow.name, some.versions).join(DeviceRow, DeviceRow.id == some.device_id)
    rows = connection.execute(select.where(*fits).order_by(some.id.desc()).limit(limit))
    return [EnvironmentFound(*row) for row in rows]


def _backends(connection: sa.Connection, words: Sequence[str], limit: int) -> list[BackendFound]:
    """Backends with every word in their name, by a scan of the counts of trials."""
    count, n = TrialCountRow, trial_counts.total()
    rows = connection.execute(
        sa.select(count.backend, n, sa.func.count(count.problem_id.distinct()))
        .where(*(_has(count.backend, word) for word in words))
        .group_by(count.backend)
        .order_by(n.desc())
        .limit(limit)
    )
    return [BackendFound(name, int(total), n_problems) for name, total, n_problems in rows]
