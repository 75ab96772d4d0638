"""Devices and environments with what was measured in each: sums of counts, and no trial is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...kernels.device import Device, Environment
from ...kernels.errors import NotFoundError
from .. import listing, trial_counts
from ..faults import from_row
from ..models import DeviceRow, EnvironmentRow, RoofsRow, RunRow, WinnerRow
from ..places import DEVICE_COLUMNS, ENVIRONMENT_COLUMNS, environment_from
from ..records import Roofs


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured somewhere.

    Attributes:
        n_trials: trials. n_winners: winners that are served now.
        latest_run: id of the newest run; None without one. latest_run_at: UTC, when it started.
    """

    n_trials: int
    n_winners: int
    latest_run: str | None
    latest_run_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeviceSeen:
    """A device with what was measured on it.

    Attributes:
        fingerprint: as it is stored. device: the device. since: UTC, when it was first seen.
        n_environments: environments of it. measured: over all of them.
    """

    fingerprint: str
    device: Device
    since: datetime
    n_environments: int
    measured: Measured


@dataclass(frozen=True, slots=True)
class EnvironmentSeen:
    """An environment with what was measured in it.

    Attributes:
        fingerprint: as it is stored. device_fingerprint: of its device.
        environment: device and versions. since: UTC, when it was first seen.
        roofs: what its card reaches at most; None if that was not measured.
        measured: in it.
    """

    fingerprint: str
    device_fingerprint: str
    environment: Environment
    since: datetime
    roofs: Roofs | None
    measured: Measured


@dataclass(frozen=True, slots=True)
class DevicesSeen:
    """The newest devices.

    Attributes:
        limit: most devices.
    """

    limit: int = 200

    def answer(self, connection: sa.Connection) -> list[DeviceSeen]:
        """See Question. Newest first."""
        listing.check_limit(self.limit)
        found = connection.execute(
            sa.select(*DEVICE_COLUMNS, DeviceRow.fingerprint, DeviceRow.created_at, DeviceRow.id)
            .order_by(DeviceRow.id.desc())
            .limit(self.limit)
        ).all()
        devices: dict[int, list[int]] = {row[-1]: [] for row in found}
        rows = connection.execute(
            sa.select(EnvironmentRow.device_id, EnvironmentRow.id).where(EnvironmentRow.device_id.in_(devices))
        )
        for device_id, environment_id in rows:
            devices[device_id].append(environment_id)
        sums = _Sums(connection)
        return [
            DeviceSeen(row[-3], _device_from(row), row[-2], len(devices[row[-1]]), sums.over(devices[row[-1]]))
            for row in found
        ]


@dataclass(frozen=True, slots=True)
class EnvironmentsSeen:
    """The newest environments.

    Attributes:
        device: fingerprint of their device; empty for all. environment: fingerprint of the only one; empty for all.
        limit: most environments.
    """

    device: str = ""
    environment: str = ""
    limit: int = 200

    def answer(self, connection: sa.Connection) -> list[EnvironmentSeen]:
        """See Question. Newest first.

        Raises:
            NotFoundError: there is no such device.
        """
        listing.check_limit(self.limit)
        columns = (
            *ENVIRONMENT_COLUMNS, EnvironmentRow.fingerprint, DeviceRow.fingerprint, EnvironmentRow.created_at,
            RoofsRow.copy_bytes_per_s, RoofsRow.bf16_flops_per_s, RoofsRow.measured_at, EnvironmentRow.id,
        )  # fmt: skip
        select = (
            sa.select(*columns)
            .select_from(EnvironmentRow)
            .join(DeviceRow)
            .outerjoin(RoofsRow, RoofsRow.environment_id == EnvironmentRow.id)
            .order_by(EnvironmentRow.id.desc())
            .limit(self.limit)
        )
        if self.device:
            select = select.where(EnvironmentRow.device_id == _device_id(connection, self.device))
        if self.environment:
            select = select.where(EnvironmentRow.fingerprint == self.environment)
        sums = _Sums(connection)
        seen = []
        for row in connection.execute(select):
            fingerprint, device, since, copy, flops, at, id_ = row[len(ENVIRONMENT_COLUMNS) :]
            roofs = None if at is None else Roofs(copy, flops, at)
            seen.append(EnvironmentSeen(fingerprint, device, environment_from(row), since, roofs, sums.over([id_])))
        return seen


