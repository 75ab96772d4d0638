"""Tables of an installed package of published measurements: what is read of them, and what is refused."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference_package
from fp4tune.db import Store
from fp4tune.db.records import ReferenceImport, ReferenceRow
from fp4tune.db.reference_systems import CARDS
from fp4tune.kernels.errors import InvalidInputError, NotFoundError, UnsupportedError
from fp4tune.tuner.reference import packages
from fp4tune.tuner.reference.aiconfigurator import (
    DEFAULT_SYSTEM,
    L2_BYTES,
    LAYOUTS,
    FileImport,
    Package,
    import_systems,
)
from reference_package import BANDWIDTH, DEVICE, SYSTEM, gemm, moe, put, specify

pytest.importorskip("pyarrow")

Write = Callable[..., Path]


@pytest.fixture
def systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of systems of a package that is installed, with one row of a GEMM."""
    made = reference_package.install(tmp_path / "site")
    put(made, "gemm", [gemm()], framework="sglang", version="0.5.14")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return made


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(tmp_path / "fp4tune.db") as opened:
        yield opened


def imported(store: Store, *names: str) -> list[FileImport]:
    return list(import_systems(store, Package.find(), names or (SYSTEM,)))


def rows(store: Store, **layer: Any) -> list[ReferenceRow]:
    layer = {"op": "dense", "n": 2048, "k": 4096, **layer}
    return [row for _, row in store.reference_rows([SYSTEM], **layer)]


def moe_rows(store: Store, **layer: Any) -> list[ReferenceRow]:
    layer = {"op": "moe", "n": 256, "k": 4096, "experts": 512, "experts_total": 512, "top_k": 10, **layer}
    return rows(store, **layer)


def test_a_gemm_is_read_in_microseconds_with_its_source(systems: Path, store: Store):
    (done,) = imported(store)
    assert (done.result, done.left_out, done.error) == (ReferenceImport(1, 0), {}, "")
    ((source, row),) = store.reference_rows([SYSTEM], "dense", 2048, 4096)
    assert row == ReferenceRow("dense", "nvfp4", "kernel_a", 1, 2048, 4096, 0, 0, 0, 1, 1, "", 500.0, True, True)
    assert (source.package, source.package_version, source.system, source.device) == (
        "aiconfigurator-core", "0.12.0", SYSTEM, DEVICE,
    )  # fmt: skip
    assert (source.framework, source.framework_version) == ("sglang", "0.5.14")
    assert source.file == f"aiconfigurator_core/systems/data/{SYSTEM}/gemm/sglang/0.5.14/gemm_perf.parquet"
    assert source.attribution == (
        "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES; aiconfigurator-core 0.12.0, Apache-2.0"
    )


def test_the_package_is_never_imported(systems: Path, store: Store):
    imported(store)
    assert "aiconfigurator_core" not in sys.modules


def test_a_moe_layer_is_read_as_one_rank_sees_it(systems: Path, store: Store):
    shared = {"inter_size": 2048, "num_experts": 256, "topk": 8, "hidden_size": 7168}
    put(
        systems, "moe",
        [moe(moe_tp_size=4), moe(moe_tp_size=1, moe_ep_size=8), moe(**shared, moe_tp_size=2, moe_ep_size=4)],
        framework="vllm", version="0.24.0",
    )  # fmt: skip
    imported(store)
    (row,) = moe_rows(store)
    assert (row.m, row.n, row.k, row.experts, row.tp, row.ep, row.time_us) == (16, 256, 4096, 512, 4, 1, 500.0)
    (row,) = moe_rows(store, n=1024, experts=64)
    assert (row.tp, row.ep, row.experts_total, row.distribution) == (1, 8, 512, "balanced")
    (row,) = moe_rows(store, n=1024, k=7168, experts=64, experts_total=256, top_k=8)
    assert (row.tp, row.ep) == (2, 4)


