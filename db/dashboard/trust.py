"""What speaks for and against one served config: its finals with their samples, and what other runs served."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...kernels.backend import ConfigValue, config_key
from ...kernels.device import Environment
from ...kernels.errors import NotFoundError
from .. import details, listing, places, runs, samples, winners
from ..faults import from_row
from ..models import ProblemRow, RunProblemRow, RunRow, TrialRow, WinnerRow
from ..records import Choice, Conditions, Origin, Run, Winner, WinnerFilter

BEFORE_AND_AFTER = 64
"""Trials before and after the served one's among which its finals are: they are stored in one go, at most 8 finalists,
2 baselines and a default of every backend."""

MAX_DRAWN = 8
"""Configs whose samples are read: the served one, the default, and the first others of the tie set."""

MAX_RUNS = 100
"""Winners of other runs that are looked through, newest first."""

MAX_SERVED = 500
"""Served problems that are listed to choose from, newest first."""


@dataclass(frozen=True, slots=True)
class Final:
    """A config in the finals.

    Attributes:
        number: of the trial. backend: whose config. config: decoded config.
        time_us, time_us_low, time_us_high: median and 95 % interval, microseconds; None if it did not run.
        n_samples: how many samples the median is over.
        samples_us: those that were kept, in the order they were taken, microseconds; empty if they were not read.
        rel_error: the largest relative error that the gate saw; None if it saw none.
        conditions: what the card was like meanwhile; None if nobody looked.
        error: why it did not run; empty if it did.
    """

    number: int
    backend: str
    config: Mapping[str, ConfigValue]
    time_us: float | None
    time_us_low: float | None
    time_us_high: float | None
    n_samples: int
    samples_us: Sequence[float]
    rel_error: float | None
    conditions: Conditions | None
    error: str

    @property
    def key(self) -> str:
        """Backend and config: the same as a choice's if and only if it is that."""
        return f"{self.backend} {config_key(self.config)}"


