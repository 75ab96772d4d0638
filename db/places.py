"""What the other tables refer to: devices, environments and problems, each stored once, by its natural key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ..kernels.device import Device, Environment
from ..kernels.errors import InvalidInputError, NotFoundError
from ..kernels.problem import Format, Op, OutDtype, Problem, Routing
from . import bulk, listing, trial_counts, values
from .faults import from_row
from .models import DeviceRow, EnvironmentRow, ProblemRow, WinnerRow
from .records import StoredEnvironment

PROBLEM_COLUMNS: tuple[Any, ...] = (
    ProblemRow.m, ProblemRow.n, ProblemRow.k, ProblemRow.op, ProblemRow.experts, ProblemRow.experts_total,
    ProblemRow.top_k, ProblemRow.routing, ProblemRow.format, ProblemRow.out_dtype,
)  # fmt: skip
"""Select these first, in this order; `problem_from` reads them."""

N_PROBLEM_COLUMNS = len(PROBLEM_COLUMNS)

DEVICE_COLUMNS: tuple[Any, ...] = (
    DeviceRow.kind, DeviceRow.name, DeviceRow.compute_capability, DeviceRow.sms, DeviceRow.memory_bytes,
    DeviceRow.l2_bytes, DeviceRow.power_limit_w,
)  # fmt: skip

ENVIRONMENT_COLUMNS = (*DEVICE_COLUMNS, EnvironmentRow.versions)
"""Select these first, in this order; `environment_from` reads them."""


# Problems


def problem_ids(connection: sa.Connection, problems: Iterable[Problem]) -> dict[str, int]:
    """Ids of problems by their keys; those that are new are stored."""
    wanted = {problem.key: problem for problem in problems}
    found = _problem_ids(connection, list(wanted))
    missing = [key for key in wanted if key not in found]
    bulk.insert_new(connection, ProblemRow, "key", [_problem_row(key, wanted[key]) for key in missing])
    return found | _problem_ids(connection, missing)


def _problem_ids(connection: sa.Connection, keys: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for some in bulk.chunks(keys):
        rows = connection.execute(sa.select(ProblemRow.key, ProblemRow.id).where(ProblemRow.key.in_(some)))
        found.update((key, id_) for key, id_ in rows)
    return found


def _problem_row(key: str, problem: Problem) -> dict[str, Any]:
    return {
        "key": key,
        "op": problem.op.value,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "experts": problem.experts,
        "experts_total": problem.experts_total,
        "top_k": problem.top_k,
        "routing": problem.routing.value,
        "format": problem.format.value,
        "out_dtype": problem.out_dtype.value,
    }


@from_row
def problem_from(row: Sequence[Any]) -> Problem:
    """The problem in the first columns of a row that was selected with PROBLEM_COLUMNS."""
    m, n, k, op, experts, experts_total, top_k, routing, format_, out_dtype = row[:N_PROBLEM_COLUMNS]
    return Problem(
        m, n, k, Op(op), experts, experts_total, top_k, Routing(routing), Format(format_), OutDtype(out_dtype)
    )  # fmt: skip


# Devices and environments


def environment_ids(
    connection: sa.Connection, environments: Iterable[Environment], now: datetime
) -> dict[str, tuple[int, int]]:
    """Ids of environments and of their devices, by the environment's fingerprint; those that are new are stored.

    Raises:
        InvalidInputError: an environment would not come back with the same fingerprint.
    """
    wanted = {environment.fingerprint: environment for environment in environments}
    found = _environment_ids(connection, list(wanted))
    missing = [fingerprint for fingerprint in wanted if fingerprint not in found]
    if not missing:
        return found
    new = [wanted[fingerprint] for fingerprint in missing]
    devices = _device_ids(connection, [environment.device for environment in new], now)
    rows = [
        {
            "fingerprint": environment.fingerprint,
            "device_id": devices[environment.device.fingerprint],
            "versions": _versions(environment),
            "created_at": now,
        }
        for environment in new
    ]
    bulk.insert_new(connection, EnvironmentRow, "fingerprint", rows)
    return found | _environment_ids(connection, missing)


def _environment_ids(connection: sa.Connection, fingerprints: Sequence[str]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for some in bulk.chunks(fingerprints):
        columns = (EnvironmentRow.fingerprint, EnvironmentRow.id, EnvironmentRow.device_id)
        rows = connection.execute(sa.select(*columns).where(EnvironmentRow.fingerprint.in_(some)))
        found.update((fingerprint, (id_, device_id)) for fingerprint, id_, device_id in rows)
    return found


def _versions(environment: Environment) -> str:
    """An environment's versions as canonical JSON."""
    for key, value in environment.versions.items():
        values.name(key, "The name of a version")
        values.name(value, f"The version of {key}")
    return values.canonical(dict(environment.versions), "The versions of an environment")


