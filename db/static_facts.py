"""What compilers say of configs without any device: one entry for each config, target and set of versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ..kernels.backend import StaticFacts
from . import bulk, details, listing, places, values
from .faults import from_row
from .models import ProblemRow, StaticFactsRow
from .records import CompileStatus, NewStaticFacts, Page, Source, StaticFactsFilter, StoredStaticFacts

_COLUMNS: tuple[Any, ...] = (
    StaticFactsRow.id, StaticFactsRow.backend, StaticFactsRow.config, StaticFactsRow.target, StaticFactsRow.versions,
    StaticFactsRow.registers, StaticFactsRow.stack_bytes, StaticFactsRow.shared_bytes, StaticFactsRow.instructions,
    StaticFactsRow.compile_s, StaticFactsRow.status, StaticFactsRow.error, StaticFactsRow.source,
    StaticFactsRow.created_at,
)  # fmt: skip


def compiled_columns(new: NewStaticFacts) -> dict[str, Any]:
    """The columns of an entry, without those that refer to other tables or come with time.

    Raises:
        InvalidInputError: something in it cannot be stored.
    """
    for name, version in new.versions.items():
        values.name(name, "The name of a version")
        values.name(version, f"The version of {name}")
    row: dict[str, Any] = {"registers": None, "stack_bytes": None, "shared_bytes": None, "instructions": None}
    if new.facts is not None:
        row = details.facts_document(new.facts)
        row["instructions"] = values.canonical(row["instructions"], "The instructions")
    row |= {
        "backend": values.name(new.backend, "The backend"),
        "config": values.config(new.config, "The config"),
        "target": values.name(new.target, "The target"),
        "versions": values.canonical(dict(new.versions), "The versions of a compiler"),
    }
    known_by = [new.problem.key, *(row[name] for name in ("backend", "config", "target", "versions"))]
    return row | {
        "key": hashlib.sha256(json.dumps(known_by).encode("ascii")).hexdigest(),
        "compile_s": values.number(new.compile_s, "The compile time", least=0),
        "status": new.status.value,
        "error": values.prose(new.error),
        "source": Source.COMPILED.value,
    }


def put(
    connection: sa.Connection, new: Sequence[NewStaticFacts], rows: Sequence[Mapping[str, Any]], at: Sequence[datetime]
) -> list[int]:
    """Store entries, each in place of the one that is known by the same; of several such the last stays.

    Args:
        connection: in a transaction for writing.
        new: the entries.
        rows: their `compiled_columns`.
        at: when each was stored first.

    Returns:
        Their ids.
    """
    problem_ids = places.problem_ids(connection, [entry.problem for entry in new])
    by_key = {
        row["key"]: {**row, "problem_id": problem_ids[entry.problem.key], "created_at": created_at}
        for entry, row, created_at in zip(new, rows, at, strict=True)
    }
    bulk.replace(connection, StaticFactsRow, "key", list(by_key.values()))
    ids: dict[str, int] = {}
    for some in bulk.chunks(list(by_key)):
        found = connection.execute(
            sa.select(StaticFactsRow.key, StaticFactsRow.id).where(StaticFactsRow.key.in_(some))
        )  # fmt: skip
        ids.update((key, id_) for key, id_ in found)
    return [ids[row["key"]] for row in rows]


def created(connection: sa.Connection, keys: Sequence[str]) -> dict[str, datetime]:
    """When those of these entries that are stored were, by their keys."""
    found: dict[str, datetime] = {}
    for some in bulk.chunks(keys):
        rows = connection.execute(
            sa.select(StaticFactsRow.key, StaticFactsRow.created_at).where(StaticFactsRow.key.in_(some))
        )  # fmt: skip
        found.update((key, at) for key, at in rows)
    return found


def page(connection: sa.Connection, where: StaticFactsFilter, *, limit: int, after: int) -> Page[StoredStaticFacts]:
    """A page of entries, by id."""
    listing.check_page(limit, after)
    row = StaticFactsRow
    filters = [
        (row.problem_id, listing.id_of(ProblemRow, ProblemRow.key, where.problem_key, "A problem's key")),
        (row.target, where.target if where.target is None else values.name(where.target, "The target")),
        (row.backend, where.backend if where.backend is None else values.name(where.backend, "The backend")),
    ]
    rows = connection.execute(
        sa.select(*places.PROBLEM_COLUMNS, *_COLUMNS)
        .select_from(row)
        .outerjoin(ProblemRow, ProblemRow.id == row.problem_id)
        .where(*listing.conditions(connection, filters), row.id > after)
        .order_by(row.id)
        .limit(limit + 1)
    ).all()
    items = [stored_from(found) for found in rows[:limit]]
    return Page(items, items[-1].id if len(rows) > limit else None)


@from_row
def stored_from(row: Sequence[Any]) -> StoredStaticFacts:
    """The entry in a row that was selected with PROBLEM_COLUMNS and this module's own."""
    (
        id_, backend, config, target, versions, registers, stack_bytes, shared_bytes, instructions, compile_s, status,
        error, source, created_at,
    ) = row[places.N_PROBLEM_COLUMNS :]  # fmt: skip
    facts = None
    if registers is not None:
        facts = StaticFacts(target, registers, stack_bytes, shared_bytes, json.loads(instructions))
    return StoredStaticFacts(
        id_, places.problem_from(row), backend, json.loads(config), target, json.loads(versions),
        CompileStatus(status), facts, compile_s, error, Source(source), created_at,
    )  # fmt: skip
