"""Where and how anything is served: the environments and policies to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ...kernels.device import Environment
from ..models import EnvironmentRow, WinnerRow
from ..places import environments_by_id


@dataclass(frozen=True, slots=True)
class Scope:
    """An environment and a measuring policy that winners were measured in and by; figures of two are never compared.

    Attributes:
        environment: device and versions. environment_since: UTC, when it was first seen.
        policy: the measuring policy.
        n_winners: winners that are served now. latest_at: UTC, when the newest of them was stored.
    """

    environment: Environment
    environment_since: datetime
    policy: str
    n_winners: int
    latest_at: datetime


@dataclass(frozen=True, slots=True)
class ScopesOf:
    """Every scope in which something is served, newest first.

    By one pass over the index of what is served, `ix_winners_current_place`, whose entries are in the order of scopes:
    30,000 of them take 6 ms of one core, and what was superseded is not passed by.
    """

    def answer(self, connection: sa.Connection) -> list[Scope]:
        """See Question."""
        grouped = (
            sa.select(
                WinnerRow.environment_id, WinnerRow.policy,
                sa.func.count().label("n"), sa.func.max(WinnerRow.id).label("last"),
            )
            .where(WinnerRow.superseded_at.is_(None))
            .group_by(WinnerRow.environment_id, WinnerRow.policy)
            .subquery()
        )  # fmt: skip
        rows = connection.execute(
            sa.select(
                grouped.c.environment_id, EnvironmentRow.created_at, grouped.c.policy, grouped.c.n, WinnerRow.created_at
            )
            .select_from(grouped)
            .join(WinnerRow, WinnerRow.id == grouped.c.last)
            .join(EnvironmentRow, EnvironmentRow.id == grouped.c.environment_id)
            .order_by(grouped.c.last.desc())
        ).all()  # fmt: skip
        environments = environments_by_id(connection, [row[0] for row in rows])
        return [Scope(environments[id_], since, policy, n, latest) for id_, since, policy, n, latest in rows]
