"""The Dockerfiles' steps, carried out in a clean folder where no container engine is: tests/image_steps.py says how.

What it shows: that each RUN goes through, in its order, with what COPY brings and .dockerignore lets in, what is there
afterwards, and that it runs as the image says. What it does not:

- The base. A Python of this machine stands for it, with this one's release, pip and programs, and for the tuner with the
  CPU build of PyTorch of these tests.
- Isolation. What a step reads beside the mapped folders is this machine's, and what it writes there stays there.
- What an engine does: layers, capabilities, a read-only root, a network of its own, volumes.
- The branch HUMMING of the tuner, which is off by default.

tests/deploy/test_images.py builds with an engine where there is one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_tools import DOCKER, ROOT, last, steps
from engine import free_port
from image_steps import PLACES, Base, Build, Ignore, python_base
from torchless import ROOMS

SERVICE = DOCKER / "service.Dockerfile"
TUNER = DOCKER / "tuner.Dockerfile"
OWNER = "10001"

# Two virtual environments are filled from a package index; on a machine with much else to do, slowly.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One that every user of this machine may enter."""
    with tempfile.TemporaryDirectory(prefix="fp4tune-steps-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def no_base(folder: Path) -> None:
    """For steps that need no Python."""


def final(path: Path, tmp_path: Path, base: Base = no_base, *, without: str) -> Build:
    """The last stage, but for COPY and for the steps that name what is left out."""
    build = Build(tmp_path, base)
    for step in steps(path)[-1]:
        if step.word != "COPY" and not (step.word == "RUN" and without in step.rest):
            build.one(step)
    return build


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def assert_owned(build: Build, *names: str) -> None:
    for name in names:
        assert mode(build.path(name)) == "0o750"
        if os.geteuid() == 0:
            assert (build.path(name).stat().st_uid, build.path(name).stat().st_gid) == (int(OWNER), int(OWNER))
        else:
            line = build.path("/owners").read_text()
            assert f"--owner={OWNER} --group={OWNER} " in line
            assert str(build.path(name)) in line.split()


# --- without a package index ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "home", "folders"),
    [(SERVICE, "/data", ["/data"]), (TUNER, "/cache", ["/data", "/cache"])],
    ids=["service", "tuner"],
)
def test_the_user_and_its_folders_are_made(path: Path, home: str, folders: list[str], tmp_path: Path):
    build = final(path, tmp_path, without="pip install")
    lines = build.path("/etc/passwd").read_text().splitlines()
    assert lines[1:] == [f"fp4tune:x:{OWNER}:{OWNER}::{home}:/usr/sbin/nologin"]
    assert build.path("/etc/group").read_text().splitlines()[1:] == [f"fp4tune:x:{OWNER}:"]
    assert_owned(build, *folders)
    if path == TUNER:
        assert mode(build.path("/locks")) == "0o1777"
    made = {one.name for one in build.place.iterdir()}
    assert made & set(PLACES) == {name.removeprefix("/") for name in [*folders, *(["/locks"] if path == TUNER else [])]}


@pytest.mark.parametrize("taken", ["group", "passwd", "both"])
def test_a_base_that_has_the_number_already_keeps_who_has_it(taken: str, tmp_path: Path):
    def base(folder: Path) -> None:
        etc = folder.parent.parent / "etc"
        if taken != "passwd":
            (etc / "group").write_text(f"root:x:0:\nothers:x:{OWNER}:\n")
        if taken != "group":
            (etc / "passwd").write_text(f"root:x:0:0:root:/root:/bin/sh\nother:x:{OWNER}:100::/home:/bin/sh\n")

    build = final(TUNER, tmp_path, base, without="pip install")
    passwd, group = (build.path(f"/etc/{name}").read_text() for name in ("passwd", "group"))
    assert ("other:" in passwd, "fp4tune:" in passwd) == (taken != "group", taken == "group")
    assert ("others:" in group, "fp4tune:" in group) == (taken != "passwd", taken == "passwd")
    assert_owned(build, "/data", "/cache")