@dataclass(frozen=True, slots=True)
class EnvironmentNames:
    """The newest environments, to choose from; no counts.

    Attributes:
        chosen: fingerprint of one that is among them, however old it is; empty for none. limit: most environments.
    """

    chosen: str = ""
    limit: int = 199

    def answer(self, connection: sa.Connection) -> list[tuple[str, Environment]]:
        """See Question. Fingerprints and environments, the chosen one last if it is older than the others.

        Raises:
            NotFoundError: the chosen one is not stored.
        """
        select = sa.select(*ENVIRONMENT_COLUMNS, EnvironmentRow.fingerprint).join(DeviceRow)
        found = _newest(connection, select, EnvironmentRow, self.chosen, self.limit)
        if self.chosen and self.chosen not in found:
            raise NotFoundError(f"There is no environment {self.chosen!r} in the database.")
        return [(fingerprint, environment_from(row)) for fingerprint, row in found.items()]


@dataclass(frozen=True, slots=True)
class DeviceNames:
    """The newest devices, to choose from; no counts.

    Attributes:
        chosen: fingerprint of one that is among them, however old it is; empty for none. limit: most devices.
    """

    chosen: str = ""
    limit: int = 199

    def answer(self, connection: sa.Connection) -> list[tuple[str, Device]]:
        """See Question. Fingerprints and devices, the chosen one last if it is older than the others.

        Raises:
            NotFoundError: the chosen one is not stored.
        """
        select = sa.select(*DEVICE_COLUMNS, DeviceRow.fingerprint)
        found = _newest(connection, select, DeviceRow, self.chosen, self.limit)
        if self.chosen and self.chosen not in found:
            raise _no_device(self.chosen)
        return [(fingerprint, _device_from(row)) for fingerprint, row in found.items()]


def _newest(connection: sa.Connection, select: Any, model: Any, chosen: str, limit: int) -> dict[str, Any]:
    """The newest rows by their fingerprint, which is their last column, and then the chosen one if it is stored."""
    rows = list(connection.execute(select.order_by(model.id.desc()).limit(limit)))
    if chosen and all(row[-1] != chosen for row in rows):
        rows += connection.execute(select.where(model.fingerprint == chosen))
    return {row[-1]: row for row in rows}


@from_row
def _device_from(row: Any) -> Device:
    """The device in the first columns of a row that was selected with DEVICE_COLUMNS."""
    return Device(*row[: len(DEVICE_COLUMNS)])


def _device_id(connection: sa.Connection, fingerprint: str) -> int:
    found = connection.execute(sa.select(DeviceRow.id).where(DeviceRow.fingerprint == fingerprint)).scalar_one_or_none()
    if found is None:
        raise _no_device(fingerprint)
    return int(found)


def _no_device(fingerprint: str) -> NotFoundError:
    return NotFoundError(f"There is no device {fingerprint!r} in the database.")


class _Sums:
    """What was measured in every environment, by its id: three statements, however many are asked about."""

    def __init__(self, connection: sa.Connection) -> None:
        self._trials = trial_counts.by_environment(connection)
        winners = (
            sa.select(WinnerRow.environment_id, sa.func.count())
            .where(WinnerRow.superseded_at.is_(None))
            .group_by(WinnerRow.environment_id)
        )
        self._winners = {row[0]: int(row[1]) for row in connection.execute(winners)}
        # Ids of runs sort by the time of their start.
        last = sa.select(sa.func.max(RunRow.ulid).label("ulid")).group_by(RunRow.environment_id).subquery()
        runs = sa.select(RunRow.environment_id, RunRow.ulid, RunRow.started_at).join(last, last.c.ulid == RunRow.ulid)
        self._runs: dict[int, tuple[str, datetime]] = {id_: (ulid, at) for id_, ulid, at in connection.execute(runs)}

    def over(self, ids: list[int]) -> Measured:
        """What was measured in some environments."""
        runs = [self._runs[id_] for id_ in ids if id_ in self._runs]
        ulid, at = max(runs) if runs else (None, None)
        return Measured(
            sum(self._trials.get(id_, 0) for id_ in ids), sum(self._winners.get(id_, 0) for id_ in ids), ulid, at
        )
