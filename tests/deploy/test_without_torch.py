"""fp4tune where no PyTorch is installed: everything works but measuring, and that says what is missing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torchless
from deploy_tools import ROOT

CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
RESULTS = ROOT / "docs" / "results"
SHAPE = "e512k10:16x256x4096"
HEAVY = ("torch", "triton", "flashinfer", "humming", "pynvml", "cuda")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torchless.make(tmp_path_factory.mktemp("torchless") / "env")


class Command:
    """`fp4tune` of the environment without PyTorch, on one database."""

    def __init__(self, python: Path, home: Path) -> None:
        self.program = python.parent / "fp4tune"
        self.database = home / "fp4tune.db"
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "FP4TUNE_DB": str(self.database), "COLUMNS": "200"}
        self.home = home

    def run(self, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.program, *arguments],
            env=self.env, cwd=self.home, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str | Path, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)


@pytest.fixture
def fp4tune(python: Path, tmp_path: Path) -> Command:
    return Command(python, tmp_path)


@pytest.fixture(scope="module")
def filled(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """With the runs of an H200 imported, by itself."""
    command = Command(python, tmp_path_factory.mktemp("filled"))
    assert command.json("db", "upgrade")["schema"]
    for name in ("h200", "h200-dense"):
        assert command.json("db", "import", RESULTS / f"{name}.fp4tune.gz")["added"]["trial"] > 0
    return command


@pytest.mark.parametrize("name", HEAVY)
def test_it_is_really_not_there(name: str, python: Path):
    done = subprocess.run([python, "-c", f"import {name}"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"No module named '{name}'" in done.stderr


def test_every_command_explains_itself(fp4tune: Command):
    for arguments in ([], ["tune"], ["serve"], ["noise"], ["selftest"], ["compile"], ["db"], ["import"]):
        assert "Usage: fp4tune" in fp4tune.run(*arguments, "--help").stdout
    assert fp4tune.run("--version").stdout.strip()


# --- measuring ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["tune", "noise"])
def test_measuring_says_what_is_missing_and_what_to_install(command: str, fp4tune: Command):
    done = fp4tune.run(command, "--device", "cpu", "--shape", "16x64x64", code=4)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("fp4tune: PyTorch is not installed, and tuning needs it:")
    assert "install fp4tune[cuda]" in line
    assert re.search(r"^\| 4 \| not supported here:", CLI, re.MULTILINE), "as documented"
    assert not fp4tune.database.exists(), "nothing was tuned, so nothing is remembered"


def test_a_backend_that_is_named_says_it_itself(fp4tune: Command):
    done = fp4tune.run("tune", "--device", "cpu", "--shape", "16x64x64", "--backend", "cpu.dequant", code=4)
    assert re.search(r"cpu\.dequant: PyTorch .*install torch\.", done.stderr)


def test_doctor_says_of_every_backend_that_it_cannot_run(fp4tune: Command):
    document = fp4tune.json("doctor", "--device", "cpu")
    assert document["backends"]
    assert not [name for name, state in document["backends"].items() if state["available"]]
    assert all(state["reason"] for state in document["backends"].values())
    assert "tuning is not possible" in fp4tune.run("doctor", "--device", "cpu").stdout


def test_a_workload_needs_no_card(fp4tune: Command):
    document = fp4tune.json("inspect", "Qwen3.5-397B-A17B-NVFP4", "--tp", "4")
    assert document


# --- what was found -------------------------------------------------------------------------------------------------


def test_the_database_is_carried_saved_and_upgraded(filled: Command, python: Path, tmp_path: Path):
    runs = filled.json("runs")
    assert len(runs) >= 2
    assert filled.json("db", "backup", tmp_path / "copy.db")["bytes"] > 0
    exported = filled.json("db", "export", "--out", tmp_path / "all.gz")
    other = Command(python, tmp_path)
    assert other.json("db", "import", tmp_path / "all.gz")["added"]["trial"] == exported["counts"]["trial"]
    assert [run["id"] for run in other.json("runs")] == [run["id"] for run in runs]
    # An older database is brought up to date.
    old = ROOT / "tests" / "db" / "golden" / "0001.db"
    (tmp_path / "old.db").write_bytes(old.read_bytes())
    upgraded = other.json("db", "upgrade", "--db", tmp_path / "old.db")
    assert upgraded["schema"] == filled.json("db", "upgrade")["schema"]
    assert other.run("runs", "--db", tmp_path / "old.db").stdout


def test_what_was_found_is_told(filled: Command, tmp_path: Path):
    assert "exact" in json.dumps(filled.json("best", "--shape", SHAPE))
    page = filled.run("results", *[run["id"] for run in filled.json("runs")][-1:]).stdout
    assert "NVIDIA H200" in page
    assert filled.json("model")


# --- the service ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(filled: Command) -> Iterator[str]:
    """`fp4tune serve`, until the tests of this module are done; it ends as it should."""
    with subprocess.Popen(
        [filled.program, "serve", "--port", "0"],
        env=filled.env, cwd=filled.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        said = []
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"fp4tune serves .*? at (http://\S+) ", line):
                break
        else:
            pytest.fail("".join(said))
        try:
            yield found[1]
            process.send_signal(signal.SIGTERM)
            _, rest = process.communicate(timeout=30)
            assert process.returncode == 0, rest
            assert "Traceback" not in rest, rest
        finally:
            process.kill()


def get(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read().decode()


def test_it_serves(url: str):
    for path in ("/healthz", "/readyz", "/metrics", "/docs", "/v1/runs", "/v1/openapi.json"):
        assert get(url + path)[0] == 200, path
    status, _, body = get(f"{url}/best-config?shape={SHAPE}")
    assert status == 200, body
    answer = json.loads(body)
    assert answer["match"] == "exact"
    assert answer["device"]["name"] == "NVIDIA H200"
    assert get(f"{url}/best-config?shape=7x7x16")[0] == 404


class _Links(HTMLParser):
    """Addresses on a page that lead to others of the dashboard."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") or dict(attrs).get("src") or ""
        if href.startswith("/dashboard"):
            self.found.append(href.partition("#")[0])


def test_every_page_of_the_dashboard_is_drawn(url: str):
    """The pages themselves, what the first one loads, and one link further, where there are values in the addresses."""
    status, kind, body = get(f"{url}/dashboard/")
    assert status == 200, body
    assert kind.startswith("text/html")
    links = _Links()
    links.feed(body)
    assert links.found
    seen: dict[str, int] = {}
    for link in dict.fromkeys(links.found):
        status, kind, body = get(url + link)
        assert status == 200, f"{link}: {body[:500]}"
        seen[link.partition("?")[0]] = status
    assert len([path for path in seen if path.count("/") == 2]) >= 8, sorted(seen)
