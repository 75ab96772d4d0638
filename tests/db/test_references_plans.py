"""One layer of half a million rows is found by an index, in one query."""

from __future__ import annotations

from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.db.records import LatencyModel
from query_plans import plans
from reference_rows import SERVER, SYSTEM, dense, moe, source
from store_factory import START


@pytest.fixture(params=["as made", "analyzed"])
def filled(request: pytest.FixtureRequest, tmp_path: Path):
    with Store.open(tmp_path / "a.db") as store:
        for i in range(3):
            rows = [dense(m, n=n) for n in range(64, 2049, 64) for m in range(1, 20)] + [moe(m) for m in range(1, 20)]
            store.import_reference(source(file=str(i), sha256=f"{i:064}", framework_version=f"0.{i}"), rows)
        store.save_latency_model(
            LatencyModel("f", "dense", "nvfp4", "cuda.graph", 1, 2, 3, 4, 1, 9, 6, 0.1, 0.2, START)
        )
        if request.param == "analyzed":
            with store._writing() as connection:
                connection.exec_driver_sql("ANALYZE")
    with Store.open(tmp_path / "a.db") as store:
        yield store


def test_a_layer_is_one_query_by_index(filled: Store):
    for call in (
        lambda: filled.reference_rows([SYSTEM], "dense", 2048, 4096),
        lambda: filled.reference_rows([SYSTEM, "h200_sxm"], "moe", 256, 4096, 64, 512, 10),
    ):
        (plan,) = plans(filled, call)
        assert "SEARCH reference_curves USING INDEX ix_reference_curves_layer (n=? AND k=? AND experts=?" in plan
        assert "SEARCH reference_points USING PRIMARY KEY (curve_id=?)" in plan
        # A package has some ten files: with statistics SQLite may go through those.
        assert "SCAN" not in plan.replace("SCAN reference_sources", "")


def test_layers_are_read_from_their_index_alone(filled: Store):
    (plan,) = plans(filled, lambda: filled.reference_layers([SYSTEM]))
    assert "SCAN reference_curves USING COVERING INDEX ix_reference_curves_layer" in plan


def test_systems_are_read_from_their_index(filled: Store):
    (plan,) = plans(filled, lambda: filled.reference_systems(SERVER))
    assert "COVERING INDEX ix_reference_sources_system" in plan


def test_a_latency_model_is_found_by_its_key(filled: Store, request: pytest.FixtureRequest):
    (plan,) = plans(filled, lambda: filled.latency_model("f", "dense", "nvfp4", "cuda.graph"))
    # With statistics it may be known that there is one.
    assert plan.startswith("SEARCH latency_models USING INDEX") or request.node.callspec.id == "analyzed"
