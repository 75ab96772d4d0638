"""The FastAPI app: routes, errors and the edge around them, over one service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from ...db import Store
from ..dashboard.page import Page
from ..dashboard.pages import PAGES
from ..dashboard.routes import add_dashboard_routes
from ..settings import Settings
from .edge import Edge
from .openapi import API_VERSION, build_openapi
from .problems import add_handlers
from .routes_lookup import add_lookup_routes
from .routes_service import add_service_routes
from .routes_store import add_store_routes
from .service import Service

SUMMARY = "The fastest known way to run each NVFP4 GEMM, by shape, device and environment."


class _App(FastAPI):
    """FastAPI with the edge around everything, Starlette's own middleware included."""

    def build_middleware_stack(self) -> ASGIApp:
        """The stack that Starlette builds when the app is first called."""
        return Edge(super().build_middleware_stack(), self.state.service)


def create_app(settings: Settings, *, store: Store | None = None, pages: Sequence[Page] = PAGES) -> FastAPI:
    """Make the app. Nothing is opened until its lifespan starts.

    Args:
        settings: see Settings.
        store: a database that the caller opened and will close; None opens the one in the settings.
        pages: of the dashboard.

    Returns:
        The app; its `Service` is `app.state.service`.
    """
    service = Service(settings, store)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(service.start)
        try:
            yield
        finally:
            await run_in_threadpool(service.stop)

    app = _App(
        title="fp4tune",
        summary=SUMMARY,
        version=API_VERSION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    add_handlers(app)
    add_lookup_routes(app, service)
    add_store_routes(app, service)
    add_service_routes(app, service)
    add_dashboard_routes(app, service, pages)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = build_openapi(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to extend the document
    return app
