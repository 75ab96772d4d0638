"""What changed? What is served in two environments, problem by problem."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from ...kernels.device import Environment
from .. import listing, places
from ..models import WinnerRow
from ..records import Source
from ..winners import current_in
from .history import Served, read_served, rows_by_id

MAX_PAIRS = 1000
"""Most problems whose winners are read in full and judged: those whose times are furthest apart."""

MAX_SHARED = 100_000
"""Most problems that are looked at: those that were tuned first in the first environment."""

MAX_LONELY = 50
"""Most problems that are named of those that are served in one environment only."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is served in two environments by one policy.

    Attributes:
        pairs: of the problems served in both, the winners in the first and the second: the MAX_PAIRS whose times are
            furthest apart, in no order.
        n_shared: how many problems are served in both, at most MAX_SHARED. clipped: whether there are more.
        n_timed: how many of them have two times that can be compared.
        mean_ratio: geometric mean of the second's time over the first's over these; None if there are none.
        largest_left: of the shared problems that are not in `pairs`, the largest factor between the two times; None
            if all are.
        environments: of the winners in `pairs`, by fingerprint.
    """

    pairs: tuple[tuple[Served, Served], ...]
    n_shared: int
    clipped: bool
    n_timed: int
    mean_ratio: float | None
    largest_left: float | None
    environments: dict[str, Environment]


@dataclass(frozen=True, slots=True)
class ComparisonOf:
    """What is served in both of two environments.

    Attributes:
        first, second: their fingerprints. policy: the measuring policy.
    """

    first: str
    second: str
    policy: str

    def answer(self, connection: sa.Connection) -> Comparison:
        """See Question."""
        mine, theirs = aliased(WinnerRow), aliased(WinnerRow)
        both = sa.and_(theirs.problem_id == mine.problem_id, *_served(theirs, self.second, self.policy))
        rows = connection.execute(
            sa.select(mine.id, theirs.id, mine.time_us, theirs.time_us)
            .select_from(sa.join(mine, theirs, both))
            .where(*_of(connection, mine, self.first, self.policy))
            .order_by(mine.id)
            .limit(MAX_SHARED + 1)
        ).all()
        clipped = len(rows) > MAX_SHARED
        rows = rows[:MAX_SHARED]
        steps = [_step(row[2], row[3]) for row in rows]
        timed = [step for step in steps if step is not None]
        # What has no two times comes first: it is a fault, and rare.
        distance = [math.inf if step is None else abs(step) for step in steps]
        chosen = heapq.nlargest(MAX_PAIRS, range(len(rows)), key=distance.__getitem__)
        left = None
        if len(chosen) < len(rows):
            kept = set(chosen)
            furthest = max(one for i, one in enumerate(distance) if i not in kept)
            left = math.exp(min(furthest, 700.0))
        found, environments = _by_id(connection, [id_ for i in chosen for id_ in rows[i][:2]])
        pairs = tuple((found[rows[i][0]], found[rows[i][1]]) for i in chosen)
        mean = math.fsum(timed) / len(timed) if timed else None
        ratio = math.exp(mean) if mean is not None and abs(mean) < 700 else None
        return Comparison(pairs, len(rows), clipped, len(timed), ratio, left, environments)


@dataclass(frozen=True, slots=True)
class ServedOnlyIn:
    """Problems that are served in one environment and not in another.

    Attributes:
        here, not_there: fingerprints of the two. policy: the measuring policy.
    """

    here: str
    not_there: str
    policy: str

    def answer(self, connection: sa.Connection) -> list[Served]:
        """The first MAX_LONELY by id, and one more if there are more."""
        mine, theirs = aliased(WinnerRow), aliased(WinnerRow)
        there = (
            sa.select(theirs.id)
            .where(theirs.problem_id == mine.problem_id, *_served(theirs, self.not_there, self.policy))
            .exists()
        )
        ids = connection.execute(
            sa.select(mine.id)
            .where(*_of(connection, mine, self.here, self.policy), ~there)
            .order_by(mine.id)
            .limit(MAX_LONELY + 1)
        ).scalars()
        wanted = list(ids)
        found, _ = _by_id(connection, wanted)
        return [found[id_] for id_ in wanted]


def _served(winner: Any, fingerprint: str, policy: str) -> list[Any]:
    """What is served in an environment by a policy: all columns of the index of what is current."""
    return [
        winner.environment_id == places.environment_id(fingerprint),
        winner.policy == policy,
        winner.superseded_at.is_(None),
        winner.source == Source.MEASURED.value,
    ]


def _of(connection: sa.Connection, winner: Any, fingerprint: str, policy: str) -> list[Any]:
    """The same, where it leads: by the index of the environment."""
    measured = listing.conditions(connection, [(winner.source, Source.MEASURED.value)], leading=0)
    return [*current_in(connection, winner, fingerprint, policy), *measured]


def _step(before: Any, after: Any) -> float | None:
    """The log of how many times as long; None if one of the two is no time."""
    try:
        return math.log(after / before) if 0 < before < math.inf and 0 < after < math.inf else None
    except (TypeError, ValueError, ArithmeticError):
        return None


def _by_id(connection: sa.Connection, ids: Sequence[int]) -> tuple[dict[int, Served], dict[str, Environment]]:
    """Winners by their ids."""
    served, environments = read_served(connection, rows_by_id(connection, ids))
    return {one.id: one for one in served}, environments
