"""Requests that are wrong: each ends in a problem that says what is wrong, and none in a 500."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_from_bytes

import httpx
import pytest
from fp4tune.api.http.questions import MAX_SHAPE_TEXT
from fp4tune.kernels.problem import MAX_DIM, parse_shape
from http_server import Running, assert_problem
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

GROUPED = "e64of512k10:16x256x4096"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "missing m, n, k"),
        ("&&", "missing m, n, k"),
        ("shape=", "shape is empty"),
        ("shape", "shape is empty"),
        ("shape=16", "not a shape"),
        ("shape=16x2048", "not a shape"),
        ("shape=16x2048x4096x1", "not a shape"),
        ("shape=-16x2048x4096", "not a shape"),
        ("shape=0x2048x4096", "M must be between"),
        ("shape=16x2048x4097", "K must be a multiple of 16"),
        ("shape=%EF%BC%91%EF%BC%96x2048x4096", "not a shape"),  # full-width digits
        ("shape=16x2048x4096%0A", "not a shape"),
        ("shape=16x2048x999999999", "K must be between"),
        ("shape=16x2048x99999999999999999999999", "not a shape"),
        ("shape=e8k9:16x2048x4096", "top_k must be between"),
        ("shape=e9of8k1:16x2048x4096", "experts"),
        ("shape=16x2048x4096&m=16", "shape already says what m would"),
        ("shape=16x2048x4096&top_k=1", "shape already says what top_k would"),
        ("shape=16x2048x4096&op=grouped", "op is grouped"),
        (f"shape={GROUPED}&op=dense", "op is dense"),
        ("shape=16x2048x4096&routing=one_hot", "is dense"),
        ("shape=16x2048x4096&format=fp8", "format must be one of nvfp4"),
        ("shape=16x2048x4096&out_dtype=BF16", "out_dtype must be one of"),
        ("shape=16x2048x4096&sahpe=1", "There is no parameter 'sahpe'"),
        ("shape=16x2048x4096&shape=32x2048x4096", "'shape' is given more than once"),
        ("shape=16x2048x4096&device=", "device is empty"),
        ("shape=16x2048x4096&device=" + "x" * 201, "longer than 200"),
        ("shape=16x2048x4096&device=%FF", "not percent-encoded UTF-8"),
        ("m=16&n=2048", "missing k"),
        ("m=16&n=2048&k=NaN", "k must be a whole number"),
        ("m=16&n=2048&k=4096.0", "k must be a whole number"),
        ("m=16&n=2048&k=1e3", "k must be a whole number"),
        ("m=16&n=2048&k=%2B4096", "k must be a whole number"),
        ("m=16&n=2048&k=+4096", "k must be a whole number"),
        ("m=16&n=2048&k=4_096", "k must be a whole number"),
        ("m=16&n=2048&k=%D9%A4", "k must be a whole number"),  # Arabic-Indic digit
        ("m=16&n=2048&k=" + "9" * 150, "k must be a whole number"),
        ("m=0&n=2048&k=4096", "M must be between"),
        ("m=16&n=2048&k=4096&experts=4", "need op grouped"),
        ("m=16&n=2048&k=4096&routing=one_hot", "need op grouped"),
        ("m=16&n=2048&k=4096&op=grouped", "needs experts and top_k"),
        ("m=16&n=2048&k=4096&op=grouped&experts=4&top_k=0", "top_k must be between"),
        ("m=16&n=2048&k=4096&op=grouped&experts=8&experts_total=4&top_k=1", "experts_total"),
        ("&".join(f"p{i}=1" for i in range(40)), "at most 32"),
    ],
)
def test_wrong_question(server: Running, query: str, says: str):
    for path in ("/best-config", "/v1/best-config"):
        document = assert_problem(server.client.get(f"{path}?{query}"), 422, "invalid-input")
        assert says in document["detail"]


def test_question_in_bytes_that_are_no_ascii(server: Running):
    received = server.raw(b"GET /best-config?shape=\xff\xfe HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert received.split(b" ", 2)[1] in (b"400", b"422"), "the HTTP parser or the service refuses it"


def test_query_string_that_is_too_long(server: Running):
    for path in ("/best-config", "/v1/runs", "/nowhere"):
        response = server.client.get(f"{path}?device={'x' * 3000}")
        assert "2048" in assert_problem(response, 414, "query-too-long")["detail"]


def post(server: Running, body: bytes | str, content_type: str = "application/json") -> httpx.Response:
    return server.client.post("/v1/best-configs", content=body, headers={"content-type": content_type})


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"{", b'{"shapes":[', b"\xff", b"nul", b"[" * 200_000, b'{"shapes":["\\ud800"]}', b'{"shapes":[1e]}'],
)
def test_body_that_is_no_json(server: Running, body: bytes):
    assert_problem(post(server, body), 400, "malformed-body")


def test_number_that_is_no_json(server: Running):
    """NaN is no JSON; the parser takes it, and the schema does not."""
    assert post(server, b'{"shapes":[{"m":NaN,"n":16,"k":16}]}').status_code in (400, 422)
    assert post(server, b'{"shapes":[{"m":' + b"9" * 100_000 + b"}]}").status_code in (400, 422)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ([], ""),
        (None, ""),
        ({}, "shapes"),
        ({"shapes": None}, "shapes"),
        ({"shapes": "16x2048x4096"}, "shapes"),
        ({"shapes": [16]}, "shapes.0"),
        ({"shapes": ["16x2048x4096", None]}, "shapes.1"),
        ({"shapes": [["16x2048x4096"]]}, "shapes.0"),
        ({"shapes": ["x" * 101]}, "shapes.0.text"),
        ({"shapes": [{"m": "16", "n": 2048, "k": 4096}]}, "shapes.0.object.m"),
        ({"shapes": [{"m": 16.5, "n": 2048, "k": 4096}]}, "shapes.0.object.m"),
        ({"shapes": [{"m": True, "n": 2048, "k": 4096}]}, "shapes.0.object.m"),
        ({"shapes": [{"m": -1, "n": 2048, "k": 4096}]}, "shapes.0.object.m"),
        ({"shapes": [{"m": MAX_DIM + 1, "n": 2048, "k": 4096}]}, "shapes.0.object.m"),
        ({"shapes": [{"shape": "16x2048x4096", "sahpe": 1}]}, "shapes.0.object.sahpe"),
        ({"shapes": [], "devcie": "x"}, "devcie"),
        ({"shapes": [], "device": ""}, "device"),
        ({"shapes": [], "device": "x" * 201}, "device"),
        ({"shapes": [], "environment": ""}, "environment.text"),
        ({"shapes": [], "environment": 1}, "environment"),
        ({"shapes": [], "environment": {}}, "environment.object.versions"),
        ({"shapes": [], "environment": {"versions": {"torch": 2}}}, "environment.object.versions.torch"),
        ({"shapes": [], "environment": {"versions": {f"v{i}": "1" for i in range(65)}}}, "environment.object.versions"),
        ({"shapes": [], "format": "fp8"}, "format"),
        ({"shapes": ["16x2048x4096"] * 10_001}, "shapes"),
    ],
)
def test_body_that_is_no_question(server: Running, body: Any, where: str):
    document = assert_problem(post(server, json.dumps(body)), 422, "invalid-input")
    assert document["errors"][0]["loc"] == (where.split(".") if where else [])
    assert document["errors"][0]["message"]


def test_faults_are_listed_up_to_a_limit_and_never_repeat_the_input(server: Running):
    response = post(server, json.dumps({"shapes": [{"secret-looking": "hunter2"}] * 100}))
    assert len(assert_problem(response, 422, "invalid-input")["errors"]) == 20
    assert "hunter2" not in response.text


def test_body_that_is_too_long(server: Running):
    limit = server.service.settings.max_body_bytes
    document = assert_problem(post(server, b" " * (limit + 1)), 413, "body-too-large")
    assert str(limit) in document["detail"]


def test_endless_body_is_cut_off(server: Running):
    sent = 0

    def chunks():
        nonlocal sent
        for _ in range(64):
            sent += 1 << 20
            yield b" " * (1 << 20)

    try:
        response = server.client.post(
            "/v1/best-configs", content=chunks(), headers={"content-type": "application/json"}
        )
    except httpx.WriteError:
        pass  # the server answered and closed while the client was still sending
    else:
        assert_problem(response, 413, "body-too-large")
    assert server.get("/healthz").status_code == 200


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_body_of_another_type(server: Running, content_type: str):
    response = post(server, b'{"shapes":[]}', content_type)
    assert "application/json" in assert_problem(response, 415, "unsupported-media-type")["detail"]


def test_content_type_with_a_parameter_is_json(server: Running):
    assert post(server, b'{"shapes":[]}', "Application/JSON; charset=utf-8").status_code == 200


def test_invalid_shape_of_a_batch_does_not_fail_the_others(server: Running):
    answers = server.batch("16x2048x4096", "nonsense", {"m": 16, "n": 16, "k": 17}, {"m": 16}, "").json()["answers"]
    assert [a["match"] for a in answers] == ["exact", "none", "none", "none", "none"]
    assert {a["type"] for a in answers[1:]} == {"urn:fp4tune:problem:invalid-input"}
    assert "not a shape" in answers[1]["reasons"][0]
    assert "multiple of 16" in answers[2]["reasons"][0]
    assert "missing n, k" in answers[3]["reasons"][0]
    assert all(a["problem"] is None for a in answers[1:])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runs?limit=0",
        "/v1/runs?limit=1001",
        "/v1/runs?limit=x",
        "/v1/runs?limit=1&limit=2",
        "/v1/runs?page=2",
        "/v1/runs?cursor=",
        "/v1/runs?cursor=abc",
        "/v1/runs?cursor=%00",
        "/v1/winners?state=old",
        "/v1/winners?device=Test",
        "/v1/winners?problem=%00",
        "/v1/winners?backend=%00",
        "/v1/trials?status=fine",
        "/v1/trials?run=1",
        "/v1/trials?cursor=" + "A" * 501,
        "/v1/misses?environment=x",
        "/v1/devices?limit=1",
        "/v1/environments?x",
        "/v1/runs/abc",
        "/v1/runs/%00%00%00%00%00%00",
        "/v1/runs/01M8KSAAGX?x=1",
    ],
)
def test_wrong_listing(server: Running, path: str):
    assert_problem(server.client.get(path), 422, "invalid-input")


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v2/best-config", "/best-config/", "/v1/runs/", "/%00", "/favicon.ico"]
)
def test_unknown_path(server: Running, path: str):
    assert_problem(server.client.get(path), 404, "no-such-route")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/best-config", "/v1/best-configs", "/v1/runs", "/metrics"])
def test_unknown_method(server: Running, path: str, method: str):
    response = server.client.request(method, path)
    assert_problem(response, 405, "method-not-allowed")
    assert set(response.headers["allow"].split(", ")) == ({"POST"} if path == "/v1/best-configs" else {"GET", "HEAD"})


def test_get_and_post_the_wrong_way_round(server: Running):
    assert_problem(server.get("/v1/best-configs"), 405, "method-not-allowed")
    assert_problem(server.client.post("/best-config"), 405, "method-not-allowed")


number = st.one_of(st.integers(-2, 40), st.sampled_from([512, 4096, MAX_DIM, MAX_DIM + 1, 10**9, 10**30])).map(str)
shape_like = st.one_of(
    st.text(max_size=40),
    st.lists(number, min_size=1, max_size=4).map("x".join),
    st.builds("e{}k{}:{}x{}x{}".format, number, number, number, number, number),
    st.from_regex(r"(e[0-9]{1,4}(of[0-9]{1,4})?k[0-9]{1,2}:)?[0-9]{1,5}x[0-9]{1,5}x[0-9]{1,5}", fullmatch=True),
)
over_http = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


@over_http
@given(text=shape_like)
@example(text="16x2048x4096")
@example(text="\uff11\uff16x2048x4096")
def test_any_shape_text(server: Running, text: str):
    """The service takes exactly the shapes that `parse_shape` takes, by GET and in a batch."""
    try:
        problem = parse_shape(text)
    except Exception:
        problem = None
    response = server.client.get(f"/best-config?shape={quote(text, safe='', errors='surrogatepass')}")
    assert response.status_code in ((200, 404) if problem else (422,)), response.text
    if len(text) > MAX_SHAPE_TEXT:
        assert_problem(server.batch(text), 422, "invalid-input")
        return
    answer = server.batch(text).json()["answers"][0]
    if problem is None:
        assert answer["type"] == "urn:fp4tune:problem:invalid-input"
    else:
        assert answer["problem"]["key"] == problem.key == response.json()["problem"]["key"]
        assert answer["match"] == response.json()["match"]


@over_http
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["shape", "m", "n", "k", "op", "experts", "top_k", "format", "device", "environment", "x"]),
            st.one_of(
                st.binary(max_size=20), st.sampled_from([b"16x2048x4096", b"16", b"dense", b"grouped", b"nvfp4"])
            ),
        ),
        max_size=6,
    )
)
def test_any_query(server: Running, pairs: list[tuple[str, bytes]]):
    query = "&".join(f"{name}={quote_from_bytes(value, safe='')}" for name, value in pairs)
    assert server.client.get(f"/best-config?{query}").status_code in (200, 404, 422)


@over_http
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["shapes", "shape", "m", "n", "k", "op", "device", "environment"]), inner)
        ),
        max_leaves=12,
    )
)
def test_any_body(server: Running, body: Any):
    assert post(server, json.dumps(body)).status_code in (200, 400, 409, 422)
