"""docs/workers.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fp4tune.tuner.measure import SLOW_PATIENCE, Effort
from fp4tune.tuner.workers import compile_pool, executor
from fp4tune.tuner.workers.family import Deadlines

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "workers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("row", "seconds"),
    [
        ("compiling in the pool", executor.COMPILE_S),
        ("preparing", Deadlines().prepare),
        ("checking", Deadlines().check),
        ("one sample in the finals", Deadlines().sample),
        ("starting a worker", Deadlines().start),
        ("opening a problem", Deadlines().open),
    ],
)
def test_every_deadline_is_the_codes(row: str, seconds: float):
    (found,) = re.findall(rf"^\| {row}[^|]*\| (\d+) \|", TEXT, re.MULTILINE)
    assert float(found) == seconds


def test_the_deadline_of_timing_is_the_codes():
    assert "| timing | 30 more than four times the measuring budget |" in TEXT
    assert SLOW_PATIENCE == 3
    assert Deadlines().time(Effort(budget_s=2.0)) == 30 + 4 * 2


def test_the_figures_of_the_pool_are_the_codes():
    assert f"at most {compile_pool.MOST}" in TEXT
    assert (compile_pool.MEMORY_PART, compile_pool.ASSUMED_BYTES) == (0.75, 2 << 30)
