"""What a model's problems gain: its runs, what they tune, and what is served for it somewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...kernels.errors import StoreError
from .. import bulk, places
from ..models import EnvironmentRow, ProblemRow, RunProblemRow, RunRow, WinnerRow
from ..records import RunProblem

MAX_RUNS = 1000
"""Most runs whose models are offered: the newest."""

MAX_ITEMS = 20_000
"""Most problems that are read of runs, each as often as a run has it."""

_OUTCOME_CHARS = 500


@dataclass(frozen=True, slots=True)
class ModelRun:
    """What a run says of the model that it tuned.

    Attributes:
        run_id: the run. environment_fingerprint: where it runs; empty if that is not stored.
        checkpoint: preset name or path as it was given; empty for bare shapes.
        tp, ep: ranks that share layers and experts; 1 where the run remembers none.
    """

    run_id: str
    environment_fingerprint: str
    checkpoint: str
    tp: int
    ep: int


@dataclass(frozen=True, slots=True)
class NewestRuns:
    """The newest runs, newest first, with their models."""

    limit: int = MAX_RUNS

    def answer(self, connection: sa.Connection) -> list[ModelRun]:
        """See Question."""
        rows = connection.execute(
            sa.select(RunRow.ulid, EnvironmentRow.fingerprint, RunRow.checkpoint, RunRow.settings)
            .select_from(RunRow)
            .outerjoin(EnvironmentRow, EnvironmentRow.id == RunRow.environment_id)
            .order_by(RunRow.ulid.desc())
            .limit(self.limit)
        )
        return [_model_run(*row) for row in rows]


def _model_run(ulid: str, environment: str | None, checkpoint: str, settings: str) -> ModelRun:
    said = _object(settings)
    return ModelRun(ulid, environment or "", checkpoint, _size(said.get("tp")), _size(said.get("ep")))


def _object(text: str) -> Mapping[str, Any]:
    """A JSON object; an empty one for anything else, because one run's settings must not hide all the others."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _size(value: object) -> int:
    """A number of ranks."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 4096 else 1


@dataclass(frozen=True, slots=True)
class TunedItems:
    """What runs set out to tune.

    Attributes:
        items: problems with what they stand for, those of the newest run first, each run's in its order.
        n_unreadable: how many more are stored of which nothing can be made.
        is_cut: True if there are more than were read.
    """

    items: Sequence[RunProblem]
    n_unreadable: int = 0
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class ItemsOf:
    """The problems of some runs.

    Attributes:
        run_ids: the runs, by whole id. limit: most problems that are read.
    """

    run_ids: Sequence[str]
    limit: int = MAX_ITEMS

    def answer(self, connection: sa.Connection) -> TunedItems:
        """See Question. A problem that is not stored is left out."""
        items: list[RunProblem] = []
        n_unreadable = 0
        row = RunProblemRow
        for run_id in sorted(set(self.run_ids), reverse=True):
            left = self.limit - len(items)
            found = connection.execute(
                sa.select(*places.PROBLEM_COLUMNS, row.role, row.phases, row.layers)
                .select_from(row)
                .outerjoin(ProblemRow, ProblemRow.id == row.problem_id)
                .where(row.run_id == sa.select(RunRow.id).where(RunRow.ulid == run_id).scalar_subquery())
                .order_by(row.position)
                .limit(left + 1)
            ).all()
            for one in found[:left]:
                item = _item(one)
                n_unreadable += item is None
                items += [item] if item is not None else []
            if len(found) > left:
                return TunedItems(items, n_unreadable, is_cut=True)
        return TunedItems(items, n_unreadable)


def _item(row: Sequence[Any]) -> RunProblem | None:
    """A problem of a run; None if it is no problem."""
    role, phases, layers = row[places.N_PROBLEM_COLUMNS :]
    try:
        said = json.loads(phases)
        problem = places.problem_from(row)
    except (StoreError, ValueError):
        return None
    words = tuple(one for one in said if isinstance(one, str)) if isinstance(said, list) else ()
    return RunProblem(problem, role, words, max(1, layers))


@dataclass(frozen=True, slots=True)
class Served:
    """What is served for a problem, light.

    Attributes:
        backend: whose config. time_us, time_us_low, time_us_high: its median and 95% interval, microseconds.
        default_us: the fastest default's median, microseconds.
        is_default: True if what is served is that default.
        is_tied: True if that default cannot be told apart from the fastest.
        n_ties: size of the tie set, what is served included.
        run_id: the run that found it; empty if that is not stored. outcome: that run's sentence about the problem.
        created_at: UTC.
    """

    backend: str
    time_us: float
    time_us_low: float
    time_us_high: float
    default_us: float
    is_default: bool
    is_tied: bool
    n_ties: int
    run_id: str
    outcome: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ServedFor:
    """What is served for some problems in one environment, measured by one policy.

    Attributes:
        environment_fingerprint, policy: where, and measured how. problem_keys: for what.
    """

    environment_fingerprint: str
    policy: str
    problem_keys: Sequence[str]

    def answer(self, connection: sa.Connection) -> dict[str, Served]:
        """See Question. By the problem's key; a problem for which nothing is served is not in it."""
        environment_id = connection.execute(
            sa.select(EnvironmentRow.id).where(EnvironmentRow.fingerprint == self.environment_fingerprint)
        ).scalar_one_or_none()
        if environment_id is None:
            return {}
        found: dict[str, Any] = {}
        for some in bulk.chunks(list(dict.fromkeys(self.problem_keys))):
            named = connection.execute(sa.select(ProblemRow.id, ProblemRow.key).where(ProblemRow.key.in_(some)))
            keys = {row.id: row.key for row in named}
            rows = connection.execute(
                sa.select(
                    WinnerRow.problem_id, WinnerRow.run_id, WinnerRow.backend, WinnerRow.config, WinnerRow.time_us,
                    WinnerRow.time_us_low, WinnerRow.time_us_high, WinnerRow.default_backend, WinnerRow.default_config,
                    WinnerRow.default_time_us, WinnerRow.tie_set, WinnerRow.n_ties, WinnerRow.created_at,
                ).where(
                    WinnerRow.problem_id.in_(list(keys)),
                    WinnerRow.environment_id == environment_id,
                    WinnerRow.policy == self.policy,
                    WinnerRow.superseded_at.is_(None),
                )
            )  # fmt: skip
            found |= {keys[row.problem_id]: row for row in rows}
        names, outcomes = _outcomes(connection, {(row.run_id, row.problem_id) for row in found.values()})
        return {
            key: _served(row, names.get(row.run_id, ""), outcomes.get((row.run_id, row.problem_id), ""))
            for key, row in found.items()
        }


