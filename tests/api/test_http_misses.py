"""What is asked for and not found: counted once each, bounded, written later, and never in the way of an answer."""

from __future__ import annotations

import sqlite3
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from fp4tune.api.http import misses as module
from fp4tune.api.http.misses import Dropped, MissBuffer
from fp4tune.db import Store
from fp4tune.kernels.problem import Problem
from http_server import Running, Serve, assert_problem, fill, running, wait_until
from winner_factory import START, environment, new_run, new_winner


class Time:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.s = 0.0

    def buffer(self, *, cap: int = 100, per_s: float = 1.0, burst: int = 10) -> MissBuffer:
        return MissBuffer(
            cap=cap, per_s=per_s, burst=burst, monotonic=lambda: self.s, now=lambda: START + timedelta(seconds=self.s)
        )


def shape(m: int) -> Problem:
    return Problem(m, 16, 16)


def test_repeats_are_counted_and_cost_no_token():
    time = Time()
    buffer = time.buffer(burst=1)
    for second in range(5):
        time.s = second / 10
        assert buffer.add(shape(1), "d", "e") is None
    assert buffer.add(shape(2), "d", "e") is Dropped.RATE
    (miss,) = buffer.take()
    assert (miss.problem, miss.device_fingerprint, miss.environment_fingerprint) == (shape(1), "d", "e")
    assert (miss.count, miss.first_at, miss.last_at) == (5, START, START + timedelta(seconds=0.4))


def test_new_shapes_are_limited_for_each_device_and_environment():
    time = Time()
    buffer = time.buffer(burst=3, per_s=2)
    for place in (("a", "e"), ("b", "e"), ("a", "f")):
        assert [buffer.add(shape(m), *place) for m in range(1, 6)] == [None] * 3 + [Dropped.RATE] * 2
    time.s += 1
    assert [buffer.add(shape(m), "a", "e") for m in range(11, 14)] == [None, None, Dropped.RATE]


def test_devices_that_are_made_up_share_one_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_PLACES", 4)
    buffer = Time().buffer(burst=2, cap=1000)
    counted = [buffer.add(shape(1), f"device-{i}", "") is None for i in range(100)]
    assert counted == [True] * 6 + [False] * 94, "four of their own, and two from the bucket that the others share"


def test_what_was_written_is_not_new():
    time = Time()
    buffer = time.buffer(burst=2)
    buffer.add(shape(1), "", "")
    buffer.take()
    buffer.add(shape(2), "", "")
    buffer.take()
    assert buffer.add(shape(3), "", "") is Dropped.RATE
    assert buffer.add(shape(1), "", "") is None
    assert buffer.add(shape(2), "", "") is None


def test_waiting_misses_are_capped():
    buffer = Time().buffer(cap=2)
    assert [buffer.add(shape(m), "", "") for m in (1, 2, 3, 1)] == [None, None, Dropped.BUFFER, None]
    assert [miss.count for miss in buffer.take()] == [2, 1]
    assert len(buffer) == 0


def test_no_cap_no_misses():
    assert Time().buffer(cap=0).add(shape(1), "", "") is Dropped.BUFFER


def test_put_back_adds_up_and_keeps_the_cap():
    time = Time()
    buffer = time.buffer(cap=3)
    for m in (1, 2, 3):
        buffer.add(shape(m), "", "")
    taken = buffer.take()
    time.s = 5
    buffer.add(shape(1), "", "")
    buffer.add(shape(9), "", "")
    assert buffer.put_back(taken) == 1
    waiting = {miss.problem.m: miss for miss in buffer.take()}
    assert {m: miss.count for m, miss in waiting.items()} == {1: 2, 9: 1, 2: 1}
    assert (waiting[1].first_at, waiting[1].last_at) == (START, START + timedelta(seconds=5))


def test_threads_lose_no_count():
    buffer = Time().buffer(burst=1000)
    taken: list[int] = []

    def count() -> None:
        for _ in range(500):
            buffer.add(shape(1), "", "")

    def take() -> None:
        for _ in range(200):
            taken.extend(miss.count for miss in buffer.take())

    threads = [threading.Thread(target=count) for _ in range(4)] + [threading.Thread(target=take)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) + sum(miss.count for miss in buffer.take()) == 2000


# Over HTTP


def stored(server: Running, **params: str) -> dict[str, int]:
    items = server.get("/v1/misses", **params).json()["items"]
    return {item["problem"]["shape"]: item["count"] for item in items}


