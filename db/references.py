"""Published measurements: one source for each imported file, its curves (a kernel on a layer), and their points.

They are in tables of their own, and nothing that answers for what was measured here reads them. A publisher's newer
package does not replace an older one's rows: both stay, and a lookup gives those of the newest that has the layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ..kernels.errors import InvalidInputError
from . import bulk, values, winners
from .faults import from_row
from .models import ReferenceCurveRow, ReferencePointRow, ReferenceSourceRow
from .records import ReferenceImport, ReferenceRow, ReferenceSource
from .reference_systems import matching

OPS = ("dense", "moe", "moe_nongated")
"""What a published latency may be of; the last is a MoE layer of two matrices, without a gate."""

MAX_DIM = 1 << 40
"""Largest m, n, k or number of experts that is taken for one."""

_BATCH = 20_000
"""Points in one statement: on PostgreSQL it is one array a column."""

_SOURCE = ReferenceSourceRow
_CURVE = ReferenceCurveRow
_POINT = ReferencePointRow

_SOURCE_COLUMNS: tuple[Any, ...] = (
    _SOURCE.package, _SOURCE.package_version, _SOURCE.system, _SOURCE.framework, _SOURCE.framework_version,
    _SOURCE.file, _SOURCE.sha256, _SOURCE.attribution, _SOURCE.imported_at, _SOURCE.n_rows, _SOURCE.device,
)  # fmt: skip

_ROW_COLUMNS: tuple[Any, ...] = (
    _CURVE.op, _CURVE.precision, _CURVE.kernel_source, _POINT.m, _CURVE.n, _CURVE.k, _CURVE.experts,
    _CURVE.experts_total, _CURVE.top_k, _CURVE.tp, _CURVE.ep, _CURVE.distribution, _POINT.time_us,
    _CURVE.includes_act_quant, _POINT.l2_hot_risk, _POINT.suspect,
)  # fmt: skip


class Curve(NamedTuple):
    """What the rows of one kernel on one layer have in common; the names are those of the columns."""

    op: str
    precision: str
    kernel_source: str
    n: int
    k: int
    experts: int
    experts_total: int
    top_k: int
    tp: int
    ep: int
    distribution: str
    includes_act_quant: bool


Layer = tuple[str, int, int, int, int, int]
"""op, n, k, experts, experts_total, top_k."""

Point = tuple[int, float, bool, str]
"""m, time_us, l2_hot_risk, suspect."""


def source_columns(source: ReferenceSource) -> dict[str, Any]:
    """The columns of a source that its reader knows.

    Raises:
        InvalidInputError: something in it cannot be stored, or it does not say whose it is.
    """
    if re.fullmatch("[0-9a-f]{64}", source.sha256) is None:
        raise InvalidInputError(f"The SHA-256 of {source.file!r} must be 64 hexadecimal digits.")
    row = {
        "package": values.name(source.package, "The package"),
        "package_version": values.name(source.package_version, "The version of a package", limit=32),
        "system": values.name(source.system, "The system"),
        "device": values.name(source.device, "A published device"),
        "framework": values.name(source.framework, "The framework"),
        "framework_version": values.name(source.framework_version, "The version of a framework", limit=32),
        "file": values.name(source.file, "The file", limit=1024),
        "sha256": source.sha256,
        "attribution": values.name(source.attribution, "The attribution", limit=4096),
    }
    if empty := [name for name, value in row.items() if not value and name != "device"]:
        raise InvalidInputError(f"A published measurement must say its {empty[0]}.")
    return row


def curves_of(rows: Iterable[ReferenceRow]) -> dict[Curve, list[Point]]:
    """Rows by what they have in common, each with its points by m.

    Raises:
        InvalidInputError: a row cannot be stored, or two have the same m.
    """
    curves: dict[Curve, list[Point]] = {}
    for row in rows:
        curve = Curve(
            row.op, row.precision, row.kernel_source, row.n, row.k, row.experts, row.experts_total, row.top_k, row.tp,
            row.ep, row.distribution, row.includes_act_quant,
        )  # fmt: skip
        curves.setdefault(curve, []).append((row.m, row.time_us, row.l2_hot_risk, row.suspect))
    for curve, points in curves.items():
        _check_curve(curve)
        points.sort()
        last = 0
        for m, time_us, _, suspect in points:
            if values.int64(m, "The m of a published latency", least=1) > MAX_DIM:
                raise InvalidInputError(f"A published latency has m {m}, more than {MAX_DIM}.")
            if m == last:
                raise InvalidInputError(f"There are two published latencies of {_shown(curve)} with m {m}.")
            if values.number(time_us, "A published latency") <= 0:
                raise InvalidInputError(f"A published latency must be above 0 us, and is {time_us}.")
            values.name(suspect, "Why a published latency is suspect", limit=1024)
            last = m
    return curves


def _check_curve(curve: Curve) -> None:
    """Refuse a curve that cannot be stored or says what cannot be."""
    if curve.op not in OPS:
        raise InvalidInputError(f"A published latency is of one of {', '.join(OPS)}, and not of {curve.op!r}.")
    values.name(curve.precision, "The precision", limit=32)
    values.name(curve.kernel_source, "The kernel source")
    values.name(curve.distribution, "The distribution", limit=32)
    least = 0 if curve.op == "dense" else 1
    for name in ("n", "k", "tp", "ep"):
        values.int64(getattr(curve, name), f"The {name} of a published latency", least=1)
    for name in ("experts", "experts_total", "top_k"):
        values.int64(getattr(curve, name), f"The {name} of a published latency", least=least)
    if max(curve.n, curve.k, curve.experts_total) > MAX_DIM or not curve.experts <= curve.experts_total:
        raise InvalidInputError(f"There is no layer like {_shown(curve)}.")
    if curve.op == "dense" and (curve.experts_total or curve.top_k):
        raise InvalidInputError(f"A dense GEMM has no experts, and there is one with: {_shown(curve)}.")


def _shown(curve: Curve) -> str:
    """A curve for a sentence."""
    experts = f", {curve.experts} of {curve.experts_total} experts, top {curve.top_k}" if curve.op != "dense" else ""
    return f"{curve.op} {curve.precision} by {curve.kernel_source} with n {curve.n}, k {curve.k}{experts}"


def add(
    connection: sa.Connection, source: dict[str, Any], curves: dict[Curve, list[Point]], now: datetime
) -> ReferenceImport:
    """Store a file, unless it is there.

    Args:
        connection: in a transaction for writing.
        source: its `source_columns`.
        curves: its `curves_of`.
        now: the time.

    Raises:
        InvalidInputError: this version of the package is there with another file of this name.
    """
    n_rows = sum(map(len, curves.values()))
    source_id = _new_source(connection, {**source, "imported_at": now, "n_rows": n_rows})
    if source_id is None:
        return _known(connection, source)
    columns = [{"source_id": source_id, **curve._asdict()} for curve in curves]
    ids = bulk.next_ids(connection, _CURVE, len(columns))
    bulk.insert(connection, _CURVE, [{"id": id_, **row} for id_, row in zip(ids, columns, strict=True)])
    names = ("curve_id", "m", "time_us", "l2_hot_risk", "suspect")
    batch: list[dict[str, Any]] = []
    for id_, points in zip(ids, curves.values(), strict=True):
        batch += [dict(zip(names, (id_, *point), strict=True)) for point in points]
        if len(batch) >= _BATCH:
            bulk.insert(connection, _POINT, batch)
            batch = []
    bulk.insert(connection, _POINT, batch)
    winners.move_generation(connection)  # services answer with it what has no winner
    return ReferenceImport(n_added=n_rows, n_known=0)


def _new_source(connection: sa.Connection, row: dict[str, Any]) -> int | None:
    """The id of a source that is stored now; None if it was there, also by a transaction that ended meanwhile."""
    insert: Any = (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(_SOURCE)
    id_: int | None = connection.execute(
        insert.values(**row).on_conflict_do_nothing().returning(_SOURCE.id)
    ).scalar_one_or_none()
    return id_


def _known(connection: sa.Connection, source: dict[str, Any]) -> ReferenceImport:
    """What is said of a file that is there; refused if it is another one."""
    key = ("package", "package_version", "file")
    where = [getattr(_SOURCE, name) == source[name] for name in key]
    sha256, n_rows = connection.execute(sa.select(_SOURCE.sha256, _SOURCE.n_rows).where(*where)).one()
    if sha256 != source["sha256"]:
        raise InvalidInputError(
            f"{source['file']} of {source['package']} {source['package_version']} was imported before with other "
            f"content (SHA-256 {sha256[:12]}, and now {source['sha256'][:12]}): install the package anew, or import "
            "into another database."
        )
    return ReferenceImport(n_added=0, n_known=n_rows)


def sources(connection: sa.Connection) -> list[ReferenceSource]:
    """Every imported file, by system, framework, its version and the package's."""
    order = (_SOURCE.system, _SOURCE.framework, _SOURCE.framework_version, _SOURCE.package_version, _SOURCE.id)
    return [_source_from(row) for row in connection.execute(sa.select(*_SOURCE_COLUMNS).order_by(*order))]


