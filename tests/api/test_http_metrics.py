"""Metrics, health and the page for people."""

from __future__ import annotations

from html.parser import HTMLParser

from fp4tune.db import Store
from http_server import Running, Serve, fill, wait_until
from prometheus_client.parser import text_string_to_metric_families


def samples(server: Running, path: str = "/metrics") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples that Prometheus would read."""
    response = server.get(path)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert response.headers["cache-control"] == "no-store"
    families = text_string_to_metric_families(response.text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_prometheus_reads_the_metrics(store: Store, serve: Serve):
    fill(store)
    server = serve(store)
    for shape in ("16x2048x4096", "16x2048x4096", "12x2048x4096", "7x16x16"):
        server.best(shape)
    server.batch("16x2048x4096", "7x16x16", "nonsense")
    server.get("/v1/runs/000000")
    server.get("/some/path/that/somebody/made/up")
    server.client.request("PROPFIND", "/v1/runs")
    for path in ("/metrics", "/v1/metrics"):
        found = samples(server, path)
        assert found["fp4tune_lookups_total", (("match", "exact"),)] == 3
        assert found["fp4tune_lookups_total", (("match", "bucket"),)] == 1
        assert found["fp4tune_lookups_total", (("match", "none"),)] == 2
        assert found["fp4tune_lookup_cache_hits_total", ()] == 1
        assert found["fp4tune_index_winners", ()] == 4
        assert found["fp4tune_index_checked_timestamp_seconds", ()] > 1e9
    requests = {labels: value for (name, labels), value in found.items() if name == "fp4tune_http_requests_total"}

    def count(method: str, route: str, status: str) -> float:
        return requests[("method", method), ("route", route), ("status", status)]

    assert count("GET", "/v1/best-config", "200") == 3
    assert count("GET", "/v1/best-config", "404") == 1
    assert count("POST", "/v1/best-configs", "200") == 1
    assert count("GET", "/v1/runs/{run_id}", "404") == 1
    assert count("GET", "other", "404") == 1
    assert count("other", "/v1/runs", "405") == 1
    route = (("route", "/v1/best-config"),)
    assert found["fp4tune_http_request_duration_seconds_count", route] == 4
    assert found["fp4tune_http_request_duration_seconds_sum", route] > 0


def test_labels_do_not_grow_with_what_clients_make_up(server: Running):
    sizes = []
    for start in (0, 20, 40):
        for i in range(start, start + 20):
            server.get(f"/made/up/{i}")
            server.get(f"/v1/runs/00000000{i}")
            server.best("16x2048x4096", device=f"made-up-{i}")
        sizes.append(len(samples(server)))
    assert sizes[1] == sizes[2]


def test_client_that_goes_away_while_it_sends(server: Running):
    server.raw(
        b"POST /v1/best-configs HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    labels = {"method": "POST", "route": "/v1/best-configs", "status": "499"}
    wait_until(lambda: server.metric("fp4tune_http_requests_total", **labels) == 1)
    assert server.get("/healthz").status_code == 200


def test_each_app_has_metrics_of_its_own(store: Store, serve: Serve):
    one, two = serve(store), serve(store)
    one.get("/healthz")
    labels = {"method": "GET", "route": "/healthz", "status": "200"}
    wait_until(lambda: one.metric("fp4tune_http_requests_total", **labels) == 1)
    assert two.metric("fp4tune_http_requests_total", **labels) == 0


def test_health_and_readiness(server: Running):
    for path in ("/healthz", "/v1/healthz"):
        document = server.get(path).json()
        assert document == {"status": "ok", "version": server.service.version}
    for path in ("/readyz", "/v1/readyz"):
        document = server.get(path).json()
        assert (document["status"], document["winners"]) == ("ready", 4)
        assert document["schema_revision"]


def test_docs_page_names_every_route_and_loads_nothing(server: Running):
    class Page(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.text = ""
            self.loaded: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag in ("script", "link", "img", "iframe"):
                self.loaded.append(tag)

        def handle_data(self, data: str) -> None:
            self.text += data

    response = server.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page = Page()
    page.feed(response.text)
    assert page.loaded == []
    for path in server.get("/v1/openapi.json").json()["paths"]:
        assert path in page.text
