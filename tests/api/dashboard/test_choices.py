"""What an address names together: a whole form is sent without scripts, also what does not fit the new choice."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fp4tune.db import Store
from http_server import running
from store_factory import LARGE, ON_CARD, ON_CPU, SMALL, new_run, new_winner

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
CARD, CPU = ON_CARD.fingerprint, ON_CPU.fingerprint
PAGES = ("", "roof", "backends", "problem")


@pytest.fixture
def client(empty: Store) -> Iterator[httpx.Client]:
    """The pages over a store with an environment for each of two policies, and one in which nothing is served."""
    run = empty.create_run(new_run())
    empty.add_winners([new_winner(run), new_winner(run, problem=LARGE)])
    other = empty.create_run(new_run(environment=ON_CPU))
    empty.add_winners([new_winner(other, problem=LARGE, environment=ON_CPU, policy="cpu.warm")])
    with running(empty) as served:
        served.client.headers.update(BROWSER)
        yield served.client


def asked(page: str, **values: str) -> tuple[str, dict[str, str]]:
    """An address and its parameters; the page of a problem needs one."""
    return f"/dashboard/{page}", ({"problem": LARGE.key} if page == "problem" else {}) | values


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("environment", "wrong", "right"), [(CPU, "cuda.eager", "cpu.warm"), (CARD, "x", "cuda.eager")]
)
def test_the_environment_stays_and_a_policy_that_it_has_not_is_left_out(
    client: httpx.Client, page: str, environment: str, wrong: str, right: str
):
    address, values = asked(page, environment=environment, policy=wrong)
    response = client.get(address, params=values)
    assert response.status_code == 200, response.text
    said = f"Nothing is served for environment {environment} and policy {wrong}. This page is shown without the policy"
    assert said in response.text
    for value in (environment, right):
        assert f'<option value="{value}" selected>' in response.text
    assert f"policy={wrong}" not in response.text
    assert "etag" not in response.headers
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("values", [{"environment": "0" * 16}, {"environment": "0" * 16, "policy": "cpu.warm"}])
def test_an_environment_that_is_not_there_is_an_error(client: httpx.Client, page: str, values: dict[str, str]):
    address, given = asked(page, **values)
    assert client.get(address, params=given).status_code == 404


@pytest.mark.parametrize("page", ["", "roof", "backends"])
def test_a_policy_that_nothing_is_served_by_is_an_error(client: httpx.Client, page: str):
    response = client.get(f"/dashboard/{page}", params={"policy": "nobodys"})
    assert response.status_code == 404
    assert "Nothing is served for policy nobodys." in response.text


@pytest.mark.parametrize("form", ["csv", "json"])
def test_data_of_something_else_are_never_given(client: httpx.Client, form: str):
    """Nobody reads a warning in a CSV, and times of two policies must not be mixed."""
    values = {"table": "wins", "environment": CPU, "policy": "cuda.eager"}
    response = client.get(f"/dashboard/backends.{form}", params=values, headers={"accept": "*/*"})
    assert response.status_code == 404
    assert "Nothing is served for environment" in response.json()["detail"]


def test_a_problem_that_is_not_served_there_leaves_the_environment(client: httpx.Client):
    values = {"environment": CPU, "policy": "cpu.warm", "problem": SMALL.key}
    response = client.get("/dashboard/backends", params=values)
    assert response.status_code == 200
    assert "This page is shown without the problem of its address." in response.text
    assert "<h1>Backends on Test CPU</h1>" in response.text
    nowhere = client.get("/dashboard/backends", params=values | {"problem": "dense:3x2048x4096:uniform:nvfp4:bf16"})
    assert nowhere.status_code == 404
    both = client.get("/dashboard/backends", params=values | {"policy": "cuda.eager"})
    assert both.status_code == 200
    for left_out in ("policy", "problem"):
        assert f"This page is shown without the {left_out} of its address." in both.text


def test_a_script_is_told_the_address_that_is_shown(client: httpx.Client):
    values = {"environment": CPU, "policy": "cuda.eager"}
    response = client.get("/dashboard/roof", params=values, headers={"x-changed-filter": "environment"})
    assert response.headers["hx-push-url"] == f"/dashboard/roof?environment={CPU}"
    assert "Nothing is served for" not in response.text


def test_a_changed_environment_keeps_the_model(client: httpx.Client):
    values = {"environment": CPU, "policy": "cuda.eager", "model": "shapes given by hand"}
    response = client.get("/dashboard/", params=values, headers={"x-changed-filter": "environment"})
    assert response.status_code == 200
    assert response.headers["hx-push-url"] == f"/dashboard/?environment={CPU}&model=shapes+given+by+hand"


def test_a_problem_that_is_typed_and_not_served_there_is_said(client: httpx.Client):
    values = {"environment": CPU, "policy": "cpu.warm", "problem": SMALL.key}
    response = client.get("/dashboard/backends", params=values, headers={"x-changed-filter": "problem"})
    assert response.status_code == 404
    assert f"Nothing is served for {SMALL.key} in environment {CPU} by cpu.warm." in response.text