def systems(connection: sa.Connection, device_name: str) -> list[str]:
    """Imported systems that are published for a card of this name, the very card before another variant of it."""
    values.name(device_name, "A device's name")
    return matching(connection.execute(sa.select(_SOURCE.system).distinct()).scalars(), device_name)


def layers(connection: sa.Connection, systems: Sequence[str]) -> frozenset[Layer]:
    """Every layer of some systems that has rows; from an index alone."""
    columns = (_CURVE.op, _CURVE.n, _CURVE.k, _CURVE.experts, _CURVE.experts_total, _CURVE.top_k)
    wanted = sa.select(_SOURCE.id).where(_SOURCE.system.in_(systems))
    found = connection.execute(sa.select(*columns).distinct().where(_CURVE.source_id.in_(wanted)))
    return frozenset((row[0], row[1], row[2], row[3], row[4], row[5]) for row in found)


def rows(
    connection: sa.Connection,
    systems: Sequence[str],
    op: str,
    n: int,
    k: int,
    *,
    experts: int,
    experts_total: int,
    top_k: int,
) -> list[tuple[ReferenceSource, ReferenceRow]]:
    """Every row of one layer; of several packages that publish one framework's version, the newest that has the layer.

    By source, kernel and m.
    """
    if not systems:
        return []
    layer = {"n": n, "k": k, "experts": experts, "experts_total": experts_total, "top_k": top_k}
    where = [getattr(_CURVE, name) == values.int64(value, f"The {name} of a layer") for name, value in layer.items()]
    found = connection.execute(
        sa.select(*_SOURCE_COLUMNS, *_ROW_COLUMNS)
        .select_from(_CURVE)
        .join(_SOURCE, _SOURCE.id == _CURVE.source_id)
        .join(_POINT, _POINT.curve_id == _CURVE.id)
        .where(*where, _CURVE.op == values.name(op, "An op", limit=32), _SOURCE.system.in_(systems))
    ).all()
    cut = len(_SOURCE_COLUMNS)
    known: dict[tuple[Any, ...], ReferenceSource] = {}
    pairs = []
    for row in found:
        head = tuple(row[:cut])
        if head not in known:
            known[head] = _source_from(head)
        pairs.append((known[head], _row_from(row[cut:])))
    newest = _newest(known.values())
    return sorted((pair for pair in pairs if pair[0] in newest), key=_order)


