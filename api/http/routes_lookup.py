"""The routes that servers ask: one shape, or thousands."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ...db.records import Policy
from ...kernels.problem import Format, Op, OutDtype, Routing
from .openapi import NOT_MODIFIED, problems
from .problems import BodyError
from .questions import MAX_SHAPE_TEXT, MAX_TEXT
from .rendering import respond
from .schemas import AnswerModel, BatchAnswer, ReferenceAnswerModel
from .service import Service

_SHAPE_PATTERN = r"^((moe:)?e[0-9]{1,9}(of[0-9]{1,9})?k[0-9]{1,9}:)?[0-9]{1,9}x[0-9]{1,9}x[0-9]{1,9}$"


def _number(text: str) -> tuple[str, dict[str, Any]]:
    return text, {"type": "integer", "minimum": 0, "maximum": 999_999_999}


def _words(text: str, words: type[Op | Routing | Format | OutDtype], default: str) -> tuple[str, dict[str, Any]]:
    return text, {"type": "string", "enum": [word.value for word in words], "default": default}


def _text(text: str) -> tuple[str, dict[str, Any]]:
    return text, {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}


PARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "shape": (
        "MxNxK; grouped e<experts>[of<experts_total>]k<top_k>:MxNxK; moe: and that; instead of the sizes below",
        {"type": "string", "maxLength": MAX_SHAPE_TEXT, "pattern": _SHAPE_PATTERN},
    ),
    "m": _number("rows of A; tokens before routing if grouped or moe"),
    "n": _number("rows of B, per expert if grouped; the intermediate size of this rank if moe"),
    "k": _number("the contracted dimension, in elements; the hidden size if moe"),
    "op": _words("what is computed; must agree with `shape`", Op, Op.DENSE),
    "experts": _number("experts on this rank (op=grouped, moe)"),
    "experts_total": _number("experts over all ranks (op=grouped, moe); as many as `experts` if left out"),
    "top_k": _number("experts a token is sent to (op=grouped, moe)"),
    "routing": _words("how tokens spread over experts (grouped, moe)", Routing, Routing.UNIFORM),
    "format": _words("operand format", Format, Format.NVFP4),
    "out_dtype": _words("dtype of D", OutDtype, OutDtype.BF16),
    "device": _text(
        "fingerprint, its first 8 or more digits, or the exact name; may be left out if the database knows one device"
    ),
    "environment": _text(
        "fingerprint, or its first 8 or more digits; left out, the environment of the device's newest winner is assumed"
    ),
    "policy": (
        "only winners that were measured so; left out, cuda.graph is served before cuda.eager",
        {"type": "string", "enum": [policy.value for policy in Policy]},
    ),
}
"""What GET /best-config takes: name -> description and schema."""

_QUERY = [
    {"name": name, "in": "query", "required": False, "description": description, "schema": schema}
    for name, (description, schema) in PARAMETERS.items()
]

_ANSWER = {
    "anyOf": [
        {"$ref": "#/components/schemas/AnswerModel"},
        {"$ref": "#/components/schemas/ReferenceAnswerModel"},
    ]
}

_BODY = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/BatchQuestion"}}},
}


def add_lookup_routes(app: FastAPI, service: Service) -> None:
    """Add GET /best-config, also as /v1/best-config, and POST /v1/best-configs."""

    async def best_config(request: Request) -> Response:
        """The best known config for one problem."""
        # The parameters are declared in PARAMETERS and read by `questions.ask`: FastAPI's own reading would cost
        # more than the lookup.
        return respond(request, await service.answer(request.scope["query_string"]))

    async def best_configs(request: Request) -> Response:
        """The best known configs for up to 10,000 problems in one call; a read, in spite of its method.

        A shape without an answer does not fail the others: its place says `"match": "none"` and why.
        """
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise BodyError(
                "unsupported-media-type", f"Send Content-Type: application/json, not {media_type[:80]!r}."
            )  # fmt: skip
        body = await request.body()
        return respond(request, await run_in_threadpool(service.answer_batch, body))

    for path, name in (("/v1/best-config", "best_config"), ("/best-config", "best_config_alias")):
        app.add_api_route(
            path, best_config, methods=["GET"], operation_id=name, tags=["lookup"],
            response_model=AnswerModel | ReferenceAnswerModel,
            response_class=Response, response_description="the best known config, or what others published",
            responses={
                200: {"content": {"application/json": {"schema": _ANSWER}}},
                **NOT_MODIFIED, **problems("not-tuned", "ambiguous-device", "query-too-long", "invalid-input"),
            },
            openapi_extra={"parameters": _QUERY},
        )  # fmt: skip
    app.add_api_route(
        "/v1/best-configs", best_configs, methods=["POST"], operation_id="best_configs", tags=["lookup"],
        response_model=BatchAnswer, response_description="answers in the order of the shapes",
        responses={
            **NOT_MODIFIED,
            **problems(
                "malformed-body", "ambiguous-device", "body-too-large", "unsupported-media-type", "invalid-input"
            ),
        },
        openapi_extra={"requestBody": _BODY},
    )  # fmt: skip
