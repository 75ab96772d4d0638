"""The really installed aiconfigurator-core, below .make/reference (`make test-reference`): its layout, rows, what is marked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.tuner.reference.aiconfigurator import DEFAULT_SYSTEM, Package, import_systems
from fp4tune.tuner.reference.tables import Read, rows_of

SITE = Path(__file__).resolve().parents[2] / ".make" / "reference"
ASKED_FOR = os.environ.get("FP4TUNE_TEST_REFERENCE", "")
"""The release that must be there; else, where none is, these tests are skipped."""
pytestmark = pytest.mark.skipif(
    not ASKED_FOR and not (SITE / "aiconfigurator_core").is_dir(),
    reason="aiconfigurator-core is not installed below .make/reference: make test-reference",
)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.syspath_prepend(SITE)
    return Package.find()


def read(package: Package, family: str, framework: str) -> Read:
    card = package.card(DEFAULT_SYSTEM)
    ((table, path),) = [
        (t, p) for t, p in package.files(DEFAULT_SYSTEM) if t.family == family and p.parts[-3] == framework
    ]
    return rows_of(table, path.read_bytes(), card, framework)


@pytest.mark.skipif(not ASKED_FOR, reason="no release is asked for: make test-reference")
def test_it_is_the_release_that_was_asked_for(package: Package):
    assert package.installed.version == ASKED_FOR


def test_all_its_systems_and_tables_are_found(package: Package):
    assert {"b200_sxm", "gb200", "h100_sxm", "h200_sxm", "rtx_pro_6000_server"} <= set(package.systems())
    found = {(table.family, path.parts[-3]) for table, path in package.files(DEFAULT_SYSTEM)}
    assert found == {(f, w) for f in ("gemm", "moe") for w in ("sglang", "trtllm", "vllm")}
    assert package.card(DEFAULT_SYSTEM).memory_bytes_per_s == 1.792e12


# Rows of dense NVFP4 whose copies of weights fit a 128 MiB L2, or that are faster than memory.
@pytest.mark.parametrize(("framework", "n_rows", "hot"), [("sglang", 29_526, 0.704), ("vllm", 35_742, 0.930)])
def test_dense_nvfp4_of_a_framework(package: Package, framework: str, n_rows: int, hot: float):
    nvfp4 = [row for row in read(package, "gemm", framework).rows if row.precision == "nvfp4"]
    assert len(nvfp4) == n_rows
    assert sum(row.l2_hot_risk for row in nvfp4) / n_rows == pytest.approx(hot, abs=1e-3)
    assert all(row.includes_act_quant and row.op == "dense" for row in nvfp4)
    (one,) = [row for row in nvfp4 if (row.m, row.n, row.k) == (1, 4096, 4096)]
    assert one.l2_hot_risk
    if framework == "sglang":
        assert one.time_us == pytest.approx(18.21, abs=0.01)


def test_moe_layers_of_vllm(package: Package):
    found = read(package, "moe", "vllm")
    assert (len(found.rows), found.left_out) == (48_006, {})
    assert {row.op for row in found.rows} == {"moe"}
    assert sum(bool(row.suspect) for row in found.rows) == 22
    # Qwen3.5-397B, shared by four ranks.
    layer = [row for row in found.rows if (row.n, row.k, row.experts, row.top_k, row.tp) == (256, 4096, 512, 10, 4)]
    assert {row.precision for row in layer} >= {"nvfp4", "bfloat16"}
    assert len({row.m for row in layer}) == 27
    assert "aiconfigurator_core" not in sys.modules


@pytest.mark.slow
def test_everything_of_the_default_system_is_imported_and_again_changes_nothing(package: Package, tmp_path: Path):
    path = tmp_path / "fp4tune.db"
    with Store.open(path) as store:
        first = list(import_systems(store, package, [DEFAULT_SYSTEM]))
        assert [file.error for file in first] == [""] * 6
        assert sum(file.result.n_added for file in first if file.result) == 679_309
        again = list(import_systems(store, package, [DEFAULT_SYSTEM]))
        assert [file.result.n_added for file in again if file.result] == [0] * 6
        layers = store.reference_rows([DEFAULT_SYSTEM], "moe", 256, 4096, 512, 512, 10)
        assert {source.framework for source, _ in layers} == {"sglang", "trtllm", "vllm"}
    assert path.stat().st_size / 679_309 < 40
