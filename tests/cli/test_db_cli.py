"""`fp4tune db export` and `import`: from the command line, with its exit codes."""

from __future__ import annotations

import gzip
import json
import os
import socket
from pathlib import Path

import pytest
from exchange_files import fill, said
from fp4tune.api.cli.app import run
from fp4tune.db import Store
from store_factory import Clock, new_run


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A database `a.db` in the working directory; the ids of its runs."""
    monkeypatch.chdir(tmp_path)
    clock = Clock()
    with Store.open("a.db", clock=clock) as store:
        return fill(store, clock)


def test_there_and_back(filled: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["db", "export", "--db", "a.db"]) == 0
    assert "fp4tune-export.jsonl.gz has 2 environments, 2 runs, 6 trials, 5 winners," in capsys.readouterr().out
    assert run(["db", "import", "fp4tune-export.jsonl.gz", "--db", "b.db"]) == 0
    assert "b.db got 2 environments, 2 runs, 6 trials, 5 winners, 1 set of roofs, 3 sets of static facts from" in (
        capsys.readouterr().out
    )
    with Store.open("a.db") as one, Store.open("b.db") as other:
        assert said(one) == said(other)
    assert run(["db", "import", "fp4tune-export.jsonl.gz", "--db", "b.db"]) == 0
    assert "got nothing from fp4tune-export.jsonl.gz. 23 of its lines were known here." in capsys.readouterr().out


def test_as_json(filled: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["db", "export", "--run", filled[1][:20], "--out", "one.gz", "--db", "a.db", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["export"], document["counts"]["run"], document["notes"]) == ("one.gz", 1, [])
    assert document["bytes"] == Path("one.gz").stat().st_size
    assert run(["db", "import", "one.gz", "--db", "b.db", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["added"]["run"], document["database"], document["notes"]) == (1, "sqlite:///b.db", [])


def test_what_is_left_out_is_said_beside_the_result(filled: list[str], capsys: pytest.CaptureFixture[str]):
    with Store.open("a.db") as store:
        alive = store.create_run(new_run(host=socket.gethostname(), pid=os.getpid()))
    assert run(["db", "export", "--db", "a.db"]) == 0
    printed = capsys.readouterr()
    assert "2 runs" in printed.out
    assert printed.err.startswith(f"note: Run {alive} is still running as process {os.getpid()}")
    assert run(["db", "export", "--run", alive, "--out", "x.gz", "--db", "a.db"]) == 6
    assert not Path("x.gz").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["export", "--run", "ZZZZZZZZ", "--db", "a.db"], 3, "no run"),
        (["export", "--run", "Z", "--db", "a.db"], 2, "at least 6 characters"),
        (["export", "--db", "no.db"], 3, "There is no database"),
        (["export", "--out", "a.db", "--db", "a.db"], 2, "exists already"),
        (["export", "--out", "no/x.gz", "--db", "a.db"], 3, "does not exist"),
        (["import", "no.gz"], 3, "There is no file no.gz"),
        (["import", "a.db"], 2, "not compressed with gzip"),
        (["import", "empty"], 2, "the file is empty"),
        (["import", "newer.gz"], 2, "has version 2 of the format (fp4tune 9.9 made it), and this fp4tune"),
        (["import", "."], 5, "cannot be read"),
        (["import"], 2, "FILE"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    filled: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
):
    Path("empty").touch()
    header = {"format": "fp4tune.export", "version": 2, "fp4tune": "9.9", "counts": {}}
    Path("newer.gz").write_bytes(gzip.compress(json.dumps(header).encode()))
    if arguments[0] == "import":
        arguments = [*arguments, "--db", "new.db"]
    assert run(["db", *arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert sentence in printed.err
    assert not Path("new.db").exists(), "what is no export makes no database"
