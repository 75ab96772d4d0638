"""docs/dashboard.md has every page with its question and parameters, and explains each parameter."""

from __future__ import annotations

import re
from pathlib import Path

from fp4tune.api.dashboard.exports import MAX_BYTES
from fp4tune.api.dashboard.model import MAX_ROWS
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.api.dashboard.rendering import MAX_PAGE_BYTES
from fp4tune.api.dashboard.shown import MAX_ROWS_SHOWN

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "dashboard.md").read_text(encoding="utf-8")


def test_every_page_is_documented_with_its_question_and_parameters():
    rows = re.findall(r"^\| `/dashboard/([\w-]*)` \| (.+?) \| (.*?) ?\|$", TEXT, re.MULTILINE)
    documented = [(slug, question, re.findall(r"`(\w+)`", names)) for slug, question, names in rows]
    assert documented == [(one.slug, one.question, [p.name for p in one.parameters]) for one in PAGES]


def test_every_parameter_is_explained():
    explained = TEXT.split("| parameter | what it is |")[1].split("\n\n")[0]
    names = {
        name for cell in re.findall(r"^\| (`.*?`) \|", explained, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    assert names == {parameter.name for one in PAGES for parameter in one.parameters}


def test_bounds_are_those_of_the_code():
    assert MAX_PAGE_BYTES == MAX_BYTES == 1_000_000
    assert f"at most {MAX_ROWS_SHOWN} rows" in TEXT
    assert f"at most {MAX_ROWS:,} points" in TEXT
