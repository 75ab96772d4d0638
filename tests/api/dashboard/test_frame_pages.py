"""What stands around a view: routes, errors as pages, headers, bounds, and HTML that is whole. On a real app."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import frame_pages
import httpx
import pytest
import sqlalchemy as sa
from fp4tune.api.dashboard import rendering
from fp4tune.api.dashboard.model import Layout
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.api.dashboard.rendering import MAX_PAGE_BYTES
from fp4tune.api.dashboard.shown import MAX_ROWS_SHOWN
from fp4tune.db import Store
from http_server import assert_problem, running
from store_factory import new_run

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PROGRAM = {"accept": "application/json"}
VOID = {"meta", "link", "input", "br", "img", "hr"}


class Document(HTMLParser):
    """A page, read strictly: every element is closed where it should be, ids are unique, nothing is inline."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []
        ids = [attrs["id"] for _, attrs in self.tags if "id" in attrs]
        assert len(ids) == len(set(ids)), ids
        for tag, attrs in self.tags:
            assert "style" not in attrs
            assert not [name for name in attrs if name.startswith("on")]
            assert tag != "style"
            assert tag != "script" or ("src" in attrs) != (attrs.get("type") == "application/json")

    def handle_starttag(self, tag, attrs):
        assert len(attrs) == len(dict(attrs)), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag: str, **attrs: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag and attrs.items() <= found.items()]

    def text(self, tag: str) -> list[str]:
        return [text for around, text in self.texts if around == tag]


@pytest.fixture
def client(empty: Store) -> Iterator[httpx.Client]:
    """The fake pages over an empty store."""
    with running(empty, pages=frame_pages.PAGES) as served:
        served.client.headers.update(BROWSER)
        yield served.client


def page(client: httpx.Client, path: str, status: int = 200) -> Document:
    response = client.get(f"/dashboard/{path}")
    assert response.status_code == status, response.text[:2000]
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert_headers(response)
    assert len(response.content) <= MAX_PAGE_BYTES
    return Document(response.text)


def assert_headers(response) -> None:
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "img-src": "'self' data:",
        "connect-src": "'self'", "form-action": "'self'", "base-uri": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"


# Bad input


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("q=a&q=b", "q is given 2 times; give it once. It is left out."),
        ("nonsense=1", "There is no parameter 'nonsense'; there are q, cursor. It is left out."),
        ("q=" + "x" * 300, "q must be a text of at most 200 characters, and is"),
        ("cursor=%00", "cursor must be the address of a next page, unchanged, and is"),
        ("cursor=abcdef", "This cursor is not one that this service gave"),
    ],
)
def test_a_page_is_shown_without_what_is_no_value(client: httpx.Client, query: str, said: str):
    document = page(client, f"plain?{query}", 422)
    assert "Nothing" in document.text("h1")
    assert any(text.startswith(said) for text in document.text("li")), document.text("li")


def test_a_page_token_that_was_tampered_with_shows_the_first_page(client: httpx.Client):
    more = page(client, "plain?q=a").all("a", **{"class": "more"})[0]["href"]
    assert client.get(more).status_code == 200
    tampered = more[:-6] + ("AAAAAA" if not more.endswith("AAAAAA") else "BBBBBB")
    assert "This is the first page of it." in client.get(tampered).text
    assert client.get(more.replace("q=a", "q=b")).status_code == 422, "a token of other filters"
    csv = more.replace("/plain?", "/plain.csv?table=times&")
    assert client.get(csv).status_code == 200
    assert client.get(csv.replace("q=a", "q=b"), headers={"accept": "*/*"}).json()["type"].endswith("invalid-input")


