"""docs/export.md and docs/selftest.md say what the code does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from fp4tune.api.cli import selftest
from fp4tune.api.formats import FORMATS
from fp4tune.api.formats.flashinfer_metadata import FIELDS, OPEN
from fp4tune.tuner.selftest import job, numerics, plan, report
from fp4tune.tuner.selftest.report import Outcome

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXPORT = (DOCS / "export.md").read_text(encoding="utf-8")
SELFTEST = (DOCS / "selftest.md").read_text(encoding="utf-8")
CLI = (DOCS / "cli.md").read_text(encoding="utf-8")


def test_every_field_of_the_metadata_and_every_format_is_named():
    assert all(f"`{field}`" in EXPORT for field in FIELDS)
    for one in FORMATS.values():
        assert f"--format {one.name}" in EXPORT
        assert f"(`{one.default_file}`)" in CLI


def test_the_table_of_wildcards_is_the_one_of_the_code():
    table = EXPORT[EXPORT.index("| tactics of | may be `*` |") :].split("\n\n", 1)[0]
    rows = {name: row for row in table.splitlines()[2:] for name in re.findall(r"`(flashinfer\.\w+)`", row)}
    for name, row in rows.items():
        said = row.split("|")[2].strip()
        fields = OPEN.get(name, frozenset())
        if said == "nothing":
            assert not fields, name
        elif said.startswith("everything but"):
            assert fields == frozenset(FIELDS) - set(re.findall(r"`(\w+)`", said)), name
        else:
            assert said == "cuBLAS, cuDNN and its frontend"
            assert fields == {"cublas_version", "cudnn_version", "cudnn_frontend_version"}, name
    assert set(OPEN) <= set(rows)


def test_figures_of_the_selftest_are_those_of_the_code():
    assert all(f"`{shape}`" in SELFTEST for shape in plan.SHAPES)
    assert f"At most {plan.MAX_CONFIGS} configs" in SELFTEST
    assert f"up to {plan.MAX_LISTED} of a backend by name" in SELFTEST
    for part in ("fp4", "cuda"):
        assert f"{job.NUMERICS_PART[part]:.0%}".replace("%", " %") in SELFTEST
    assert f"`--budget-s` ({job.BUDGET_S:.0f})" in SELFTEST
    assert f"{numerics.GRACE_S:.0f} seconds more" in SELFTEST
    assert f'`"kind": "{report.KIND}"`, `"version": {report.VERSION}`' in SELFTEST
    assert all(f"`{outcome}`" in SELFTEST for outcome in Outcome)
    assert inspect.signature(selftest.selftest).parameters["budget_s"].default == job.BUDGET_S
