"""What guards a serving image against being changed: constraints that pip reads, and a look afterwards."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torchless
from deploy_tools import DOCKER
from packaging.requirements import Requirement


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment of its own, whose packages a test may change."""
    return torchless.make(tmp_path / "env")


def unmoved(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, DOCKER / "unmoved.py", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def site_of(python: Path) -> Path:
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    return site


def test_what_it_is_not_made_for(python: Path, tmp_path: Path):
    for arguments in ([], ["write"], ["erase", tmp_path / "x"], ["check", tmp_path / "x", "y"]):
        done = unmoved(python, *arguments)
        assert done.returncode == 1
        assert done.stderr.strip() == "usage: unmoved.py write|check FILE"
    assert unmoved(python, "check", tmp_path / "never-written").returncode != 0


def test_every_package_is_a_constraint_at_its_version(python: Path, tmp_path: Path):
    file = tmp_path / "base.txt"
    assert unmoved(python, "write", file).returncode == 0
    found = {one.name: str(one.specifier) for one in map(Requirement, file.read_text().splitlines())}
    there = torchless.closure("fp4tune[postgres]")
    assert {name: f"=={one.version}" for name, one in there.items()} == found


def test_nothing_moved_and_something_came(python: Path, tmp_path: Path):
    file = tmp_path / "base.txt"
    unmoved(python, "write", file)
    new = site_of(python) / "newcomer-1.0.dist-info"
    new.mkdir()
    (new / "METADATA").write_text("Metadata-Version: 2.1\nName: newcomer\nVersion: 1.0\n")
    done = unmoved(python, "check", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("added: newcomer\n")


def test_what_moved_and_what_is_gone_is_named(python: Path, tmp_path: Path):
    file = tmp_path / "base.txt"
    unmoved(python, "write", file)
    site = site_of(python)
    (numpy,) = site.glob("numpy-*.dist-info")
    was = numpy.name.removeprefix("numpy-").removesuffix(".dist-info")
    numpy.unlink()
    (site / "numpy-0.1.dist-info").mkdir()
    (site / "numpy-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n")
    next(site.glob("tqdm-*.dist-info")).unlink()
    done = unmoved(python, "check", file)
    assert done.returncode == 1
    assert f"moved: numpy {was} -> 0.1\n" in done.stderr
    assert " -> gone\n" in done.stderr
    assert done.stderr.count("moved: ") == 2


def test_a_folder_of_a_broken_installation_is_no_package(python: Path, tmp_path: Path):
    (site_of(python) / "~orch-2.0.dist-info").mkdir()
    (site_of(python) / "empty-1.0.dist-info").mkdir()
    (site_of(python) / "empty-1.0.dist-info" / "METADATA").write_text("")
    file = tmp_path / "base.txt"
    assert unmoved(python, "write", file).returncode == 0
    assert "orch" not in file.read_text()
    assert "empty" not in file.read_text()
    assert unmoved(python, "check", file).returncode == 0
