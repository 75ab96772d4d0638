"""A real server in a thread, on a free port of loopback, and what tests ask it with."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fp4tune.api.dashboard.page import Page
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.api.http.app import create_app
from fp4tune.api.http.server import bind
from fp4tune.api.http.service import Service
from fp4tune.api.settings import Settings
from fp4tune.db import Store
from winner_factory import environment, new_run, new_winner

TYPE = "urn:fp4tune:problem:"
PATIENCE_S = 20.0
SHAPES = ("16x2048x4096", "32x2048x4096", "512x2048x4096", "e64of512k10:16x256x4096")


def fill(store: Store) -> None:
    """A run with a winner for each of SHAPES, in the usual environment."""
    run = store.create_run(new_run(environment(), SHAPES))
    store.add_winners([new_winner(run, shape, environment()) for shape in SHAPES])


@dataclass(frozen=True)
class Running:
    """A server that runs, and a client for it."""

    url: str
    port: int
    client: httpx.Client
    service: Service

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.client.get(path, params=params or None)

    def best(self, shape: str, **params: Any) -> httpx.Response:
        return self.get("/v1/best-config", shape=shape, **params)

    def batch(self, *shapes: Any, **more: Any) -> httpx.Response:
        return self.client.post("/v1/best-configs", json={"shapes": list(shapes), **more})

    def raw(self, request: bytes) -> bytes:
        """What comes back when exactly these bytes are sent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            received = b""
            while chunk := connection.recv(65536):
                received += chunk
        return received

    def metric(self, name: str, **labels: str) -> float:
        """A metric's value; 0 if it has none yet."""
        return self.service.metrics.registry.get_sample_value(name, labels) or 0.0


Serve = Callable[..., Running]


def settings_for_tests(**given: Any) -> Settings:
    """Settings that follow the database and write misses at once."""
    return Settings(**{"db": "unused", "poll_s": 0.02, "misses_flush_s": 0.02, **given})


@contextlib.contextmanager
def running(store: Store | None, *, pages: Sequence[Page] = PAGES, **given: Any) -> Iterator[Running]:
    """Serve a store until the block ends, with these pages of the dashboard."""
    app = create_app(settings_for_tests(**given), store=store, pages=pages)
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield Running(f"http://127.0.0.1:{port}", port, client, app.state.service)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        bound.close()


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until something holds; fail if it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def assert_problem(response: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    """The response is this problem, well formed; its document."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["type"] == TYPE + slug, document
    assert document["status"] == status
    assert document["title"]
    assert document["detail"].endswith(".")
    assert "Traceback" not in response.text
    return document
