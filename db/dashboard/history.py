"""Did it get worse? Winners of a device by time, those that were superseded included.

A winner is served, or was, for a problem in an environment by a policy. Over the environments of one device the winners
of a problem form one line by the time at which they were stored. That is not the order of their ids, because an import
brings old ones under new ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from ...kernels.device import Device, Environment
from ...kernels.errors import NotFoundError
from .. import bulk, details, listing
from ..models import DeviceRow, ProblemRow, RunRow, TrialRow, WinnerRow
from ..places import DEVICE_COLUMNS, environments_by_id
from ..records import Conditions, Source
from ..winners import own_trial

MAX_PROBLEMS = 2000
"""Most problems whose last change is looked at: those that were tuned last."""

MAX_WALKED = 20_000
"""Most winners that are walked through, newest first, to find them."""


@dataclass(frozen=True, slots=True)
class Served:
    """What is, or was, served for a problem, as a history needs it. Figures are as stored: they may be nonsense.

    Attributes:
        id: of the winner, growing.
        problem_key: of its problem; empty if that is not stored.
        environment_fingerprint: where; empty if that is not stored. run_id: by which run; empty if that is not stored.
        backend, config_json: what; the config as canonical JSON.
        time_us, time_us_low, time_us_high: its median and 95 % interval, microseconds.
        default_backend, default_config_json, default_time_us, default_time_us_low, default_time_us_high: of the
            fastest default, measured in the same rounds.
        created_at: UTC. is_current: whether it is served now.
        n_samples: samples of what is served (about as many of the default); None without its trial.
        conditions: what the card was like meanwhile; None if that is not known.
    """

    id: int
    problem_key: str
    environment_fingerprint: str
    run_id: str
    backend: str
    config_json: str
    time_us: float
    time_us_low: float
    time_us_high: float
    default_backend: str
    default_config_json: str
    default_time_us: float
    default_time_us_low: float
    default_time_us_high: float
    created_at: datetime
    is_current: bool
    n_samples: int | None
    conditions: Conditions | None

    @property
    def throttled_share(self) -> float | None:
        """Share of the samples that were throttled; None if it is not known."""
        if self.conditions is None or not self.n_samples:
            return None
        return min(1.0, len(self.conditions.throttled_samples) / self.n_samples)

    @property
    def choice(self) -> tuple[str, str]:
        """Backend and config: equal where the same is served."""
        return self.backend, self.config_json

    @property
    def default_choice(self) -> tuple[str, str]:
        """Backend and config of the default."""
        return self.default_backend, self.default_config_json


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """A device and a measuring policy by which something was measured on it."""

    device: Device
    policy: str


@dataclass(frozen=True, slots=True)
class PlacesOf:
    """Where and how anything is served, or one problem was ever served, the newest first.

    Attributes:
        problem_key: the problem; None for any.
    """

    problem_key: str | None = None

    def answer(self, connection: sa.Connection) -> list[DevicePolicy]:
        """See Question.

        Raises:
            NotFoundError: there is no such problem.
        """
        if self.problem_key is None:
            newest = self._served_last()
        else:
            newest = (
                sa.select(WinnerRow.device_id, WinnerRow.policy, sa.func.max(WinnerRow.id).label("last"))
                .where(
                    WinnerRow.problem_id == problem_id_of(connection, self.problem_key),
                    WinnerRow.source == Source.MEASURED.value,
                )
                .group_by(WinnerRow.device_id, WinnerRow.policy)
                .subquery()
            )
        rows = connection.execute(
            sa.select(*DEVICE_COLUMNS, newest.c.device_id, newest.c.policy)
            .select_from(sa.join(newest, DeviceRow, DeviceRow.id == newest.c.device_id))
            .order_by(newest.c.last.desc())
        )
        found: dict[tuple[int, str], DevicePolicy] = {}
        for *device, id_, policy in rows:
            # A device has several environments: what was last served in any of them counts.
            found.setdefault((id_, policy), DevicePolicy(Device(*device), policy))
        return list(found.values())

    def _served_last(self) -> Any:
        """The newest winner of each environment and policy, by the index of what is served; no others are read.

        Somewhere a winner of each problem, environment and policy is current, so that history adds no place.
        """
        current = WinnerRow.superseded_at.is_(None)
        place = sa.select(WinnerRow.environment_id, WinnerRow.policy).where(current).distinct().subquery()
        winner, other = aliased(WinnerRow), aliased(WinnerRow)
        last = (
            sa.select(other.id)
            .where(
                other.environment_id == place.c.environment_id, other.policy == place.c.policy,
                other.superseded_at.is_(None), other.source == Source.MEASURED.value,
            )
            .order_by(other.id.desc())
            .limit(1)
            .correlate(place)
            .scalar_subquery()
        )  # fmt: skip
        return (
            sa.select(winner.device_id, winner.policy, winner.id.label("last"))
            .select_from(sa.join(place, winner, winner.id == last))
            .subquery()
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """The last change of every problem of a device.

    Attributes:
        pairs: the newest winner of each problem by time and the one before it, None if there is none; problems that
            were tuned last come first.
        newest_id: no winner with a larger id was looked at.
        clipped: whether there may be more problems.
        environments: by fingerprint.
    """

    pairs: tuple[tuple[Served, Served | None], ...]
    newest_id: int
    clipped: bool
    environments: dict[str, Environment]


@dataclass(frozen=True, slots=True)
class ChangesOf:
    """The newest two winners of each problem of a device.

    Attributes:
        device: its fingerprint. policy: the measuring policy.
        newest_id: winners with a larger id do not count, so that the pages of one listing agree; None for all.
    """

    device: str
    policy: str
    newest_id: int | None = None

    def answer(self, connection: sa.Connection) -> Changes:
        """See Question."""
        device_id = listing.id_of(DeviceRow, DeviceRow.fingerprint, self.device, "A fingerprint")
        walked = (
            sa.select(WinnerRow.problem_id, WinnerRow.id)
            .where(
                *listing.conditions(
                    connection,
                    [(WinnerRow.device_id, device_id), (WinnerRow.policy, self.policy),
                     (WinnerRow.source, Source.MEASURED.value)],
                ),
                *self._upto(WinnerRow),
            )
            .order_by(WinnerRow.id.desc())
            .limit(MAX_WALKED)
            .subquery()
        )  # fmt: skip
        last = sa.func.max(walked.c.id)
        found = connection.execute(
            sa.select(walked.c.problem_id, last, sa.func.count())
            .group_by(walked.c.problem_id)
            .order_by(last.desc())
            .limit(MAX_PROBLEMS + 1)
        ).all()
        problem_ids = [row[0] for row in found][:MAX_PROBLEMS]
        newest_id = found[0][1] if found else 0
        rows = [
            row
            for some in bulk.chunks(problem_ids)
            for row in connection.execute(self._last_two(connection, some, device_id))
        ]
        known = {row.problem_id for row in rows}
        orphans = [row[1] for row in found[:MAX_PROBLEMS] if row[0] not in known]  # whose problem is not stored
        rows += rows_by_id(connection, orphans)
        served, environments = read_served(connection, rows)
        by_problem: dict[int, list[Served]] = {}
        for row, one in zip(rows, served, strict=True):
            by_problem.setdefault(row.problem_id, []).append(one)
        pairs = []
        for id_ in problem_ids:
            two = sorted(by_problem.get(id_, []), key=_by_time, reverse=True)
            if two:
                pairs.append((two[0], two[1] if len(two) > 1 else None))
        clipped = len(found) > MAX_PROBLEMS or sum(row[2] for row in found) >= MAX_WALKED
        return Changes(tuple(pairs), newest_id, clipped, environments)

    def _upto(self, winner: Any) -> list[sa.ColumnElement[bool]]:
        return [] if self.newest_id is None else [winner.id <= self.newest_id]

    def _last_two(self, connection: sa.Connection, problem_ids: Sequence[int], device_id: Any) -> Any:
        """The two newest winners of each of some problems: of each by an index, and not all of them sorted."""
        other = aliased(WinnerRow)
        newest = (
            sa.select(other.id)
            .where(
                *listing.conditions(
                    connection,
                    [(other.problem_id, ProblemRow.id), (other.device_id, device_id), (other.policy, self.policy),
                     (other.source, Source.MEASURED.value)],
                ),
                *self._upto(other),
            )
            .order_by(other.created_at.desc(), other.id.desc())
            .limit(2)
            .correlate(ProblemRow)
        )  # fmt: skip
        source = sa.join(ProblemRow, WinnerRow, WinnerRow.id.in_(newest))
        named = join_names(source, problem=False)
        return sa.select(*served_columns()).select_from(named).where(ProblemRow.id.in_(problem_ids))


@dataclass(frozen=True, slots=True)
class History:
    """Winners of one problem.

    Attributes:
        served: newest first. before: the one before the last of them, if there is one: there is more.
        environments: by fingerprint.
    """

    served: tuple[Served, ...]
    before: Served | None
    environments: dict[str, Environment]


@dataclass(frozen=True, slots=True)
class HistoryOf:
    """Winners of a problem on a device by a policy, newest first.

    Attributes:
        problem_key: the problem. device: the device's fingerprint. policy: the measuring policy.
        limit: most winners. before_id: only winners older than this one; None for all.
    """

    problem_key: str
    device: str
    policy: str
    limit: int
    before_id: int | None = None

    def answer(self, connection: sa.Connection) -> History:
        """See Question.

        Raises:
            NotFoundError: there is no such problem.
        """
        problem_id = problem_id_of(connection, self.problem_key)
        device_id = listing.id_of(DeviceRow, DeviceRow.fingerprint, self.device, "A fingerprint")
        select = _served_of(connection, WinnerRow.problem_id == problem_id, device_id, self.policy)
        if self.before_id is not None:
            other = aliased(WinnerRow)
            then = sa.select(other.created_at).where(other.id == self.before_id).scalar_subquery()
            select = select.where(
                sa.or_(
                    WinnerRow.created_at < then,
                    sa.and_(WinnerRow.created_at == then, WinnerRow.id < self.before_id),
                )
            )
        rows = connection.execute(
            select.order_by(WinnerRow.created_at.desc(), WinnerRow.id.desc()).limit(self.limit + 1)
        ).all()
        served, environments = read_served(connection, rows)
        before = served[self.limit] if len(served) > self.limit else None
        return History(tuple(served[: self.limit]), before, environments)


def problem_id_of(connection: sa.Connection, key: str) -> int:
    """The id of a problem.

    Raises:
        NotFoundError: there is no such problem.
    """
    found = connection.execute(sa.select(ProblemRow.id).where(ProblemRow.key == key)).scalar_one_or_none()
    if found is None:
        raise NotFoundError(f"There is no problem {key!r} in the database.")
    return int(found)


def served_columns(winner: Any = WinnerRow) -> tuple[Any, ...]:
    """What `read_served` reads, of a table of winners that is joined by `join_names`."""
    return (
        winner.id, winner.problem_id, winner.environment_id, ProblemRow.key, RunRow.ulid.label("run"), winner.backend,
        winner.config, winner.time_us, winner.time_us_low, winner.time_us_high, winner.default_backend,
        winner.default_config, winner.default_time_us, winner.default_time_us_low, winner.default_time_us_high,
        winner.created_at, winner.superseded_at, TrialRow.n_samples, TrialRow.conditions,
    )  # fmt: skip


def join_names(source: Any, winner: Any = WinnerRow, *, problem: bool = True) -> Any:
    """A table of winners with their runs, their trials and, unless it is there already, their problems.

    From the left: a row that something refers to may be missing, and SQLite's planner must not begin elsewhere.
    """
    if problem:
        source = source.outerjoin(ProblemRow, ProblemRow.id == winner.problem_id)
    return source.outerjoin(RunRow, RunRow.id == winner.run_id).outerjoin(TrialRow, own_trial(winner))


def rows_by_id(connection: sa.Connection, ids: Sequence[int]) -> list[Any]:
    """Rows of `served_columns` of winners by their ids, in no order."""
    select = sa.select(*served_columns()).select_from(join_names(sa.inspect(WinnerRow).local_table))
    return [row for some in bulk.chunks(ids) for row in connection.execute(select.where(WinnerRow.id.in_(some)))]


def read_served(connection: sa.Connection, rows: Iterable[Any]) -> tuple[list[Served], dict[str, Environment]]:
    """Rows of `served_columns` as records, in their order, and their environments by fingerprint."""
    rows = list(rows)
    by_id = environments_by_id(connection, {row.environment_id for row in rows})
    fingerprints = {id_: environment.fingerprint for id_, environment in by_id.items()}
    served = [
        Served(
            row.id, row.key or "", fingerprints.get(row.environment_id, ""), row.run or "", row.backend, row.config,
            row.time_us, row.time_us_low, row.time_us_high, row.default_backend, row.default_config,
            row.default_time_us, row.default_time_us_low, row.default_time_us_high, row.created_at,
            row.superseded_at is None, row.n_samples if isinstance(row.n_samples, int) else None,
            _conditions(row.conditions),
        )
        for row in rows
    ]  # fmt: skip
    return served, {environment.fingerprint: environment for environment in by_id.values()}


def _conditions(text: Any) -> Conditions | None:
    """Conditions of a trial; None where there are none or where they cannot be read: they only qualify a time."""
    if not text:
        return None
    try:
        return details.conditions_from(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _by_time(one: Served) -> tuple[datetime, int]:
    return one.created_at, one.id


def _served_of(connection: sa.Connection, leading: Any, device_id: Any, policy: str) -> Any:
    """Measured winners on a device by a policy, found by `leading`: none of the others may use an index."""
    return (
        sa.select(*served_columns())
        .select_from(join_names(sa.inspect(WinnerRow).local_table))
        .where(
            leading,
            *listing.conditions(
                connection,
                [(WinnerRow.device_id, device_id), (WinnerRow.policy, policy),
                 (WinnerRow.source, Source.MEASURED.value)],
                leading=0,
            ),
        )
    )  # fmt: skip
