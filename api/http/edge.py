"""The outermost layer of the app: lookups, answered at once; limits, HEAD, faults and metrics for every request."""

from __future__ import annotations

import logging
import time

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import OTHER_ROUTE
from .problems import internal_error, problem
from .rendering import Rendered, conditional
from .service import Service

logger = logging.getLogger(__name__)

LOOKUP_PATHS = frozenset({"/best-config", "/v1/best-config"})
"""Where GET /best-config is found."""

PAGES = "/dashboard"
"""Where pages for people are; those say themselves, as a page, that a query string is too long."""

CLIENT_WENT_AWAY = 499
"""What the metrics call a request whose client closed the connection before it had sent all of it, after nginx."""


class Edge:
    """What the server calls first; around the FastAPI app and all of its middleware.

    GET /best-config is answered here, without the router and its middleware, which cost more than the answer
    (`benchmarks/lookup_http.py`). The route of the same path, which describes it in the OpenAPI document, gives the
    same answer when the paths differ because the app is mounted in another one.

    Args:
        app: the app inside.
        service: the service.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._metrics = service.metrics
        self._max_query = service.settings.max_query_bytes
        self._max_body = service.settings.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] in LOOKUP_PATHS and scope["method"] in ("GET", "HEAD"):
            await self._look_up(scope, send)
        else:
            await self._pass_on(scope, receive, send)

    async def _look_up(self, scope: Scope, send: Send) -> None:
        """Answer GET /best-config."""
        start = time.perf_counter()
        query: bytes = scope["query_string"]
        try:
            if len(query) > self._max_query:
                rendered = self._too_long(query)
            else:
                rendered = conditional(await self._service.answer(query), scope["headers"])
        except Exception:
            logger.exception("GET %r failed", scope["path"])
            rendered = internal_error()
        await _send(send, rendered, head=scope["method"] == "HEAD")
        self._metrics.request(scope["method"], scope["path"], rendered.status, time.perf_counter() - start)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app answer; a fault of it becomes a problem."""
        start = time.perf_counter()
        head = scope["method"] == "HEAD"
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif head:
                message = {**message, "body": b""}
            await send(message)

        inner = {**scope, "method": "GET"} if head else scope
        try:
            too_long = len(scope["query_string"]) > self._max_query
            if too_long and not scope["path"].startswith(PAGES):
                await _send(sending, self._too_long(scope["query_string"]))
            else:
                await self._app(inner, _limited(receive, self._max_body), sending)
        except ClientDisconnect:
            status = CLIENT_WENT_AWAY
        except Exception:
            # Starlette's ServerErrorMiddleware has sent the problem, if it still could, and raised on. Where it could
            # not, because a response had begun, the HTTP server sees it unfinished and breaks the connection.
            logger.exception("%s %r failed", scope["method"], scope["path"])
        finally:
            route = getattr(inner.get("route"), "path", OTHER_ROUTE)
            self._metrics.request(scope["method"], route, status, time.perf_counter() - start)

    def _too_long(self, query: bytes) -> Rendered:
        """The problem with a query string that is too long."""
        detail = f"The query string has {len(query)} bytes; the limit is {self._max_query}."
        return problem("query-too-long", detail)


async def _send(send: Send, rendered: Rendered, *, head: bool = False) -> None:
    """Send a response that is ready; for HEAD without its body."""
    await send({"type": "http.response.start", "status": rendered.status, "headers": rendered.headers})
    await send({"type": "http.response.body", "body": b"" if head else rendered.body})


def _limited(receive: Receive, limit: int) -> Receive:
    """`receive` that ends a body longer than `limit` bytes with a 413."""
    seen = 0

    async def receiving() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, f"The body is longer than {limit} bytes, the limit: ask in several calls.")
        return message

    return receiving
