"""Bad input ends in one clear sentence, an exit code of its own, and loses nothing."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from fp4tune.api.cli.app import run

FP4TUNE = str(Path(sys.executable).with_name("fp4tune"))

CASES = [
    ("nothing named", ["tune"], 2, "Name one of"),
    ("two things named", ["tune", "x", "--shape", "1x1x16"], 2, "Name one of"),
    ("unknown preset", ["tune", "no-such-model"], 3, "no-such-model"),
    ("unknown preset to inspect", ["inspect", "qwen3.5-397b-a17b-nvfp5"], 3, "Qwen3.5-397B-A17B-NVFP4"),
    ("no such directory", ["inspect", "./no/such/dir"], 3, "no/such/dir"),
    ("not a shape", ["tune", "--shape", "16x2048"], 2, "is not a shape"),
    ("unicode digits", ["tune", "--shape", "1٦x64x64"], 2, "is not a shape"),
    ("zero", ["tune", "--shape", "0x64x64"], 2, "M must be between 1 and"),
    ("negative", ["tune", "--shape", "-1x64x64"], 2, "is not a shape"),
    ("K splits a group", ["tune", "--shape", "1x64x40"], 2, "multiple of 16"),
    ("huge dimension", ["tune", "--shape", "1x99999999x64"], 2, "N must be between 1 and"),
    (
        "too large for the device",
        ["tune", "--shape", "16777216x16777216x16", "--device", "cpu"],
        4,
        " GiB, the device has ",
    ),
    ("top_k above experts", ["tune", "--shape", "e4k5:1x64x64"], 2, "top_k must be between"),
    ("unknown backend", ["tune", "--shape", "1x64x64", "--backend", "cuda.magic"], 3, "cpu.dequant"),
    (
        "backend not available",
        ["tune", "--shape", "1x64x64", "--backend", "torch.dequant", "--device", "cpu"],
        4,
        "CUDA",
    ),
    ("unknown device", ["tune", "--shape", "1x64x64", "--device", "tpu"], 2, "tpu"),
    ("tokens no numbers", ["tune", "qwen3-32b-nvfp4", "--tokens", "1,x"], 2, "whole numbers"),
    ("tokens zero", ["tune", "qwen3-32b-nvfp4", "--tokens", "0"], 2, "whole numbers"),
    ("tp zero", ["tune", "qwen3-32b-nvfp4", "--tp", "0"], 2, "TP must be"),
    ("unknown role", ["tune", "qwen3-32b-nvfp4", "--tokens", "1", "--role", "moe.w9"], 2, "mlp.down"),
    ("unknown phase", ["tune", "qwen3-32b-nvfp4", "--phase", "sleep"], 2, "sleep"),
    ("unknown option", ["tune", "--frobnicate"], 2, "--frobnicate"),
    ("unknown command", ["tuna"], 2, "tuna"),
    ("port out of range", ["serve", "--port", "70000"], 2, "--port"),
    ("no database to list", ["runs"], 3, "fp4tune tune"),
    ("no database to ask", ["best", "--shape", "1x64x64"], 3, "fp4tune tune"),
    ("no database to back up", ["db", "backup", "copy.db"], 3, "There is no database"),
    ("no database to resume from", ["tune", "--resume", "ZZZZZZZZZZ"], 3, "There is no database"),
    ("budget infinite", ["tune", "--shape", "1x64x64", "--budget-s", "inf"], 2, "--budget-s"),
    ("budget not a number", ["tune", "--shape", "1x64x64", "--budget-s", "nan"], 2, "--budget-s"),
    ("tokens of many digits", ["tune", "qwen3-32b-nvfp4", "--tokens", "0" * 5000 + "1"], 2, "whole numbers"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_sentence_and_a_code(
    arguments: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FP4TUNE_DB", raising=False)
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("fp4tune: ")]
    assert len(lines) == 1
    assert not list(tmp_path.iterdir()), "no database of nothing"


@pytest.fixture
def corrupt(tmp_path: Path) -> Path:
    path = tmp_path / "corrupt.db"
    path.write_bytes(b"SQLite format 3\x00" + os.urandom(8192))
    return path


@pytest.mark.parametrize(
    "command", [["runs"], ["best", "--shape", "1x64x64"], ["tune", "--shape", "1x64x64"], ["serve"]]
)
def test_a_corrupt_database_is_named_and_left_alone(command: list[str], corrupt: Path, capsys):
    before = corrupt.read_bytes()
    assert run([*command, "--db", str(corrupt)]) == 5
    assert "corrupt.db" in capsys.readouterr().err
    assert corrupt.read_bytes() == before


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path, capsys):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE letters (text)")
        connection.execute("INSERT INTO letters VALUES ('dear')")
    assert run(["tune", "--shape", "1x64x64", "--db", str(path)]) == 5
    assert "other.db" in capsys.readouterr().err
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("letters",)]


def test_a_database_that_cannot_be_created(capsys):
    assert run(["tune", "--shape", "1x64x64", "--db", "/proc/fp4tune.db"]) == 5
    assert "/proc/fp4tune.db" in capsys.readouterr().err


def test_a_port_in_use(tmp_path: Path, capsys):
    database = str(tmp_path / "t.db")
    assert run(["db", "upgrade", "--db", database]) == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["serve", "--port", port, "--db", database]) == 6
    assert port in capsys.readouterr().err


def test_a_backup_does_not_overwrite(tmp_path: Path, capsys):
    database, copy = str(tmp_path / "t.db"), tmp_path / "copy.db"
    assert run(["db", "upgrade", "--db", database]) == 0
    assert run(["db", "backup", str(copy), "--db", database]) == 0
    before = copy.read_bytes()
    assert run(["db", "backup", str(copy), "--db", database]) != 0
    assert "copy.db" in capsys.readouterr().err
    assert copy.read_bytes() == before


def test_debug_shows_the_traceback(tmp_path: Path):
    done = subprocess.run(
        [FP4TUNE, "--debug", "tune", "--shape", "0x1x16"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "Traceback" in done.stderr
    assert done.returncode == 1


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path):
    done = subprocess.run(
        f"'{FP4TUNE}' inspect qwen3-32b-nvfp4 --json | head -c 10", shell=True, capture_output=True, text=True,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.stderr == ""


def test_no_such_run(tmp_path: Path, capsys):
    database = str(tmp_path / "t.db")
    assert run(["db", "upgrade", "--db", database]) == 0
    assert run(["tune", "--resume", "ZZZZZZZZZZ", "--db", database]) == 3
    assert "ZZZZZZZZZZ" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["db"]])
def test_without_a_command_the_help_is_shown(arguments: list[str], capsys):
    assert run(arguments) == 2
    shown = capsys.readouterr().err
    assert "\n  upgrade" in shown if arguments else "\n  tune" in shown
    assert "fp4tune: " not in shown