@pytest.mark.parametrize(
    ("q", "status", "title", "sentence"),
    [
        ("missing", 404, "Not found", "There is no run '000000'."),
        ("invalid", 422, "This cannot be shown", "Two environments are needed."),
        ("store", 503, "The database cannot be read now", "The database x is locked."),
        ("busy", 409, "This cannot be shown", "The device is held."),
        ("bug", 500, "This page failed", "An unexpected error; the service's log has the details."),
    ],
)
def test_an_error_is_a_page_with_its_status_and_what_to_do(client: httpx.Client, q, status, title, sentence, caplog):
    document = page(client, f"failing?q={q}&environment={'a' * 16}", status)
    assert document.text("h1") == [title]
    assert sentence in document.text("p")
    links = {attrs["href"] for attrs in document.all("a")}
    assert "/dashboard/" in links
    if status != 500:
        fields = {a["name"]: a["value"] for a in document.all("input", type="text")}
        assert fields == {"q": q, "environment": "a" * 16}, "to be corrected"
        assert {
            f"/dashboard/failing?environment={'a' * 16}",
            f"/dashboard/failing?q={q}",
            "/dashboard/failing",
        } <= links
    assert ("inner detail" in caplog.text) == (q == "bug")
    assert not any("inner detail" in text for _, text in document.texts)
    for path, headers in (("failing", PROGRAM), ("failing.json", BROWSER), ("failing.csv", PROGRAM)):
        response = client.get(f"/dashboard/{path}?q={q}", headers=headers)
        assert_headers(response)
        slug = "internal" if q == "bug" else frame_pages.FAILURES[q].slug
        assert assert_problem(response, status, slug)["detail"] == sentence
        assert "etag" not in response.headers
    assert "<h1>" in client.get(f"/dashboard/failing.csv?q={q}").text, "a browser that downloads gets a page"


@pytest.mark.parametrize(
    "path", ["nowhere", "plain/", "%00", "static/nothing.js", "static/..%2fpage.py", "<script>", "a" * 5000]
)
def test_an_unknown_page_is_a_page(client: httpx.Client, path: str):
    document = page(client, path, 404)
    assert document.text("h1") == ["There is no such page"]
    assert document.all("nav")
    assert_problem(client.get(f"/dashboard/{path}", headers=PROGRAM), 404, "no-such-route")


def test_an_address_that_is_too_long_is_a_page(client: httpx.Client):
    document = page(client, "plain?q=" + "x" * 3000, 414)
    assert document.text("h1") == ["The address is too long"]
    for path, headers in (("plain", PROGRAM), ("plain.json", BROWSER)):
        response = client.get(f"/dashboard/{path}?q=" + "x" * 3000, headers=headers)
        assert_problem(response, 414, "query-too-long")


def test_other_methods_are_refused(client: httpx.Client):
    assert_problem(client.post("/dashboard/plain"), 405, "method-not-allowed")
    assert_problem(client.delete("/dashboard/"), 405, "method-not-allowed")


def test_hostile_strings_are_text(client: httpx.Client):
    document = page(client, "evil")
    assert any("<script>alert(1)</script>" in text for text in document.text("span")), "shown as what it is"
    scripts = document.all("script")
    assert all("src" in attrs or attrs["type"] == "application/json" for attrs in scripts)
    for _, attrs in document.tags:
        for name in ("href", "src", "action", "hx-get"):
            assert attrs.get(name) is None or re.match(r"/(?![/\\])|#", attrs[name]), attrs
    shown = [text for _, text in document.texts] + [v or "" for _, attrs in document.tags for v in attrs.values()]
    assert not any(ord(c) < 32 and c not in "\n\t" for text in shown for c in text)
    assert not any(c in text for c in "\u202e\u2028" for text in shown)


def test_a_host_that_is_none_is_in_no_command(client: httpx.Client):
    response = client.get("/dashboard/", headers={"host": "x';rm -rf ~;'"})
    assert response.status_code in (200, 400)
    assert "rm -rf" not in response.text
    assert "http://example.test:99/v1/winners" in client.get("/dashboard/", headers={"host": "example.test:99"}).text


# Bounds


def test_a_page_is_never_larger_than_a_megabyte(client: httpx.Client):
    document = page(client, "large")
    cuts = [
        re.match(r"The first (\d+) of 2,000 rows; the CSV and the JSON have more\.", text)
        for text in document.text("span")
    ]
    shown = [int(found[1]) for found in cuts if found]
    assert len(shown) == 3
    assert min(shown) > 0, "each gets its share"
    assert len(document.all("script", type="application/json")) >= 3, "and so do figures"
    assert "This picture has more in it than a page holds; its numbers are in the table." in document.text("p")
    for extension in ("csv", "json"):
        response = client.get(f"/dashboard/large.{extension}?table=t0")
        assert response.status_code == 200
        assert len(response.content) <= MAX_PAGE_BYTES
        assert re.fullmatch(r"\d+ of 2000 rows", response.headers["x-truncated"])


