"""Latency models: estimates fitted on what was measured on a device; the last fit of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ..kernels.errors import InvalidInputError
from . import values
from .faults import from_row
from .models import LatencyModelRow
from .records import LatencyModel

_KEY = ("device_fingerprint", "op", "format", "policy")
_ABOVE_0 = ("bandwidth_bytes_per_s", "rate_flops_per_s")
_FROM_0 = ("launch_us", "serial_us_per_1024_k", "median_error", "p90_error")
_NULLABLE = ("bandwidth_bytes_per_s", "rate_flops_per_s", "serial_us_per_1024_k")
_COUNTS = {"m_low": "smallest M", "m_high": "largest M", "n_points": "number of points"}
_COLUMNS: tuple[Any, ...] = tuple(getattr(LatencyModelRow, field.name) for field in fields(LatencyModel))


def fitted_columns(model: LatencyModel) -> dict[str, Any]:
    """The columns of a model.

    Raises:
        InvalidInputError: a figure is not finite, is negative, or is a rate of 0.
    """
    row: dict[str, Any] = {
        "device_fingerprint": values.name(model.device_fingerprint, "A fingerprint", limit=64),
        "op": values.name(model.op, "An op", limit=32),
        "format": values.name(model.format, "A format", limit=32),
        "policy": values.name(model.policy, "A policy"),
        "fitted_at": model.fitted_at,
    }
    for name, what in _COUNTS.items():
        row[name] = values.int64(getattr(model, name), f"The {what} of a latency model", least=1)
    for name in (*_ABOVE_0, *_FROM_0):
        value = getattr(model, name)
        known = value is not None or name not in _NULLABLE
        row[name] = values.number(value, f"The {name} of a latency model", least=0) if known else None
    for name in _ABOVE_0:
        if row[name] == 0:
            raise InvalidInputError(f"The {name} of a latency model must be above 0.")
    return row


def put(connection: sa.Connection, row: dict[str, Any]) -> None:
    """Store a model (its `fitted_columns`) in place of the one of the same device, op, format and policy."""
    insert: Any = (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(LatencyModelRow)
    changed = {name: insert.excluded[name] for name in row if name not in _KEY}
    connection.execute(insert.values(**row).on_conflict_do_update(index_elements=_KEY, set_=changed))


def find(connection: sa.Connection, *key: str) -> LatencyModel | None:
    """The model of a device (its fingerprint), op, format and policy; None if none was fitted."""
    for value in key:
        values.name(value, "What a latency model is looked up by")
    where = [getattr(LatencyModelRow, name) == value for name, value in zip(_KEY, key, strict=True)]
    row = connection.execute(sa.select(*_COLUMNS).where(*where)).one_or_none()
    return None if row is None else _model_from(row)


def every(connection: sa.Connection) -> list[LatencyModel]:
    """Every model, by device, op, format and policy."""
    order = [getattr(LatencyModelRow, name) for name in _KEY]
    return [_model_from(row) for row in connection.execute(sa.select(*_COLUMNS).order_by(*order))]


@from_row
def _model_from(row: Sequence[Any]) -> LatencyModel:
    return LatencyModel(*row)