def _device_ids(connection: sa.Connection, devices: Sequence[Device], now: datetime) -> dict[str, int]:
    """Ids of devices by fingerprint; those that are new are stored."""
    rows = {device.fingerprint: _device_row(device) | {"created_at": now} for device in devices}
    bulk.insert_new(connection, DeviceRow, "fingerprint", list(rows.values()))
    select = sa.select(DeviceRow.fingerprint, DeviceRow.id).where(DeviceRow.fingerprint.in_(list(rows)))
    return {row.fingerprint: row.id for row in connection.execute(select)}


def _device_row(device: Device) -> dict[str, Any]:
    """A device's columns; refused if what is read back would not be the same device."""
    row: dict[str, Any] = {
        "kind": values.name(device.kind, "A device's kind", limit=32),
        "name": values.name(device.name, "A device's name"),
        "compute_capability": values.name(device.compute_capability, "A device's compute capability", limit=32),
        "sms": values.int64(device.sms, "A device's number of SMs"),
        "memory_bytes": values.int64(device.memory_bytes, "A device's memory"),
        "l2_bytes": values.int64(device.l2_bytes, "A device's L2 cache"),
        "power_limit_w": values.number(device.power_limit_w, "A device's power limit"),
    }
    if Device(**row).fingerprint != device.fingerprint:
        raise InvalidInputError(
            f"The device {device.name!r} would not keep its fingerprint in the store: give power_limit_w as a float "
            "and the other figures as integers."
        )
    return row | {"fingerprint": device.fingerprint}


@from_row
def environment_from(row: Sequence[Any]) -> Environment:
    """The environment in the first columns of a row that was selected with ENVIRONMENT_COLUMNS."""
    return Environment(Device(*row[: len(DEVICE_COLUMNS)]), json.loads(row[len(DEVICE_COLUMNS)]))


def environments_by_id(connection: sa.Connection, ids: Iterable[int]) -> dict[int, Environment]:
    """Environments by their ids."""
    found: dict[int, Environment] = {}
    for some in bulk.chunks(sorted(set(ids))):
        rows = connection.execute(
            sa.select(*ENVIRONMENT_COLUMNS, EnvironmentRow.id).join(DeviceRow).where(EnvironmentRow.id.in_(some))
        )
        found.update((row[-1], environment_from(row)) for row in rows)
    return found


def environment_id(fingerprint: str) -> Any:
    """A subquery for the id of an environment; NULL if it is not stored."""
    return listing.id_of(EnvironmentRow, EnvironmentRow.fingerprint, fingerprint, "A fingerprint")


def environment(connection: sa.Connection, fingerprint: str) -> Environment:
    """The environment with a fingerprint.

    Raises:
        NotFoundError: there is none.
    """
    values.name(fingerprint, "A fingerprint")
    row = connection.execute(
        sa.select(*ENVIRONMENT_COLUMNS).join(DeviceRow).where(EnvironmentRow.fingerprint == fingerprint)
    ).one_or_none()
    if row is None:
        raise NotFoundError(f"There is no environment {fingerprint!r} in the database.")
    return environment_from(row)


def devices(connection: sa.Connection) -> list[tuple[Device, datetime]]:
    """Every device and when it was first seen, oldest first."""
    rows = connection.execute(sa.select(*DEVICE_COLUMNS, DeviceRow.created_at).order_by(DeviceRow.id))
    return [(Device(*row[:-1]), row[-1]) for row in rows]


def environments(connection: sa.Connection) -> list[StoredEnvironment]:
    """Every environment with what was measured in it, oldest first."""
    trials = trial_counts.by_environment(connection)
    winners = dict(_counts(connection, WinnerRow.environment_id, WinnerRow.superseded_at.is_(None)))
    columns = (*ENVIRONMENT_COLUMNS, EnvironmentRow.id, EnvironmentRow.created_at)
    rows = connection.execute(sa.select(*columns).join(DeviceRow).order_by(EnvironmentRow.id))
    return [
        StoredEnvironment(environment_from(row), row[-1], trials.get(row[-2], 0), winners.get(row[-2], 0))
        for row in rows
    ]


def _counts(connection: sa.Connection, column: Any, *where: Any) -> list[tuple[int, int]]:
    """How many rows there are for each value of a column."""
    rows = connection.execute(sa.select(column, sa.func.count()).where(*where).group_by(column))
    return [(value, count) for value, count in rows]