def test_a_long_table_is_cut_and_its_csv_is_not(empty: Store):
    table = frame_pages.Table("t", "T", (frame_pages.Column("a", "a"),), [(i,) for i in range(2000)])
    view = frame_pages.View("V", sections=(frame_pages.Section(table=table),))
    pages = (frame_pages.Page("", "V", "?", (), lambda context, asked: view),)
    with running(empty, pages=pages) as served:
        client = served.client
        document = page(client, "")
        assert len(document.text("td")) == MAX_ROWS_SHOWN
        assert "The first 200 of 2,000 rows; the CSV and the JSON have more." in document.text("span")
        assert client.get("/dashboard/index.csv").text.count("\r\n") == 2001
        assert len(client.get("/dashboard/index.json").json()["rows"]) == 2000
        assert "x-truncated" not in client.get("/dashboard/index.json").headers


# What is right


def test_the_root_leads_to_the_first_page(client: httpx.Client):
    response = client.get("/dashboard?environment=x", follow_redirects=False)
    assert response.status_code == 308
    assert response.headers["location"] == "/dashboard/?environment=x"


def test_a_page_has_what_a_reader_needs(client: httpx.Client):
    document = page(client, "")
    assert document.text("h1") == ["Qwen3.5-397B at TP 8 on an H200"]
    assert document.text("title") == ["Qwen3.5-397B at TP 8 on an H200 · fp4tune"]
    assert "What do I get?" in document.text("p")
    assert len(document.all("main")) == 1
    assert document.all("html", lang="en")
    assert document.tags[[tag for tag, _ in document.tags].index("body") + 1][1]["class"] == "skip"
    navigation = [
        attrs["href"] for attrs in document.all("a") if "title" in attrs and attrs["href"].startswith("/dashboard/")
    ]
    assert navigation[:6] == [f"/dashboard/{p.slug}" for p in frame_pages.PAGES if p.label]
    assert [attrs["href"] for attrs in document.all("a", **{"aria-current": "page"})] == ["/dashboard/"]
    labels = {attrs["for"] for attrs in document.all("label")}
    fields = [attrs for tag in ("input", "select") for attrs in document.all(tag) if attrs.get("type") != "hidden"]
    assert {attrs["id"] for attrs in fields} == labels
    assert len(document.text("caption")) == len(document.all("table")) == 4
    assert all("scope" in attrs for attrs in document.all("th"))
    regions = document.all("div", role="region")
    assert len(regions) == 4
    assert all(attrs["tabindex"] == "0" and attrs["aria-label"] for attrs in regions)


def test_headings_do_not_skip_a_level(client: httpx.Client):
    for path in ("", "plain", "live", "evil"):
        levels = [int(tag[1]) for tag, _ in page(client, path).tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))


def test_marks_are_words_too(client: httpx.Client):
    text = client.get("/dashboard/").text
    for said in (
        "cannot be told apart from the default",
        "never tuned",
        "published by somebody else",
        "from a latency model",
    ):
        assert f'<span class="hidden"> ({said})</span>' in text
    assert '<span class="hidden"> (served, good)</span>' in text
    assert re.search(r'<td class="number m-heat-1 m-tie">', text)


def test_every_table_has_its_csv_and_json(client: httpx.Client):
    document = page(client, f"?environment={'a' * 16}")
    links = [attrs["href"] for attrs in document.all("a") if re.search(r"\.(csv|json)\?", attrs.get("href") or "")]
    assert len(links) == 8
    for link in links:
        assert f"environment={'a' * 16}" in link
        response = client.get(link)
        assert response.status_code == 200
        assert_headers(response)
        assert response.headers["etag"]
        assert response.headers["content-type"] == (
            "text/csv; charset=utf-8; header=present" if ".csv?" in link else "application/json"
        )
    csv = client.get("/dashboard/index.csv?table=gains")
    assert csv.headers["content-disposition"] == 'attachment; filename="fp4tune-index-gains.csv"'
    assert csv.text.splitlines()[0].startswith("gemm,m1,m2,")


def test_which_table_must_be_said_if_there_are_several(client: httpx.Client):
    several = client.get("/dashboard/index.json")
    assert assert_problem(several, 422, "invalid-input")["detail"] == (
        "Say which table of the page: table=gains or table=times or table=kinds or table=facts."
    )
    unknown = client.get("/dashboard/index.json?table=nothing")
    assert assert_problem(unknown, 404, "not-found")["detail"] == (
        "The page has no table 'nothing'; it has gains, times, kinds, facts."
    )
    wrong = client.get("/dashboard/index.json?table=gains&environment=x")
    assert assert_problem(wrong, 422, "invalid-input")["detail"] == (
        "environment must be an environment's fingerprint, 16 hexadecimal digits, and is 'x'."
    )


