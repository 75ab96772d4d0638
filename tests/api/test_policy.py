"""Winners of several measuring policies: which one is served, and how a question names one."""

from __future__ import annotations

import itertools

import pytest
from fp4tune.api.cli.app import run
from fp4tune.api.index import WinnerIndex, followed
from fp4tune.api.lookup import Answer, Match, NoAnswer, find, locate, nearest
from fp4tune.db import Store
from fp4tune.db.records import WinnerEntry
from fp4tune.kernels.device import Environment
from fp4tune.kernels.problem import parse_shape
from http_server import Running, Serve, assert_problem, wait_until
from winner_factory import entry, environment, new_run, new_winner

HERE, NEW_DRIVER = environment(), environment(driver="590.10")
SHAPE = "16x2048x4096"


def index_of(*entries: WinnerEntry) -> WinnerIndex:
    return WinnerIndex().with_entries(entries, [HERE, NEW_DRIVER])


def ask(index: WinnerIndex, at: Environment, policy: str | None = None, shape: str = SHAPE) -> Answer | NoAnswer:
    return find(index, parse_shape(shape), locate(index, None, at.versions), policy)


def served(result: Answer | NoAnswer) -> tuple[Match, int]:
    assert isinstance(result, Answer), result
    return result.match, result.tuned.id


POLICIES = ["cuda.graph", "cuda.eager", "cpu.warm", "somebody.elses"]
"""In the order in which they are served."""


@pytest.mark.parametrize("order", itertools.permutations(range(4)))
def test_the_policy_that_is_served_first_whatever_came_last(order: tuple[int, ...]):
    entries = [entry(SHAPE, number=n, day=n, policy=POLICIES[i]) for n, i in enumerate(order, 1)]
    index = index_of(*entries)
    assert index.size == 4
    for i, policy in enumerate(POLICIES):
        assert served(ask(index, HERE, policy)) == (Match.EXACT, order.index(i) + 1)
        left = index_of(*(one for one in entries if one.policy in POLICIES[i:]))
        assert served(ask(left, HERE)) == (Match.EXACT, order.index(i) + 1)
        assert served(ask(left, NEW_DRIVER)) == (Match.COMPATIBLE, order.index(i) + 1)


def test_a_later_winner_replaces_that_of_its_policy_alone():
    first = index_of(entry(SHAPE, number=1, policy="cuda.graph"), entry(SHAPE, number=2, policy="cuda.eager"))
    index = first.with_entries([entry(SHAPE, number=3, day=1, policy="cuda.eager")])
    assert index.size == 2
    assert served(ask(index, HERE)) == (Match.EXACT, 1)
    assert served(ask(index, HERE, "cuda.eager")) == (Match.EXACT, 3)
    assert served(ask(first, HERE, "cuda.eager")) == (Match.EXACT, 2)


def test_a_better_match_comes_before_a_better_policy():
    index = index_of(
        entry(SHAPE, HERE, number=1, policy="cuda.eager"), entry(SHAPE, NEW_DRIVER, number=2, policy="cuda.graph")
    )
    assert served(ask(index, HERE)) == (Match.EXACT, 1)
    assert served(ask(index, HERE, "cuda.graph")) == (Match.COMPATIBLE, 2)


def test_buckets_are_of_the_policy_that_was_named():
    index = index_of(
        entry("12x2048x4096", number=1, policy="cuda.graph"),
        entry("14x2048x4096", number=2, policy="cuda.eager"),
        entry("14x2048x4096", number=3, policy="cuda.graph"),
    )
    assert served(ask(index, HERE, shape="10x2048x4096")) == (Match.BUCKET, 1)
    assert served(ask(index, HERE, "cuda.eager", "10x2048x4096")) == (Match.BUCKET, 2)
    assert served(ask(index, HERE, shape="13x2048x4096")) == (Match.BUCKET, 3)


def test_no_answer_under_a_policy_says_which_there_are_and_does_not_count():
    index = index_of(
        entry(SHAPE, number=1, policy="cuda.graph"),
        entry("512x2048x4096", number=2, policy="cuda.eager"),
        entry("1024x2048x4096", number=3, policy="cuda.graph"),
    )
    missing = ask(index, HERE, "cuda.eager")
    assert isinstance(missing, NoAnswer)
    *_, why = missing.reasons
    assert why.endswith("under cuda.graph, not under cuda.eager")
    assert not missing.place.countable, "it is tuned: tuning it once more would not help"
    assert [problem.m for problem in nearest(index, missing)] == [512]
    nowhere = ask(index, HERE, "cuda.eager", "4096x64x64")
    assert isinstance(nowhere, NoAnswer)
    assert nowhere.place.countable
    assert nowhere.reasons == ask(index, HERE, None, "4096x64x64").reasons


