"""Errors as RFC 9457 problems: one stable `type` for each kind, and the handlers that turn exceptions into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ...kernels.errors import Fp4tuneError
from ..lookup import AmbiguousDeviceError
from ..plain import device_document
from .rendering import PROBLEM_JSON, RawHeaders, Rendered, render, respond

TYPE_PREFIX = "urn:fp4tune:problem:"

MAX_LISTED_ERRORS = 20
"""How many faults of one request are listed."""


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A kind of problem. Its `type` never changes its meaning.

    Attributes:
        slug: last part of the `type`.
        status: HTTP status it comes with.
        title: the same short text every time.
        meaning: when it happens and what to do, for the documentation.
    """

    slug: str
    status: int
    title: str
    meaning: str

    @property
    def type(self) -> str:
        """The URI that identifies the kind."""
        return TYPE_PREFIX + self.slug


PROBLEM_TYPES = {
    kind.slug: kind
    for kind in (
        ProblemType(
            "not-tuned", 404, "Not tuned", "Nothing valid is stored for the question. Use the backend's default."
        ),
        ProblemType("not-found", 404, "Not found", "The run that the path names does not exist."),
        ProblemType("no-such-route", 404, "No such route", "The path is none of this service's."),
        ProblemType("method-not-allowed", 405, "Method not allowed", "The path exists; `Allow` lists its methods."),
        ProblemType(
            "ambiguous-device", 409, "Ambiguous device", "Several devices fit; ask again with one of `devices`."
        ),
        ProblemType("malformed-body", 400, "Malformed body", "The body is not JSON, or nested too deeply."),
        ProblemType("body-too-large", 413, "Body too large", "The body is longer than `max_body_bytes`."),
        ProblemType("query-too-long", 414, "Query too long", "The query string is longer than `max_query_bytes`."),
        ProblemType("unsupported-media-type", 415, "Unsupported media type", "Send `Content-Type: application/json`."),
        ProblemType("invalid-input", 422, "Invalid input", "A parameter or a field is wrong; `detail` says which."),
        ProblemType("internal", 500, "Internal error", "A fault of this service; its log has the traceback."),
        ProblemType("store", 503, "Database not usable", "The database cannot be read now; `detail` says why."),
        ProblemType("not-ready", 503, "Not ready", "The service runs and cannot answer well; `reasons` say why."),
    )
}

_BY_STATUS = {404: "no-such-route", 405: "method-not-allowed", 400: "malformed-body", 413: "body-too-large"}


class BodyError(Exception):
    """A request body that cannot be used.

    Attributes:
        slug: which problem it is.
        detail: one sentence.
        errors: single faults, each with `loc` and `message`.
    """

    def __init__(self, slug: str, detail: str, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.errors = list(errors)


def problem(slug: str, detail: str, *, status: int | None = None, **more: Any) -> Rendered:
    """Render a problem.

    Args:
        slug: one of PROBLEM_TYPES, or the slug of an Fp4tuneError.
        detail: one sentence about this occurrence.
        status: HTTP status of a slug that is not in PROBLEM_TYPES.
        more: extension members.
    """
    kind = PROBLEM_TYPES.get(slug) or ProblemType(slug, status or 500, slug.replace("-", " ").capitalize(), "")
    document = {"type": kind.type, "title": kind.title, "status": kind.status, "detail": detail, **more}
    return render(document, status=kind.status, media_type=PROBLEM_JSON, cacheable=False)


def problem_of_error(error: Fp4tuneError) -> Rendered:
    """The problem that an error of ours is, by its slug and status."""
    more: dict[str, Any] = {}
    if isinstance(error, AmbiguousDeviceError):
        more["devices"] = [device_document(device) for device in error.devices]
    return problem(error.slug, str(error), status=error.http_status, **more)


def internal_error() -> Rendered:
    """The problem with an unforeseen exception."""
    return problem("internal", "An unexpected error; the service's log has the details.")


def faults(errors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first faults of a validation as `loc` and `message`; never the input itself, which may be anything."""
    listed = list(errors)[:MAX_LISTED_ERRORS]
    return [{"loc": [str(part)[:100] for part in e["loc"]], "message": str(e["msg"])[:300]} for e in listed]


def body_error(error: ValidationError) -> BodyError:
    """What pydantic found wrong with a request body."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    listed = faults(errors)
    if errors[0]["type"] == "json_invalid":
        return BodyError("malformed-body", f"The body cannot be read: {listed[0]['message']}.")
    where = ".".join(listed[0]["loc"]) or "the body"
    return BodyError("invalid-input", f"{where}: {listed[0]['message']}.", listed)


def _on_error(request: Request, error: Exception) -> Response:
    """An error of ours."""
    if not isinstance(error, Fp4tuneError):
        raise error
    return respond(request, problem_of_error(error))


def _on_body_error(request: Request, error: Exception) -> Response:
    """A body that cannot be used."""
    if not isinstance(error, BodyError):
        raise error
    more: dict[str, Any] = {"errors": error.errors} if error.errors else {}
    return respond(request, problem(error.slug, error.detail, **more))


def _on_invalid(request: Request, error: Exception) -> Response:
    """What FastAPI found wrong with a path or a query."""
    if not isinstance(error, RequestValidationError):
        raise error
    listed = faults(error.errors())
    where = ".".join(listed[0]["loc"][1:]) or listed[0]["loc"][0]
    return respond(request, problem("invalid-input", f"{where}: {listed[0]['message']}.", errors=listed))


def _on_http(request: Request, error: Exception) -> Response:
    """What the router and the body limit raise. `Allow` lists HEAD with GET: the edge makes one of the other."""
    if not isinstance(error, HTTPException):
        raise error
    rendered = problem_of_status(error.status_code, request.method, request.url.path, str(error.detail))
    extra: RawHeaders = []
    for name, value in (error.headers or {}).items():
        methods = f"{value}, HEAD" if name.lower() == "allow" and "GET" in value.split(", ") else value
        extra.append((name.lower().encode(), methods.encode()))
    return respond(request, Rendered(rendered.status, rendered.headers + extra, rendered.body))


def _on_fault(request: Request, error: Exception) -> Response:
    """A bug: nothing of it for the client; the edge logs all of it."""
    del error
    return respond(request, internal_error())


def add_handlers(app: FastAPI) -> None:
    """Make every error of the app a problem."""
    app.add_exception_handler(Fp4tuneError, _on_error)
    app.add_exception_handler(BodyError, _on_body_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_fault)


def problem_of_status(status: int, method: str, path: str, detail: str) -> Rendered:
    """The problem for a bare HTTP status, as the router raises it for unknown paths and methods."""
    slug = _BY_STATUS.get(status, "internal")
    sentences = {
        404: f"There is no {path[:200]!r} here; GET /v1/openapi.json lists what there is.",
        405: f"{path[:200]!r} does not take {method[:20]}.",
    }
    return problem(slug, sentences.get(status, detail), status=status)
