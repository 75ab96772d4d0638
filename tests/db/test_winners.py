"""Winners: superseding, history, filters, the generation and the feed of changes; on both databases."""

from __future__ import annotations

import itertools
import json
import random
import threading
from dataclasses import replace

import pytest
from fp4tune.db import Store
from fp4tune.db.records import Choice, Page, Winner, WinnerEntry, WinnerFilter
from fp4tune.kernels.backend import config_key
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from store_factory import (
    CARD,
    CONDITIONS,
    FACTS,
    GROUPED,
    LARGE,
    ON_CARD,
    ON_CPU,
    SMALL,
    Clock,
    choice,
    measured_on_a_card,
    new_run,
    new_winner,
)

EVER = WinnerFilter(current=None)


@pytest.fixture
def run_id(store: Store) -> str:
    return store.create_run(new_run())


def test_a_winner_comes_back_as_it_was(store: Store, run_id: str, clock: Clock):
    new = new_winner(run_id, problem=GROUPED)
    id_ = store.add_winner(new)
    assert store.winners() == Page(
        [
            Winner(
                id_, run_id, GROUPED, ON_CARD, new.choice, new.default, new.tie_set, new.depends_on, new.n_trials,
                new.policy, new.source, created_at=clock.now, superseded_at=None,
            )
        ]
    )  # fmt: skip
    assert store.winners().items[0].speedup == 1.5


def test_a_new_winner_supersedes_and_the_old_one_stays_in_the_history(store: Store, run_id: str, clock: Clock):
    first = store.add_winner(new_winner(run_id))
    (before,) = store.winners().items
    now = clock.advance(10)
    second = store.add_winner(new_winner(run_id, choice=choice(9.0)))
    assert second > first
    (served,) = store.winners().items
    assert (served.id, served.choice.time_us, served.created_at) == (second, 9.0, now)
    assert store.winners(WinnerFilter(current=False)).items == [replace(before, superseded_at=now)]
    assert [w.id for w in store.winners(EVER).items] == [first, second]


def test_other_problems_and_environments_are_not_superseded(store: Store, run_id: str):
    ids = store.add_winners(
        [new_winner(run_id), new_winner(run_id, problem=LARGE), new_winner(run_id, environment=ON_CPU)]
    )
    assert [w.id for w in store.winners().items] == ids


def test_a_winner_of_one_policy_never_supersedes_one_of_another(store: Store, run_id: str, clock: Clock):
    eager, warm = store.add_winners([new_winner(run_id, policy="cuda.eager"), new_winner(run_id, policy="cpu.warm")])
    clock.advance(1)
    graph, again = store.add_winners([new_winner(run_id, policy="cuda.graph"), new_winner(run_id, policy="cuda.eager")])
    assert [(w.id, w.policy) for w in store.winners().items] == [
        (warm, "cpu.warm"), (graph, "cuda.graph"), (again, "cuda.eager"),
    ]  # fmt: skip
    assert [(w.id, w.superseded_at) for w in store.winners(WinnerFilter(current=False)).items] == [(eager, clock.now)]
    for policy, id_ in (("cpu.warm", warm), ("cuda.graph", graph), ("cuda.eager", again)):
        where = {"problem_key": SMALL.key, "environment_fingerprint": ON_CARD.fingerprint, "policy": policy}
        assert [w.id for w in store.winners(WinnerFilter(**where)).items] == [id_]
        assert [w.id for w in store.winners(WinnerFilter(policy=policy)).items] == [id_]
    assert [entry.id for entry in store.winner_changes()] == [warm, graph, again]


def test_a_winner_says_what_the_trial_that_measured_it_says(store: Store, run_id: str):
    store.add_winners([new_winner(run_id, trial_number=7), new_winner(run_id, trial_number=8, problem=LARGE)])
    store.add_trials([measured_on_a_card(run_id, 7), measured_on_a_card(run_id, 7, problem=GROUPED)])
    with_trial, without = store.winners().items
    assert (with_trial.compile_s, with_trial.conditions, with_trial.roof_share, with_trial.facts) == (
        2.5, CONDITIONS, 0.625, FACTS,
    )  # fmt: skip
    assert (without.compile_s, without.conditions, without.roof_share, without.facts) == (None,) * 4


def test_of_several_in_one_call_the_last_is_served(store: Store, run_id: str):
    old = store.add_winner(new_winner(run_id))
    batch = [new_winner(run_id, choice=choice(float(t)), problem=p) for t in (9, 8, 7) for p in (SMALL, LARGE)]
    ids = store.add_winners(batch)
    assert ids == sorted(ids)
    assert [(w.id, w.choice.time_us) for w in store.winners().items] == [(ids[4], 7.0), (ids[5], 7.0)]
    assert [w.id for w in store.winners(WinnerFilter(current=False)).items] == [old, *ids[:4]]


def test_a_bad_winner_in_a_batch_and_nothing_is_stored_or_superseded(store: Store, run_id: str):
    old = store.add_winner(new_winner(run_id))
    generation = store.generation()
    bad_choice = Choice("b", {}, 10.0, 11.0, 12.0)
    for bad in (
        new_winner(run_id, choice=bad_choice),
        new_winner(run_id, default=replace(bad_choice, time_us=float("nan"))),
        new_winner(run_id, tie_set=[bad_choice]),
        new_winner(run_id, choice=choice(x=float("inf"))),
    ):
        with pytest.raises(InvalidInputError):
            store.add_winners([new_winner(run_id), bad])
    with pytest.raises(NotFoundError):
        store.add_winners([new_winner(run_id), new_winner("01ARZ3NDEKTSV4RRFFQ69G5FAV")])
    assert [w.id for w in store.winners(EVER).items] == [old]
    assert store.generation() == generation


