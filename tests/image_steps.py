"""A Dockerfile carried out without a container engine: each stage in a folder that stands for its file system.

A stage's folder is always at the same place while its steps run, and is moved away when it ends: what remembers where it
was installed (a virtual environment does) is found again where `COPY --from` puts it, as in an image. What stands for what:

- Paths: those in `PLACES`, wherever an instruction names them, are below the folder. Anything else is this machine's.
- The base: an environment of the tests' Python, with pip, first on PATH; what else a test puts into it.
- `useradd` and `groupadd`: the real ones, on the folder's own /etc. `getent`: reads the same files.
- `install`: the real one; only for those who are not root without giving files away, which is noted in /owners.
- PIP_NO_CACHE_DIR is not set, so that the index is not asked again for what pip has in its cache.
"""

from __future__ import annotations

import os
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import torchless
from deploy_tools import ROOT, Step, program, steps

# Top folders that instructions may name; a path below another one is this machine's.
PLACES = ("src", "opt", "wheels", "data", "cache", "locks")
# Where a home folder is only written down (useradd --home-dir), it stays what it is.
_PLACE = re.compile(rf"(?<![\w./}}-])(?<!--home-dir )/(?=(?:{'|'.join(PLACES)})(?:[/\s\"';:)]|$))")
_NOT_SET = {"PIP_NO_CACHE_DIR"}
# Of this machine: where its index is, and whom it trusts. A proxy, too.
_PASSED = re.compile(r"PIP_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|HOME|LANG|TMPDIR|\w+_proxy|\w+_PROXY")
_CONFIG = {"LABEL", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}

Base = Callable[[Path], None]


