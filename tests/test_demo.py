"""`make demo`'s script as a subprocess: the main job end to end, smaller."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from fp4tune.db.store import Store

ROOT = Path(__file__).resolve().parent.parent


def test_the_demo_runs_the_main_job(tmp_path: Path):
    database = tmp_path / "demo.db"
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "demo.py"), "--db", str(database), "--tokens", "1", "--budget-s", "1"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1553 = 512·3 + 17" in done.stdout
    answer = json.loads(re.search(r"best-config\S*\n(\{.*?\n\})\n", done.stdout, re.DOTALL)[1])  # type: ignore[index]
    assert answer["match"] == "exact"
    assert answer["problem"]["shape"] == "e512k10:1x256x4096"
    assert "How to go on" in done.stdout
    with Store.open(database) as store:
        assert {w.problem.shape for w in store.winners().items} == {"e512k10:1x256x4096", "e512k10:1x4096x128"}
