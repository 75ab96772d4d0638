"""Every kind of problem that is documented can happen, and errors of ours become the problem they name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fp4tune.api.http.problems import PROBLEM_TYPES
from fp4tune.db import Store
from fp4tune.kernels import errors
from http_server import Running, Serve, assert_problem, fill, wait_until
from winner_factory import device, environment, new_run, new_winner

JSON = {"content-type": "application/json"}


def damage(store: Store) -> None:
    """Overwrite the database's file and its log with nonsense, as a failing disk would."""
    path = Path(store.url.removeprefix("sqlite:///"))
    for part in (path, Path(f"{path}-wal")):
        if part.exists():
            part.write_bytes(b"\x55" * max(65536, part.stat().st_size))
    store._engine.dispose()  # open connections would go on for a while with the pages that they hold in memory


def two_devices(store: Store) -> None:
    for name in ("Card One", "Card Two"):
        at = environment(device(name))
        store.add_winner(new_winner(store.create_run(new_run(at, ["16x2048x4096"])), "16x2048x4096", at))


MAKERS: dict[str, Callable[[Running, Store], object]] = {
    "not-tuned": lambda server, store: server.best("7x7x16"),
    "not-found": lambda server, store: server.get("/v1/runs/000000"),
    "no-such-route": lambda server, store: server.get("/nowhere"),
    "method-not-allowed": lambda server, store: server.client.delete("/v1/runs"),
    "ambiguous-device": lambda server, store: server.best("16x2048x4096"),
    "malformed-body": lambda server, store: server.client.post("/v1/best-configs", content=b"[", headers=JSON),
    "body-too-large": lambda server, store: server.client.post("/v1/best-configs", content=b" " * 2000, headers=JSON),
    "query-too-long": lambda server, store: server.best("1" * 300),
    "unsupported-media-type": lambda server, store: server.client.post("/v1/best-configs", content=b"{}"),
    "invalid-input": lambda server, store: server.best("1"),
    "store": lambda server, store: server.get("/v1/runs"),
    "not-ready": lambda server, store: server.get("/readyz"),
    "internal": lambda server, store: server.get("/v1/devices"),
}


@pytest.mark.parametrize("slug", PROBLEM_TYPES)
def test_every_documented_problem_happens(slug: str, store: Store, serve: Serve, monkeypatch: pytest.MonkeyPatch):
    if slug == "ambiguous-device":
        two_devices(store)
    else:
        fill(store)
    server = serve(store, max_body_bytes=1024, max_query_bytes=256, poll_s=60, misses_flush_s=60)
    if slug in ("store", "not-ready"):
        damage(store)
    if slug == "internal":
        # No input is known to cause one, so a bug is planted where a listing reads the store.
        monkeypatch.setattr(store, "devices", lambda: 1 // 0)
    assert_problem(MAKERS[slug](server, store), PROBLEM_TYPES[slug].status, slug)


def test_unforeseen_error_shows_nothing_to_the_client_and_everything_to_the_log(
    store: Store, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def bug():
        raise KeyError("inner detail")

    server = serve(store)
    monkeypatch.setattr(store, "environments", bug)
    response = server.get("/v1/environments")
    assert_problem(response, 500, "internal")
    assert "inner detail" not in response.text
    labels = {"method": "GET", "route": "/v1/environments", "status": "500"}
    wait_until(lambda: server.metric("fp4tune_http_requests_total", **labels) == 1)
    assert "inner detail" in caplog.text


OUR_ERRORS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.Fp4tuneError)
]


@pytest.mark.parametrize("kind", OUR_ERRORS)
def test_every_error_of_ours_is_the_problem_it_names(
    kind: type[errors.Fp4tuneError], store: Store, serve: Serve, monkeypatch: pytest.MonkeyPatch
):
    def refuse():
        raise kind("One sentence a user can act on.")

    server = serve(store)
    monkeypatch.setattr(store, "devices", refuse)
    document = assert_problem(server.get("/v1/devices"), kind.http_status, kind.slug)
    assert document["detail"] == "One sentence a user can act on."


def test_types_are_stable_and_well_formed():
    """A type is a promise: adding one is fine, changing or removing one breaks clients."""
    assert {slug: kind.status for slug, kind in PROBLEM_TYPES.items()}.items() >= {
        "not-tuned": 404, "not-found": 404, "no-such-route": 404, "method-not-allowed": 405, "ambiguous-device": 409,
        "malformed-body": 400, "body-too-large": 413, "query-too-long": 414, "unsupported-media-type": 415,
        "invalid-input": 422, "internal": 500, "store": 503, "not-ready": 503,
    }.items()  # fmt: skip
    for slug, kind in PROBLEM_TYPES.items():
        assert re.fullmatch(r"urn:fp4tune:problem:[a-z]+(-[a-z]+)*", kind.type)
        assert kind.type.endswith(slug)
        assert kind.meaning.endswith(".")


def test_damaged_database_stops_listings_and_not_lookups(store: Store, serve: Serve, caplog: pytest.LogCaptureFixture):
    fill(store)
    server = serve(store)
    damage(store)
    for path in ("/v1/runs", "/v1/winners", "/v1/trials", "/v1/devices", "/v1/environments", "/v1/misses"):
        assert_problem(server.get(path), 503, "store")
    wait_until(lambda: server.metric("fp4tune_index_refresh_failures_total") >= 2)
    assert server.best("16x2048x4096").status_code == 200
    assert server.best("32x2048x4096").status_code == 200
    assert server.get("/healthz").status_code == 200
    reasons = assert_problem(server.get("/readyz"), 503, "not-ready")["reasons"]
    assert any("following the database fails" in reason for reason in reasons)
    assert caplog.text.count("following the database fails, and will be tried again") == 1, "said once, not each time"
