"""Every page in docs/results is what its command makes of the data beside it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from fp4tune.db.store import Store
from typer.testing import CliRunner

RESULTS = Path(__file__).resolve().parents[2] / "docs/results"
PAGES = sorted(path.stem for path in RESULTS.glob("*.md") if path.name != "README.md")


def test_there_is_a_page_for_every_data_file():
    assert {path.name.split(".")[0] for path in RESULTS.glob("*.fp4tune.gz")} == set(PAGES) != set()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_command_makes(name, tmp_path, monkeypatch):
    from fp4tune.api.cli.app import app

    database = tmp_path / "page.db"
    with Store.open(database, mode="create") as store:
        store.import_from(RESULTS / f"{name}.fp4tune.gz")
    page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    words = shlex.split(re.search(r"^Made by `fp4tune (results [^`]+)`", page, re.MULTILINE)[1])
    monkeypatch.chdir(RESULTS)
    done = CliRunner().invoke(app, [*words, "--db", str(database)])
    assert done.exit_code == 0, done.output
    assert done.stdout == page
