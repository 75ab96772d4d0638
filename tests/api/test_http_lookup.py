"""What servers ask: single lookups, batches, HEAD, and what a client may keep."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from fastapi import FastAPI
from fp4tune.api.http.app import create_app
from fp4tune.db import Store
from http_server import SHAPES, Running, Serve, assert_problem, fill, settings_for_tests, wait_until
from winner_factory import VERSIONS, device, environment, new_run, new_winner

GROUPED = SHAPES[3]


def test_answer_says_everything(server: Running):
    answer = server.best("16x2048x4096").json()
    here = environment()
    assert answer["match"] == "exact"
    assert answer["problem"] == {
        "op": "dense", "m": 16, "n": 2048, "k": 4096, "experts": 0, "experts_total": 0, "top_k": 0,
        "routing": "uniform", "format": "nvfp4", "out_dtype": "bf16", "shape": "16x2048x4096",
        "key": "dense:16x2048x4096:uniform:nvfp4:bf16",
    }  # fmt: skip
    assert "tuned_problem" not in answer
    assert answer["backend"] == "triton.native"
    assert answer["config"] == {"block_m": 64, "stages": 3}
    assert (answer["time_us_low"], answer["time_us"], answer["time_us_high"]) == (9.8, 10.0, 10.3)
    assert answer["default"]["config"] == {"block_m": 128, "stages": 3}
    assert answer["default"]["time_us"] == 15.0
    assert answer["speedup"] == 1.5
    assert answer["tie_set_size"] == 2
    assert answer["device"]["fingerprint"] == here.device.fingerprint
    assert answer["device"]["name"] == "Test Card"
    assert answer["environment"] == {"fingerprint": here.fingerprint, "versions": VERSIONS}
    assert answer["measured_at"].endswith("Z")
    assert len(answer["run_id"]) == 26
    assert (answer["n_trials"], answer["policy"], answer["source"]) == (24, "cuda.eager", "measured")


@pytest.mark.parametrize(
    "query",
    [
        "shape=16x2048x4096",
        "m=16&n=2048&k=4096",
        "m=016&n=2048&k=4096&op=dense",
        "shape=16x2048x4096&op=dense&format=nvfp4&out_dtype=bf16&routing=uniform",
        "&shape=16x2048x4096&",
        "shape=16%782048x4096",
    ],
)
def test_ways_to_say_the_same(server: Running, query: str):
    expected = server.best("16x2048x4096").content
    assert server.client.get(f"/best-config?{query}").content == expected
    assert server.client.get(f"/v1/best-config?{query}").content == expected


@pytest.mark.parametrize(
    "query", [f"shape={GROUPED}", "op=grouped&m=16&n=256&k=4096&experts=64&experts_total=512&top_k=10"]
)
def test_grouped(server: Running, query: str):
    answer = server.client.get(f"/best-config?{query}").json()
    assert answer["match"] == "exact"
    assert answer["problem"]["shape"] == GROUPED


def test_experts_total_left_out_is_experts(server: Running):
    response = server.get("/best-config", op="grouped", m=16, n=256, k=4096, experts=512, top_k=10)
    assert response.json()["problem"]["shape"] == "e512k10:16x256x4096"


def test_format_and_out_dtype_are_other_problems(server: Running):
    for more in ({"format": "bf16"}, {"format": "nvfp4_w4a16"}, {"out_dtype": "fp16"}):
        assert server.best("16x2048x4096", **more).status_code == 404
    assert server.best(GROUPED, routing="one_hot").status_code == 404


def test_bucket_names_what_was_measured(server: Running):
    answer = server.best("12x2048x4096").json()
    assert answer["match"] == "bucket"
    assert answer["problem"]["m"] == 12
    assert answer["problem"]["key"] == "dense:12x2048x4096:uniform:nvfp4:bf16"
    assert answer["tuned_problem"]["key"] == "dense:16x2048x4096:uniform:nvfp4:bf16"


@pytest.mark.parametrize("path", ["/best-config", "/v1/best-config"])
def test_nothing_is_a_problem_that_helps(server: Running, path: str):
    document = assert_problem(server.get(path, shape="511x2048x4096"), 404, "not-tuned")
    assert document["match"] == "none"
    assert [near["shape"] for near in document["nearest"]] == ["512x2048x4096", "32x2048x4096", "16x2048x4096"]
    assert "is not tuned on Test Card" in document["reasons"][-1]
    assert document["problem"]["shape"] == "511x2048x4096"


def test_named_device_and_environment_need_no_assumption(server: Running):
    here = environment()
    for device_text in (here.device.fingerprint, here.device.fingerprint[:8], "Test Card"):
        answer = server.best("16x2048x4096", device=device_text, environment=here.fingerprint[:8]).json()
        assert answer["reasons"] == []


def test_other_versions_are_compared_in_a_batch(server: Running):
    def ask(versions: dict[str, str]) -> dict:
        found = server.batch("16x2048x4096", environment={"versions": versions}).json()["answers"][0]
        return found | {"reason": found["reasons"][-1]}

    assert ask(VERSIONS)["match"] == "exact"
    compatible = ask(VERSIONS | {"driver": "590"})
    assert compatible["match"] == "compatible"
    assert compatible["reason"].endswith("driver 580.95 -> 590")
    stale = ask(VERSIONS | {"torch": "2.13.0"})
    assert stale["match"] == "none"
    assert stale["reason"].endswith("is stale: torch 2.11.0 -> 2.13.0")


def test_reasons_do_not_grow_with_the_question(server: Running):
    versions = VERSIONS | {f"name-{i}": "v" * 200 for i in range(60)}
    answer = server.batch("16x2048x4096", environment={"versions": versions}).json()["answers"][0]
    assert answer["match"] == "compatible"
    assert answer["reasons"][-1].endswith("and 52 more")
    assert len(answer["reasons"][-1]) < 2500


def test_batch_answers_in_order_like_single_lookups(server: Running):
    asked = ["16x2048x4096", GROUPED, "12x2048x4096", "7000x16x16", "16x2048x4096"]
    document = server.batch(*asked).json()
    assert document["found"] == 4
    for shape, answer in zip(asked, document["answers"], strict=True):
        single = server.best(shape).json()
        if answer["match"] == "none":
            assert answer["type"] == single["type"]
            assert answer["reasons"] == single["reasons"]
            assert answer["problem"] == single["problem"]
        else:
            assert answer == single


def test_batch_takes_objects_and_words_for_all(server: Running):
    objects = [
        {"shape": "16x2048x4096"},
        {"m": 16, "n": 2048, "k": 4096, "format": "nvfp4"},
        {
            "op": "grouped",
            "m": 16,
            "n": 256,
            "k": 4096,
            "experts": 64,
            "experts_total": 512,
            "top_k": 10,
            "routing": "uniform",
        },
        {"shape": GROUPED, "out_dtype": "bf16"},
        "16x2048x4096",
    ]
    said = server.batch(*objects, format="bf16", out_dtype="fp32", routing="one_hot").json()["answers"]
    assert [a["problem"]["key"] for a in said] == [
        "dense:16x2048x4096:uniform:bf16:fp32",
        "dense:16x2048x4096:uniform:nvfp4:fp32",
        "grouped:e64of512k10:16x256x4096:uniform:bf16:fp32",
        "grouped:e64of512k10:16x256x4096:one_hot:bf16:bf16",
        "dense:16x2048x4096:uniform:bf16:fp32",
    ]


def test_empty_batch_and_ten_thousand_shapes(server: Running):
    assert server.batch().json() == {"answers": [], "found": 0, "references": 0}
    document = server.batch(*(["16x2048x4096"] * 10_000)).json()
    assert document["found"] == len(document["answers"]) == 10_000


def test_ambiguous_device(store: Store, serve: Serve):
    for name in ("Card One", "Card Two"):
        at = environment(device(name))
        store.add_winner(new_winner(store.create_run(new_run(at, ["16x2048x4096"])), "16x2048x4096", at))
    server = serve(store)
    for response in (server.best("16x2048x4096"), server.batch("16x2048x4096")):
        document = assert_problem(response, 409, "ambiguous-device")
        assert {found["name"] for found in document["devices"]} == {"Card One", "Card Two"}
    assert server.best("16x2048x4096", device="Card Two").json()["device"]["name"] == "Card Two"
    assert server.batch("16x2048x4096", device="Card Two").json()["found"] == 1


def test_empty_database(store: Store, serve: Serve):
    server = serve(store)
    document = assert_problem(server.best("16x2048x4096"), 404, "not-tuned")
    assert document["reasons"] == ["no winner is stored yet"]
    assert document["nearest"] == []
    assert server.get("/readyz").status_code == 200


READS = ["/best-config?shape=16x2048x4096", "/v1/runs", "/v1/winners", "/v1/trials", "/v1/devices", "/v1/environments", "/v1/misses", "/v1/openapi.json"]  # fmt: skip


@pytest.mark.parametrize("path", READS)
def test_etag_is_strong_and_honoured(server: Running, path: str):
    first = server.get(path)
    etag = first.headers["etag"]
    assert first.status_code == 200
    assert first.headers["cache-control"] == "no-cache"
    assert etag == f'"{hashlib.sha256(first.content).hexdigest()[:32]}"'
    for held in (etag, f"W/{etag}", f'"x", {etag}', f'"a,b",W/{etag} , "c"', "*"):
        second = server.client.get(path, headers={"if-none-match": held})
        assert second.status_code == 304, held
        assert second.content == b""
        assert second.headers["etag"] == etag
        assert second.headers["cache-control"] == "no-cache"
        assert "content-type" not in second.headers
    for other in ('"x"', etag.strip('"'), etag[:-2] + '"', "", "**", '"*"'):
        assert server.client.get(path, headers={"if-none-match": other}).status_code == 200, other
    several = [("if-none-match", '"x"'), ("if-none-match", etag)]
    assert server.client.get(path, headers=several).status_code == 304


def test_etag_of_a_batch(server: Running):
    first = server.batch("16x2048x4096")
    held = {"if-none-match": first.headers["etag"]}
    assert server.client.post("/v1/best-configs", json={"shapes": ["16x2048x4096"]}, headers=held).status_code == 304
    assert server.client.post("/v1/best-configs", json={"shapes": []}, headers=held).status_code == 200


def test_what_is_no_answer_has_no_etag(server: Running):
    response = server.client.get("/best-config?shape=7x7x7&format=bf16", headers={"if-none-match": "*"})
    assert response.status_code == 404
    assert "etag" not in response.headers
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", [*READS, "/healthz", "/readyz", "/docs", "/best-config?shape=7x7x16", "/v1/runs/000000", "/no"]
)
def test_head_is_get_without_its_body(server: Running, path: str):
    get, head = server.get(path), server.client.head(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    for name in ("content-type", "content-length", "etag", "cache-control"):
        assert head.headers.get(name) == get.headers.get(name)
    if "etag" in get.headers:
        held = {"if-none-match": get.headers["etag"]}
        assert server.client.head(path, headers=held).status_code == 304


def test_a_new_winner_changes_answer_and_etag(store: Store, serve: Serve):
    fill(store)
    server = serve(store)
    first = server.best("16x2048x4096")
    run = store.create_run(new_run(environment(), ["16x2048x4096"]))
    store.add_winner(new_winner(run, "16x2048x4096", environment(), time_us=8.0))
    wait_until(lambda: server.best("16x2048x4096").json()["time_us"] == 8.0)
    second = server.client.get("/v1/best-config?shape=16x2048x4096", headers={"if-none-match": first.headers["etag"]})
    assert second.status_code == 200
    assert second.headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize("kept", [0, 2, 4, 1000])
def test_few_answers_may_be_kept(store: Store, serve: Serve, kept: int):
    fill(store)
    server = serve(store, cached_answers=kept)
    for _ in range(3):
        for shape in SHAPES:
            assert server.best(shape).json()["problem"]["shape"] == shape
            assert server.best(shape).json()["problem"]["shape"] == shape
    assert len(server.service.live.served.replies) == min(kept, len(SHAPES))
    hits = server.metric("fp4tune_lookup_cache_hits_total")
    # Of each pair the second is a hit; where all fit, so are all but the very first.
    assert hits == {0: 0, 1000: 20}[kept] if kept in (0, 1000) else 12 <= hits <= 20
    assert server.metric("fp4tune_lookups_total", match="exact") == 24


def test_routes_answer_alike_without_the_edge(store: Store):
    """The app may be mounted in another one: then paths differ, and the router answers what the edge would."""
    fill(store)
    app = create_app(settings_for_tests(), store=store)
    service = app.state.service
    service.start()
    outer = FastAPI()
    outer.mount("/tuned", app)
    try:
        for path in ("/tuned/best-config", "/tuned/v1/best-config"):
            for query in (b"shape=16x2048x4096", b"shape=7x7x16", b"shape=x"):
                assert asyncio.run(call(outer, path, query)) == asyncio.run(
                    call(app, path.removeprefix("/tuned"), query)
                )
    finally:
        service.stop()


async def call(app: FastAPI, path: str, query: bytes) -> tuple[int, bytes]:
    """Status and body of a GET, straight through ASGI."""
    messages = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": path,
        "raw_path": path.encode(), "query_string": query, "root_path": "", "headers": [], "scheme": "http",
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        messages.append(message)

    await app(scope, receive, send)
    return messages[0]["status"], b"".join(m.get("body", b"") for m in messages[1:])