def _served(row: Any, run_id: str, outcome: str) -> Served:
    is_default = (row.backend, row.config) == (row.default_backend, row.default_config)
    is_tied = is_default or (row.n_ties > 1 and _holds(row.tie_set, row.default_backend, row.default_config))
    return Served(
        row.backend, row.time_us, row.time_us_low, row.time_us_high, row.default_time_us,
        is_default, is_tied, row.n_ties, run_id, outcome, row.created_at,
    )  # fmt: skip


def _holds(tie_set: str, backend: str, config: str) -> bool:
    """Whether a config is in a stored tie set."""
    try:
        wanted = (backend, json.loads(config))
        return any((one["backend"], one["config"]) == wanted for one in json.loads(tie_set))
    except (ValueError, TypeError, KeyError):
        return False


def _outcomes(
    connection: sa.Connection, at: Iterable[tuple[int, int]]
) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    """(ids that people see of runs by the database's, sentences about problems by run and problem)."""
    wanted = set(at)
    names: dict[int, str] = {}
    sentences: dict[tuple[int, int], str] = {}
    row = RunProblemRow
    for some in bulk.chunks(sorted({run_id for run_id, _ in wanted})):
        named = connection.execute(sa.select(RunRow.id, RunRow.ulid).where(RunRow.id.in_(some)))
        names |= {row.id: row.ulid for row in named}
        said = connection.execute(
            sa.select(row.run_id, row.problem_id, sa.func.substr(row.outcome, 1, _OUTCOME_CHARS)).where(
                row.run_id.in_(some)
            )
        )
        sentences |= {(run, problem): text for run, problem, text in said if (run, problem) in wanted}
    return names, sentences