def test_the_generation_moves_with_what_is_served_and_with_nothing_else(store: Store, run_id: str):
    seen = [store.generation()]
    store.add_winner(new_winner(run_id))
    seen.append(store.generation())
    store.add_winners([new_winner(run_id, problem=LARGE), new_winner(run_id)])
    seen.append(store.generation())
    assert seen == sorted(set(seen))
    store.create_run(new_run())
    store.heartbeat(run_id)
    assert store.add_winners([]) == []
    assert store.generation() == seen[-1]


def test_every_filter_alone_and_all_pairs_agree_with_filtering_by_hand(store: Store, run_id: str):
    other = store.create_run(new_run(environment=ON_CPU))
    for _ in range(2):
        for run, environment in ((run_id, ON_CARD), (other, ON_CPU)):
            for problem in (SMALL, LARGE):
                for backend in ("triton.native", "cpu.dequant"):
                    where = {"environment": environment, "problem": problem}
                    store.add_winner(new_winner(run, choice=choice(backend=backend), **where))
                store.add_winner(new_winner(run, policy="cuda.graph", **where))
    everything = store.winners(EVER).items
    assert len(everything) == 24
    filters = {
        "run_id": (run_id, lambda w: w.run_id),
        "problem_key": (LARGE.key, lambda w: w.problem.key),
        "backend": ("cpu.dequant", lambda w: w.choice.backend),
        "environment_fingerprint": (ON_CARD.fingerprint, lambda w: w.environment.fingerprint),
        "device_fingerprint": (CARD.fingerprint, lambda w: w.environment.device.fingerprint),
        "policy": ("cuda.graph", lambda w: w.policy),
    }
    for current, names in itertools.product((True, False, None), itertools.combinations_with_replacement(filters, 2)):
        given = {name: filters[name][0] for name in names}
        wanted = [
            w
            for w in everything
            if all(filters[name][1](w) == value for name, value in given.items())
            and current in (None, w.superseded_at is None)
        ]
        assert store.winners(WinnerFilter(**given, current=current)).items == wanted, (given, current)


def test_pages_cover_everything_once(store: Store, run_id: str):
    ids = store.add_winners([new_winner(run_id, problem=replace(SMALL, m=m)) for m in range(1, 11)])
    seen, after = [], 0
    while after is not None:
        page = store.winners(limit=4, after=after)
        seen += [winner.id for winner in page.items]
        after = page.next_after
    assert seen == ids


def test_an_entry_says_what_the_winner_says(store: Store, run_id: str):
    id_ = store.add_winner(new_winner(run_id, problem=GROUPED))
    (winner,) = store.winners().items
    (entry,) = store.winner_changes()
    assert entry == WinnerEntry(
        id_, GROUPED, GROUPED.key, CARD.fingerprint, ON_CARD.fingerprint, run_id,
        winner.choice.backend, config_key(winner.choice.config),
        winner.choice.time_us, winner.choice.time_us_low, winner.choice.time_us_high,
        winner.default.backend, config_key(winner.default.config),
        winner.default.time_us, winner.default.time_us_low, winner.default.time_us_high,
        len(winner.tie_set), json.dumps(winner.depends_on, separators=(",", ":")), winner.n_trials, winner.policy,
        winner.source.value, winner.created_at,
    )  # fmt: skip


def apply(index: dict[tuple[str, str], WinnerEntry], store: Store, batch: int) -> None:
    """Bring an index up to date, as the contract says."""
    after = max((entry.id for entry in index.values()), default=0)
    for entries in store.winners_for_index(after_id=after, batch=batch):
        index.update({(entry.problem_key, entry.environment_fingerprint): entry for entry in entries})


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_an_index_that_follows_the_changes_equals_what_is_served(store: Store, run_id: str, batch: int):
    draw = random.Random(batch)
    index: dict[tuple[str, str], WinnerEntry] = {}
    for _ in range(12):
        problems = [replace(SMALL, m=draw.randint(1, 6)) for _ in range(draw.randint(0, 4))]
        store.add_winners([new_winner(run_id, problem=problem) for problem in problems])
        if draw.random() < 0.6:
            apply(index, store, batch)
    apply(index, store, batch)
    assert sorted(entry.id for entry in index.values()) == [w.id for w in store.winners().items]
    assert store.winner_changes(max(entry.id for entry in index.values())) == []


def test_an_index_misses_nothing_while_several_writers_add(store: Store, url: str, run_id: str):
    """Ids must become visible in order. Writers on connections of their own; the index is updated all the while."""
    n_writers, n_each = 4, 25
    errors: list[BaseException] = []

    def write(seed: int) -> None:
        draw = random.Random(seed)
        try:
            with Store.open(url, mode="write") as own:
                for _ in range(n_each):
                    problems = [replace(SMALL, m=draw.randint(1, 40)) for _ in range(draw.randint(1, 3))]
                    own.add_winners([new_winner(run_id, problem=problem) for problem in problems])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(n_writers)]
    generation = store.generation()
    for thread in threads:
        thread.start()
    index: dict[tuple[str, str], WinnerEntry] = {}
    updates = 0
    while any(thread.is_alive() for thread in threads):
        apply(index, store, 7)
        updates += 1
    for thread in threads:
        thread.join()
    assert not errors
    apply(index, store, 7)
    assert updates > 3, "the index was not read while writers wrote"
    assert sorted(entry.id for entry in index.values()) == [w.id for w in store.winners(limit=1000).items]
    assert store.generation() == generation + n_writers * n_each
