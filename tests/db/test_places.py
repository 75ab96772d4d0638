"""Devices and environments: stored once, found again by fingerprint; on both databases."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from fp4tune.db import Store
from fp4tune.db.records import StoredEnvironment
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from store_factory import CARD, CPU, LARGE, ON_CARD, ON_CPU, SMALL, START, Clock, new_run, new_trial, new_winner


def test_nothing_is_known_at_first(store: Store):
    assert (store.devices(), store.environments(), store.runs(), store.misses()) == ([], [], [], [])
    assert store.trials().items == store.winners().items == store.winner_changes() == []


def test_devices_and_environments_are_stored_once(store: Store, clock: Clock):
    newer = replace(ON_CARD, versions={**ON_CARD.versions, "torch": "2.13.0"})
    for environment in (ON_CARD, newer, ON_CARD, ON_CPU):
        store.create_run(new_run(environment=environment))
        clock.advance(60)
    assert store.devices() == [(CARD, START), (CPU, clock.now.replace(minute=3))]
    assert [e.environment for e in store.environments()] == [ON_CARD, newer, ON_CPU]
    assert [e.created_at.minute for e in store.environments()] == [0, 1, 3]


def test_an_environment_is_found_by_its_fingerprint(store: Store):
    store.create_run(new_run())
    found = store.environment(ON_CARD.fingerprint)
    assert found == ON_CARD
    assert found.fingerprint == ON_CARD.fingerprint


@pytest.mark.parametrize("fingerprint", ["", "0" * 16])
def test_an_unknown_environment_is_not_found(store: Store, fingerprint: str):
    with pytest.raises(NotFoundError, match=f"no environment '{fingerprint}'"):
        store.environment(fingerprint)


def test_environments_say_what_was_measured_in_them(store: Store):
    run_id = store.create_run(new_run())
    store.add_trials([new_trial(run_id, n) for n in range(3)] + [new_trial(run_id, environment=ON_CPU, number=3)])
    store.add_winners([new_winner(run_id), new_winner(run_id), new_winner(run_id, problem=LARGE)])
    assert store.environments() == [
        StoredEnvironment(ON_CARD, START, n_trials=3, n_winners=2),
        StoredEnvironment(ON_CPU, START, n_trials=1, n_winners=0),
    ]


def test_the_ordinal_of_a_device_is_not_stored(store: Store):
    environment = Environment(replace(CARD, index=3), ON_CARD.versions)
    store.create_run(new_run(environment=environment))
    assert store.environment(environment.fingerprint).device == CARD


@pytest.mark.parametrize(
    "change",
    [
        {"power_limit_w": 600},  # read back as 600.0, which has another fingerprint
        {"power_limit_w": float("nan")},
        {"power_limit_w": float("inf")},
        {"memory_bytes": 1 << 63},
        {"sms": 1.5},
        {"name": "x" * 256},
        {"name": "Card\x00"},
        {"name": "Card\udc80"},
        {"kind": "k" * 33},
    ],
)
def test_a_device_that_would_come_back_as_another_is_refused(store: Store, change: dict[str, object]):
    with pytest.raises(InvalidInputError):
        store.create_run(new_run(environment=Environment(replace(CARD, **change), {})))
    assert store.devices() == []
    assert store.runs() == []


@pytest.mark.parametrize(
    "versions", [{"torch": None}, {"torch": 2}, {"a\x00": "1"}, {"torch": "2\ud800"}, {"t": "x" * 256}]
)
def test_versions_that_cannot_be_stored_are_refused(store: Store, versions: dict[str, str]):
    with pytest.raises(InvalidInputError):
        store.create_run(new_run(environment=Environment(CARD, versions)))


def test_many_threads_that_store_the_same_places_at_once(url: str):
    """The first to come stores them, the others wait for it; nobody fails, nobody deadlocks."""
    errors: list[BaseException] = []
    start = threading.Barrier(8)
    problems = [replace(SMALL, m=m) for m in range(1, 40)]

    def work(i: int) -> None:
        try:
            with Store.open(url, mode="write") as own:
                start.wait(30)
                run_id = own.create_run(new_run())
                order = problems if i % 2 else problems[::-1]
                own.add_trials([new_trial(run_id, problem=problem) for problem in order])
                own.add_winners([new_winner(run_id, problem=problem) for problem in order])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    with Store.open(url, mode="read") as store:
        assert len(store.devices()) == len(store.environments()) == 1
        assert len(store.winners(limit=1000).items) == len(problems)
        assert len(store.trials(limit=1000).items) == 8 * len(problems)
