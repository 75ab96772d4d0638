"""Published measurements in the store: whole files, once, never mixed with what was measured here."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exchange_files import fill
from fp4tune.db import Store
from fp4tune.db.records import ReferenceImport
from fp4tune.db.reference_systems import CARDS, match, variant_note
from fp4tune.kernels.errors import InvalidInputError
from reference_rows import SERVER, SYSTEM, WORKSTATION, dense, moe, source
from store_factory import START, Clock


def test_rows_come_back_as_they_were_with_their_source(store: Store):
    rows = [dense(m) for m in (1, 4, 16, 4096)] + [moe(m) for m in (1, 64)]
    assert store.import_reference(source(), reversed(rows)) == ReferenceImport(n_added=6, n_known=0)
    stored = source(imported_at=START, n_rows=6)
    assert store.reference_sources() == [stored]
    assert store.reference_rows([SYSTEM], "dense", 2048, 4096) == [(stored, row) for row in rows[:4]]
    assert store.reference_rows([SYSTEM], "moe", 256, 4096, 64, 512, 10) == [(stored, row) for row in rows[4:]]


def test_only_the_asked_layer_and_systems_come(store: Store):
    store.import_reference(source(), [dense(), dense(n=2049), dense(k=4097), moe(), moe(top_k=8)])
    assert len(store.reference_rows([SYSTEM], "dense", 2048, 4096)) == 1
    assert len(store.reference_rows([SYSTEM], "moe", 256, 4096, 64, 512, 10)) == 1
    assert store.reference_rows([SYSTEM], "moe", 256, 4096, 64, 512, 9) == []
    assert store.reference_rows([SYSTEM], "grouped", 256, 4096, 64, 512, 10) == []
    assert store.reference_rows(["h200_sxm"], "dense", 2048, 4096) == []
    assert store.reference_rows([], "dense", 2048, 4096) == []


def test_every_layer_of_the_asked_systems_is_listed_once(store: Store):
    store.import_reference(source(), [dense(), dense(2), dense(precision="fp8"), moe()])
    store.import_reference(source(system="h200_sxm", file="b", sha256="b" * 64), [dense(n=64)])
    assert store.reference_layers([SYSTEM]) == {("dense", 2048, 4096, 0, 0, 0), ("moe", 256, 4096, 64, 512, 10)}
    assert store.reference_layers(["h200_sxm"]) == {("dense", 64, 4096, 0, 0, 0)}
    assert store.reference_layers([]) == frozenset()


def test_a_layer_without_a_gate_is_another_problem(store: Store):
    store.import_reference(source(), [moe(op="moe_nongated")])
    assert store.reference_rows([SYSTEM], "moe", 256, 4096, 64, 512, 10) == []
    assert len(store.reference_rows([SYSTEM], "moe_nongated", 256, 4096, 64, 512, 10)) == 1


def test_again_changes_nothing(store: Store, clock: Clock):
    rows = [dense(m) for m in range(1, 9)]
    store.import_reference(source(), rows)
    before = store.reference_rows([SYSTEM], "dense", 2048, 4096)
    clock.advance(60)
    assert store.import_reference(source(), rows) == ReferenceImport(n_added=0, n_known=8)
    assert store.reference_rows([SYSTEM], "dense", 2048, 4096) == before


def test_other_content_under_the_same_name_is_refused(store: Store):
    store.import_reference(source(), [dense()])
    with pytest.raises(
        InvalidInputError, match=r"data/gemm.parquet of measurements 0.12.0 .* \(SHA-256 abababababab, and"
    ):
        store.import_reference(source(sha256="cd" * 32), [dense(), dense(2)])
    assert len(store.reference_rows([SYSTEM], "dense", 2048, 4096)) == 1


def test_more_than_one_batch(store: Store):
    rows = [dense(m, n=n) for n in range(1, 26) for m in range(1, 1025)]
    assert store.import_reference(source(), rows).n_added == 25_600
    assert [row.m for _, row in store.reference_rows([SYSTEM], "dense", 25, 4096)] == list(range(1, 1025))


def test_threads_that_import_the_same_file_at_once_store_it_once(store: Store):
    rows = [dense(m) for m in range(1, 500)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: store.import_reference(source(), rows), range(4)))
    assert sorted(d.n_added for d in done) == [0, 0, 0, 499]
    assert len(store.reference_rows([SYSTEM], "dense", 2048, 4096)) == 499


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("dense", {"time_us": float("nan")}, "finite"),
    ("dense", {"time_us": float("inf")}, "finite"),
    ("dense", {"time_us": 0.0}, "above 0"),
    ("dense", {"time_us": -1.0}, "above 0"),
    ("dense", {"m": 0}, "from 1"),
    ("dense", {"m": 1 << 41}, "more than"),
    ("dense", {"n": 0}, "from 1"),
    ("dense", {"k": 1 << 41}, "no layer like"),
    ("dense", {"op": "grouped"}, "one of dense, moe"),
    ("dense", {"experts_total": 8}, "no experts"),
    ("dense", {"precision": "x" * 33}, "at most 32"),
    ("dense", {"kernel_source": "a\x00b"}, "NUL"),
    ("dense", {"m": 16}, "two published latencies of dense nvfp4 by kernel with n 2048, k 4096 with m 16"),
    ("moe", {"experts": 0}, "from 1"),
    ("moe", {"experts": 513}, "no layer like"),
    ("moe", {"tp": 0}, "from 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "wrong", "sentence"), BAD, ids=[f"{op}-{next(iter(w))}-{i}" for i, (op, w, _) in enumerate(BAD)]
)
def test_one_bad_row_and_nothing_of_the_file_is_there(
    sqlite_store: Store, op: str, wrong: dict[str, Any], sentence: str
):
    bad = replace(dense(2) if op == "dense" else moe(2), **wrong)
    with pytest.raises(InvalidInputError, match=sentence):
        sqlite_store.import_reference(source(), [dense(16), bad])
    assert sqlite_store.reference_sources() == []


@pytest.mark.parametrize(
    "wrong",
    [{"sha256": "xyz"}, {"sha256": "AB" * 32}, {"package": ""}, {"attribution": ""}, {"framework_version": "x" * 33}],
)
def test_a_source_must_say_whose_it_is(sqlite_store: Store, wrong: dict[str, str]):
    with pytest.raises(InvalidInputError):
        sqlite_store.import_reference(source(**wrong), [dense()])


def test_the_newest_package_that_has_a_layer_is_given_and_older_ones_stay(store: Store):
    for version, sha in (("0.9.0", "09"), ("0.12.0", "12"), ("0.11.1", "11")):
        rows = [dense(time_us=float(sha))] + ([dense(n=64)] if version == "0.9.0" else [])
        store.import_reference(source(package_version=version, sha256=sha * 32), rows)
    ((given, row),) = store.reference_rows([SYSTEM], "dense", 2048, 4096)
    assert (given.package_version, row.time_us) == ("0.12.0", 12.0)
    ((given, _),) = store.reference_rows([SYSTEM], "dense", 64, 4096)
    assert given.package_version == "0.9.0"
    assert len(store.reference_sources()) == 3


def test_versions_of_a_framework_and_frameworks_stand_side_by_side(store: Store):
    for i, (framework, version) in enumerate((("vllm", "0.24.0"), ("sglang", "0.5.9"), ("sglang", "0.5.14"))):
        store.import_reference(
            source(framework=framework, framework_version=version, file=f"{i}", sha256=f"{i:064}"), [dense(), dense(2)]
        )
    found = [
        (s.framework, s.framework_version, row.m) for s, row in store.reference_rows([SYSTEM], "dense", 2048, 4096)
    ]
    assert found == [
        ("sglang", "0.5.9", 1), ("sglang", "0.5.9", 2), ("sglang", "0.5.14", 1), ("sglang", "0.5.14", 2),
        ("vllm", "0.24.0", 1), ("vllm", "0.24.0", 2),
    ]  # fmt: skip


def test_systems_of_a_card_are_those_that_were_imported_the_very_card_first(store: Store):
    assert store.reference_systems(SERVER) == []
    for i, system in enumerate(("gb200", "b200_sxm", SYSTEM, "unheard_of")):
        store.import_reference(source(system=system, file=str(i), sha256=f"{i:064}"), [dense()])
    assert store.reference_systems(SERVER) == [SYSTEM]
    assert store.reference_systems(SERVER.lower()) == [SYSTEM]
    assert store.reference_systems(WORKSTATION) == [SYSTEM]
    assert store.reference_systems("NVIDIA GB200") == ["gb200", "b200_sxm"]
    assert store.reference_systems("NVIDIA GeForce RTX 5090") == []


def test_another_variant_of_a_card_is_said_to_be_one():
    assert variant_note(SYSTEM, SERVER) == ""
    assert variant_note(SYSTEM, "NVIDIA H200") == ""
    assert match("h100_sxm", "NVIDIA H100 PCIe") == ""  # fewer SMs and slower memory
    for name in (WORKSTATION, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"):
        assert match(SYSTEM, name) == "variant"
        assert (
            variant_note(SYSTEM, name) == f"published for {SERVER}, another variant of {name}: power and clocks differ"
        )
    for card in CARDS.values():
        assert not set(card.devices) & set(card.variants)


def test_an_export_carries_nothing_of_it(sqlite_store: Store, clock: Clock, tmp_path: Path):
    fill(sqlite_store, clock)
    sqlite_store.export(tmp_path / "before.gz")
    sqlite_store.import_reference(source(), [dense(), moe()])
    sqlite_store.export(tmp_path / "after.gz")
    assert (tmp_path / "before.gz").read_bytes() == (tmp_path / "after.gz").read_bytes()


def test_a_row_takes_less_than_forty_bytes(sqlite_template: Path, tmp_path: Path):
    path = Path(shutil.copy(sqlite_template, tmp_path / "big.db"))
    before = path.stat().st_size
    with Store.open(path) as store:
        # 74 rows a curve, as published; times with all their digits.
        rows = [dense(m, n=n, time_us=n / 7 + m / 3, suspect="") for n in range(1, 501) for m in range(1, 75)]
        assert store.import_reference(source(), rows).n_added == 37_000
    assert (path.stat().st_size - before) / 37_000 < 40


def test_a_store_for_reading_takes_none(sqlite_template: Path, tmp_path: Path):
    from fp4tune.kernels.errors import StoreError

    with (
        Store.open(shutil.copy(sqlite_template, tmp_path / "a.db"), mode="read") as store,
        pytest.raises(StoreError, match="reading only"),
    ):
        store.import_reference(source(), [dense()])
