"""What holds of every answer of the dashboard, whatever is in the store and in the address: it is a whole page or table."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

VOID = {"meta", "link", "input", "br", "img", "hr"}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
MOST_BYTES = 1_000_000


class Strict(HTMLParser):
    """Every element that is opened is closed, in order; scripts are ours or data."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if len(given) != len(attrs):
            self.faults.append(f"{tag} has an attribute twice: {attrs}"[:300])
        self.faults += [f"{tag} has {name}" for name in given if name.startswith("on") or name == "style"]
        if (given.get("href") or "").lower().lstrip().startswith("javascript:"):
            self.faults.append(f"{tag} leads to a script")
        if (
            tag == "script"
            and given.get("type") != "application/json"
            and not (given.get("src") or "").startswith("/dashboard/static/")
        ):
            self.faults.append(f"a script: {attrs}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")


def check(answer: Any, where: str) -> None:
    """The answer is a whole page, whatever its status."""
    assert answer.headers["content-type"] == "text/html; charset=utf-8", where
    assert len(answer.content) <= MOST_BYTES, where
    parser = Strict()
    parser.feed(answer.text)
    assert not parser.faults, (where, parser.faults[:5])
    assert not parser.open, (where, parser.open)
    assert answer.text.count("<h1>") == 1, where
    assert "Traceback" not in answer.text
    # A line break within an element is the template's; whatever else controls is nobody's.
    assert not CONTROL.search(answer.text.replace("\r\n", "\n")), (where, CONTROL.search(answer.text))
    for script in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', answer.text, re.DOTALL):
        json.loads(script, parse_constant=pytest.fail)


def check_data(answer: Any, where: str) -> None:
    """The answer is a table, whatever is in it."""
    assert answer.status_code == 200, where
    assert len(answer.content) <= MOST_BYTES, where
    if ".json?" in where:
        json.loads(answer.text, parse_constant=pytest.fail)
        return
    for row in csv.reader(io.StringIO(answer.text, newline="")):
        assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in row), where
        assert not any(cell.startswith("-") and not re.fullmatch(r"-[0-9.]+(e[-+]?[0-9]+)?", cell) for cell in row), (
            where
        )