def test_a_step_that_fails_is_not_passed_over(tmp_path: Path):
    """The tuner's on a base without PyTorch, which its first command finds."""
    with pytest.raises(AssertionError, match="No module named 'torch'"):
        final(TUNER, tmp_path, python_base(), without="useradd")


@pytest.mark.parametrize(
    ("path", "out"),
    [
        ("api/http/app.py", False),
        ("api/dashboard/static/dashboard.css", False),
        ("tuner/presets/models.json.gz", False),
        ("docker/requirements.txt", False),
        ("docker/compose.yaml", True),
        ("docker/postgres.env", True),
        ("tests/conftest.py", True),
        (".git/config", True),
        ("fp4tune.db", True),
        ("api/fp4tune.db", True),
        ("db/a/b/x.db-wal", True),
        ("kernels/__pycache__/gemm.cpython-312.pyc", True),
        ("api/http/app.py.orig", True),
        ("apis/x.py", True),
    ],
)
def test_what_is_kept_out(path: str, out: bool):
    assert Ignore((ROOT / ".dockerignore").read_text(encoding="utf-8")).keeps_out(Path(path)) == out


def sources(*rooms: str, top: Path = ROOT) -> set[str]:
    """What belongs to the rooms: every file but what Python, databases and patch(1) leave there."""
    left = {".pyc", ".db", ".db-wal", ".db-shm", ".orig", ".rej"}
    return {
        file.relative_to(top).as_posix()
        for room in rooms
        for file in (top / room).rglob("*")
        if file.is_file() and file.suffix not in left
    }


def test_all_of_the_source_reaches_the_builder(tmp_path: Path):
    build = Build(tmp_path, no_base)
    for step in steps(SERVICE)[1]:
        if step.word != "RUN":
            build.one(step)
    src = build.path("/src")
    there = {file.relative_to(src).as_posix() for file in src.rglob("*") if file.is_file()}
    assert there == sources(*ROOMS) | {"pyproject.toml", "README.md", "LICENSE", "docker/requirements.txt"}
    assert any(name.startswith("api/dashboard/static/") for name in there)
    assert any(name.startswith("api/dashboard/templates/") for name in there)


# --- with one -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(folder: Path) -> Build:
    return Build(folder / "service", python_base()).all_of(SERVICE)


@pytest.fixture(scope="module")
def tuner(folder: Path) -> Build:
    return Build(folder / "tuner", python_base("torch")).all_of(TUNER)


@pytest.mark.network
def test_the_service_has_what_it_needs_and_no_more(service: Build):
    bin_ = service.path("/opt/fp4tune/bin")
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", service.run("fp4tune", "--version"))
    assert shutil.which("fp4tune", path=service.env["PATH"]) == str(bin_ / "fp4tune")
    code = "import psycopg.pq, uvloop, httptools; print(psycopg.pq.__impl__)"
    assert service.run("python", "-c", code) == "binary\n"
    for module in ("torch", "pip", "setuptools"):
        assert f"No module named '{module}'" in service.run("python", "-c", f"import {module}", code=1)
    assert not [one.name for one in bin_.iterdir() if one.name.startswith(("pip", "wheel"))]
    assert {one.name for one in service.place.iterdir()} & set(PLACES) == {"opt", "data"}
    assert {one.name for one in service.path("/opt").iterdir()} == {"fp4tune"}
    assert list(service.path("/data").iterdir()) == []
    assert_owned(service, "/data")


@pytest.mark.network
def test_what_is_installed_is_what_is_in_the_tree(service: Build):
    """And not what a developer's old build folder, or a list in pyproject.toml that lags behind, makes of it."""
    (package,) = service.path("/opt/fp4tune/lib").glob("python3.*/site-packages/fp4tune")
    there = {
        one.relative_to(package).as_posix() for one in package.rglob("*") if one.is_file() and one.suffix != ".pyc"
    }
    # As it was when it was copied: a tree that is worked in changes meanwhile.
    assert there == sources(*ROOMS, top=service.kept / "build" / "src")
    assert any(name.startswith("api/dashboard/static/") for name in there)


