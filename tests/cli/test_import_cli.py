"""`fp4tune import aiconfigurator`, from the command line, with its exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import reference_package
from fp4tune.api.cli.app import run
from fp4tune.db import Store
from reference_package import SYSTEM, gemm, moe, put

pytest.importorskip("pyarrow")


@pytest.fixture
def systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that is installed, with three tables; the working directory is empty."""
    made = reference_package.install(tmp_path / "site")
    put(made, "gemm", [gemm(), gemm(m=2)], framework="sglang", version="0.5.14")
    put(made, "gemm", [gemm(framework="TRTLLM")], framework="trtllm", version="1.3.0rc20")
    put(made, "moe", [moe()], framework="vllm", version="0.24.0")
    monkeypatch.syspath_prepend(tmp_path / "site")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("FP4TUNE_DB", raising=False)
    return made


def test_a_table_says_what_was_imported_and_whose_it_is(systems: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["import", "aiconfigurator", "--db", "a.db"]) == 0
    printed = capsys.readouterr()
    assert (
        "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES; aiconfigurator-core 0.12.0, Apache-2.0" in printed.out
    )
    lines = [line.split() for line in printed.out.splitlines() if line.strip().startswith(SYSTEM)]
    assert lines == [
        [SYSTEM, "sglang", "0.5.14", "gemm_perf.parquet", "2", "0"],
        [SYSTEM, "trtllm", "1.3.0rc20", "gemm_perf.parquet", "1", "0"],
        [SYSTEM, "vllm", "0.24.0", "moe_perf.parquet", "1", "0"],
    ]
    assert printed.err == ""
    with Store.open("a.db", mode="read") as store:
        assert [source.n_rows for source in store.reference_sources()] == [2, 1, 1]
        assert store.runs() == []


def test_as_json_and_again(systems: Path, capsys: pytest.CaptureFixture[str]):
    for added, known in ((2, 0), (0, 2)):
        assert run(["import", "aiconfigurator", "--system", SYSTEM, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["database"] == "sqlite:///fp4tune.db"
        first = document["files"][0]
        assert first["result"] == {"n_added": added, "n_known": known}
        assert first["source"]["framework"] == "sglang"
        assert len(first["source"]["sha256"]) == 64
        assert (first["error"], first["left_out"]) == ("", {})


def test_a_refused_file_is_named_and_the_others_are_kept(systems: Path, capsys: pytest.CaptureFixture[str]):
    put(systems, "gemm", [gemm(latency=float("nan"))], framework="sglang", version="0.5.14")
    put(systems, "moe", [moe(), moe(moe_dtype="fp3")], framework="vllm", version="0.24.0")
    assert run(["import", "aiconfigurator", "--db", "a.db"]) == 2
    err = capsys.readouterr().err
    assert (
        "note: refused: aiconfigurator-core 0.12.0: aiconfigurator_core/systems/data/rtx_pro_6000_server/gemm/sglang/"
        in err
    )
    assert "its row 1 has latency nan." in err
    assert "moe_perf.parquet: 1 rows were left out, because precision 'fp3' is not known" in err
    with Store.open("a.db", mode="read") as store:
        assert len(store.reference_sources()) == 2


def test_an_unknown_system_lists_those_that_are_there_and_makes_no_database(
    systems: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["import", "aiconfigurator", "--system", SYSTEM, "--system", "rtx_5090", "--db", "a.db"]) == 3
    assert capsys.readouterr().err == (
        "fp4tune: There is no system 'rtx_5090' to import from aiconfigurator-core 0.12.0; there are "
        "rtx_pro_6000_server.\n"
    )
    assert not Path("a.db").exists()


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert run(["import", "aiconfigurator"]) == 4
    assert "pip install 'fp4tune[reference]'" in capsys.readouterr().err
    assert not Path("fp4tune.db").exists()


def test_a_release_that_is_not_known_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    reference_package.install(tmp_path / "site", version="0.13.0")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    assert run(["import", "aiconfigurator"]) == 4
    assert "The layout of aiconfigurator-core 0.13.0 is not known" in capsys.readouterr().err
    assert not Path("fp4tune.db").exists()


def test_an_older_database_is_upgraded(systems: Path, capsys: pytest.CaptureFixture[str]):
    golden = Path(__file__).resolve().parents[1] / "db" / "golden" / "0002.db"
    Path("old.db").write_bytes(golden.read_bytes())
    assert run(["import", "aiconfigurator", "--db", "old.db"]) == 0
    with Store.open("old.db", mode="read") as store:
        assert len(store.reference_sources()) == 3
        assert len(store.runs()) == 2


def test_without_a_publisher_the_help_is_shown(capsys: pytest.CaptureFixture[str]):
    assert run(["import"]) == 2
    assert "aiconfigurator" in capsys.readouterr().err
