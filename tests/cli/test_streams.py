"""Output to streams that are closed, broken, or of another encoding than UTF-8."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fp4tune.api.cli.app import run
from fp4tune.db.records import RunStatus
from fp4tune.db.store import Store

FP4TUNE = str(Path(sys.executable).with_name("fp4tune"))
TUNE = ["--shape", "2x32x64", "--trials", "2", "--budget-s", "1", "--device", "cpu"]


def shell(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # importing readline sets it
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=cwd, env={**inherited, **environment}, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("µ b")
    assert run(["tune", *TUNE, "--db", str(folder / "ø x.db")]) == 0
    return folder


def test_ascii_output_lacks_characters_and_nothing_else(tuned: Path):
    done = shell(f"'{FP4TUNE}' best --shape 2x32x64 --db 'ø x.db'", tuned, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cpu.dequant" in done.stdout


def test_ascii_json_is_json(tuned: Path):
    done = shell(f"'{FP4TUNE}' db upgrade --json --db 'ø x.db'", tuned, PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)["database"].endswith("ø x.db")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "2>&-"])
def test_a_closed_stream_is_no_error(closed: str, tuned: Path):
    done = shell(f"'{FP4TUNE}' runs --db 'ø x.db' {closed}", tuned)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_progress_reader_that_goes_away_does_not_end_the_run(tmp_path: Path):
    done = shell(f"'{FP4TUNE}' tune {' '.join(TUNE)} --shape 3x32x64 --db t.db 2>&1 >out.txt | true", tmp_path)
    assert done.returncode == 0
    assert "Winners of run" in (tmp_path / "out.txt").read_text(encoding="utf-8")
    with Store.open(tmp_path / "t.db") as store:
        assert [r.status for r in store.runs()] == [RunStatus.FINISHED]


@pytest.mark.skipif(shutil.which("script") is None, reason="needs util-linux's script")
@pytest.mark.parametrize("columns", [80, 300])
def test_a_config_stays_on_one_line_however_narrow_the_terminal(columns: int, tuned: Path):
    """`script` gives the command a terminal."""
    command = f"stty cols {columns}; '{FP4TUNE}' best --shape 2x32x64 --db 'ø x.db'"
    done = shell(f"script -qec {shlex.quote(command)} /dev/null", tuned, TERM="xterm")
    assert done.returncode == 0, done.stdout
    assert re.search(r"block_n=\d+ .*threads=\d+", done.stdout)
    assert ("speed-up" in done.stdout.splitlines()[2]) == (columns == 300)
