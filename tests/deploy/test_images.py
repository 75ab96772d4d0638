"""The images, built by a real engine and run as compose runs them. On stand-ins for their bases: see tests/engine.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import engine as engines
import pytest
from deploy_tools import DOCKER, ROOT, program
from engine import PYTHON_BASE, SERVING_BASE, Engine

pytestmark = pytest.mark.timeout(900)

SERVICE = "localhost/fp4tune-service:test"
TUNER = "localhost/fp4tune-tuner:test"
RESULTS = ROOT / "docs" / "results" / "h200.fp4tune.gz"
SHAPE = "e512k10:16x256x4096"
# What compose.yaml asks for, by podman's own options; pipes and files are written to /data, /cache and /tmp only.
CONTAINED = (
    "--rm", "--network=host", "--no-healthcheck", "--read-only", "--read-only-tmpfs=false", "--cap-drop=all",
    "--security-opt=no-new-privileges", "--tmpfs=/tmp:exec,mode=1777",
)  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with engines.engine(tmp_path_factory.mktemp("engine")) as one:
        yield one


@pytest.fixture(scope="module")
def service(engine: Engine) -> str:
    return engines.service_image(engine, SERVICE)


@pytest.fixture(scope="module")
def torch_mounts(engine: Engine) -> list[str]:
    return engines.serving_mounts(engine, "torch")


@pytest.fixture(scope="module")
def tuner(engine: Engine, torch_mounts: list[str]) -> str:
    done = engine.build(DOCKER / "tuner.Dockerfile", TUNER, f"--build-arg=BASE_IMAGE={SERVING_BASE}", *torch_mounts)
    assert " packages of the base are as they were; added: " in done.stdout + done.stderr
    return TUNER


# --- the service ----------------------------------------------------------------------------------------------------


def in_service(engine: Engine, *command: str, code: int = 0) -> str:
    done = engine.run("run", *CONTAINED, "--entrypoint=", SERVICE, *command, code=code)
    return done.stdout + done.stderr


def test_the_service_has_what_it_needs_and_no_more(engine: Engine, service: str):
    assert in_service(engine, "id", "-u").strip() == "10001"
    assert "No module named 'torch'" in in_service(engine, "python", "-c", "import torch", code=1)
    assert in_service(engine, "python", "-c", "import psycopg.pq, uvloop, httptools; print(psycopg.pq.__impl__)") == (
        "binary\n"
    )
    for path in ("/src", "/wheels", "/opt/fp4tune/bin/pip"):
        in_service(engine, "test", "!", "-e", path)
    # Everything of the wheel is there: migrations, presets, what the dashboard loads.
    out = in_service(engine, "fp4tune", "inspect", "Qwen3.5-397B-A17B-NVFP4", "--tp", "4")
    assert "moe" in out
    # Nobody who gets into it can change what it runs.
    in_service(engine, "test", "!", "-w", "/opt/fp4tune/bin/fp4tune")
    in_service(engine, "test", "!", "-O", "/opt/fp4tune")


@pytest.mark.parametrize(
    ("setting", "code", "sentence"),
    [
        ("FP4TUNE_PORT=none", 2, "port"),
        ("FP4TUNE_LOG_LEVEL=loud", 2, "FP4TUNE_LOG_LEVEL"),
        ("FP4TUNE_DB=/nowhere/fp4tune.db", 3, "/nowhere"),
        ("FP4TUNE_DB=postgresql+psycopg://a:b@127.0.0.1:9/c?connect_timeout=2", 5, "127.0.0.1"),
    ],
)
def test_a_service_that_cannot_start_says_why(setting: str, code: int, sentence: str, engine: Engine, service: str):
    # The network is this machine's, where somebody may have the port of the image.
    free = f"--env=FP4TUNE_PORT={engines.free_port()}"
    done = engine.run("run", *CONTAINED, free, f"--env={setting}", SERVICE, code=None)
    assert done.returncode == code, done.stdout + done.stderr
    assert sentence in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


class Compose:
    """docker-compose on the engine, with the file that users get."""

    def __init__(self, engine: Engine, **environment: str) -> None:
        self.engine = engine
        self.port = engines.free_port()
        self.project = f"fp4tune-test-{os.getpid()}"
        self.env = {
            "PATH": engine.env["PATH"], "HOME": engine.env["HOME"], "DOCKER_HOST": f"unix://{engine.socket}",
            "COMPOSE_PROJECT_NAME": self.project, "FP4TUNE_PUBLISHED_PORT": str(self.port),
            "FP4TUNE_SERVICE_BASE": PYTHON_BASE, "FP4TUNE_SERVICE_IMAGE": SERVICE, **environment,
        }  # fmt: skip

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [program("docker-compose"), "-f", str(DOCKER / "compose.yaml"), *arguments],
            env=self.env, capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def inside(self, service: str, *command: str, code: int = 0) -> str:
        done = self.engine.run("exec", self.container(service), *command, code=code)
        return done.stdout + done.stderr

    def get(self, path: str) -> tuple[int, str]:
        """Asked from this machine, by the published port, until somebody answers."""
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except OSError:
                assert time.monotonic() < deadline, self.run("logs")
                time.sleep(0.2)

    def follow(self, path: str) -> None:
        """Wait until the service has seen what another process did."""
        deadline = time.monotonic() + 60
        while (answer := self.get(path))[0] != 200:
            assert time.monotonic() < deadline, answer
            time.sleep(0.2)


def test_compose_serves_from_sqlite_and_keeps_it(engine: Engine, service: str):
    with engine.answering():
        compose = Compose(engine)
        try:
            compose.run("up", "--detach", "--no-build")
            assert compose.get("/readyz")[0] == 200
            name = "service"
            assert '"ready"' in compose.inside(name, "python", "/opt/fp4tune/healthcheck.py")
            # As little as compose.yaml says.
            status = dict(
                line.split(":\t", 1) for line in compose.inside(name, "cat", "/proc/self/status").splitlines()
            )
            assert (int(status["CapPrm"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"]) == (0, 0, "1")
            assert status["Uid"].split() == ["10001"] * 4
            assert "Read-only file system" in compose.inside(name, "touch", "/opt/fp4tune/x", code=1)
            # Something to serve, and looked at: the service follows what another process stores.
            engine.run("cp", RESULTS, f"{compose.container(name)}:/data/import.gz")
            compose.inside(name, "fp4tune", "db", "import", "/data/import.gz")
            compose.inside(name, "fp4tune", "db", "backup", "/data/copy.db")
            compose.follow(f"/best-config?shape={SHAPE}")
            assert compose.get("/dashboard/")[0] == 200
            # Gone and back: what is in the volume stays, and nothing is needed beside it.
            compose.run("down")
            compose.run("up", "--detach", "--no-build")
            assert json.loads(compose.get(f"/best-config?shape={SHAPE}")[1])["match"] == "exact"
            files = set(compose.inside(name, "ls", "-A", "/data").split())
            assert files == {"fp4tune.db", "fp4tune.db-wal", "fp4tune.db-shm", "import.gz", "copy.db"}
            compose.run("stop")
            assert engine.run("inspect", "--format={{.State.ExitCode}}", compose.container(name)).stdout.strip() == "0"
            assert "Traceback" not in compose.run("logs")
        finally:
            compose.run("down", "--volumes", "--timeout=2")


def test_compose_serves_from_postgresql_once_that_answers(engine: Engine, service: str):
    password = "p@ss:w/or#d %2F'"
    image = engines.postgres_image(engine)
    with engine.answering():
        compose = Compose(engine, COMPOSE_PROFILES="postgres", POSTGRES_IMAGE=image, POSTGRES_PASSWORD=password)
        database = compose.container("postgres")
        try:
            with ThreadPoolExecutor(1) as pool:
                up = pool.submit(compose.run, "up", "--detach", "--no-build")
                while not up.done():
                    # Podman leaves it to systemd to look again and again.
                    engine.run("healthcheck", "run", database, code=None)
                    time.sleep(1)
                up.result()
            assert compose.get("/readyz")[0] == 200
            status = compose.inside("postgres", "cat", "/proc/1/status")
            assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
            engine.run("cp", RESULTS, f"{compose.container('service-postgres')}:/data/import.gz")
            compose.inside("service-postgres", "fp4tune", "db", "import", "/data/import.gz")
            compose.follow(f"/best-config?shape={SHAPE}")
            # The service outlives its database, and says that it is not ready meanwhile.
            engine.run("stop", "--time=20", database)
            assert compose.get(f"/best-config?shape={SHAPE}")[0] == 200
            assert compose.get("/readyz")[0] == 503
            engine.run("start", database)
            compose.follow("/readyz")
            assert password not in compose.run("logs")
        finally:
            compose.run("down", "--volumes", "--timeout=2")


# --- the tuner ------------------------------------------------------------------------------------------------------


def tune(engine: Engine, mounts: list[str], *command: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    volumes = [f"--volume=tuner-{name}:/{name}" for name in ("data", "cache", "locks")]
    return engine.run("run", *CONTAINED, *volumes, *mounts, TUNER, *command, code=code)


def test_the_tuner_tunes_on_a_read_only_root(engine: Engine, tuner: str, torch_mounts: list[str], service: str):
    """On the CPU, because there is no card: the same job, its workers and its database."""
    doctor = json.loads(tune(engine, torch_mounts, "doctor", "--device", "cpu", "--json").stdout)
    assert doctor["backends"]["cpu.dequant"]["available"], doctor["backends"]["cpu.dequant"]
    quick = ("--device", "cpu", "--shape", "2x32x64", "--budget-s", "1", "--trials", "2")
    result = json.loads(tune(engine, torch_mounts, "tune", *quick, "--json").stdout)
    assert len(result["problems"]) == 1
    # The service finds it in the volume, as the same user.
    volume = "--volume=tuner-data:/data"
    best = engine.run("run", *CONTAINED, volume, SERVICE, "best", "--shape", "2x32x64", "--json").stdout
    assert "exact" in best
    assert "read-only" not in tune(engine, torch_mounts, "doctor", "--device", "cpu").stdout.lower()


def test_what_the_base_has_is_what_is_used(engine: Engine, tuner: str, torch_mounts: list[str]):
    code = "import torch, typing_extensions as t; print(torch.__file__, t.__file__)"
    done = engine.run("run", *CONTAINED, *torch_mounts, "--entrypoint=python3", TUNER, "-c", code)
    assert [path.startswith("/serving/") for path in done.stdout.split()] == [True, True]


def test_a_base_without_pytorch_is_refused(engine: Engine):
    done = engine.build(
        DOCKER / "tuner.Dockerfile", "localhost/no:1", f"--build-arg=BASE_IMAGE={PYTHON_BASE}",
        "--build-arg=PYTHON=python", code=None,
    )  # fmt: skip
    assert done.returncode != 0
    assert "No module named 'torch'" in done.stdout + done.stderr


def test_a_base_that_would_have_to_be_moved_is_refused(engine: Engine, torch_mounts: list[str], tmp_path: Path):
    """pydantic is too old there: pip may not replace it, so nothing is built."""
    old = tmp_path / "pydantic-1.0.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: pydantic\nVersion: 1.0\n")
    (tmp_path / "Old").write_text(
        f"FROM {SERVING_BASE}\nUSER 0\nCOPY pydantic-1.0.dist-info /usr/lib/python3/dist-packages/pydantic-1.0.dist-info\n"
    )
    engine.run("build", "--network=host", "--tag=localhost/old:1", "--file", tmp_path / "Old", tmp_path)
    done = engine.build(
        DOCKER / "tuner.Dockerfile", "localhost/no:2", "--build-arg=BASE_IMAGE=localhost/old:1", *torch_mounts,
        code=None,
    )  # fmt: skip
    assert done.returncode != 0
    out = done.stdout + done.stderr
    assert "ResolutionImpossible" in out or "conflicting dependencies" in out, out[-2000:]
