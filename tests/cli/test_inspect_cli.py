from __future__ import annotations

import json

import pytest
from fp4tune.api.cli.app import run


def test_the_founding_case_reads_like_its_table(capsys: pytest.CaptureFixture[str]):
    assert run(["inspect", "qwen3.5-397b-a17b-nvfp4", "--tp", "8"]) == 0
    out = capsys.readouterr().out
    assert "1553 = 512·3 + 17 tensors (declared, not read), BF16 (declared)" in out
    assert "No NVFP4 GEMM in the MTP branch" in out
    assert "what is declared, not what is stored" in out
    rows = {
        line.split("  ")[1].strip(): line.split()
        for line in out.split("GEMMs per rank")[1].splitlines()
        if "  " in line
    }
    assert rows["moe.w13"][1:3] == ["256", "4096"]
    assert rows["moe.w2"][1:3] == ["4096", "128"]
    assert rows["attn.qkv"][1:3] == ["2560", "4096"]


def test_json_is_one_document_with_the_same(capsys: pytest.CaptureFixture[str]):
    assert run(["inspect", "qwen3.5-397b-a17b-nvfp4", "--tp", "8", "--tokens", "1,16", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["evidence"] == "config"
    assert report["mtp"]["tensors"] == 1553
    nvfp4 = {gemm["role"]: (gemm["n"], gemm["k"]) for gemm in report["gemms"] if gemm["format"] == "nvfp4"}
    assert nvfp4 == {"moe.w13": (256, 4096), "moe.w2": (4096, 128)}
    assert {p["shape"] for p in report["problems"] if p["format"] == "nvfp4"} == {
        f"e512k10:{m}x{nk}" for m in (1, 16) for nk in ("256x4096", "4096x128")
    }


def test_expert_parallel_keeps_whole_experts(capsys: pytest.CaptureFixture[str]):
    assert run(["inspect", "qwen3.5-397b-a17b-nvfp4", "--tp", "8", "--ep", "8", "--tokens", "16", "--json"]) == 0
    shapes = {p["shape"] for p in json.loads(capsys.readouterr().out)["problems"] if p["format"] == "nvfp4"}
    assert shapes == {"e64of512k10:16x2048x4096", "e64of512k10:16x4096x1024"}


def test_mxfp4_is_shown_and_refused(capsys: pytest.CaptureFixture[str]):
    assert run(["inspect", "gpt-oss-120b"]) == 0
    assert "refused for tuning" in capsys.readouterr().out
    assert run(["tune", "gpt-oss-120b"]) == 4
    assert "MXFP4" in capsys.readouterr().err


def test_a_role_that_tp_splits_wrongly_is_named(capsys: pytest.CaptureFixture[str]):
    """Qwen3-30B-A3B at TP8: 2·768/8 = 192 is no multiple of 128."""
    assert run(["inspect", "qwen3-30b-a3b-nvfp4", "--tp", "4"]) == 0
    assert "error:" not in capsys.readouterr().out
    assert run(["inspect", "qwen3-30b-a3b-nvfp4", "--tp", "8"]) in (0, 2)
    captured = capsys.readouterr()
    assert "192" in captured.out + captured.err
