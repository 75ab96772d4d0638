"""The OpenAPI document is current, complete and true; and so are the pages about the interface and the settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import schemathesis
from fp4tune.api.http.app import create_app
from fp4tune.api.http.metrics import Metrics
from fp4tune.api.http.problems import PROBLEM_TYPES
from fp4tune.api.http.questions import PARAMETERS
from fp4tune.api.http.routes_lookup import PARAMETERS as DECLARED
from fp4tune.api.http.schemas import BatchQuestion, ShapeQuestion
from fp4tune.api.lookup import Match
from fp4tune.api.settings import ENV_PREFIX, Settings
from http_server import Running, settings_for_tests
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

DOCS = Path(__file__).resolve().parents[2] / "docs"
REGENERATE = "python -m fp4tune.api.http.openapi > docs/openapi.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(settings_for_tests()).openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method.upper(), path, op) for path, item in document["paths"].items() for method, op in item.items()]


def test_checked_in_document_is_current(document: dict[str, Any]):
    checked_in = json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))
    assert checked_in["paths"] == document["paths"], f"run: {REGENERATE}"
    assert set(checked_in["components"]["schemas"]) == set(document["components"]["schemas"]), f"run: {REGENERATE}"
    # Older releases of pydantic write the same schemas in other words ({"allOf": [x]} for x, for one; seen with 2.7).
    if tuple(map(int, pydantic.VERSION.split(".")[:2])) >= (2, 12):
        assert checked_in == document, f"run: {REGENERATE}"


def test_served_document_is_the_same(server: Running, document: dict[str, Any]):
    assert server.get("/v1/openapi.json").json() == document


def test_every_reference_leads_somewhere(document: dict[str, Any]):
    names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert names == set(document["components"]["schemas"])


def test_what_is_declared_is_what_is_read(document: dict[str, Any]):
    assert set(DECLARED) == set(PARAMETERS)
    assert set(ShapeQuestion.model_fields) == set(PARAMETERS) - {"device", "environment", "policy"}
    assert set(BatchQuestion.model_fields) == {
        "shapes", "device", "environment", "policy", "routing", "format", "out_dtype",
    }  # fmt: skip
    assert all(op["operationId"] and op["description"] for _, _, op in operations(document))


# The pages


@pytest.fixture(scope="module")
def page() -> str:
    return (DOCS / "http-api.md").read_text(encoding="utf-8")


def test_every_route_is_documented(document: dict[str, Any], page: str):
    listed = re.findall(r"`(GET|POST) (/[^`]*)`", page)
    assert {(method, path) for method, path, _ in operations(document)} <= set(listed)
    hidden = {("GET", "/v1/openapi.json"), ("GET", "/docs")}
    assert set(listed) - {(method, path) for method, path, _ in operations(document)} == hidden


def test_every_documented_route_exists(server: Running, page: str):
    for method, path in re.findall(r"`(GET|POST) (/[^`]*)`", page):
        response = server.client.request(method, path.replace("{run_id}", "000000"))
        assert response.json()["type"] != PROBLEM_TYPES["no-such-route"].type if response.is_error else True, path
        assert response.status_code != 405, path


def test_every_parameter_is_documented(document: dict[str, Any], page: str):
    sections = {"Asking for one problem": "/best-config", "Listings": "/v1/(runs|winners|trials|misses)$"}
    for heading, pattern in sections.items():
        section = page.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]
        for _, path, op in operations(document):
            if re.search(pattern, path):
                assert {p["name"] for p in op.get("parameters", [])} <= set(re.findall(r"`(\w+)`", section)), path


def test_every_field_match_and_word_of_an_answer_is_documented(document: dict[str, Any], page: str):
    words = set(re.findall(r"`(\w+)`", page))
    for model in ("AnswerModel", "ReferenceAnswerModel", "ReferenceModel"):
        assert set(document["components"]["schemas"][model]["properties"]) <= words
    assert {match.value for match in Match} <= words
    for name in ("op", "routing", "format", "out_dtype"):
        assert set(DECLARED[name][1]["enum"]) <= words
    assert {f"`{policy}`" for policy in DECLARED["policy"][1]["enum"]} <= set(re.findall(r"`[\w.]+`", page))


def test_every_problem_is_documented(page: str):
    section = page.split("\n## Problems\n")[1].split("\n## ", maxsplit=1)[0]
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", section, re.MULTILINE))
    assert rows == {slug: str(kind.status) for slug, kind in PROBLEM_TYPES.items()}


def test_every_metric_is_documented(page: str):
    def full(name: str, kind: str) -> str:
        return f"{name}_total" if kind == "counter" else name

    families = {full(family.name, family.type) for family in Metrics("0").registry.collect()}
    assert families == set(re.findall(r"`(fp4tune_\w+)`", page.split("\n## Metrics\n")[1]))


def test_every_setting_is_documented():
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (?:`([^`]*)`|\(empty\)) \| .+ \|$", text, re.MULTILINE)
    documented = {name: (variable, default) for name, variable, default in rows}
    assert set(documented) == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        default = field.default.get_secret_value() if name == "cursor_secret" else field.default
        assert documented[name] == (
            f"{ENV_PREFIX}{name.upper()}",
            str(default).lower() if default is False else str(default),
        )


# The document against the service: a real one, on loopback. Schemathesis makes the requests from the document, valid
# ones and broken ones, and holds the responses against it.

DOCUMENT = create_app(settings_for_tests()).openapi()
# Broken requests are refused as such; 404 would hide one that was taken for a question without an answer.
REFUSALS = {"checks": {"negative_data_rejection": {"expected-statuses": [400, 413, 414, 415, 422]}}}
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=schemathesis.Config.from_dict(REFUSALS))
SENSELESS = [
    ignored_auth,  # nothing needs a key
    positive_data_acceptance,  # a schema cannot say that shape and m, n, k exclude each other, or that K is 16 times something
]


def requests_to_make() -> Iterator[tuple[str, str, GenerationMode]]:
    """Each operation with valid input, and with broken input if it takes any that can be broken."""
    for method, path, operation in operations(DOCUMENT):
        yield method, path, GenerationMode.POSITIVE
        if operation.get("parameters") or operation.get("requestBody"):
            yield method, path, GenerationMode.NEGATIVE


@pytest.mark.parametrize(("method", "path", "mode"), list(requests_to_make()))
def test_service_does_what_the_document_says(server: Running, method: str, path: str, mode: GenerationMode):
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(SCHEMA[path][method].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=server.url, excluded_checks=SENSELESS)

    check()
