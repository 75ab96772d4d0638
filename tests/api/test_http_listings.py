"""What is stored, page by page, on SQLite and on PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest
import store_factory as factory
from fp4tune.api.http.cursors import Cursors
from fp4tune.db import Store
from fp4tune.db.records import TrialStatus
from fp4tune.kernels.errors import InvalidInputError
from http_server import Running, Serve, assert_problem
from hypothesis import given
from hypothesis import strategies as st
from winner_factory import environment, new_run, new_trial, new_winner

SHAPES = [f"{m}x2048x4096" for m in (1, 2, 4, 8, 16)]


@pytest.fixture
def filled(any_store: Store, serve: Serve) -> tuple[Running, str]:
    """A server, and a run with five winners, two of them replaced once, and seven trials."""
    run = any_store.create_run(new_run(environment(), SHAPES))
    any_store.add_winners([new_winner(run, shape, environment()) for shape in SHAPES])
    any_store.add_winners([new_winner(run, shape, environment(), time_us=9.0) for shape in SHAPES[:2]])
    statuses = [TrialStatus.OK] * 5 + [TrialStatus.WRONG, TrialStatus.CRASHED]
    any_store.add_trials([new_trial(run, SHAPES[0], environment(), n, status=s) for n, s in enumerate(statuses)])
    any_store.finish_problem(run, 0, "tuned")
    return serve(any_store), run


def pages(server: Running, path: str, **params: Any) -> list[list[dict[str, Any]]]:
    """The items of all pages, page by page."""
    found, cursor = [], None
    while True:
        response = server.get(path, **params, **({"cursor": cursor} if cursor else {}))
        assert response.status_code == 200, response.text
        document = response.json()
        found.append(document["items"])
        cursor = document["next_cursor"]
        if cursor is None:
            return found


def test_winners_in_pages(filled: tuple[Running, str]):
    server, run = filled
    got = pages(server, "/v1/winners", run=run, limit=2)
    assert [len(page) for page in got] == [2, 2, 1]
    items = [item for page in got for item in page]
    assert [item["id"] for item in items] == sorted({item["id"] for item in items})
    assert {item["problem"]["shape"] for item in items} == set(SHAPES)
    assert {item["time_us"] for item in items if item["problem"]["m"] <= 2} == {9.0}
    assert all(item["superseded_at"] is None and len(item["tie_set"]) == 2 for item in items)
    assert items[0]["depends_on"] == ["torch", "triton"]


def test_winners_of_every_state(filled: tuple[Running, str]):
    server, run = filled
    old = pages(server, "/v1/winners", run=run, state="superseded")[0]
    assert [item["problem"]["shape"] for item in old] == SHAPES[:2]
    assert all(item["superseded_at"].endswith("Z") for item in old)
    assert len(pages(server, "/v1/winners", run=run, state="any")[0]) == 7


def test_winners_by_filter(filled: tuple[Running, str]):
    server, run = filled
    key = "dense:4x2048x4096:uniform:nvfp4:bf16"
    here = environment()
    same = {"run": run, "problem": key, "backend": "triton.native", "device": here.device.fingerprint}
    assert len(pages(server, "/v1/winners", **same, environment=here.fingerprint)[0]) == 1
    for other in (
        {"problem": key.replace("4x", "5x")},
        {"backend": "cpu.dequant"},
        {"device": "0" * 16},
        {"run": "0" * 26},
    ):
        assert pages(server, "/v1/winners", **(same | other)) == [[]]


def test_trials_in_pages(filled: tuple[Running, str]):
    server, run = filled
    items = [item for page in pages(server, "/v1/trials", run=run, limit=3) for item in page]
    assert [item["number"] for item in items] == list(range(7))
    assert items[0]["samples_us"] == [9.9, 10.0, 10.1]
    assert items[0]["n_samples"] == 3
    assert (items[5]["status"], items[5]["time_us"], items[5]["samples_us"]) == ("wrong", None, [])
    assert items[5]["error"]
    assert [i["number"] for i in pages(server, "/v1/trials", run=run, status="crashed")[0]] == [6]


def test_what_a_card_adds_is_listed(store: Store, serve: Serve):
    """Of a trial, and of the winner that it measured."""
    run = store.create_run(factory.new_run())
    store.add_trials([factory.measured_on_a_card(run, 7), factory.failed_trial(run, 8)])
    store.add_winners([factory.new_winner(run, trial_number=7), factory.new_winner(run, problem=factory.LARGE)])
    server = serve(store)
    conditions = {
        "sm_clock_mhz": [1755, 1980],
        "memory_clock_mhz": [3201, 3201],
        "temperature_c": 61,
        "power_w": 512.25,
        "throttle_reasons": ["sw_power_cap"],
        "throttled_samples": [0, 7, 29],
    }
    facts = {
        "target": "sm_120a",
        "registers": 168,
        "stack_bytes": 0,
        "shared_bytes": 98_304,
        "instructions": {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": 64},
    }
    full = {"compile_s": 2.5, "conditions": conditions, "roof_share": 0.625, "facts": facts}
    trial, failed = server.get("/v1/trials", run=run).json()["items"]
    winner, without = server.get("/v1/winners", run=run).json()["items"]
    assert {name: trial[name] for name in full} == {name: winner[name] for name in full} == full
    assert [failed[name] for name in full] == [0.0, None, None, None]
    assert [without[name] for name in full] == [None] * 4


def test_runs_newest_first(filled: tuple[Running, str], any_store: Store):
    server, run = filled
    newer = [any_store.create_run(new_run(environment(), SHAPES[:1])) for _ in range(4)]
    got = pages(server, "/v1/runs", limit=2)
    ids = [item["id"] for page in got for item in page]
    assert all(len(page) == 2 for page in got[:-1])
    assert ids[:5] == [*reversed(newer), run]
    assert ids == sorted(set(ids), reverse=True)


def test_a_page_that_ends_with_the_last_run_has_no_cursor(store: Store, serve: Serve):
    for _ in range(3):
        store.create_run(new_run(environment(), SHAPES[:1]))
    server = serve(store)
    assert server.get("/v1/runs", limit=3).json()["next_cursor"] is None
    assert len(pages(server, "/v1/runs", limit=1)) == 3


def test_run_with_its_problems(filled: tuple[Running, str]):
    server, run = filled
    for name in (run, run.lower()):
        document = server.get(f"/v1/runs/{name}").json()
        assert document["id"] == run
        assert document["n_done"] == 1
        assert [p["problem"]["shape"] for p in document["problems"]] == SHAPES
        assert [p["done"] for p in document["problems"]] == [True, False, False, False, False]
        assert document["problems"][0]["outcome"] == "tuned"
    assert_problem(server.get("/v1/runs/" + "0" * 26), 404, "not-found")


def test_devices_and_environments(filled: tuple[Running, str]):
    server, _ = filled
    here = environment()
    devices = {item["fingerprint"]: item for item in server.get("/v1/devices").json()["items"]}
    assert devices[here.device.fingerprint]["name"] == "Test Card"
    assert devices[here.device.fingerprint]["first_seen_at"].endswith("Z")
    environments = {item["fingerprint"]: item for item in server.get("/v1/environments").json()["items"]}
    found = environments[here.fingerprint]
    assert found["device"]["fingerprint"] == here.device.fingerprint
    assert found["n_trials"] >= 7
    assert found["n_winners"] >= 5


def test_a_cursor_belongs_to_its_listing_and_filters(filled: tuple[Running, str]):
    server, run = filled
    cursor = server.get("/v1/winners", run=run, limit=1).json()["next_cursor"]
    assert server.get("/v1/winners", run=run, limit=4, cursor=cursor).status_code == 200, "the limit may change"
    for path, params in (
        ("/v1/winners", {}),
        ("/v1/winners", {"run": run, "state": "any"}),
        ("/v1/trials", {"run": run}),
        ("/v1/runs", {}),
    ):
        assert_problem(server.get(path, **params, cursor=cursor), 422, "invalid-input")


def test_cursors_end_with_the_process_unless_there_is_a_secret(store: Store, serve: Serve):
    for _ in range(2):
        store.create_run(new_run(environment(), SHAPES[:1]))
    first, second = serve(store), serve(store)
    cursor = first.get("/v1/runs", limit=1).json()["next_cursor"]
    assert_problem(second.get("/v1/runs", cursor=cursor), 422, "invalid-input")
    third, fourth = (serve(store, cursor_secret="of two processes") for _ in range(2))
    cursor = third.get("/v1/runs", limit=1).json()["next_cursor"]
    assert len(fourth.get("/v1/runs", cursor=cursor).json()["items"]) == 1


@given(st.integers(0, 1 << 62) | st.from_regex(r"[0-9A-Z]{26}", fullmatch=True), st.data())
def test_an_altered_cursor_is_refused(position: int | str, data: st.DataObject):
    cursors, filters = Cursors("key"), {"run": "x", "device": None}
    cursor = cursors.make("trials", filters, position)
    assert cursors.read("trials", filters, cursor) == position
    assert cursors.read("trials", {"run": "x"}, cursor) == position, "a filter that is not given does not count"
    at = data.draw(st.integers(0, len(cursor) - 1))
    letter = data.draw(st.sampled_from("ABCabc012-_=é").filter(lambda c: c != cursor[at]))
    for altered in (cursor[:at] + letter + cursor[at + 1 :], cursor[:-1], cursor + "A", ""):
        with pytest.raises(InvalidInputError, match="begin again"):
            cursors.read("trials", filters, altered)