@pytest.mark.network
def test_nobody_but_root_may_change_what_runs(service: Build):
    for one in [service.path("/opt/fp4tune"), *service.path("/opt/fp4tune").rglob("*")]:
        assert one.is_symlink() or not stat.S_IMODE(one.stat().st_mode) & 0o022, one


@pytest.mark.network
def test_the_service_starts_as_the_image_says_and_passes_its_own_check(service: Build):
    env = {**service.env, "FP4TUNE_PORT": str(free_port()), "FP4TUNE_HOST": "127.0.0.1"}
    command = [*(last_words(service, "ENTRYPOINT")), *(last_words(service, "CMD"))]
    check = json.loads(service.here(service.config["HEALTHCHECK"].rest.partition(" CMD ")[2]))
    user = as_the_image(service)

    def checked() -> subprocess.CompletedProcess[str]:
        return subprocess.run(check, env=env, capture_output=True, text=True, check=False, timeout=60, **user)

    before = checked()
    assert (before.returncode, "does not answer" in before.stdout) == (1, True)
    with subprocess.Popen(
        command, env=env, cwd=service.path("/data"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **user
    ) as process:
        try:
            deadline = time.monotonic() + 100
            while (now := checked()).returncode:
                assert process.poll() is None, process.stdout.read()
                assert time.monotonic() < deadline, now.stdout
                time.sleep(0.2)
            assert '"ready"' in now.stdout
            url = f"http://127.0.0.1:{env['FP4TUNE_PORT']}"
            page = fetch(f"{url}/dashboard/").decode()
            assets = set(re.findall(r'(?:href|src)="(/dashboard/[^"]*\.(?:css|js|svg)[^"]*)"', page))
            assert assets
            for one in assets:
                assert fetch(url + one)
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert {one.name for one in service.path("/data").iterdir()} >= {"fp4tune.db"}
    for left in service.path("/data").iterdir():
        left.unlink()


def last_words(build: Build, word: str) -> list[str]:
    return [build.here(one) for one in last([build.config[word]], word).exec_form or []]


def as_the_image(build: Build) -> dict[str, object]:
    """Who the image ends as, where that is ours to choose and that one may run this machine's Python."""
    user: dict[str, object] = {"user": int(OWNER), "group": int(OWNER), "extra_groups": []}
    if os.geteuid():
        return {}
    try:
        python = build.path("/opt/fp4tune/bin/python")
        done = subprocess.run([python, "-c", ""], check=False, timeout=60, cwd="/", capture_output=True, **user)
    except PermissionError:
        return {}
    return user if done.returncode == 0 else {}


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


@pytest.mark.network
def test_the_tuner_is_added_to_what_its_base_has(tuner: Build):
    said = re.search(r"^(\d+) packages of the base are as they were; added: (.*)$", tuner.output, re.MULTILINE)
    assert said is not None, tuner.output[-3000:]
    base = tuner.path("/opt/fp4tune/base.txt").read_text().splitlines()
    assert len(base) == int(said[1])
    assert "torch" in {line.partition("==")[0] for line in base}
    assert {"fp4tune", "psycopg-binary", "nvidia-ml-py"} <= set(said[2].split(", "))
    assert {one.name for one in tuner.path("/opt/fp4tune").iterdir()} == {"base.txt", "tuner_entry.sh", "unmoved.py"}
    assert tuner.config["HEALTHCHECK"].rest == "NONE"
    assert_owned(tuner, "/data", "/cache")


@pytest.mark.network
def test_the_tuner_measures_as_the_image_says(tuner: Build):
    command = [*last_words(tuner, "ENTRYPOINT"), *last_words(tuner, "CMD"), "--device", "cpu", "--json"]
    out = tuner.run(*command)
    doctor = json.loads(out[out.index("{") :])
    assert doctor["backends"]["cpu.dequant"]["available"], doctor["backends"]["cpu.dequant"]
