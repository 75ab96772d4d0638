"""Programs and files that the tests of docker/ share."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
HINT = "`make deploy-setup` installs it"


def missing(what: str) -> NoReturn:
    """Skip for want of something, but never on CI: there it is to be installed."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{what}, and on CI nothing may be missing")
    pytest.skip(what)


def program(name: str) -> str:
    """Where a program is."""
    # Those of the tests' own environment first, and /usr/sbin, which a short PATH does not have.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return shutil.which(name, path=path) or missing(f"{name} is not installed: {HINT}")


@dataclass(frozen=True)
class Step:
    """One instruction of a Dockerfile: its word in capitals, and the rest with continuation lines joined."""

    word: str
    rest: str

    @property
    def exec_form(self) -> list[str] | None:
        """The words of an instruction in exec form; None for the shell form."""
        return [str(word) for word in json.loads(self.rest)] if self.rest.startswith("[") else None

    @property
    def pairs(self) -> dict[str, str]:
        """What ENV, ARG or LABEL set."""
        return dict(part.partition("=")[::2] for part in shlex.split(self.rest))


def steps(path: Path) -> list[list[Step]]:
    """A Dockerfile's stages; the first is what stands before any FROM."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    stages: list[list[Step]] = [[]]
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            stages.append([])
        stages[-1].append(Step(word, rest.strip()))
    return stages


def last(stage: list[Step], word: str) -> Step:
    """The instruction that counts where there are several."""
    return [step for step in stage if step.word == word][-1]
