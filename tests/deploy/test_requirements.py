"""What the service's image installs: enough, allowed by pyproject.toml, and each pinned. pip checks the rest when it is built."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from deploy_tools import DOCKER, ROOT
from packaging.requirements import Requirement
from torchless import normal

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINES = [
    line for line in (DOCKER / "requirements.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")
]
PINS = {normal(one.name): one for one in map(Requirement, LINES)}


def test_each_is_one_release():
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line), line
    assert len(PINS) == len(LINES), "one is there twice"
    assert sorted(PINS) == list(PINS)


def test_whatever_the_project_requires_is_there_in_a_release_that_it_allows():
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["postgres"]]
    for requirement in map(Requirement, wanted):
        (pin,) = PINS[normal(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), f"{requirement} and {pin}"
    assert "psycopg-binary" in PINS, "the image has no libpq of its own"


def test_nothing_for_a_gpu_is_there():
    assert not set(PINS) & {"torch", "triton", "nvidia-ml-py", "flashinfer-python", "humming-kernels"}
    assert not [name for name in PINS if name.startswith(("nvidia", "cuda"))]


@pytest.mark.network
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_all_of_them_come_as_wheels_for_the_python_of_the_base(machine: str, tmp_path: Path):
    """The image has no compiler."""
    version = re.search(
        r"BASE_IMAGE=python:(\d\.\d+)\.\d+-", (DOCKER / "service.Dockerfile").read_text(encoding="utf-8")
    )
    assert version is not None
    platforms = [f"--platform={name}_{machine}" for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--only-binary=:all:", *platforms,
            f"--python-version={version[1]}", f"--target={tmp_path}", "-r", str(DOCKER / "requirements.txt"),
        ],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(re.search(r"^Would install (.*)$", done.stdout, re.MULTILINE)[1].split()) == len(PINS)  # type: ignore[index]
