"""How many trials ended how: one row a (run, problem, backend, status, environment), kept up by who adds trials.

Sums over all trials are asked for often (what failed, how many trials an environment has), and reading a million of
them takes seconds. Whoever adds trials therefore adds to these counts in the same transaction, with the trials' run
locked, so that they are always what a `GROUP BY` over the trials would say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from . import bulk
from .models import TrialCountRow, TrialRow

KEY = ("run_id", "problem_id", "backend", "status", "environment_id")
"""What trials are counted by."""


def add(connection: sa.Connection, new: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
    """Count trials that were just inserted.

    Args:
        connection: in the transaction that inserted them, which holds the lock of their runs.
        new: id and columns of each.
    """
    counts: dict[tuple[Any, ...], dict[str, Any]] = {}
    for id_, row in new:
        key = tuple(row[name] for name in KEY)
        count = counts.setdefault(key, {**dict(zip(KEY, key, strict=True)), "n": 0, "last_trial_id": id_})
        count["n"] += 1
        count["last_trial_id"] = max(count["last_trial_id"], id_)
    # Ids grow, and the run is locked: a new trial's id is larger than every one that is counted already.
    sets = {"n": "trial_counts.n + excluded.n", "last_trial_id": "excluded.last_trial_id"}
    bulk.merge(connection, TrialCountRow, KEY, list(counts.values()), sets)


def count_run(connection: sa.Connection, run_id: int) -> None:
    """Count the trials of a run of which none is counted yet, by an index on its trials."""
    key = [getattr(TrialRow, name) for name in KEY]
    counted = sa.select(*key, sa.func.count(), sa.func.max(TrialRow.id)).where(TrialRow.run_id == run_id).group_by(*key)
    connection.execute(sa.insert(TrialCountRow).from_select([*KEY, "n", "last_trial_id"], counted))


def total() -> sa.ColumnElement[float]:
    """The sum of counts, exact to 2**53. As a float, because SQLite stops at a sum of integers beyond 2**63.

    Nobody has as many trials; a damaged row may say that somebody has.
    """
    return sa.func.sum(sa.cast(TrialCountRow.n, sa.Double()))


def by_environment(connection: sa.Connection) -> dict[int, int]:
    """How many trials there are in each environment, by its id; those without any are left out."""
    rows = connection.execute(sa.select(TrialCountRow.environment_id, total()).group_by(TrialCountRow.environment_id))
    return {id_: int(n) for id_, n in rows}