def test_a_moe_layer_without_a_gate_has_an_op_of_its_own(systems: Path, store: Store):
    put(systems, "moe", [moe(kernel_source="moe_torch_flow_nongated")], framework="vllm", version="0.24.0")
    imported(store)
    assert moe_rows(store) == []
    assert len(moe_rows(store, op="moe_nongated")) == 1


@pytest.mark.parametrize(
    ("precision", "includes"),
    [
        ("nvfp4", True),
        ("fp8", True),
        ("fp8_block", True),
        ("bfloat16", False),
        ("w4a16_mxfp4", False),
        ("int4_wo", False),
    ],
)
def test_quantising_activations_is_in_the_time_of_what_quantises(
    systems: Path, store: Store, precision: str, includes: bool
):
    put(systems, "gemm", [gemm(gemm_dtype=precision)], framework="sglang", version="0.5.14")
    put(systems, "moe", [moe(moe_dtype=precision)], framework="vllm", version="0.24.0")
    imported(store)
    assert [row.includes_act_quant for row in rows(store) + moe_rows(store)] == [includes] * 2


def test_every_framework_and_version_and_again_changes_nothing(systems: Path, store: Store):
    put(systems, "gemm", [gemm(framework="TRTLLM")], framework="trtllm", version="1.3.0rc20")
    put(systems, "gemm", [gemm(), gemm(m=2)], framework="sglang", version="0.5.16")
    assert [(f.source.framework_version, f.result.n_added) for f in imported(store)] == [
        ("0.5.14", 1), ("0.5.16", 2), ("1.3.0rc20", 1),
    ]  # fmt: skip
    before = store.reference_sources()
    assert [(f.result.n_added, f.result.n_known) for f in imported(store)] == [(0, 1), (0, 2), (0, 1)]
    assert store.reference_sources() == before


def test_what_was_measured_again_counts_once_and_the_last_is_kept(systems: Path, store: Store):
    again = [gemm(), gemm(m=2, latency=0.4), gemm(latency=0.51), gemm(m=2, latency=1.0)]
    put(systems, "gemm", again, framework="sglang", version="0.5.14")
    (done,) = imported(store)
    assert done.left_out == {"the same kernel, layer and m follows again": 2}
    one, two = rows(store)
    assert (one.time_us, one.suspect) == (510.0, "")
    assert (two.time_us, two.suspect) == (1000.0, "published 2 times, 400 to 1000 us")


def test_rows_of_a_precision_that_is_not_known_are_left_out_and_counted(systems: Path, store: Store):
    put(
        systems,
        "gemm",
        [gemm(), gemm(gemm_dtype="fp3"), gemm(gemm_dtype="fp3", m=2)],
        framework="sglang",
        version="0.5.14",
    )
    (done,) = imported(store)
    assert (done.result, done.left_out) == (ReferenceImport(1, 0), {"precision 'fp3' is not known": 2})


def test_a_refused_file_is_told_and_the_others_are_imported(systems: Path, store: Store):
    bad = put(systems, "gemm", [gemm(latency=-1.0)], framework="sglang", version="0.5.9")
    refused, good = sorted(imported(store), key=lambda f: f.source.framework_version, reverse=True)
    assert (refused.result, good.result) == (None, ReferenceImport(1, 0))
    assert (
        refused.error
        == f"aiconfigurator-core 0.12.0: {bad.relative_to(systems.parents[1])}: its row 1 has latency -1.0."
    )
    assert len(rows(store)) == 1


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