class Ignore:
    """.dockerignore: the last line that fits decides, and one that fits a folder fits what is in it."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        self._rules = [(line.startswith("!"), re.compile(_glob(line.removeprefix("!")))) for line in lines]

    def keeps_out(self, path: Path) -> bool:
        """Whether the builder does not get a file.

        Args:
            path: relative to the context.
        """
        names = [one.as_posix() for one in (path, *path.parents) if one != Path()]
        out = False
        for lets_in, rule in self._rules:
            if any(rule.fullmatch(name) for name in names):
                out = not lets_in
        return out


def _glob(pattern: str) -> str:
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(words.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern))


class Build:
    """What a Dockerfile makes, as far as it was carried out.

    Attributes:
        place: the folder of the stage in hand; at the end the last one's.
        kept: where the earlier stages are, by their names.
        env: what the image's commands are started with.
        config: by their word, the instructions that only describe the image.
        output: what the steps printed.
    """

    def __init__(self, folder: Path, base: Base, *, context: Path = ROOT, **arguments: str) -> None:
        self.place = folder / "stage"
        self.env: dict[str, str] = {}
        self.config: dict[str, Step] = {}
        self.output = ""
        self.kept = folder / "kept"
        self._base = base
        self._context = context
        self._arguments = arguments
        self._given: dict[str, str] = {}
        self._ignore = Ignore((context / ".dockerignore").read_text(encoding="utf-8"))
        self._name = ""
        self._cwd = self.place
        self._user = "0"

    def all_of(self, dockerfile: Path) -> Build:
        """Carry out every instruction of every stage; a step that fails raises AssertionError with what it printed."""
        for stage in steps(dockerfile)[1:]:
            for step in stage:
                self.one(step)
        return self

    def one(self, step: Step) -> None:
        """Carry out one instruction."""
        match step.word:
            case "FROM":
                self._begin(step.rest.partition(" AS ")[2])
            case "ARG":
                for name, default in step.pairs.items():
                    self._given[name] = self._arguments.get(name, default)
            case "ENV":
                # What is expanded is what stood before the instruction.
                new = {name: self.expanded(value) for name, value in step.pairs.items() if name not in _NOT_SET}
                self.env.update(new)
            case "WORKDIR":
                self._cwd = Path(self.expanded(step.rest))
                self._cwd.mkdir(parents=True, exist_ok=True)
            case "USER":
                self._user = step.rest
            case "COPY":
                self._copy(step.rest.split())
            case "RUN":
                assert self._user.partition(":")[0] == "0", f"as {self._user}, who may write nothing: {step.rest}"
                self.output += self._run({**self._given, **self.env}, ["sh", "-ec", self.here(step.rest)], 0)
            case word:
                assert word in _CONFIG, f"nobody has thought of {word}"
                self.config[word] = step

    def here(self, text: str) -> str:
        """A text with its paths below the folder."""
        return _PLACE.sub(f"{self.place}/", text)

    def expanded(self, text: str) -> str:
        """As `here`, and with variables replaced."""
        return string.Template(self.here(text)).substitute({**self._given, **self.env})

    def path(self, path: str) -> Path:
        """Where a path of the image is."""
        return self.place / path.removeprefix("/")

    def run(self, *command: str, code: int = 0) -> str:
        """Run a command with what the image sets; what it prints."""
        return self._run(self.env, command, code)

    def _run(self, env: Mapping[str, str], command: Sequence[str], code: int) -> str:
        done = subprocess.run(
            command, env=env, cwd=self._cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=500,
        )  # fmt: skip
        assert done.returncode == code, f"{command}: {done.returncode}: {done.stdout[-3000:]}"
        return done.stdout

    def _begin(self, name: str) -> None:
        if self.place.exists():
            self.kept.mkdir(exist_ok=True)
            self.place.rename(self.kept / self._name)
        self._name = name
        self._cwd = self.place
        self._user = "0"
        self.config = {}
        self._given = {}
        (self.place / "etc").mkdir(parents=True)
        for file, line in _ETC.items():
            (self.place / "etc" / file).write_text(f"{line}\n")
        shims = _shims(self.place)
        self._base(self.place / "usr" / "local")
        passed = {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}
        path = [shims, self.place / "usr" / "local" / "bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        self.env = {**passed, "PATH": os.pathsep.join(map(str, path))}

    def _copy(self, words: list[str]) -> None:
        stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--") else None
        *sources, target = words
        to = self._cwd / self.here(target)
        into = target.endswith("/")
        assert into or len(sources) == 1, "several files go into a folder, which ends in /"
        for source in sources:
            if stage is not None:
                shutil.copytree(self.kept / stage / source.removeprefix("/"), to, symlinks=True, dirs_exist_ok=True)
                continue
            top, files = self._context / source, list(self._let_in(source))
            assert files, f"COPY {source}: the builder has no such file"
            for file in files:
                # A folder's content is copied, and not the folder.
                place = to / file.relative_to(top) if top.is_dir() else (to / top.name if into else to)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, place)

    def _let_in(self, source: str) -> Iterator[Path]:
        top = self._context / source
        for file in [top] if top.is_file() else top.rglob("*"):
            if file.is_file() and not self._ignore.keeps_out(file.relative_to(self._context)):
                yield file


_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh",
    "group": "root:x:0:",
    "shadow": "root:*:19000:0:99999:7:::",
    "gshadow": "root:*::",
}


def _shims(place: Path) -> Path:
    """Commands that change or ask the system, on the folder instead."""
    folder = place / "shims"
    folder.mkdir()
    scripts = {name: f'exec {program(name)} --prefix {place} "$@"' for name in ("useradd", "groupadd")}
    scripts["getent"] = f'! awk -F: -v id="$2" \'$3 == id || $1 == id {{ print; exit 1 }}\' {place}/etc/"$1"'
    if os.geteuid():
        scripts["install"] = (
            f'echo "$*" >> {place}/owners\nfor word; do shift; case $word in --owner=* | --group=*) ;; '
            f'*) set -- "$@" "$word";; esac; done\nexec {program("install")} "$@"'
        )
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def python_base(*requirements: str) -> Base:
    """What stands for a base with Python: an environment that has pip and what requirements need of these tests'."""

    def make(folder: Path) -> None:
        command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
        subprocess.run(command, check=True, timeout=120)
        # Links, so that a base is there in a moment.
        site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        torchless.link(site, [metadata.distribution("pip"), *torchless.closure(*requirements).values()])

    return make
