"""Trials: written once, when they end, in batches; read in pages."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ..kernels.errors import InvalidInputError
from . import bulk, details, listing, places, runs, samples, trial_counts, values
from .faults import from_row
from .models import DeviceRow, EnvironmentRow, ProblemRow, RunRow, TrialRow
from .records import NewTrial, Origin, Page, Source, Trial, TrialFilter, TrialStatus

Place = tuple[int, int, int]
"""Run id, problem id and number: what a trial is unique by."""

_COLUMNS: tuple[Any, ...] = (
    TrialRow.id, RunRow.ulid, EnvironmentRow.fingerprint, DeviceRow.fingerprint, TrialRow.number, TrialRow.backend,
    TrialRow.config, TrialRow.origin, TrialRow.status, TrialRow.time_us, TrialRow.time_us_low, TrialRow.time_us_high,
    TrialRow.samples, TrialRow.n_samples, TrialRow.error, TrialRow.rel_error, TrialRow.seed, TrialRow.optimizer,
    TrialRow.optimizer_version, TrialRow.started_at, TrialRow.wall_s, TrialRow.policy, TrialRow.source,
    TrialRow.compile_s, TrialRow.conditions, TrialRow.roof_share, TrialRow.facts,
)  # fmt: skip


def measured_columns(trial: NewTrial) -> dict[str, Any]:
    """A trial's own columns, without those that refer to other tables.

    Raises:
        InvalidInputError: something in it cannot be stored.
    """
    timing = trial.timing
    row: dict[str, Any] = {"time_us": None, "time_us_low": None, "time_us_high": None}
    if timing is not None:
        row = values.times(timing.time_us, timing.time_us_low, timing.time_us_high, "The timing of a trial")
        if timing.n_samples < len(timing.samples_us):
            raise InvalidInputError(
                f"A trial cannot have {len(timing.samples_us)} samples out of n_samples = {timing.n_samples}."
            )
    rel_error = trial.rel_error
    return row | {
        "number": values.int64(trial.number, "The number of a trial", least=0),
        "backend": values.name(trial.backend, "The backend"),
        "config": values.config(trial.config, "The config"),
        "origin": trial.origin.value,
        "status": trial.status.value,
        "samples": samples.pack(timing.samples_us) if timing is not None else b"",
        "n_samples": values.int64(timing.n_samples, "n_samples") if timing is not None else 0,
        "error": values.prose(trial.error),
        # A wrong result may be NaN or infinite; neither is JSON, and `status` says what there is to say.
        "rel_error": rel_error if rel_error is not None and math.isfinite(rel_error) else None,
        "seed": values.int64(trial.seed, "The seed"),
        "optimizer": values.name(trial.optimizer, "The optimizer"),
        "optimizer_version": values.name(trial.optimizer_version, "The optimizer's version"),
        "started_at": trial.started_at,
        "wall_s": values.number(trial.wall_s, "The wall time of a trial"),
        "policy": values.name(trial.policy, "The measuring policy"),
        "source": trial.source.value,
        "compile_s": values.number(trial.compile_s, "The compile time of a trial", least=0),
        "conditions": _conditions(trial),
        "roof_share": trial.roof_share and values.number(trial.roof_share, "The share of the roof", least=0),
        "facts": trial.facts and values.canonical(details.facts_document(trial.facts), "The static facts"),
    }


def _conditions(trial: NewTrial) -> str | None:
    """A trial's conditions as JSON; its throttled samples are those of the samples that are kept."""
    conditions, timing = trial.conditions, trial.timing
    if conditions is None:
        return None
    n = len(timing.samples_us) if timing is not None else 0
    document = details.conditions_document(conditions, n)
    document["throttled_samples"] = samples.kept(document["throttled_samples"], n)
    return values.canonical(document, "The conditions of a trial")


