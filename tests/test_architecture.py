"""The arrows: api -> tuner -> db -> kernels, never up; and what `fp4tune --help` must not import."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("kernels", "db", "tuner", "api")
HEAVY = ("torch", "fastapi", "sqlalchemy", "alembic", "optuna", "uvicorn", "starlette", "numpy", "triton")
HEAVY += ("humming", "pynvml")
MAX_LINES = 700


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Absolute names of what a module imports, `fp4tune.` prefixed for our own."""
    package = ["fp4tune", *path.relative_to(ROOT).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield node.module or ""
                continue
            base = package[: len(package) - node.level]
            if path.name == "__init__.py":
                base = package[: len(package) - node.level]
            full = [*base, *((node.module or "").split(".") if node.module else [])]
            yield ".".join(full)
            yield from (".".join([*full, alias.name]) for alias in node.names)


def rooms_above(room: str) -> set[str]:
    return set(ROOMS[ROOMS.index(room) + 1 :])


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_point_down(room: str):
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(room)
        for name in imported(path)
        if name.startswith("fp4tune.") and name.split(".")[1] in rooms_above(room)
    ]
    assert not wrong


def test_the_check_above_sees_an_arrow_that_points_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "planted.py").write_text("def f():\n    from ..tuner import job\n")
    with pytest.raises(AssertionError):
        test_arrows_point_down("db")


def test_kernels_import_nothing_of_the_project():
    for path in modules("kernels"):
        for name in imported(path):
            assert not name.startswith("fp4tune.") or name.split(".")[1] == "kernels", (path, name)


def test_sqlalchemy_stays_in_db_and_pydantic_at_the_edge():
    for room in ROOMS:
        for path in modules(room):
            heads = {name.split(".")[0] for name in imported(path)}
            assert room == "db" or not heads & {"sqlalchemy", "alembic"}, path
            assert room == "api" or not heads & {"pydantic", "pydantic_settings", "fastapi"}, path


def test_rooms_are_small():
    for room in ROOMS:
        for path in modules(room):
            lines = path.read_text(encoding="utf-8").count("\n")
            assert lines <= MAX_LINES, f"{path.relative_to(ROOT)} has {lines} lines"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["tune", "--help"], ["noise", "--help"], ["results", "--help"], ["db", "--help"], ["--version"]],
)
def test_help_imports_nothing_heavy(arguments: list[str]):
    """Asked of sys.modules in a new process, after the command has answered."""
    code = (
        "import sys, json, contextlib, io\n"
        "from fp4tune.api.cli.app import run\n"
        f"with contextlib.redirect_stdout(io.StringIO()): code = run({arguments!r})\n"
        "json.dump([code, sorted({name.split('.')[0] for name in sys.modules})], sys.stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    exit_code, loaded = json.loads(done.stdout)
    assert exit_code == 0
    assert not set(HEAVY) & set(loaded)