BAD: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a column is missing": ([without(gemm(), "latency")], "it has no column latency: its layout is not known."),
    "several are missing": ([without(without(gemm(), "m"), "n")], "it has no column m, n:"),
    "a column more": ([gemm(activation="silu")], "it has a column 'activation', which is not known."),
    "NaN": ([gemm(), gemm(m=2, latency=float("nan"))], "its row 2 has latency nan."),
    "infinite": ([gemm(latency=float("inf"))], "its row 1 has latency inf."),
    "negative": ([gemm(latency=-0.5)], "its row 1 has latency -0.5."),
    "zero": ([gemm(latency=0.0)], "its row 1 has latency 0.0."),
    "no tokens": ([gemm(m=0)], "its row 1 has m 0."),
    "an empty cell": ([gemm(), gemm(latency=None)], "its column latency has empty cells (1)."),
    "text for a figure": ([gemm(m="16")], "its column m is of type string, and should be whole numbers."),
    "a figure for text": ([gemm(kernel_source=1)], "its column kernel_source is of type int64, and should be text."),
    "another card": ([gemm(device="NVIDIA H200")], "it was measured on 'NVIDIA H200', and rtx_pro_6000_server is NVIDIA RTX"),
    "two cards": ([gemm(), gemm(device="NVIDIA H200")], "it has several values in device:"),
    "another op": ([gemm(op_name="moe")], "its op_name is 'moe' and not 'gemm'."),
    "another framework": ([gemm(framework="VLLM")], "its framework is 'VLLM' and not 'sglang'."),
    "a name too long": ([gemm(kernel_source="x" * 300)], "The kernel source must have at most 255 characters"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_table_that_cannot_be_is_refused_whole(systems: Path, store: Store, case: str):
    content, sentence = BAD[case]
    put(systems, "gemm", content, framework="sglang", version="0.5.14")
    (done,) = imported(store)
    assert done.result is None
    assert sentence in done.error
    assert store.reference_sources() == []


@pytest.mark.parametrize("wrong", [{"moe_tp_size": 3}, {"moe_ep_size": 7}, {"topk": 513}])
def test_a_moe_layer_that_cannot_be_shared_so_is_refused(systems: Path, store: Store, wrong: dict[str, int]):
    put(systems, "moe", [moe(**wrong)], framework="vllm", version="0.24.0")
    done = imported(store)[1]
    assert done.result is None
    assert "its row 1 shares 1024 by moe_tp_size" in done.error


def test_a_table_without_rows_and_one_that_is_no_parquet(systems: Path, store: Store):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 857341\n"
    put(systems, "gemm", [gemm()], framework="sglang", version="0.5.16").write_bytes(pointer)
    import pyarrow as pa
    from pyarrow import parquet

    path = put(systems, "gemm", [gemm()], framework="sglang", version="0.5.18")
    parquet.write_table(parquet.read_table(path).slice(0, 0), path, store_schema=False)
    assert pa.__version__
    _, pointed, empty = imported(store)
    assert "it cannot be read as Parquet (" in pointed.error
    assert "it has no rows." in empty.error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read(systems: Path, store: Store):
    put(systems, "gemm", [gemm()], framework="sglang", version="0.5.14").chmod(0)
    (done,) = imported(store)
    assert "it cannot be read (Permission denied)." in done.error


def test_a_folder_in_a_files_place(systems: Path, store: Store):
    path = put(systems, "gemm", [gemm()], framework="sglang", version="0.5.16")
    path.unlink()
    path.mkdir()
    assert [bool(file.error) for file in imported(store)] == [False, True]


def test_power_may_be_there_and_is_not_read(systems: Path, store: Store):
    put(systems, "gemm", [gemm(power=300.0, power_limit=600.0)], framework="sglang", version="0.5.14")
    (done,) = imported(store)
    assert done.result == ReferenceImport(1, 0)


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(
        UnsupportedError, match=r"aiconfigurator-core is not installed here: pip install 'fp4tune\[reference\]'"
    ):
        Package.find()


def test_a_module_without_metadata_is_no_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "aiconfigurator_core").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UnsupportedError, match="not installed"):
        Package.find()


@pytest.mark.parametrize("version", ["0.10.0", "0.10.2", "0.9.0"])
def test_the_distribution_before_it_is_refused_by_name_and_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
):
    older(tmp_path, version)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UnsupportedError) as caught:
        Package.find()
    assert str(caught.value) == (
        f"The layout of aiconfigurator {version} is not known; those of aiconfigurator-core 0.11 and 0.12 are: "
        "install one of these, pip install 'aiconfigurator-core~=0.12.0'."
    )


