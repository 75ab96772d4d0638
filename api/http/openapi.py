"""The OpenAPI document: what FastAPI derives, plus the problems and the models that it cannot see.

`python -m fp4tune.api.http.openapi > docs/openapi.json` writes it anew; a test compares the two.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from . import schemas
from .problems import PROBLEM_TYPES
from .rendering import PROBLEM_JSON

API_VERSION = "1"
"""Version of the interface: the one in the paths."""

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "what the client holds (If-None-Match) is current"}
}

_MODELS: dict[str, type[BaseModel]] = {
    "not-tuned": schemas.NotTuned,
    "ambiguous-device": schemas.AmbiguousDevice,
    "invalid-input": schemas.InvalidInput,
    "not-ready": schemas.NotReady,
}

_EXTRA_MODELS: tuple[type[BaseModel], ...] = (schemas.BatchQuestion, schemas.Problem, *_MODELS.values())

_REF = "#/components/schemas/{model}"


def problems(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may end in these problems."""
    by_status: defaultdict[int, list[str]] = defaultdict(list)
    for slug in slugs:
        by_status[PROBLEM_TYPES[slug].status].append(slug)
    responses: dict[int | str, dict[str, Any]] = {}
    for status, those in by_status.items():
        refs = [{"$ref": _REF.format(model=_MODELS.get(slug, schemas.Problem).__name__)} for slug in those]
        responses[status] = {
            "description": "; ".join(f"{PROBLEM_TYPES[slug].type}: {PROBLEM_TYPES[slug].meaning}" for slug in those),
            "content": {PROBLEM_JSON.decode(): {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}},
        }
    return responses


def build_openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of an app."""
    document: dict[str, Any] = get_openapi(
        title=app.title, version=API_VERSION, summary=app.summary, description=app.description, routes=app.routes
    )
    wanted: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [
        (model, "validation") for model in _EXTRA_MODELS
    ]
    _, extra = models_json_schema(wanted, ref_template=_REF)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in extra["$defs"].items():
        components.setdefault(name, schema)
    document["components"]["schemas"] = dict(sorted(components.items()))
    return document


def main() -> None:
    """Print the document."""
    from ..settings import Settings
    from .app import create_app

    json.dump(create_app(Settings()).openapi(), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
