"""Winners: what is served now, and its history. Rows are added and superseded, never changed or deleted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from . import bulk, details, listing, places, runs, values
from .faults import from_row
from .models import DeviceRow, EnvironmentRow, MetaRow, ProblemRow, RunRow, TrialRow, WinnerRow
from .records import Choice, NewWinner, Page, Source, Winner, WinnerEntry, WinnerFilter

Place = tuple[int, int, str]
"""Problem id, environment id and policy: where at most one winner is current."""

GENERATION = "generation"
"""Key in `meta` of the counter that every change of what is served moves."""

_COLUMNS: tuple[Any, ...] = (
    WinnerRow.id, RunRow.ulid, WinnerRow.environment_id, WinnerRow.backend, WinnerRow.config, WinnerRow.time_us,
    WinnerRow.time_us_low, WinnerRow.time_us_high, WinnerRow.default_backend, WinnerRow.default_config,
    WinnerRow.default_time_us, WinnerRow.default_time_us_low, WinnerRow.default_time_us_high, WinnerRow.tie_set,
    WinnerRow.depends_on, WinnerRow.n_trials, WinnerRow.policy, WinnerRow.source, WinnerRow.created_at,
    WinnerRow.superseded_at, TrialRow.compile_s, TrialRow.conditions, TrialRow.roof_share, TrialRow.facts,
)  # fmt: skip

_ENTRY_COLUMNS: tuple[Any, ...] = (
    WinnerRow.id, ProblemRow.key, DeviceRow.fingerprint, EnvironmentRow.fingerprint, RunRow.ulid, WinnerRow.backend,
    WinnerRow.config, WinnerRow.time_us, WinnerRow.time_us_low, WinnerRow.time_us_high, WinnerRow.default_backend,
    WinnerRow.default_config, WinnerRow.default_time_us, WinnerRow.default_time_us_low,
    WinnerRow.default_time_us_high, WinnerRow.n_ties, WinnerRow.depends_on, WinnerRow.n_trials, WinnerRow.policy,
    WinnerRow.source, WinnerRow.created_at,
)  # fmt: skip


def own_trial(winner: Any) -> sa.ColumnElement[bool]:
    """Joins a winner (WinnerRow or an alias of it) with the trial that measured what it serves."""
    return sa.and_(
        TrialRow.run_id == winner.run_id,
        TrialRow.problem_id == winner.problem_id,
        TrialRow.number == winner.trial_number,
    )


def current_in(
    connection: sa.Connection, winner: Any, environment: str, policy: str
) -> list[sa.ColumnElement[bool]]:  # fmt: skip
    """The WHERE of what is served in an environment (its fingerprint) by a policy: by the index of that."""
    filters = [(winner.environment_id, places.environment_id(environment)), (winner.policy, policy)]
    return [*listing.conditions(connection, filters, leading=2), winner.superseded_at.is_(None)]


def measured_columns(new: NewWinner) -> dict[str, Any]:
    """A winner's own columns, without those that refer to other tables.

    Raises:
        InvalidInputError: something in it cannot be stored.
    """
    choice, default = new.choice, new.default
    default_times = values.times(default.time_us, default.time_us_low, default.time_us_high, "The default of a winner")
    return {
        **values.times(choice.time_us, choice.time_us_low, choice.time_us_high, "The choice of a winner"),
        **{f"default_{name}": value for name, value in default_times.items()},
        "backend": values.name(choice.backend, "The backend"),
        "config": values.config(choice.config, "The config"),
        "default_backend": values.name(default.backend, "The default's backend"),
        "default_config": values.config(default.config, "The default's config"),
        "tie_set": values.canonical([_tie(tie) for tie in new.tie_set], "The tie set"),
        "n_ties": len(new.tie_set),
        "depends_on": values.canonical([values.name(one, "The name of a version") for one in new.depends_on], ""),
        "trial_number": values.int64(new.trial_number, "The number of a trial", least=0),
        "n_trials": values.int64(new.n_trials, "The number of trials", least=0),
        "policy": values.name(new.policy, "The measuring policy"),
        "source": new.source.value,
        "superseded_at": None,
    }


def _tie(choice: Choice) -> dict[str, Any]:
    """One of a tie set, as JSON."""
    values.config(choice.config, "A config of the tie set")
    times = values.times(choice.time_us, choice.time_us_low, choice.time_us_high, "A choice of the tie set")
    return {"backend": values.name(choice.backend, "A backend"), "config": dict(choice.config), **times}


def add(
    connection: sa.Connection, new: Sequence[NewWinner], rows: Sequence[Mapping[str, Any]], now: datetime
) -> list[int]:
    """Store winners; each supersedes the one that was current for its problem, environment and policy.

    Within one call, a later one also supersedes an earlier one.

    Args:
        connection: in a transaction for writing.
        new: the winners.
        rows: their `measured_columns`.
        now: the time.

    Raises:
        NotFoundError: a winner's run does not exist.
    """
    environment_ids = places.environment_ids(connection, [winner.environment for winner in new], now)
    problem_ids = places.problem_ids(connection, [winner.problem for winner in new])
    run_ids = runs.ids(connection, [winner.run_id for winner in new])
    move_generation(connection)
    ids = bulk.next_ids(connection, WinnerRow, len(new))
    full: list[dict[str, Any]] = []
    last: dict[Place, int] = {}
    for id_, winner, row in zip(ids, new, rows, strict=True):
        environment_id, device_id = environment_ids[winner.environment.fingerprint]
        place = (problem_ids[winner.problem.key], environment_id, row["policy"])
        if place in last:
            full[last[place]]["superseded_at"] = now
        last[place] = len(full)
        refs = {"run_id": run_ids[winner.run_id], "problem_id": place[0], "environment_id": environment_id}
        full.append({"id": id_, **row, **refs, "device_id": device_id, "created_at": now})
    _supersede(connection, list(last), now)
    bulk.insert(connection, WinnerRow, full)
    return ids


def move_generation(connection: sa.Connection) -> None:
    """Say that what is served changes; before any id of a winner is drawn.

    First of all writers of winners take this lock and keep it until the commit. So ids, which are drawn after it,
    become visible in order, which `changes` relies on; and two of them cannot supersede the same row.
    """
    connection.execute(sa.update(MetaRow).where(MetaRow.key == GENERATION).values(value=MetaRow.value + 1))


def _supersede(connection: sa.Connection, at: Sequence[Place], now: datetime) -> None:
    """Mark what is current at these places as superseded."""
    if connection.dialect.name == "postgresql":
        columns = (WinnerRow.problem_id, WinnerRow.environment_id, WinnerRow.policy)
        arrays = ", ".join(bulk.array(connection, column) for column in columns)
        statement = sa.text(
            f"UPDATE winners SET superseded_at = :now FROM unnest({arrays}) AS at (p, e, q) "  # noqa: S608 - no input in it
            "WHERE problem_id = at.p AND environment_id = at.e AND policy = at.q AND superseded_at IS NULL"
        )
        given = dict(zip((column.key for column in columns), map(list, zip(*at, strict=True)), strict=True))
        connection.execute(statement, {"now": now, **given})
        return
    connection.execute(
        sa.update(WinnerRow)
        .where(
            WinnerRow.problem_id == sa.bindparam("p"),
            WinnerRow.environment_id == sa.bindparam("e"),
            WinnerRow.policy == sa.bindparam("q"),
            WinnerRow.superseded_at.is_(None),
        )
        .values(superseded_at=now),
        [{"p": problem_id, "e": environment_id, "q": policy} for problem_id, environment_id, policy in at],
    )


def page(connection: sa.Connection, where: WinnerFilter, *, limit: int, after: int) -> Page[Winner]:
    """A page of winners, by id."""
    listing.check_page(limit, after)
    environment_id = listing.id_of(
        EnvironmentRow, EnvironmentRow.fingerprint, where.environment_fingerprint, "A fingerprint"
    )
    device_id = listing.id_of(DeviceRow, DeviceRow.fingerprint, where.device_fingerprint, "A fingerprint")
    # An index has the one that is served for a problem in an environment under a policy.
    single = bool(where.current) and None not in (where.problem_key, where.environment_fingerprint, where.policy)
    policy = where.policy if where.policy is None else values.name(where.policy, "The policy")
    filters = [
        (WinnerRow.problem_id, listing.id_of(ProblemRow, ProblemRow.key, where.problem_key, "A problem's key")),
        (WinnerRow.environment_id, environment_id if single else None),
        (WinnerRow.policy, policy if single else None),
        (WinnerRow.run_id, listing.id_of(RunRow, RunRow.ulid, where.run_id, "A run's id")),
        (WinnerRow.environment_id, environment_id if not single else None),
        (WinnerRow.device_id, device_id),
        (WinnerRow.backend, where.backend if where.backend is None else values.name(where.backend, "The backend")),
        (WinnerRow.policy, policy if not single else None),
    ]
    select = (
        sa.select(*places.PROBLEM_COLUMNS, *_COLUMNS)
        .select_from(WinnerRow)
        .outerjoin(ProblemRow, ProblemRow.id == WinnerRow.problem_id)
        .outerjoin(RunRow, RunRow.id == WinnerRow.run_id)
        .outerjoin(TrialRow, own_trial(WinnerRow))
        .where(*listing.conditions(connection, filters, leading=3 if single else 1), WinnerRow.id > after)
        .order_by(WinnerRow.id)
        .limit(limit + 1)
    )
    if where.current is not None:
        served = WinnerRow.superseded_at.is_(None)
        select = select.where(served if where.current else ~served)
    rows = connection.execute(select).all()
    first = places.N_PROBLEM_COLUMNS
    environments = places.environments_by_id(connection, [row[first + 2] for row in rows[:limit]])
    items = [_winner_from(row, environments[row[first + 2]]) for row in rows[:limit]]
    return Page(items, items[-1].id if len(rows) > limit else None)


def changes(connection: sa.Connection, after: int, *, limit: int) -> list[WinnerEntry]:
    """Current winners with ids above `after`, by id, light."""
    listing.check_page(limit, after)
    rows = connection.execute(
        sa.select(*places.PROBLEM_COLUMNS, *_ENTRY_COLUMNS)
        .select_from(WinnerRow)
        .outerjoin(ProblemRow, ProblemRow.id == WinnerRow.problem_id)
        .outerjoin(RunRow, RunRow.id == WinnerRow.run_id)
        .outerjoin(EnvironmentRow, EnvironmentRow.id == WinnerRow.environment_id)
        .outerjoin(DeviceRow, DeviceRow.id == WinnerRow.device_id)
        .where(WinnerRow.superseded_at.is_(None), WinnerRow.id > after)
        .order_by(WinnerRow.id)
        .limit(limit)
    )
    return [_entry_from(row) for row in rows]


@from_row
def _entry_from(row: Sequence[Any]) -> WinnerEntry:
    """An entry, every part of which is there and whose times can be divided by."""
    first = places.N_PROBLEM_COLUMNS
    entry = WinnerEntry(row[first], places.problem_from(row), *row[first + 1 :])
    if None in entry:
        raise ValueError(f"winner {entry.id} refers to a row that is missing")
    for low, time_us, high in (
        (entry.time_us_low, entry.time_us, entry.time_us_high),
        (entry.default_time_us_low, entry.default_time_us, entry.default_time_us_high),
    ):
        if not 0 < low <= time_us <= high < math.inf:
            raise ValueError(f"winner {entry.id} has the times {low}, {time_us}, {high} µs")
    return entry


def generation(connection: sa.Connection) -> int:
    """The counter that every change of what is served moves."""
    return connection.execute(sa.select(MetaRow.value).where(MetaRow.key == GENERATION)).scalar_one()


@from_row
def _winner_from(row: Sequence[Any], environment: Any) -> Winner:
    (
        id_, ulid, _, backend, config, time_us, low, high, default_backend, default_config, default_time_us,
        default_low, default_high, tie_set, depends_on, n_trials, policy, source, created_at, superseded_at,
        compile_s, conditions, roof_share, facts,
    ) = row[places.N_PROBLEM_COLUMNS :]  # fmt: skip
    return Winner(
        id_, ulid, places.problem_from(row), environment,
        Choice(backend, json.loads(config), time_us, low, high),
        Choice(default_backend, json.loads(default_config), default_time_us, default_low, default_high),
        tuple(Choice(**tie) for tie in json.loads(tie_set)), tuple(json.loads(depends_on)),
        n_trials, policy, Source(source), created_at, superseded_at, compile_s,
        conditions and details.conditions_from(json.loads(conditions)), roof_share,
        facts and details.facts_from(json.loads(facts)),
    )  # fmt: skip