def test_the_distribution_before_it_does_not_stand_in_the_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Beside the package it is not looked at; a release of now without the package is no release of then."""
    made = reference_package.install(tmp_path / "both")
    put(made, "gemm", [gemm()], framework="sglang", version="0.5.14")
    older(tmp_path / "both", "0.10.0")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "both")])
    assert Package.find().installed.version == "0.12.0"
    older(tmp_path / "now", "0.12.0")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "now")])
    with pytest.raises(UnsupportedError, match="aiconfigurator-core is not installed here"):
        Package.find()


def older(site: Path, version: str):
    about = site / f"aiconfigurator-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.4\nName: aiconfigurator\nVersion: {version}\n")


def test_without_what_reads_it_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedError, match=r"read with pyarrow \(.*\): pip install 'fp4tune\[reference\]'"):
        packages.library("pyarrow")


@pytest.mark.parametrize("version", ["0.10.2", "0.13.0", "1.0.0", "0.1", "0.120.0"])
def test_a_release_whose_layout_is_not_known_is_refused_by_name_and_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
):
    reference_package.install(tmp_path, version=version)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UnsupportedError,
        match=f"The layout of aiconfigurator-core {version} is not known; those of aiconfigurator-core 0.11",
    ):
        Package.find()


@pytest.mark.parametrize("version", ["0.11.0", "0.11.3", "0.12.0", "0.12.1rc1"])
def test_releases_whose_layout_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store, version: str):
    made = reference_package.install(tmp_path / "site", version=version)
    put(made, "gemm", [gemm()], framework="sglang", version="0.5.14")
    monkeypatch.syspath_prepend(tmp_path / "site")
    (done,) = imported(store)
    assert (done.source.package_version, done.result) == (version, ReferenceImport(1, 0))


def test_a_known_release_with_another_tree_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    made = reference_package.install(tmp_path)
    (made / "data" / SYSTEM / "sglang").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedError, match="0.12.0 has no systems/data/<system>/gemm/"):
        Package.find()


def test_a_system_that_is_not_there_is_refused_before_anything_is_stored(systems: Path, store: Store):
    specify(systems, "h200_sxm")
    specify(systems, "b60")  # no card of NVIDIA
    with pytest.raises(UnsupportedError, match="'b60' of aiconfigurator-core 0.12.0 cannot be imported: the L2 cache"):
        imported(store, "b60")
    for name in ("rtx_5090", "", "../data"):
        with pytest.raises(NotFoundError, match=r"0.12.0; there are h200_sxm, rtx_pro_6000_server\."):
            imported(store, SYSTEM, name)
    assert store.reference_sources() == []


@pytest.mark.parametrize(
    "text", ["", "gpu: 5\n", "gpu: {mem_bw: fast}\n", "gpu: {mem_bw: -1}\n", "gpu: [\n", "gpu: {mem_bw: .nan}\n"]
)
def test_a_card_whose_specification_says_no_bandwidth_is_refused(systems: Path, store: Store, text: str):
    specify(systems, SYSTEM, text)
    with pytest.raises(InvalidInputError, match=f"{SYSTEM}.yaml"):
        imported(store)


def test_the_page_names_every_system_card_and_release():
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference-data.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)`(?: \(default\))? \| (NVIDIA [^|]+?) \| [\d,]+ \|$", page, re.MULTILINE))
    assert listed == {system: CARDS[system].devices[0] for system in L2_BYTES}
    assert f"| `{DEFAULT_SYSTEM}` (default)" in page
    assert f"Releases {' and '.join(LAYOUTS)} of `aiconfigurator-core`" in page
    assert CARDS.keys() == L2_BYTES.keys()


def test_the_bandwidth_is_the_specifications(systems: Path):
    assert Package.find().card(SYSTEM).memory_bytes_per_s == BANDWIDTH
