"""`run_server` as a process of its own: binding, signals, what it imports."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fp4tune.api.http.server import bind, run_server, url_of
from fp4tune.api.settings import Settings, load_settings
from fp4tune.db import Store
from fp4tune.kernels.errors import BusyError, InvalidInputError, NotFoundError, StoreError
from http_server import fill

CODE = """
import json, sys
from fp4tune.api.http.server import run_server
from fp4tune.api.settings import load_settings
run_server(load_settings(**json.loads(sys.argv[1])), on_ready=lambda url: print(url, flush=True))
print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""


@contextlib.contextmanager
def served(**settings: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its URL."""
    command = [sys.executable, "-c", CODE, json.dumps({"port": 0, **settings})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://"), process.communicate(timeout=10)
            yield process, url
        finally:
            if process.poll() is None:
                process.kill()


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal_and_ends_cleanly(tmp_path: Path, number: signal.Signals):
    path = tmp_path / "fp4tune.db"
    with Store.open(path) as store:
        fill(store)
    with served(db=str(path), misses_flush_s=3600) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        assert get(f"{url}/best-config?shape=16x2048x4096")["match"] == "exact"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}/best-config?shape=7x16x16")
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "serving 4 winners" in err
    loaded = set(json.loads(out))
    assert "torch" not in loaded
    assert "optuna" not in loaded
    with Store.open(path, mode="read") as store:
        assert [miss.problem.shape for miss in store.misses()] == ["7x16x16"], "written at the end"


def test_makes_a_database_that_is_missing(tmp_path: Path):
    with served(db=str(tmp_path / "new.db")) as (_, url):
        assert get(f"{url}/readyz")["winners"] == 0


def test_read_only_makes_and_changes_nothing(tmp_path: Path):
    with pytest.raises(NotFoundError):
        run_server(Settings(db=str(tmp_path / "none.db"), port=0, read_only=True))
    assert list(tmp_path.iterdir()) == []


def test_access_log_is_a_setting(tmp_path: Path):
    for wanted in (True, False):
        with served(db=str(tmp_path / "fp4tune.db"), access_log=wanted) as (process, url):
            get(f"{url}/healthz")
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=30)
        assert ("GET /healthz" in err) is wanted


def test_port_in_use(tmp_path: Path):
    with contextlib.closing(bind("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BusyError, match=f"Port {port} on 127.0.0.1 is in use"):
            run_server(Settings(db=str(tmp_path / "fp4tune.db"), port=port))
    assert list(tmp_path.iterdir()) == [], "the port is taken before the database is made"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "300.1.1.1", "x" * 300, "192.0.2.1", "::zz", "\x00"])
def test_host_that_is_none_of_this_machine(host: str):
    with pytest.raises(InvalidInputError):
        bind(host, 0)


def test_database_that_cannot_be_used_leaves_the_port_free(tmp_path: Path):
    path = tmp_path / "fp4tune.db"
    path.write_bytes(b"this is no database" * 1000)
    with contextlib.closing(bind("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(StoreError):
        run_server(Settings(db=str(path), port=port))
    bind("127.0.0.1", port).close()


def test_url_of_ipv6():
    try:
        bound = bind("::1", 0)
    except InvalidInputError:
        pytest.skip("this machine has no IPv6 loopback")
    with contextlib.closing(bound):
        assert url_of(bound) == f"http://[::1]:{bound.getsockname()[1]}"


def test_sockets_are_not_inherited():
    with contextlib.closing(bind("localhost", 0)) as bound:
        assert not bound.get_inheritable()
        assert bound.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FP4TUNE_PORT", "9000")
    monkeypatch.setenv("FP4TUNE_READ_ONLY", "true")
    monkeypatch.setenv("FP4TUNE_CURSOR_SECRET", "hush")
    settings = load_settings(host="0.0.0.0")
    assert (settings.port, settings.read_only, settings.host) == (9000, True, "0.0.0.0")
    assert load_settings(port=1).port == 1, "an argument wins"
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "65536"), ("port", "-1"), ("port", "http"), ("poll_s", "0"), ("poll_s", "nan"), ("log_level", "loud"),
        ("misses_cap", "-1"), ("cached_answers", "1.5"), ("read_only", "maybe"), ("db", ""), ("max_query_bytes", "1"),
    ],
)  # fmt: skip
def test_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.setenv(f"FP4TUNE_{name.upper()}", value)
    with pytest.raises(InvalidInputError, match=rf"Setting {name} \(FP4TUNE_{name.upper()}\) is not valid"):
        load_settings()


def test_unknown_setting_is_refused():
    with pytest.raises(InvalidInputError, match="prot"):
        load_settings(prot=8040)
