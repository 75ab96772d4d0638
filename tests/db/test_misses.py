"""Misses: counts that add up, caps that hold, and forgetting; on both databases."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from fp4tune.db import Store, misses
from fp4tune.db.records import Miss
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.kernels.problem import Format, OutDtype, Problem, Routing
from store_factory import CARD, CPU, GROUPED, LARGE, ON_CARD, ON_CPU, SMALL, START, miss

LATER = START + timedelta(hours=1)


def shapes(n: int, start: int = 1) -> list[Miss]:
    return [miss(replace(SMALL, m=m)) for m in range(start, start + n)]


def test_a_miss_comes_back_as_it_was(store: Store):
    odd = replace(GROUPED, experts=64, routing=Routing.POWER_LAW, format=Format.NVFP4_W4A16, out_dtype=OutDtype.FP32)
    new = miss(odd, count=3, last_at=LATER)
    assert store.add_misses([new]) == 0
    assert store.misses() == [new]


def test_counts_add_up_and_the_times_widen(store: Store):
    store.add_misses([miss(count=2, first_at=START, last_at=START)])
    store.add_misses([miss(count=3, first_at=LATER, last_at=LATER)])
    store.add_misses([miss(count=4, first_at=START - timedelta(1), last_at=START - timedelta(1))])
    assert store.misses() == [miss(count=9, first_at=START - timedelta(1), last_at=LATER)]


def test_the_same_question_twice_in_a_call_adds_up(store: Store):
    store.add_misses([miss(count=2, last_at=LATER), miss(LARGE), miss(count=5, first_at=START - timedelta(1))])
    assert store.misses() == [miss(count=7, first_at=START - timedelta(1), last_at=LATER), miss(LARGE)]


def test_most_asked_first_and_by_device_and_environment(store: Store):
    named_none = miss(count=1, device_fingerprint="", environment_fingerprint="")
    on_cpu = miss(count=5, device_fingerprint=CPU.fingerprint, environment_fingerprint=ON_CPU.fingerprint)
    on_card = [miss(count=3), miss(LARGE, count=9)]
    store.add_misses([named_none, on_cpu, *on_card])
    assert store.misses() == [on_card[1], on_cpu, on_card[0], named_none]
    assert store.misses(limit=2) == [on_card[1], on_cpu]
    assert store.misses(device_fingerprint=CPU.fingerprint) == [on_cpu]
    assert store.misses(environment_fingerprint=ON_CARD.fingerprint) == [on_card[1], on_card[0]]
    assert store.misses(device_fingerprint="") == [named_none]
    assert store.misses(device_fingerprint=CPU.fingerprint, environment_fingerprint=ON_CARD.fingerprint) == []


def test_at_the_cap_known_shapes_go_on_counting_and_new_ones_are_dropped(store: Store):
    assert store.add_misses(shapes(3), cap=3) == 0
    assert store.add_misses([*shapes(3), *shapes(2, start=100)], cap=3) == 2
    assert [(m.problem.m, m.count) for m in store.misses()] == [(1, 2), (2, 2), (3, 2)]


def test_a_batch_that_crosses_the_cap_keeps_its_first(store: Store):
    assert store.add_misses(shapes(5), cap=3) == 2
    assert sorted(m.problem.m for m in store.misses()) == [1, 2, 3]


def test_the_cap_counts_for_each_device_and_environment(store: Store):
    assert store.add_misses(shapes(2), cap=2) == 0
    others = [replace(m, device_fingerprint=CPU.fingerprint) for m in shapes(3)]
    assert store.add_misses(others, cap=2) == 1
    assert len(store.misses()) == 4


def test_there_is_a_cap_on_all_together(store: Store, monkeypatch: pytest.MonkeyPatch):
    """Names of devices and environments cannot make the table grow without end either."""
    monkeypatch.setattr(misses, "TOTAL_CAP", 4)
    assert store.add_misses([miss(environment_fingerprint=str(i)) for i in range(10)]) == 6
    assert store.add_misses([miss(environment_fingerprint="0"), miss(environment_fingerprint="99")]) == 1
    assert sum(m.count for m in store.misses()) == 5


def test_nothing_new_is_kept_with_a_cap_of_zero(store: Store):
    assert store.add_misses(shapes(3), cap=0) == 3
    assert store.misses() == []


def test_counts_stop_far_below_overflow(store: Store):
    for _ in range(3):
        store.add_misses([miss(count=(1 << 63) - 1)])
    assert store.misses()[0].count == misses.MAX_COUNT


def test_forgetting(store: Store):
    on_cpu = miss(device_fingerprint=CPU.fingerprint)
    elsewhere = miss(environment_fingerprint="other")
    store.add_misses([*shapes(3), miss(SMALL), on_cpu, elsewhere])
    store.forget_misses([SMALL.key, replace(SMALL, m=2).key, LARGE.key], device_fingerprint=CARD.fingerprint)
    assert {(m.problem.m, m.device_fingerprint) for m in store.misses()} == {
        (1, CARD.fingerprint), (3, CARD.fingerprint), (SMALL.m, CPU.fingerprint)
    }  # fmt: skip
    store.forget_misses([], device_fingerprint=CARD.fingerprint)
    assert len(store.misses()) == 3


def test_forgotten_makes_room(store: Store):
    store.add_misses(shapes(2), cap=2)
    store.forget_misses([replace(SMALL, m=1).key], device_fingerprint=CARD.fingerprint)
    assert store.add_misses(shapes(1, start=50), cap=2) == 0


def test_misses_do_not_fill_the_table_of_problems(store: Store):
    store.add_misses(shapes(3))
    with store._reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM problems").scalar_one() == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"count": 0},
        {"count": -1},
        {"count": 1 << 63},
        {"count": 1.5},
        {"device_fingerprint": "x" * 65},
        {"environment_fingerprint": "a\x00"},
        {"device_fingerprint": "\udc80"},
        {"first_at": START.replace(tzinfo=None), "last_at": START.replace(tzinfo=None)},
    ],
)
def test_what_cannot_be_a_miss_is_refused(store: Store, bad: dict[str, object]):
    with pytest.raises(InvalidInputError):
        store.add_misses([miss(LARGE), miss(**bad)])
    assert store.misses() == []


def test_bad_arguments_are_refused(store: Store):
    with pytest.raises(InvalidInputError, match="cap"):
        store.add_misses([miss()], cap=-1)
    with pytest.raises(InvalidInputError, match="limit"):
        store.misses(limit=0)
    with pytest.raises(InvalidInputError):
        store.forget_misses(["a\x00"], device_fingerprint="")


def test_the_cap_holds_and_nothing_is_lost_with_several_writers(store: Store):
    errors: list[BaseException] = []
    dropped = []

    def write(start: int) -> None:
        try:
            for m in range(start, start + 30):
                batch = [miss(Problem(m, 64, 64)), miss(SMALL)]
                dropped.append(store.add_misses(batch, cap=21))
        except BaseException as error:
            errors.append(error)

    store.add_misses([miss(SMALL)])
    threads = [threading.Thread(target=write, args=(1000 * i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    stored = store.misses()
    assert len(stored) == 21
    assert sum(dropped) == 4 * 30 - 20
    assert stored[0] == miss(SMALL, count=4 * 30 + 1)
