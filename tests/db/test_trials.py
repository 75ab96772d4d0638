"""Trials: batches, what a resume writes again, pages and filters; on both databases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from fp4tune.db import Store
from fp4tune.db.records import Conditions, NewTrial, TrialFilter, TrialStatus
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from store_factory import (
    CONDITIONS,
    FACTS,
    GROUPED,
    LARGE,
    ON_CPU,
    SMALL,
    Clock,
    failed_trial,
    measured_on_a_card,
    new_run,
    new_trial,
    timing,
)


@pytest.fixture
def run_id(store: Store) -> str:
    return store.create_run(new_run())


@pytest.mark.parametrize("make", [new_trial, measured_on_a_card])
def test_a_trial_comes_back_as_it_was(store: Store, run_id: str, make: Callable[..., NewTrial]):
    new = make(run_id, problem=GROUPED)
    (id_,) = store.add_trials([new])
    (trial,) = store.trials().items
    assert trial.id == id_
    assert (trial.time_us, trial.time_us_low, trial.time_us_high) == (10.0, 9.8, 10.3)
    assert trial.samples_us == new.timing.samples_us
    assert trial.n_samples == 30
    assert trial.environment_fingerprint == new.environment.fingerprint
    assert trial.device_fingerprint == new.environment.device.fingerprint
    same = {field.name for field in fields(NewTrial)} - {"timing", "environment"}
    assert {name: getattr(trial, name) for name in same} == {name: getattr(new, name) for name in same}
    assert type(trial.config["split_k"]) is bool
    assert type(trial.config["num_stages"]) is int


@pytest.mark.parametrize("status", [status for status in TrialStatus if status is not TrialStatus.OK])
def test_a_failed_trial_comes_back_with_its_class_and_error(store: Store, run_id: str, status: TrialStatus):
    store.add_trials([failed_trial(run_id, status=status)])
    (trial,) = store.trials().items
    assert (trial.status, trial.error) == (status, "illegal memory access")
    assert (trial.time_us, trial.time_us_low, trial.time_us_high) == (None, None, None)
    assert (trial.samples_us, trial.n_samples) == ((), 0)


def test_what_a_card_adds_is_there_in_a_batch_beside_what_has_none(store: Store, run_id: str):
    store.add_trials([new_trial(run_id, 0), measured_on_a_card(run_id, 1), failed_trial(run_id, 2, compile_s=0.5)])
    plain, full, failed = store.trials().items
    assert (plain.compile_s, plain.conditions, plain.roof_share, plain.facts) == (0.0, None, None, None)
    assert (full.compile_s, full.conditions, full.roof_share, full.facts) == (2.5, CONDITIONS, 0.625, FACTS)
    assert (failed.compile_s, failed.conditions, failed.roof_share, failed.facts) == (0.5, None, None, None)


def test_conditions_of_which_nothing_is_known_are_not_none(store: Store, run_id: str):
    store.add_trials([new_trial(run_id, conditions=Conditions(), roof_share=0.0)])
    (trial,) = store.trials().items
    assert (trial.conditions, trial.roof_share) == (Conditions(), 0.0)


def test_throttled_samples_are_those_of_the_samples_that_are_kept(store: Store, run_id: str):
    """Of 512 samples every second is kept, so the throttled ones at even places."""
    slow = (0, 3, 4, 256, 511)
    many = replace(timing(n=512), samples_us=tuple(99.0 if i in slow else 10.0 for i in range(512)))
    store.add_trials([new_trial(run_id, timing=many, conditions=Conditions(throttled_samples=slow))])
    (trial,) = store.trials().items
    assert trial.conditions == Conditions(throttled_samples=(0, 2, 128))
    assert [i for i, sample in enumerate(trial.samples_us) if sample == 99.0] == [0, 2, 128]


def test_no_trials_are_no_work(store: Store):
    assert store.add_trials([]) == []


def test_writing_a_batch_again_changes_nothing_and_gives_the_same_ids(store: Store, run_id: str):
    batch = [new_trial(run_id, n) for n in range(5)]
    ids = store.add_trials(batch)
    before = store.trials().items
    assert store.add_trials(batch) == ids
    assert store.trials().items == before
    assert store.run(run_id).n_trials == 5


def test_a_batch_that_is_partly_there_is_completed(store: Store, run_id: str):
    first = store.add_trials([new_trial(run_id, 1), new_trial(run_id, 3)])
    ids = store.add_trials([new_trial(run_id, n, seed=99) for n in range(5)])
    assert [ids[1], ids[3]] == first
    assert len(set(ids)) == 5
    assert {t.number: t.seed for t in store.trials().items} == {0: 99, 1: 7, 2: 99, 3: 7, 4: 99}
    assert store.run(run_id).n_trials == 5


def test_the_same_trial_twice_in_a_batch_is_stored_once_the_first_time(store: Store, run_id: str):
    ids = store.add_trials([new_trial(run_id, 0, seed=1), new_trial(run_id, 0, seed=2)])
    assert ids[0] == ids[1]
    assert [t.seed for t in store.trials().items] == [1]
    assert store.run(run_id).n_trials == 1


def test_numbers_count_within_a_problem_of_a_run(store: Store, run_id: str):
    other = store.create_run(new_run())
    ids = store.add_trials(
        [new_trial(run_id), new_trial(run_id, problem=LARGE), new_trial(other), new_trial(other, problem=LARGE)]
    )
    assert len(set(ids)) == 4
    assert [store.run(one).n_trials for one in (run_id, other)] == [2, 2]


def test_a_large_batch_gets_an_id_for_each_in_order(store: Store, run_id: str):
    batch = [new_trial(run_id, n, problem=problem) for n in range(700) for problem in (SMALL, LARGE)]
    ids = store.add_trials(batch)
    page = store.trials(limit=10_000)
    stored = {(t.problem, t.number): t.id for t in page.items}
    assert ids == [stored[t.problem, t.number] for t in batch]
    assert page.next_after is None


def test_one_bad_trial_and_nothing_of_the_batch_is_stored(store: Store, run_id: str):
    with pytest.raises(InvalidInputError, match="'x' is nan"):
        store.add_trials([new_trial(run_id, 0), new_trial(run_id, 1, config={"x": float("nan")})])
    with pytest.raises(NotFoundError, match="no run '01ARZ3NDEKTSV4RRFFQ69G5FAV'"):
        store.add_trials([new_trial(run_id, 0), new_trial("01ARZ3NDEKTSV4RRFFQ69G5FAV")])
    assert store.trials().items == []
    assert store.run(run_id).n_trials == 0


def test_adding_trials_is_a_sign_of_life(store: Store, run_id: str, clock: Clock):
    now = clock.advance(100)
    store.add_trials([new_trial(run_id)])
    assert store.run(run_id).heartbeat_at == now


def test_more_samples_than_measured_are_refused(store: Store, run_id: str):
    bad = timing()
    object.__setattr__(bad, "n_samples", 29)
    with pytest.raises(InvalidInputError, match="30 samples out of n_samples = 29"):
        store.add_trials([new_trial(run_id, timing=bad)])


@pytest.mark.parametrize("rel_error", [float("nan"), float("inf"), float("-inf"), None])
def test_a_relative_error_that_is_no_number_is_stored_as_none(store: Store, run_id: str, rel_error: float | None):
    store.add_trials([failed_trial(run_id, status=TrialStatus.WRONG, rel_error=rel_error)])
    assert store.trials().items[0].rel_error is None


def test_pages_cover_everything_once(store: Store, run_id: str):
    ids = store.add_trials([new_trial(run_id, n) for n in range(10)])
    seen, after = [], 0
    sizes = []
    while after is not None:
        page = store.trials(limit=4, after=after)
        seen += [trial.id for trial in page.items]
        sizes.append(len(page.items))
        after = page.next_after
    assert (seen, sizes) == (ids, [4, 4, 2])
    assert store.trials(limit=10).next_after is None, "a full last page says that it is the last"
    assert store.trials(after=ids[-1]).items == []


def test_every_filter_alone_and_all_pairs_agree_with_filtering_by_hand(store: Store, run_id: str):
    other = store.create_run(new_run(environment=ON_CPU))
    batch = []
    for run in (run_id, other):
        for problem in (SMALL, GROUPED):
            for number, backend in enumerate(("triton.native", "cpu.dequant")):
                where = {"problem": problem, "backend": backend}
                environment = new_run().environment if run == run_id else ON_CPU
                batch.append(new_trial(run, 2 * number, environment=environment, **where))
                batch.append(failed_trial(run, 2 * number + 1, environment=environment, **where))
    store.add_trials(batch)
    everything = store.trials().items
    assert len(everything) == 16
    filters = {
        "run_id": run_id,
        "problem_key": GROUPED.key,
        "backend": "cpu.dequant",
        "status": TrialStatus.CRASHED,
        "environment_fingerprint": ON_CPU.fingerprint,
        "device_fingerprint": ON_CPU.device.fingerprint,
    }
    for given in map(dict, itertools.combinations_with_replacement(filters.items(), 2)):
        wanted = [
            t
            for t in everything
            if all((t.problem.key if key == "problem_key" else getattr(t, key)) == v for key, v in given.items())
        ]
        assert store.trials(TrialFilter(**given)).items == wanted, given
    assert store.trials(TrialFilter(status=TrialStatus.OK)).items == [t for t in everything if t.status == "ok"]


@pytest.mark.parametrize(
    "nothing",
    [
        {"run_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"},
        {"problem_key": "dense:1x1x16:uniform:nvfp4:bf16"},
        {"backend": "no.such"},
        {"environment_fingerprint": "0" * 16},
        {"device_fingerprint": ""},
    ],
)
def test_a_filter_that_matches_nothing_gives_an_empty_page(store: Store, run_id: str, nothing: dict[str, str]):
    store.add_trials([new_trial(run_id)])
    page = store.trials(TrialFilter(**nothing))
    assert (page.items, page.next_after) == ([], None)


@pytest.mark.parametrize(
    ("limit", "after"), [(0, 0), (-1, 0), (10_001, 0), (10, -1), (10, 1 << 63), (1 << 70, 0), (2.5, 0), (10, None)]
)
def test_a_page_that_cannot_be_is_refused(store: Store, limit: int, after: int):
    with pytest.raises(InvalidInputError):
        store.trials(limit=limit, after=after)


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 10_000])
def test_a_filter_that_no_database_could_hold_is_refused(store: Store, text: str):
    for name in ("run_id", "problem_key", "backend", "environment_fingerprint", "device_fingerprint"):
        with pytest.raises(InvalidInputError):
            store.trials(TrialFilter(**{name: text}))
