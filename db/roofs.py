"""Roofs: what an environment's card reaches at most; the last that were measured."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ..kernels.device import Environment
from ..kernels.errors import InvalidInputError
from . import bulk, places, values
from .faults import from_row
from .models import EnvironmentRow, RoofsRow
from .records import Roofs


def measured_columns(roofs: Roofs) -> dict[str, Any]:
    """The columns of roofs, without the environment.

    Raises:
        InvalidInputError: a figure is not positive and finite.
    """
    row = {
        "copy_bytes_per_s": values.number(roofs.copy_bytes_per_s, "The copy bandwidth"),
        "bf16_flops_per_s": values.number(roofs.bf16_flops_per_s, "The BF16 rate"),
    }
    if min(row.values()) <= 0:
        raise InvalidInputError(f"Roofs must be above 0, and are {', '.join(map(str, row.values()))}.")
    return {**row, "measured_at": roofs.measured_at}


def put(connection: sa.Connection, environment: Environment, row: dict[str, Any], now: datetime) -> None:
    """Store the roofs of an environment, in place of those that were there.

    Args:
        connection: in a transaction for writing.
        environment: where they were measured; stored if it is new.
        row: their `measured_columns`.
        now: the time.
    """
    environment_id, _ = places.environment_ids(connection, [environment], now)[environment.fingerprint]
    bulk.replace(connection, RoofsRow, "environment_id", [{"environment_id": environment_id, **row}])


def find(connection: sa.Connection, fingerprint: str) -> Roofs | None:
    """The roofs of the environment with a fingerprint; None if they were not measured."""
    row = connection.execute(
        sa.select(RoofsRow.copy_bytes_per_s, RoofsRow.bf16_flops_per_s, RoofsRow.measured_at)
        .join(EnvironmentRow)
        .where(EnvironmentRow.fingerprint == fingerprint)
    ).one_or_none()
    return None if row is None else _roofs_from(*row)


@from_row
def _roofs_from(copy_bytes_per_s: float, bf16_flops_per_s: float, measured_at: datetime) -> Roofs:
    return Roofs(copy_bytes_per_s, bf16_flops_per_s, measured_at)