def test_data_say_where_the_next_rows_are(client: httpx.Client):
    response = client.get("/dashboard/plain.json?q=a")
    following = re.fullmatch(
        r'<(/dashboard/plain\.json\?table=times&q=a&cursor=[\w-]+)>; rel="next"', response.headers["link"]
    )
    assert following, response.headers["link"]
    assert client.get(following[1]).status_code == 200


def test_a_figure_is_there_once_with_words_and_numbers(client: httpx.Client):
    text = client.get("/dashboard/").text
    document = Document(text)
    (data,) = re.findall(r'<script type="application/json" class="plot-data">(.*?)</script>', text)
    assert json.loads(data)["traces"][0]["name"] == "cublaslt"
    assert text.count("customdata") == len(json.loads(data)["traces"]) == 2
    alt = "Time of each backend against tokens; both grow."
    assert document.text("figcaption") == [alt]
    assert document.all("div", role="img")[0]["aria-label"] == alt
    assert document.all("details", id="numbers-table-times")
    assert [attrs["src"] for attrs in document.all("script") if "plotly" in (attrs.get("src") or "")]
    plain = page(client, "plain")
    assert not [attrs for attrs in plain.all("script") if "plotly" in (attrs.get("src") or "")], "not loaded in vain"


def test_an_empty_table_says_so(client: httpx.Client):
    document = page(client, "plain")
    assert document.all("table") == []
    assert "Nothing yet." in document.text("p")


def test_filters_keep_what_is_no_filter(client: httpx.Client):
    document = page(client, "evil?q=a")
    assert document.all("input", type="hidden") == []
    document = page(client, f"?environment={'b' * 16}&policy=cuda.graph")
    assert [attrs["value"] for attrs in document.all("option") if "selected" in attrs] == ["b" * 16]
    assert document.all("input", name="policy")[0]["value"] == "cuda.graph"


A, B = "a" * 16, "b" * 16


@pytest.mark.parametrize(
    ("query", "changed", "title", "shown"),
    [
        (f"environment={B}&policy=policy.b", "environment", "Environment b, policy policy.b", None),
        (f"environment={B}&policy=policy.a", "environment", "Environment b, policy any", f"environment={B}"),
        (f"q=x&environment={B}&policy=policy.a", "environment", "Environment b, policy any", f"q=x&environment={B}"),
        (f"q=nobody&environment={B}&policy=policy.a", "environment", "Environment b, policy any", f"environment={B}"),
        (f"environment={B}&policy=policy.a", "policy", "Environment a, policy policy.a", "policy=policy.a"),
        ("policy=policy.b", "environment", "Environment a, policy any", None),
    ],
)
def test_a_filter_that_is_changed_wins_over_those_before(client: httpx.Client, query, changed, title, shown):
    response = client.get(f"/dashboard/picky?{query}", headers={"x-changed-filter": changed})
    assert response.status_code == 200, response.text
    assert Document(response.text).text("h1") == [title]
    if shown is None and "policy.a" not in query and query != "policy=policy.b":
        assert "hx-push-url" not in response.headers
        assert response.headers["etag"]
    else:
        assert response.headers["hx-push-url"] == "/dashboard/picky" + (f"?{shown}" if shown else "")
        assert response.headers["cache-control"] == "no-store"
        assert "etag" not in response.headers


@pytest.mark.parametrize("changed", [None, "policy.x", "cursor"])
def test_an_address_that_nobody_changed_is_taken_at_its_word(client: httpx.Client, changed):
    headers = {} if changed is None else {"x-changed-filter": changed}
    response = client.get(f"/dashboard/picky?environment={B}&policy=policy.a", headers=headers)
    assert response.status_code == 404
    assert "Nothing is served for policy policy.a." in response.text
    gone = client.get(f"/dashboard/picky?environment={'c' * 16}", headers={"x-changed-filter": "environment"})
    assert gone.status_code == 404, "the changed filter itself is wrong"