def _newest(sources: Iterable[ReferenceSource]) -> set[ReferenceSource]:
    """Without those of which a newer version of the package is there, too."""
    best: dict[tuple[str, ...], ReferenceSource] = {}
    for source in sorted(sources, key=lambda source: version_key(source.package_version)):
        best[_what(source)] = source
    return {source for source in sources if source.package_version == best[_what(source)].package_version}


def _what(source: ReferenceSource) -> tuple[str, ...]:
    """What a newer package publishes again."""
    return source.package, source.system, source.framework, source.framework_version


def _order(pair: tuple[ReferenceSource, ReferenceRow]) -> tuple[Any, ...]:
    source, row = pair
    return (
        source.system, source.framework, version_key(source.framework_version), source.file, row.precision,
        row.kernel_source, row.tp, row.ep, row.distribution, row.m,
    )  # fmt: skip


def version_key(version: str) -> tuple[int, ...]:
    """A version's numbers, to sort by: 0.9.0 before 0.12.0, and 1.3.0rc10 before 1.3.0rc20."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version))


@from_row
def _source_from(row: Sequence[Any]) -> ReferenceSource:
    return ReferenceSource(*row)


@from_row
def _row_from(row: Sequence[Any]) -> ReferenceRow:
    return ReferenceRow(*row)
