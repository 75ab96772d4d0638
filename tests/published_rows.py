"""A few published times of an RTX PRO 6000, as the importer makes them of the package; the file says whose they are."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fp4tune.db import Store
from fp4tune.db.records import ReferenceRow, ReferenceSource

PUBLISHED = Path(__file__).parent / "tuner" / "data" / "published_rtx_pro_6000.csv"
SYSTEM = "rtx_pro_6000_server"
CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
ATTRIBUTION = "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES; aiconfigurator-core 0.12.0, Apache-2.0"
_COUNTS = ("m", "n", "k", "experts", "experts_total", "top_k", "tp", "ep")
_FLAGS = ("includes_act_quant", "l2_hot_risk")


def published_rows() -> list[tuple[ReferenceSource, ReferenceRow]]:
    """Every row with its source, as `Store.reference_rows` gives them."""
    return list(_read())


def _read() -> Iterator[tuple[ReferenceSource, ReferenceRow]]:
    lines = [line for line in PUBLISHED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for cells in csv.DictReader(lines):
        framework, version, file = cells.pop("framework"), cells.pop("framework_version"), cells.pop("file")
        source = ReferenceSource(
            "aiconfigurator-core", "0.12.0", SYSTEM, framework, version, file, "0" * 64, ATTRIBUTION, device=CARD
        )
        fields = {
            **cells,
            **{name: int(cells[name]) for name in _COUNTS},
            **{name: cells[name] == "1" for name in _FLAGS},
            "time_us": float(cells["time_us"]),
        }
        yield source, ReferenceRow(**fields)  # type: ignore[arg-type]


def layer_rows(n: int, k: int, op: str = "dense") -> list[tuple[ReferenceSource, ReferenceRow]]:
    """The rows of one layer."""
    return [pair for pair in published_rows() if (pair[1].op, pair[1].n, pair[1].k) == (op, n, k)]


def publish(store: Store, *, faster: float = 1.0) -> int:
    """Import the rows into a store; how many were. `faster` divides their times, and makes other files of them."""
    by_source: dict[ReferenceSource, list[ReferenceRow]] = {}
    for source, row in published_rows():
        by_source.setdefault(source, []).append(replace(row, time_us=row.time_us / faster))
    version = "0.12.0" if faster == 1 else f"0.12.{int(faster)}"
    return sum(
        store.import_reference(replace(s, package_version=version), rows).n_added for s, rows in by_source.items()
    )