def test_a_view_that_is_current_is_not_sent_again(client: httpx.Client, empty: Store):
    first = client.get("/dashboard/live")
    assert first.headers["cache-control"] == "no-cache"
    version = Document(first.text).all("main")[0]["data-version"]
    assert first.headers["etag"] == f'"{version}"'
    again = client.get("/dashboard/live", headers={"if-none-match": f'"{version}"'})
    assert (again.status_code, again.content) == (304, b"")
    empty.create_run(new_run())
    changed = client.get("/dashboard/live", headers={"if-none-match": f'"{version}"'})
    assert changed.status_code == 200
    assert Document(changed.text).all("main")[0]["data-version"] != version
    main = Document(first.text).all("main")[0]
    assert (main["hx-get"], main["hx-trigger"], main["hx-select"]) == ("/dashboard/live", "every 1s", "#view")
    assert client.head("/dashboard/live").content == b""


def test_the_same_page_has_the_same_etag_from_another_process(client: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    etag = client.get("/dashboard/").headers["etag"]
    monkeypatch.setattr(rendering, "_VERSION", "f" * 32)
    assert client.get("/dashboard/").headers["etag"] == etag


def test_a_page_with_a_fault_is_kept_nowhere(client: httpx.Client):
    response = client.get("/dashboard/plain?x=1")
    assert response.headers["cache-control"] == "no-store"
    assert "etag" not in response.headers


def test_code_in_sentences_is_code_and_nothing_else_is(empty: Store):
    lead = "Run `fp4tune db <upgrade>` & wait; a ` alone is a `."
    view = frame_pages.View("V", lead=lead, warnings=("`<b>",))
    pages = (frame_pages.Page("", "V", "?", (), lambda context, asked: view),)
    with running(empty, pages=pages) as served:
        client = served.client
        text = client.get("/dashboard/").text
    assert "Run <code>fp4tune db &lt;upgrade&gt;</code> &amp; wait; a <code> alone is a </code>." in text
    assert "<li>`&lt;b&gt;</li>" in text


def test_layouts_differ(client: httpx.Client):
    document = page(client, "")
    assert [attrs["class"] for attrs in document.all("table")] == ["grid", "rows", "rows", "pairs"]
    assert set(Layout) == {"grid", "rows", "pairs"}
    assert "memory" in document.text("th")


# The service


def test_a_store_of_a_newer_schema_is_a_clear_page(h200_copy: Store):
    with running(h200_copy) as served:
        client = served.client
        client.headers.update(BROWSER)
        assert client.get("/dashboard/devices").status_code == 200
        with h200_copy._engine.begin() as connection:
            connection.execute(sa.text("UPDATE fp4tune_schema SET version_num = '9999'"))
        document = page(client, "devices", 503)
        assert document.text("h1") == ["The database cannot be read now"]
        assert any("has schema 9999" in text for text in document.text("p"))
        assert_problem(client.get("/dashboard/devices", headers=PROGRAM), 503, "store")


def test_a_damaged_store_is_a_clear_page(h200_copy: Store):
    with running(h200_copy, poll_s=60) as served:
        client = served.client
        client.headers.update(BROWSER)
        path = Path(h200_copy.url.removeprefix("sqlite:///"))
        for part in (path, Path(f"{path}-wal")):
            if part.exists():
                part.write_bytes(b"\x55" * max(65536, part.stat().st_size))
        h200_copy._engine.dispose()
        assert page(client, "devices", 503).text("h1") == ["The database cannot be read now"]


def test_the_api_links_here_and_does_not_describe_it(client: httpx.Client):
    assert not [path for path in client.get("/v1/openapi.json").json()["paths"] if "dashboard" in path]
    assert "/dashboard/" in client.get("/docs").text


def test_slugs_and_parameters_are_sound():
    assert len({one.slug for one in PAGES}) == len(PAGES)
    for one in PAGES:
        assert re.fullmatch("[a-z-]*", one.slug)
        assert one.slug != "static"
        assert one.question.endswith("?")
        assert "table" not in [parameter.name for parameter in one.parameters]


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.slug or "index")
@pytest.mark.parametrize("kind", ["empty", "h200"])
def test_every_page_stands(one, kind: str, request: pytest.FixtureRequest):
    with running(request.getfixturevalue(kind)) as served:
        response = served.client.get(f"/dashboard/{one.slug}", headers=BROWSER)
        assert response.status_code in (200, 404, 422), response.text
        assert len(response.content) <= MAX_PAGE_BYTES
        assert_headers(response)
        Document(response.text)
