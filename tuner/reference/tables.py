"""The Parquet tables of aiconfigurator-core: their columns, checked, and the rows that they make."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from ...db.records import ReferenceRow
from ...kernels.errors import InvalidInputError
from . import packages, traps

TEXT, INTEGER, NUMBER = "text", "whole numbers", "numbers"


@dataclass(frozen=True, slots=True)
class Table:
    """A kind of table.

    Attributes:
        family: its folder. file: its name in there.
        op: what its rows are of.
        columns: columns it must have, and of what kind.
    """

    family: str
    file: str
    op: str
    columns: dict[str, str]


_COMMON = dict.fromkeys(("framework", "version", "device", "op_name", "kernel_source"), TEXT)
_MOE = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")

TABLES = (
    Table(
        "gemm", "gemm_perf.parquet", "gemm",
        {**_COMMON, "gemm_dtype": TEXT, **dict.fromkeys(("m", "n", "k"), INTEGER), "latency": NUMBER},
    ),
    Table(
        "moe", "moe_perf.parquet", "moe",
        {**_COMMON, "moe_dtype": TEXT, **dict.fromkeys(_MOE, INTEGER), "distribution": TEXT, "latency": NUMBER},
    ),
)  # fmt: skip

UNUSED = frozenset({"power", "power_limit"})
"""Columns that a table may have and nobody here reads. Any other is refused: rows may differ in what it says."""

NONGATED = "nongated"
"""In the name of a kernel of a MoE layer without a gate, which has two matrices and is another problem (op
`moe_nongated`)."""


@dataclass(frozen=True, slots=True)
class Read:
    """What a table says.

    Attributes:
        device: the card it was measured on.
        rows: its rows, flagged.
        left_out: rows that cannot be used, by the reason.
    """

    device: str
    rows: list[ReferenceRow]
    left_out: dict[str, int]


def rows_of(table: Table, content: bytes, card: traps.Card, framework: str) -> Read:
    """The rows of a table.

    Args:
        table: which one.
        content: the bytes of the file.
        card: that it was measured on.
        framework: whose kernels they are, in lower case, as the folder is called.

    Raises:
        InvalidInputError: it is no such table, or a row says what cannot be; a sentence without the file's name.
        UnsupportedError: what reads Parquet is not installed.
    """
    columns = _columns(table, content)
    device = _one(columns, "device")
    if (op := _one(columns, "op_name")) != table.op:
        raise InvalidInputError(f"its op_name is {op[:60]!r} and not {table.op!r}.")
    if (name := _one(columns, "framework")).casefold() != framework.casefold():
        raise InvalidInputError(f"its framework is {name[:60]!r} and not {framework!r}.")
    _check_figures(table, columns)
    precision = f"{table.op}_dtype"
    known = [word in traps.WEIGHT_BITS for word in columns[precision]]
    left_out: dict[str, int] = defaultdict(int)
    for word, kept in zip(columns[precision], known, strict=True):
        if not kept:
            left_out[f"precision {word!r} is not known"] += 1
    kept_columns = {
        name: [v for v, kept in zip(column, known, strict=True) if kept] if left_out else column
        for name, column in columns.items()
    }
    make = _dense_rows if table.op == "gemm" else _moe_rows
    rows = make(kept_columns, card, framework.casefold())
    flagged = _flagged(rows)
    if repeats := len(rows) - len(flagged):
        left_out["the same kernel, layer and m follows again"] = repeats
    return Read(device, flagged, dict(left_out))


def _columns(table: Table, content: bytes) -> dict[str, list[Any]]:
    """The columns by name, each of its kind and without gaps."""
    arrow, parquet = packages.library("pyarrow"), packages.library("pyarrow.parquet")
    try:
        read = parquet.read_table(arrow.BufferReader(content))
    except (arrow.ArrowException, OSError) as error:
        raise InvalidInputError(f"it cannot be read as Parquet ({str(error).splitlines()[0][:120]}).") from None
    names = read.schema.names
    if missing := [name for name in table.columns if name not in names]:
        raise InvalidInputError(f"it has no column {', '.join(missing)}: its layout is not known.")
    if unknown := [name for name in names if name not in table.columns and name not in UNUSED]:
        raise InvalidInputError(f"it has a column {unknown[0][:60]!r}, which is not known.")
    if read.num_rows == 0:
        raise InvalidInputError("it has no rows.")
    for name, kind in table.columns.items():
        column = read.column(name)
        if not _is(arrow, column.type, kind):
            raise InvalidInputError(f"its column {name} is of type {column.type}, and should be {kind}.")
        if column.null_count:
            raise InvalidInputError(f"its column {name} has empty cells ({column.null_count}).")
    return {name: read.column(name).to_pylist() for name in table.columns}


def _is(arrow: Any, found: Any, kind: str) -> bool:
    """Whether an Arrow type is of a kind."""
    types = arrow.types
    if types.is_dictionary(found):
        found = found.value_type
    if kind == TEXT:
        return bool(types.is_string(found) or types.is_large_string(found))
    return bool(types.is_integer(found) or (kind == NUMBER and types.is_floating(found)))


def _one(columns: dict[str, list[Any]], name: str) -> str:
    """The one value of a column."""
    values = sorted(set(columns[name]))
    if len(values) != 1:
        raise InvalidInputError(f"it has several values in {name}: {values[0][:60]!r}, {values[1][:60]!r}.")
    return str(values[0])


def _check_figures(table: Table, columns: dict[str, list[Any]]) -> None:
    """Refuse a latency that is none, and a size below 1, with the first row that has it."""
    for name, kind in table.columns.items():
        if kind == TEXT:
            continue
        least = 1 if kind == INTEGER else 0
        for i, value in enumerate(columns[name]):
            if not math.isfinite(value) or value < least or value == 0:
                raise InvalidInputError(f"its row {i + 1} has {name} {value}.")


def _dense_rows(columns: dict[str, list[Any]], card: traps.Card, framework: str) -> list[ReferenceRow]:
    names = ("gemm_dtype", "kernel_source", "m", "n", "k", "latency")
    rows = []
    for precision, kernel, m, n, k, latency_ms in zip(*(columns[name] for name in names), strict=True):
        time_us = latency_ms * 1e3
        hot = traps.l2_hot(card, traps.dense_weights(framework, precision, n, k), time_us)
        quantises = precision in traps.QUANTISES_ACTIVATIONS
        rows.append(ReferenceRow("dense", precision, kernel, m, n, k, 0, 0, 0, 1, 1, "", time_us, quantises, hot))
    return rows


def _moe_rows(columns: dict[str, list[Any]], card: traps.Card, framework: str) -> list[ReferenceRow]:
    names = ("moe_dtype", "kernel_source", *_MOE, "distribution", "latency")
    rows = []
    for i, values in enumerate(zip(*(columns[name] for name in names), strict=True)):
        precision, kernel, m, hidden, inter, top_k, total, tp, ep, distribution, latency_ms = values
        if inter % tp or total % ep or top_k > total:
            raise InvalidInputError(
                f"its row {i + 1} shares {inter} by moe_tp_size {tp}, or {total} experts by moe_ep_size {ep} with topk "
                f"{top_k}, which cannot be."
            )
        gated = NONGATED not in kernel
        balanced = distribution == "balanced"
        n, experts, time_us = inter // tp, total // ep, latency_ms * 1e3
        weights = traps.moe_weights(
            precision, m, n, hidden, experts=experts, top_k=top_k, ep=ep, matrices=3 if gated else 2, balanced=balanced
        )
        suspect = traps.moe_suspect(
            card.system, framework, kernel, layer=(inter, hidden, total, top_k), ep=ep, m=m, balanced=balanced
        )
        rows.append(
            ReferenceRow(
                "moe" if gated else "moe_nongated", precision, kernel, m, n, hidden, experts, total, top_k, tp, ep,
                distribution, time_us, precision in traps.QUANTISES_ACTIVATIONS,
                traps.l2_hot(card, weights, time_us), suspect,
            )
        )  # fmt: skip
    return rows


def _flagged(rows: list[ReferenceRow]) -> list[ReferenceRow]:
    """The rows, once each, those marked as suspect that repeats or the other rows of their curve speak against."""
    curves: dict[tuple[Any, ...], dict[int, list[ReferenceRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        layer = (row.op, row.n, row.k, row.experts, row.experts_total, row.top_k, row.tp, row.ep, row.distribution)
        curves[row.precision, row.kernel_source, layer][row.m].append(row)
    kept = []
    for curve in curves.values():
        points = [_last(curve[m]) for m in sorted(curve)]
        marked = traps.falls([(row.m, row.time_us) for row in points])
        kept += [_suspected(row, marked.get(row.m, "")) for row in points] if marked else points
    return kept


def _last(same: list[ReferenceRow]) -> ReferenceRow:
    """Of rows that were measured again, the one that stands last in the file."""
    if len(same) == 1:
        return same[0]
    return _suspected(same[-1], traps.repeats([row.time_us for row in same]))


def _suspected(row: ReferenceRow, why: str) -> ReferenceRow:
    """The row with a reason not to trust it, unless it has one or there is none."""
    return replace(row, suspect=why) if why and not row.suspect else row
