from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint_files import bf16, qwen35_mtp, write_checkpoint
from fp4tune.api.cli import inspect as command
from fp4tune.api.cli.app import run
from terminal import printed_on_a_terminal


def test_the_founding_case_reads_like_its_table(capsys: pytest.CaptureFixture[str]):
    assert run(["inspect", "qwen3.5-397b-a17b-nvfp4", "--tp", "8"]) == 0
    out = capsys.readouterr().out
    assert "1553 = 512·3 + 17 tensors (published, not read), BF16 (declared)" in out
    assert "No NVFP4 GEMM in the MTP branch" in out
    assert "what is declared, not what is stored" in out
    rows = {line.split()[0]: line.split() for line in out.split("GEMMs per rank")[1].splitlines() if line.strip()}
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


def test_json_has_the_same_keys_whatever_the_checkpoint(capsys: pytest.CaptureFixture[str]):
    keys = []
    for preset in ("qwen3.5-397b-a17b-nvfp4", "gpt-oss-120b", "qwen/qwen3-next-80b-a3b-thinking"):
        assert run(["inspect", preset, "--tokens", "1", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        keys.append((set(report), set(report["mtp"]), set(report["roles"][0]), set(report["gemms"][0])))
    assert keys[0] == keys[1] == keys[2]


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
    assert run(["inspect", "qwen3-30b-a3b-nvfp4", "--tp", "8"]) == 0
    out = capsys.readouterr().out
    assert "error: moe.w13 cannot run: TP 8 is invalid on the CUTLASS path: 2I/TP = 1536/8 = 192" in out
    assert [line.split()[0] for line in out.splitlines() if "cannot run, see below" in line] == ["moe.w13"]


MTP_CONFIG = {
    "model_type": "qwen3_5_moe_text", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "attn_output_gate": True, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "mtp_num_hidden_layers": 1,
    "full_attention_interval": 1,
}  # fmt: skip


def test_what_is_stored_of_mtp_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tensors = qwen35_mtp(MTP_CONFIG, expert="nvfp4", shared="bf16")
    path = write_checkpoint(tmp_path, MTP_CONFIG, {"mtp.safetensors": tensors})
    assert run(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "MTP (present): 1 layer, 65 = 4·3·4 + 17 tensors (stored), BF16+NVFP4 (stored)." in out
    told = "24 F32, 17 BF16, 12 U8, 12 F8_E4M3"
    assert f"MTP tensors: {told}; experts not stacked; in mtp.safetensors; all in the index." in out


def test_the_source_of_a_published_count_is_told(capsys: pytest.CaptureFixture[str]):
    assert run(["inspect", "minimax-m2.5-nvfp4"]) == 0
    out = capsys.readouterr().out
    assert "MTP (absent): 3 layers, 0 tensors (published, not read)." in out
    assert "source of the count: public MiniMax-M2.x checkpoints ship no MTP weights" in out


def test_what_a_verdict_rests_on_has_a_column_if_it_is_not_the_same_for_all(tmp_path: Path, capsys):
    config = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    path = write_checkpoint(
        tmp_path,
        config,
        {"a.safetensors": bf16("lm_head", 128, 64)},
        index={"model.layers.0.mlp.up_proj.weight": "b.x"},
    )
    assert run(["inspect", str(path)]) == 0
    header = next(line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["role"])
    assert header.split()[-1] == "verdict"


def test_what_is_not_known_is_no_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    assert run(["inspect", str(write_checkpoint(tmp_path, config, {}, index=False))]) == 0
    out = capsys.readouterr().out
    assert "error: mlp.down cannot run: its shape is known neither from headers nor from config.json." in out
    rows = [line.split() for line in out.splitlines() if line.split()[:1] == ["mlp.down"]]
    assert [row[1:4] for row in rows] == [["1", "64", "-"], ["-", "-", "-"]]


def test_more_warnings_than_anybody_reads(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "MAX_LINES", 1)
    assert run(["inspect", "qwen3.5-397b-a17b-nvfp4"]) == 0
    out = capsys.readouterr().out
    assert out.count("warning (") == 1
    assert "and 1 warnings and errors more; --json prints all of them" in out


@pytest.mark.parametrize("preset", ["qwen3.5-397b-a17b-nvfp4", "deepseek-v4-pro-nvfp4", "gpt-oss-120b"])
def test_it_fits_a_terminal_of_100_columns(preset: str):
    """No line is broken inside a word by the terminal."""
    lines = printed_on_a_terminal(["inspect", preset], columns=100)
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("MTP") for line in lines)