def test_misses_are_written_and_listed_by_demand(any_store: Store, serve: Serve):
    fill(any_store)
    server = serve(any_store)
    here = environment()
    place = {"device": here.device.fingerprint, "environment": here.fingerprint}
    for times, asked in ((1, "7x16x16"), (3, "7x32x16"), (2, "7x48x16")):
        for _ in range(times):
            server.best(asked, **place)
    server.batch("7x32x16", "7x32x16", "16x2048x4096", "12x2048x4096", **place)
    wanted = {"7x32x16": 5, "7x48x16": 2, "7x16x16": 1}
    wait_until(lambda: stored(server, **place) == wanted)
    assert list(stored(server, **place)) == list(wanted), "most wanted first"
    assert list(stored(server, **place, limit="1")) == ["7x32x16"]
    assert stored(server, device="0" * 16) == {}
    assert server.metric("fp4tune_misses_written_total") >= 3
    assert server.metric("fp4tune_lookups_total", match="none") == 8


def test_demand_of_a_device_that_has_no_winner(store: Store, serve: Serve):
    fill(store)
    server = serve(store)
    for name, text in (("a name", "Nobody's Card"), ("a prefix", "01234567")):
        assert_problem(server.best("16x2048x4096", device=text), 404, "not-tuned")
        assert server.metric("fp4tune_misses_dropped_total", reason="unattributed") > 0, name
    assert_problem(server.best("16x2048x4096", device="0123456789abcdef"), 404, "not-tuned")
    wait_until(lambda: stored(server, device="0123456789abcdef") == {"16x2048x4096": 1})
    assert sum(stored(server).values()) == 1


def test_misses_are_written_when_the_service_stops(tmp_path: Path):
    with Store.open(tmp_path / "fp4tune.db") as store:
        with running(store, misses_flush_s=3600) as server:
            server.best("7x16x16")
            assert stored(server) == {}
            assert "fp4tune_misses_waiting 1.0" in server.get("/metrics").text
        assert [miss.count for miss in store.misses()] == [1]


def test_rate_and_cap_are_settings(store: Store, serve: Serve):
    server = serve(store, misses_burst=5, misses_per_s=0.001, misses_cap=3, misses_flush_s=3600)
    for m in range(1, 11):
        assert_problem(server.best(f"{m}x16x16"), 404, "not-tuned")
    assert server.metric("fp4tune_misses_dropped_total", reason="buffer") == 7
    server.service.flush_misses()
    for m in range(11, 21):
        server.best(f"{m}x16x16")
    assert server.metric("fp4tune_misses_dropped_total", reason="rate") == 8
    server.service.flush_misses()
    assert server.metric("fp4tune_misses_dropped_total", reason="cap") == 2
    assert len(stored(server)) == 3


def test_read_only_store_answers_and_says_that_it_keeps_no_misses(tmp_path: Path, serve: Serve):
    with Store.open(tmp_path / "fp4tune.db") as store:
        fill(store)
    with Store.open(tmp_path / "fp4tune.db", mode="read") as store:
        server = serve(store)
        assert server.best("16x2048x4096").status_code == 200
        for _ in range(2):
            assert_problem(server.best("7x16x16"), 404, "not-tuned")
        server.batch("7x16x16")
        assert server.metric("fp4tune_misses_dropped_total", reason="read_only") == 3
        assert server.get("/readyz").status_code == 200


def test_failing_writes_fail_no_request_and_lose_nothing_when_they_end(
    tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    path = tmp_path / "fp4tune.db"
    with Store.open(path) as store:
        fill(store)
        server = serve(store)
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON misses BEGIN SELECT RAISE(ABORT, 'no room'); END")
            for _ in range(3):
                assert_problem(server.best("7x16x16"), 404, "not-tuned")
            wait_until(lambda: server.metric("fp4tune_misses_flush_failures_total") >= 2)
            assert_problem(server.best("7x16x16"), 404, "not-tuned")
            assert "writing misses fails, and will be tried again" in caplog.text
            other.execute("DROP TRIGGER full")
        other.close()
        wait_until(lambda: stored(server) == {"7x16x16": 4})
        wait_until(lambda: "writing misses works again" in caplog.text)


def test_a_tuned_shape_is_no_miss_any_more(store: Store, serve: Serve):
    fill(store)
    server = serve(store)
    server.best("64x2048x4096")
    run = store.create_run(new_run(environment(), ["64x2048x4096"]))
    store.add_winner(new_winner(run, "64x2048x4096", environment()))
    wait_until(lambda: server.best("64x2048x4096").status_code == 200)
