"""The health check asks a real service, and says why it is not well."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from deploy_tools import DOCKER
from fp4tune.db import Store
from http_server import running


def ask(port: int, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("FP4TUNE_")}
    return subprocess.run(
        [sys.executable, "-I", str(DOCKER / "healthcheck.py"), *arguments],
        env={**env, "FP4TUNE_PORT": str(port), **environment},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_nobody_listens(free_port: int):
    done = ask(free_port)
    assert done.returncode == 1
    assert f"http://127.0.0.1:{free_port}/readyz does not answer: " in done.stdout
    assert done.stderr == ""


def test_somebody_listens_and_says_nothing():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        done = ask(silent.getsockname()[1])
    assert done.returncode == 1
    assert "does not answer: timed out" in done.stdout
    assert done.stderr == ""


def test_another_program_listens():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with subprocess.Popen(
            [sys.executable, str(DOCKER / "healthcheck.py")],
            env={**os.environ, "FP4TUNE_PORT": str(other.getsockname()[1]), "FP4TUNE_HOST": "127.0.0.1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as asking:  # fmt: skip
            connection, _ = other.accept()
            connection.recv(4096)
            connection.sendall(b"SSH-2.0-nonsense\r\n\r\n")
            connection.close()
            out, err = asking.communicate(timeout=60)
    assert asking.returncode == 1
    assert "does not answer" in out
    assert err == ""


def test_the_service_is_ready(tmp_path: Path):
    with Store.open(tmp_path / "a.db") as store, running(store) as server:
        for environment in (
            {},
            {"FP4TUNE_HOST": "0.0.0.0"},
            {"FP4TUNE_HOST": "localhost"},
            {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"},
        ):
            done = ask(server.port, **environment)
            assert done.returncode == 0, (environment, done.stdout)
            assert '"status":"ready"' in done.stdout
        assert '"status":"ok"' in ask(server.port, "/healthz").stdout


def test_the_service_cannot_read_its_database(tmp_path: Path):
    """It goes on with what it knows, and is not ready: both can be asked."""
    path = tmp_path / "a.db"
    with Store.open(path) as store, running(store) as server:
        store.close()
        for file in tmp_path.glob("a.db*"):
            file.unlink()
        path.write_bytes(b"this is no database" * 400)
        done = ask(server.port)
        assert done.returncode == 1
        assert "/readyz answers 503: " in done.stdout
        assert "database" in done.stdout
        assert ask(server.port, "/healthz").returncode == 0