@dataclass(frozen=True, slots=True)
class Earlier:
    """What another run served for the same problem on the same device, by the same policy; its last word.

    Attributes:
        run_id: the run. environment: where. created_at: UTC, when it was stored. is_served: whether it is served now.
        choice: what it served. tie_set: what it could not tell apart from its fastest.
    """

    run_id: str
    environment: Environment
    created_at: datetime
    is_served: bool
    choice: Choice
    tie_set: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What there is about one served config.

    Attributes:
        winner: what is served. run: the run that found it.
        done: whether that run came to an end with the problem; None if it does not know the problem.
        outcome: its sentence about it; empty without one.
        finals: the configs of its finals, by number; those that matter most with samples.
        others: what other runs served, newest first.
        more_others: whether there may be more of them than were looked through.
    """

    winner: Winner
    run: Run
    done: bool | None
    outcome: str
    finals: tuple[Final, ...]
    others: tuple[Earlier, ...]
    more_others: bool


@dataclass(frozen=True, slots=True)
class EvidenceOf:
    """What speaks for and against what is served for a problem.

    Attributes:
        problem_key, environment_fingerprint, policy: what is served for what, where, and by what it was measured.
    """

    problem_key: str
    environment_fingerprint: str
    policy: str

    def answer(self, connection: sa.Connection) -> Evidence:
        """See Question.

        Raises:
            NotFoundError: nothing is served there.
        """
        where = WinnerFilter(
            problem_key=self.problem_key, environment_fingerprint=self.environment_fingerprint, policy=self.policy
        )
        found = winners.page(connection, where, limit=1, after=0).items
        if not found:
            raise NotFoundError(
                f"Nothing is served for {self.problem_key} in environment {self.environment_fingerprint} by policy "
                f"{self.policy}."
            )
        winner = found[0]
        row = WinnerRow
        run_id, problem_id, device_id, number = connection.execute(
            sa.select(row.run_id, row.problem_id, row.device_id, row.trial_number).where(row.id == winner.id)
        ).one()
        said = connection.execute(
            sa.select(RunProblemRow.done, RunProblemRow.outcome)
            .where(RunProblemRow.run_id == run_id, RunProblemRow.problem_id == problem_id)
            .limit(1)
        ).one_or_none()
        others, more = _others(connection, run_id, problem_id, device_id, winner.policy)
        done, outcome = said if said is not None else (None, "")
        finals = _finals(connection, run_id, problem_id, number, winner)
        return Evidence(winner, runs.find(connection, winner.run_id), done, outcome, finals, others, more)


@dataclass(frozen=True, slots=True)
class Served:
    """A problem for which something is served, with what is doubtful at a glance.

    Attributes:
        problem_key: the problem's key.
        backend: whose config is served. time_us, time_us_low, time_us_high: median and 95 % interval, microseconds.
        n_ties: configs of the tie set, the served one included.
        n_samples: samples of the served config's finals; None if their trial is not there.
        n_throttled: of those that were kept, how many were throttled; None if nobody looked.
        created_at: UTC.
    """

    problem_key: str
    backend: str
    time_us: float
    time_us_low: float
    time_us_high: float
    n_ties: int
    n_samples: int | None
    n_throttled: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ServedOf:
    """The newest MAX_SERVED problems for which something is served, newest first.

    Attributes:
        environment_fingerprint, policy: where, and by what it was measured.
    """

    environment_fingerprint: str
    policy: str

    def answer(self, connection: sa.Connection) -> list[Served]:
        """See Question."""
        row = WinnerRow
        rows = connection.execute(
            sa.select(
                ProblemRow.key, row.backend, row.time_us, row.time_us_low, row.time_us_high, row.n_ties,
                TrialRow.n_samples, TrialRow.conditions, row.created_at,
            )
            .select_from(row)
            .join(ProblemRow, ProblemRow.id == row.problem_id, isouter=True)
            .outerjoin(TrialRow, winners.own_trial(row))
            .where(*winners.current_in(connection, row, self.environment_fingerprint, self.policy))
            .order_by(row.id.desc())
            .limit(MAX_SERVED)
        )  # fmt: skip
        served = map(_served_from, rows)
        return [one for one in served if one is not None]


@from_row
def _served_from(row: Sequence[Any]) -> Served | None:
    """None if the row of its problem is missing: of a damaged database what can be named is shown."""
    key, backend, time_us, low, high, n_ties, n_samples, conditions, created_at = row
    if key is None:
        return None
    n_throttled = None if conditions is None else len(_conditions(conditions).throttled_samples)
    return Served(key, backend, time_us, low, high, n_ties, n_samples, n_throttled, created_at)


def _finals(
    connection: sa.Connection, run_id: int, problem_id: int, number: int, winner: Winner
) -> tuple[Final, ...]:  # fmt: skip
    row = TrialRow
    near = (
        row.run_id == run_id,
        row.problem_id == problem_id,
        row.number.between(number - BEFORE_AND_AFTER, number + BEFORE_AND_AFTER),
    )
    found = connection.execute(
        sa.select(
            row.number, row.backend, row.config, row.time_us, row.time_us_low, row.time_us_high, row.n_samples,
            row.rel_error, row.conditions, row.error,
        )
        .where(*near, row.origin == Origin.FINAL.value)
        .order_by(row.number)
    ).all()  # fmt: skip
    finals = {one[0]: _final_from(one, ()) for one in found}
    # Of a run that was resumed there may be two finals: those that belong together follow on each other.
    finals = {one: final for one, final in finals.items() if all(n in finals for n in _between(one, number))}
    wanted = list(dict.fromkeys(_key(one) for one in (winner.choice, winner.default, *winner.tie_set)))
    place = {key: i for i, key in enumerate(wanted)}
    drawn = sorted((final for final in finals.values() if final.key in place), key=lambda final: place[final.key])
    if len(drawn) < 2:  # nothing beside it: then what came next
        rest = [final for final in finals.values() if final.key not in place and final.time_us is not None]
        drawn += sorted(rest, key=lambda final: final.time_us or 0.0)[:1]
    numbers = [final.number for final in drawn[:MAX_DRAWN]]
    blobs = connection.execute(
        sa.select(row.number, row.samples).where(
            row.run_id == run_id, row.problem_id == problem_id, row.number.in_(numbers)
        )
    )
    taken = {one: _unpacked(blob) for one, blob in blobs}
    return tuple(_final_from(one, taken.get(one[0], ())) for one in found if one[0] in finals)


def _between(one: int, other: int) -> range:
    return range(min(one, other), max(one, other) + 1)


def _key(choice: Choice) -> str:
    return f"{choice.backend} {config_key(choice.config)}"


@from_row
def _unpacked(blob: bytes) -> tuple[float, ...]:
    return samples.unpack(blob)


@from_row
def _final_from(row: Sequence[Any], taken: Sequence[float]) -> Final:
    number, backend, config, time_us, low, high, n_samples, rel_error, conditions, error = row
    seen = None if conditions is None else _conditions(conditions)
    return Final(
        number, backend, details.config_from(config), time_us, low, high, n_samples, taken, rel_error, seen, error
    )  # fmt: skip


def _conditions(text: str) -> Conditions:
    return details.conditions_from(json.loads(text))


def _others(
    connection: sa.Connection, run_id: int, problem_id: int, device_id: int, policy: str
) -> tuple[tuple[Earlier, ...], bool]:
    """(the last word of every other run, whether there may be more)."""
    row = WinnerRow
    filters = [(row.problem_id, problem_id), (row.device_id, device_id), (row.policy, policy)]
    rows = connection.execute(
        sa.select(
            row.run_id, RunRow.ulid, row.environment_id, row.created_at, row.superseded_at, row.backend, row.config,
            row.time_us, row.time_us_low, row.time_us_high, row.tie_set,
        )
        .select_from(row)
        .join(RunRow, RunRow.id == row.run_id, isouter=True)
        .where(*listing.conditions(connection, filters))
        .order_by(row.id.desc())
        .limit(MAX_RUNS)
    ).all()  # fmt: skip
    last: dict[int, Any] = {}
    for one in rows:
        if one[0] != run_id:
            last.setdefault(one[0], one)
    environments = places.environments_by_id(connection, [one[2] for one in last.values()])
    return tuple(_earlier_from(one, environments) for one in last.values()), len(rows) == MAX_RUNS


@from_row
def _earlier_from(row: Sequence[Any], environments: Mapping[int, Environment]) -> Earlier:
    _, ulid, environment_id, created_at, superseded_at, backend, config, time_us, low, high, tie_set = row
    choice = Choice(backend, details.config_from(config), time_us, low, high)
    ties = tuple(Choice(**tie) for tie in json.loads(tie_set))
    return Earlier(ulid or "", environments[environment_id], created_at, superseded_at is None, choice, ties)
