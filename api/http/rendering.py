"""Responses as bytes, made once: body, headers, and a strong ETag that is the hash of the body."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..plain import encode

JSON = b"application/json"
PROBLEM_JSON = b"application/problem+json"

RawHeaders = list[tuple[bytes, bytes]]

_ENTITY_TAG = re.compile(rb'(?:W/)?("[^"]*")')


@dataclass(frozen=True, slots=True)
class Rendered:
    """A response that is ready to be sent.

    Attributes:
        status: HTTP status.
        headers: as ASGI wants them, Content-Length and ETag included.
        body: the body.
        etag: the ETag's value with its quotes; empty if the response has none.
    """

    status: int
    headers: RawHeaders
    body: bytes
    etag: bytes = b""


def render(document: Any, *, status: int = 200, media_type: bytes = JSON, cacheable: bool = True) -> Rendered:
    """Render plain JSON values; the rest as in `render_text`."""
    return render_text(encode(document), status=status, media_type=media_type, cacheable=cacheable)


def render_text(text: str, *, status: int = 200, media_type: bytes = JSON, cacheable: bool = True) -> Rendered:
    """Render a JSON text.

    Args:
        text: the body.
        status: HTTP status.
        media_type: what to say it is.
        cacheable: True adds an ETag, if the status is 200, and lets caches keep it if they ask again each time;
            False forbids to keep it.
    """
    body = text.encode()
    headers: RawHeaders = [
        (b"content-type", media_type),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-cache" if cacheable else b"no-store"),
    ]
    etag = b""
    if cacheable and status == 200:  # RFC 9110 section 13.2.1: preconditions count only where a 2xx would follow
        etag = b'"' + hashlib.sha256(body).hexdigest()[:32].encode() + b'"'
        headers.append((b"etag", etag))
    return Rendered(status, headers, body, etag)


def not_modified(rendered: Rendered) -> Rendered:
    """The 304 that says that what the client holds is `rendered`."""
    keep = (b"cache-control", b"etag", b"vary")
    return Rendered(304, [pair for pair in rendered.headers if pair[0] in keep], b"", rendered.etag)


def is_held(etag: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True if an If-None-Match among `headers` names `etag` (weak comparison, RFC 9110 section 13.1.2) or is `*`."""
    if not etag:
        return False
    for name, value in headers:
        if name == b"if-none-match" and (value.strip() == b"*" or etag in _ENTITY_TAG.findall(value)):
            return True
    return False


def conditional(rendered: Rendered, headers: Iterable[tuple[bytes, bytes]]) -> Rendered:
    """`rendered`, or the 304 instead if the request's headers say that the client holds it already."""
    return not_modified(rendered) if is_held(rendered.etag, headers) else rendered


def respond(request: Request, rendered: Rendered) -> Response:
    """The Starlette response for a request, with If-None-Match honoured."""
    chosen = conditional(rendered, request.headers.raw)
    response = Response(chosen.body, chosen.status)
    response.raw_headers = list(chosen.headers)
    return response
