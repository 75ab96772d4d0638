"""A container engine of a test session's own (Debian's podman), and stand-ins for base images that cannot be fetched.

The stand-in of python:3.12.12-slim-bookworm and of a serving image is the same Debian release, made from its packages
by `make test-images`: what a Dockerfile's steps do is seen on it, what is in the real base is not.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torchless
from deploy_tools import DOCKER, ROOT, missing, program

BASE_VARIABLE = "FP4TUNE_TEST_BASE"
PYTHON_BASE = "localhost/stand-in-python:1"
SERVING_BASE = "localhost/stand-in-serving:1"
POSTGRES = "localhost/stand-in-postgres:1"


class Engine:
    """Podman with its storage in a folder.

    Attributes:
        socket: where it answers as Docker does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "podman.sock"
        self._command = [program("podman"), "--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        most = {n: min(4096, resource.getrlimit(k)[1]) for n, k in _LIMITS.items()}
        limits = ", ".join(f'"{name}={number}:{number}"' for name, number in most.items())
        # Where limits may not be raised, podman's own fail; crun refuses cgroups of both versions at once.
        runtime = 'runtime = "runc"' if shutil.which("runc", path="/usr/sbin:/usr/bin") else ""
        config = folder / "containers.conf"
        config.write_text(f"[containers]\ndefault_ulimits = [{limits}]\n[engine]\n{runtime}\n")
        self.env = {
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "HOME": str(folder),
            "CONTAINERS_CONF": str(config),
        }

    def run(
        self, *arguments: str | Path, code: int | None = 0, timeout: float = 280
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self._command, *map(str, arguments)],
            env=self.env, capture_output=True, text=True, check=False, timeout=timeout,
        )  # fmt: skip
        assert code is None or done.returncode == code, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done

    def build(self, dockerfile: Path, tag: str, *more: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Build an image with the top of the repository as its context, in Docker's format."""
        # One layer a stage: nothing here is built twice, and each layer is a comparison of all files.
        options = ("--network=host", "--format=docker", "--layers=false", "--file", dockerfile, "--tag", tag, *more)
        return self.run("build", *options, ROOT, code=code)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """While this lasts, docker-compose can talk to it."""
        with subprocess.Popen(
            [*self._command, "system", "service", "--time=0", f"unix://{self.socket}"],
            env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                deadline = time.monotonic() + 20
                while not self.socket.exists():
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                yield
            finally:
                process.terminate()


_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """An engine with the stand-ins; nothing of it is left."""
    tar = os.environ.get(BASE_VARIABLE)
    if not tar:
        pytest.skip(f"`make test-images` makes a base image and sets {BASE_VARIABLE}")
    if not Path(tar).is_file():
        pytest.skip("no base image could be made on this machine: make .make/deploy/base.tar says why")
    if os.geteuid():
        missing("images are built as root")
    one = Engine(folder)
    try:
        _make_bases(one, Path(tar))
        yield one
    finally:
        # Ends and unmounts what is left; then its files can go.
        one.run("rm", "--all", "--force", "--time=2", code=None)
        shutil.rmtree(folder, ignore_errors=True)


def _make_bases(one: Engine, tar: Path) -> None:
    """What stands for the bases: Debian's Python, and on top of it a serving image's PyTorch."""
    context = one.folder / "base"
    context.mkdir()
    shutil.copy(tar, context / "base.tar")
    authorities = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
    shutil.copy(os.environ.get("PIP_CERT") or authorities, context / "authorities.crt")
    # As on this machine: its authorities, and its package index if it has another.
    index = os.environ.get("PIP_INDEX_URL")
    lines = ["[global]", "cert = /etc/ssl/certs/ca-certificates.crt", *([f"index-url = {index}"] if index else [])]
    (context / "pip.conf").write_text("\n".join(lines) + "\n")
    (context / "Dockerfile").write_text(
        "FROM scratch\nADD base.tar /\nCOPY authorities.crt /etc/ssl/certs/ca-certificates.crt\nCOPY pip.conf /etc/\n"
        # The official image has neither Debian's name for it nor Debian's refusal to install anything.
        "RUN ln -s /usr/bin/python3 /usr/local/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED\n"
    )
    # The first container here: where this fails, it is the machine that allows none.
    first = one.run("build", "--network=host", "--tag", PYTHON_BASE, context, code=None)
    if first.returncode:
        pytest.skip(f"no container can be made on this machine: {first.stderr.strip()[-500:]}")
    (context / "Serving").write_text(
        f"FROM {PYTHON_BASE}\n"
        # A base may end as somebody who may not write.
        'RUN echo /serving > /usr/lib/python3/dist-packages/serving.pth\nENTRYPOINT ["false"]\nUSER 65534\n'
    )
    one.run("build", "--network=host", "--tag", SERVING_BASE, "--file", context / "Serving", context)


def serving_mounts(one: Engine, *requirements: str) -> list[str]:
    """Options that put the PyTorch of these tests, or other packages of theirs, into a stand-in of a serving image."""
    version = one.run("run", "--rm", "--network=host", PYTHON_BASE, "python", "-V").stdout.split()[1].split(".")[:2]
    if [str(part) for part in sys.version_info[:2]] != version:
        missing(f"the stand-in's Python is {'.'.join(version)}, and these tests' PyTorch is for another")
    folder = one.folder / f"serving-{len(list(one.folder.glob('serving-*')))}"
    folder.mkdir()
    torchless.link(folder, list(torchless.closure(*requirements).values()))
    places = {str(link.readlink().parent) for link in folder.iterdir()}
    return [f"--volume={folder}:/serving:ro", *(f"--volume={place}:{place}:ro" for place in sorted(places))]


def postgres_image(one: Engine) -> str:
    """What stands for the official image of PostgreSQL: Debian's PostgreSQL, with the same variables and folders."""
    context = one.folder / "postgres"
    context.mkdir()
    shutil.copy(DOCKER.parent / "tests" / "deploy" / "stand_in_postgres.sh", context / "entry.sh")
    (context / "Dockerfile").write_text(
        f"FROM {PYTHON_BASE}\n"
        "RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql\n"
        "RUN ln -s /usr/lib/postgresql/*/bin /pg && install -d -o postgres -g postgres /var/lib/postgresql/data\n"
        "ENV PATH=/pg:$PATH PGDATA=/var/lib/postgresql/data\n"
        "COPY entry.sh /\nVOLUME /var/lib/postgresql/data\n"
        'ENTRYPOINT ["sh", "/entry.sh"]\n'
    )
    one.run("build", "--network=host", "--layers=false", "--tag", POSTGRES, context)
    return POSTGRES


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def service_image(one: Engine, tag: str) -> str:
    """The service, built on the stand-in."""
    one.build(DOCKER / "service.Dockerfile", tag, f"--build-arg=BASE_IMAGE={PYTHON_BASE}")
    return tag
