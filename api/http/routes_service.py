"""The routes about the service itself: health, readiness, metrics, its own description."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from .docs_page import docs_page
from .openapi import problems
from .problems import problem
from .rendering import render, respond
from .schemas import Health, Readiness
from .service import Service

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def add_service_routes(app: FastAPI, service: Service) -> None:
    """Add health, readiness and metrics, at the root and under /v1, and the documentation."""

    async def healthz(request: Request) -> Response:
        """The process answers. Does not look at the database."""
        return respond(request, render({"status": "ok", "version": service.version}, cacheable=False))

    async def readyz(request: Request) -> Response:
        """The database can be read, its schema is current, and the index follows it."""
        reasons = await run_in_threadpool(service.not_ready)
        if reasons:
            return respond(request, problem("not-ready", "; ".join(reasons) + ".", reasons=reasons))
        schema = await run_in_threadpool(service.store.schema)
        document = {"status": "ready", "winners": service.live.served.index.size, "schema_revision": schema.current}
        return respond(request, render(document, cacheable=False))

    async def metrics() -> Response:
        """Counters and gauges in Prometheus' text format."""
        service.metrics.misses_waiting.set(len(service.misses))
        return Response(service.metrics.text(), headers={"content-type": _METRICS_TYPE, "cache-control": "no-store"})

    async def openapi(request: Request) -> Response:
        """This API, described in OpenAPI 3.1."""
        return respond(request, render(app.openapi()))

    async def docs() -> Response:
        """This API, described for people: one page that loads nothing from elsewhere."""
        return Response(docs_page(app.openapi()), media_type="text/html", headers={"cache-control": "no-cache"})

    for prefix, suffix in (("", ""), ("/v1", "_v1")):
        app.add_api_route(
            f"{prefix}/healthz", healthz, operation_id=f"healthz{suffix}", tags=["service"], response_model=Health
        )
        app.add_api_route(
            f"{prefix}/readyz", readyz, operation_id=f"readyz{suffix}", tags=["service"], response_model=Readiness,
            responses=problems("not-ready"),
        )  # fmt: skip
        app.add_api_route(
            f"{prefix}/metrics", metrics, operation_id=f"metrics{suffix}", tags=["service"], response_class=Response,
            responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        )  # fmt: skip
    app.add_api_route("/v1/openapi.json", openapi, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)
