"""A Python with the project and what `pip install 'fp4tune[postgres]'` brings beside it, and nothing else: no PyTorch.

A real virtual environment. Its packages are links to those that the tests run with, so it is made in a moment and without
a network; what is not among the project's own requirements, and theirs, is not there to be imported.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("kernels", "db", "tuner", "api")


def normal(name: str) -> str:
    """A distribution's name as it is compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(*requirements: str) -> dict[str, metadata.Distribution]:
    """The installed distributions that requirements need, and those that these need, by normalised name.

    Raises:
        PackageNotFoundError: one is not installed.
    """
    found: dict[str, metadata.Distribution] = {}
    asked: set[tuple[str, str]] = set()
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        one = waiting.pop()
        for extra in ("", *one.extras):
            name = normal(one.name)
            if (name, extra) in asked:
                continue
            asked.add((name, extra))
            found[name] = metadata.distribution(one.name)
            for text in found[name].requires or ():
                needs = Requirement(text)
                if needs.marker is None or needs.marker.evaluate({"extra": extra}):
                    waiting.append(needs)
    return found


def make(folder: Path, *requirements: str) -> Path:
    """Make the environment; its Python.

    Args:
        folder: where; must not exist.
        requirements: what else is to be there, beside fp4tune[postgres].
    """
    # By a link to the interpreter and not to a copy of it, for speed.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True, timeout=120)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    link(site, closure("fp4tune[postgres]", *requirements).values())
    (site / "fp4tune").mkdir()
    for room in ROOMS:
        (site / "fp4tune" / room).symlink_to(ROOT / room)
    command = folder / "bin" / "fp4tune"
    command.write_text(f"#!{folder / 'bin' / 'python'}\nfrom fp4tune.api.cli import main\nmain()\n")
    command.chmod(0o755)
    return folder / "bin" / "python"


def link(site: Path, distributions: Iterator[metadata.Distribution] | list[metadata.Distribution]) -> None:
    """Link what distributions have at the top of their site-packages into another."""
    for one in distributions:
        for top in sorted({Path(str(file)).parts[0] for file in one.files or ()}):
            place = site / top
            # `..` is a script beside site-packages; an editable fp4tune's own hooks would lead to the developer's tree.
            if top in ("..", "__pycache__") or top.startswith("__editable__") or place.is_symlink():
                continue
            source = Path(str(one.locate_file(top)))
            if source.exists():
                place.symlink_to(source)