def add(
    connection: sa.Connection, trials: Sequence[NewTrial], rows: Sequence[Mapping[str, Any]], now: datetime
) -> list[int]:
    """Store those trials of a batch that are not there yet, and return the ids of all.

    Args:
        connection: in a transaction for writing.
        trials: the batch.
        rows: its `measured_columns`.
        now: the time; it also counts as a heartbeat of their runs.

    Raises:
        NotFoundError: a trial's run does not exist.
    """
    environment_ids = places.environment_ids(connection, [trial.environment for trial in trials], now)
    problem_ids = places.problem_ids(connection, [trial.problem for trial in trials])
    # With the runs locked, nobody else adds trials to them between the look and the insert.
    run_ids = runs.lock(connection, [trial.run_id for trial in trials])
    at = [(run_ids[trial.run_id], problem_ids[trial.problem.key], trial.number) for trial in trials]
    known = _ids(connection, at)
    new: dict[Place, dict[str, Any]] = {}
    for place, trial, row in zip(at, trials, rows, strict=True):
        if place not in known and place not in new:
            environment_id, device_id = environment_ids[trial.environment.fingerprint]
            refs = {"run_id": place[0], "problem_id": place[1]}
            new[place] = {**refs, "environment_id": environment_id, "device_id": device_id, **row}
    if new:
        bulk.insert(connection, TrialRow, list(new.values()))
        known |= _ids(connection, list(new))
        trial_counts.add(connection, ((known[place], row) for place, row in new.items()))
    for run_id in sorted(set(run_ids.values())):
        added = sum(place[0] == run_id for place in new)
        connection.execute(
            sa.update(RunRow).where(RunRow.id == run_id).values(n_trials=RunRow.n_trials + added, heartbeat_at=now)
        )
    return [known[place] for place in at]


def _ids(connection: sa.Connection, at: Sequence[Place]) -> dict[Place, int]:
    """Ids of the trials that are stored, by where they belong."""
    numbers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for run_id, problem_id, number in at:
        numbers[run_id, problem_id].append(number)
    found: dict[Place, int] = {}
    for (run_id, problem_id), all_ in numbers.items():
        for some in bulk.chunks(all_):
            rows = connection.execute(
                sa.select(TrialRow.number, TrialRow.id).where(
                    TrialRow.run_id == run_id, TrialRow.problem_id == problem_id, TrialRow.number.in_(some)
                )
            )
            found.update(((run_id, problem_id, number), id_) for number, id_ in rows)
    return found


def page(connection: sa.Connection, where: TrialFilter, *, limit: int, after: int) -> Page[Trial]:
    """A page of trials, by id."""
    listing.check_page(limit, after)
    status = where.status.value if where.status is not None else None
    rare = status if where.status is not TrialStatus.OK else None
    environment_id = listing.id_of(
        EnvironmentRow, EnvironmentRow.fingerprint, where.environment_fingerprint, "A fingerprint"
    )
    filters = [
        (TrialRow.run_id, listing.id_of(RunRow, RunRow.ulid, where.run_id, "A run's id")),
        (TrialRow.problem_id, listing.id_of(ProblemRow, ProblemRow.key, where.problem_key, "A problem's key")),
        (TrialRow.status, rare),
        (TrialRow.environment_id, environment_id),
        (
            TrialRow.device_id,
            listing.id_of(DeviceRow, DeviceRow.fingerprint, where.device_fingerprint, "A fingerprint"),
        ),
        (TrialRow.backend, where.backend if where.backend is None else values.name(where.backend, "The backend")),
        (TrialRow.status, status if rare is None else None),
    ]
    rows = connection.execute(
        sa.select(*places.PROBLEM_COLUMNS, *_COLUMNS)
        .select_from(TrialRow)
        .outerjoin(ProblemRow, ProblemRow.id == TrialRow.problem_id)
        .outerjoin(RunRow, RunRow.id == TrialRow.run_id)
        .outerjoin(EnvironmentRow, EnvironmentRow.id == TrialRow.environment_id)
        .outerjoin(DeviceRow, DeviceRow.id == TrialRow.device_id)
        .where(*listing.conditions(connection, filters), TrialRow.id > after)
        .order_by(TrialRow.id)
        .limit(limit + 1)
    ).all()
    items = [_trial_from(row) for row in rows[:limit]]
    return Page(items, items[-1].id if len(rows) > limit else None)


@from_row
def _trial_from(row: Sequence[Any]) -> Trial:
    (
        id_, ulid, environment, device, number, backend, config, origin, status, time_us, low, high,
        blob, n_samples, error, rel_error, seed, optimizer, optimizer_version, started_at, wall_s, policy, source,
        compile_s, conditions, roof_share, facts,
    ) = row[places.N_PROBLEM_COLUMNS :]  # fmt: skip
    return Trial(
        id_, ulid, places.problem_from(row), environment, device, number, backend, json.loads(config),
        Origin(origin), TrialStatus(status), time_us, low, high, samples.unpack(blob), n_samples, error, rel_error,
        seed, optimizer, optimizer_version, started_at, wall_s, policy, Source(source), compile_s,
        conditions and details.conditions_from(json.loads(conditions)), roof_share,
        facts and details.facts_from(json.loads(facts)),
    )  # fmt: skip
