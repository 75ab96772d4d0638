"""What the service says about itself to Prometheus. Each app has a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

OTHER_ROUTE = "other"
"""The route label of paths that are none of ours: labels must not grow with what clients make up."""


class Metrics:
    """The metrics of one app. Thread-safe."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        Gauge(
            "fp4tune_build_info", "Always 1; the label says which version runs.", ["version"], registry=registry
        ).labels(version).set(1)
        self._requests = Counter(
            "fp4tune_http_requests", "Requests answered.", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "fp4tune_http_request_duration_seconds", "From the request's head to the end of its answer.", ["route"],
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10), registry=registry,
        )  # fmt: skip
        self._lookups = Counter(
            "fp4tune_lookups", "Questions answered, by how well: each shape of a batch counts.", ["match"],
            registry=registry,
        )  # fmt: skip
        self.cache_hits = Counter(
            "fp4tune_lookup_cache_hits", "Lookups answered with bytes rendered before.", registry=registry
        )
        self.misses_written = Counter("fp4tune_misses_written", "Distinct misses written.", registry=registry)
        self.misses_dropped = Counter("fp4tune_misses_dropped", "Misses not counted.", ["reason"], registry=registry)
        self.misses_waiting = Gauge("fp4tune_misses_waiting", "Distinct misses not yet written.", registry=registry)
        self.flush_failures = Counter(
            "fp4tune_misses_flush_failures", "Failed attempts to write misses.", registry=registry
        )
        self.index_winners = Gauge("fp4tune_index_winners", "Winners that are served.", registry=registry)
        self.index_generation = Gauge(
            "fp4tune_index_generation", "Generation of the database that is served.", registry=registry
        )
        self.index_refreshed = Gauge(
            "fp4tune_index_checked_timestamp_seconds", "When the database was last looked at.", registry=registry
        )
        self.refresh_failures = Counter(
            "fp4tune_index_refresh_failures", "Failed looks at the database.", registry=registry
        )
        # Looking a child up by its labels costs more than counting, and the labels are few: keep the children.
        self._request_children: dict[tuple[str, str, int], Counter] = {}
        self._seconds_children: dict[str, Histogram] = {}
        self._lookup_children: dict[str, Counter] = {}

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        key = (method if method in _METHODS else "other", route, status)
        counter = self._request_children.get(key)
        if counter is None:
            counter = self._request_children[key] = self._requests.labels(key[0], route, str(status))
        histogram = self._seconds_children.get(route)
        if histogram is None:
            histogram = self._seconds_children[route] = self._seconds.labels(route)
        counter.inc()
        histogram.observe(seconds)

    def lookup(self, match: str, count: int = 1) -> None:
        """Count questions that were answered with `match`."""
        counter = self._lookup_children.get(match)
        if counter is None:
            counter = self._lookup_children[match] = self._lookups.labels(match)
        counter.inc(count)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