@pytest.fixture
def tuned(store: Store) -> Store:
    """Winners of both policies for SHAPE, of one for another shape."""
    run_id = store.create_run(new_run(HERE, [SHAPE]))
    store.add_winners(
        [
            new_winner(run_id, SHAPE, HERE, time_us=10.0, policy="cuda.graph"),
            new_winner(run_id, SHAPE, HERE, time_us=20.0, policy="cuda.eager"),
            new_winner(run_id, "64x2048x4096", HERE, time_us=30.0, policy="cuda.eager"),
        ]
    )
    return store


def test_over_http(tuned: Store, serve: Serve):
    server = serve(tuned)
    for params, time_us, policy in (
        ({}, 10.0, "cuda.graph"),
        ({"policy": "cuda.graph"}, 10.0, "cuda.graph"),
        ({"policy": "cuda.eager"}, 20.0, "cuda.eager"),
    ):
        answer = server.best(SHAPE, **params).json()
        assert (answer["match"], answer["time_us"], answer["policy"]) == ("exact", time_us, policy)
    assert server.best("64x2048x4096").json()["time_us"] == 30.0
    document = assert_problem(server.best("64x2048x4096", policy="cuda.graph"), 404, "not-tuned")
    assert "under cuda.eager, not under cuda.graph" in document["detail"]
    assert [problem["shape"] for problem in document["nearest"]] == [SHAPE]
    assert_misses(server, 0)
    assert_problem(server.best("1024x64x64", policy="cuda.graph"), 404, "not-tuned")
    assert_misses(server, 1)


def assert_misses(server: Running, count: int) -> None:
    server.service.flush_misses()
    wait_until(lambda: len(server.get("/v1/misses").json()["items"]) == count)


def test_over_http_in_a_batch(tuned: Store, serve: Serve):
    server = serve(tuned)
    shapes = [SHAPE, "64x2048x4096"]
    assert [a["time_us"] for a in server.batch(*shapes).json()["answers"]] == [10.0, 30.0]
    first, second = server.batch(*shapes, policy="cuda.graph").json()["answers"]
    assert (first["time_us"], second["match"]) == (10.0, "none")
    assert [a["time_us"] for a in server.batch(*shapes, policy="cuda.eager").json()["answers"]] == [20.0, 30.0]


@pytest.mark.parametrize("policy", ["", "cuda", "cuda.grpah", "CUDA.GRAPH", "x" * 500, "cuda.graph&policy=cuda.eager"])
def test_a_policy_that_there_is_not_is_refused(tuned: Store, serve: Serve, policy: str):
    server = serve(tuned)
    assert_problem(server.get(f"/v1/best-config?shape={SHAPE}&policy={policy}"), 422, "invalid-input")
    assert_problem(server.batch(SHAPE, policy=policy), 422, "invalid-input")
    assert_problem(server.get(f"/v1/winners?policy={policy}"), 422, "invalid-input")


def test_winners_are_listed_by_policy(tuned: Store, serve: Serve):
    server = serve(tuned)
    assert [w["time_us"] for w in server.get("/v1/winners").json()["items"]] == [10.0, 20.0, 30.0]
    assert [w["time_us"] for w in server.get("/v1/winners", policy="cuda.eager").json()["items"]] == [20.0, 30.0]
    assert server.get("/v1/winners", policy="cpu.warm").json()["items"] == []


def test_an_index_that_follows_the_store_has_one_of_each_policy(tuned: Store):
    index = followed(WinnerIndex(), tuned)
    assert index.size == 3
    run_id = tuned.runs()[0].id
    tuned.add_winner(new_winner(run_id, SHAPE, HERE, time_us=19.0, policy="cuda.eager"))
    index = followed(index, tuned)
    assert index.size == 3
    result = ask(index, HERE, "cuda.eager")
    assert isinstance(result, Answer)
    assert '"time_us":19.0' in result.tuned.text


def test_from_the_command_line(tuned: Store, capsys: pytest.CaptureFixture[str]):
    database = tuned.url.removeprefix("sqlite:///")
    for more, found in (([], '"time_us": 10.0'), (["--policy", "cuda.eager"], '"time_us": 20.0')):
        assert run(["best", "--shape", SHAPE, "--db", database, "--json", *more]) == 0
        assert found in capsys.readouterr().out
    assert run(["best", "--shape", SHAPE, "--db", database, "--policy", "cpu.warm"]) == 3
    assert "not under cpu.warm" in capsys.readouterr().out
    assert run(["best", "--shape", SHAPE, "--db", database, "--policy", "fast"]) == 2
