"""Ids of runs: ULIDs that grow strictly."""

from __future__ import annotations

import threading
from datetime import timedelta

from fp4tune.db import ids
from hypothesis import given
from hypothesis import strategies as st
from store_factory import START


def test_an_id_has_the_time_in_its_first_ten_characters():
    """The example of the ULID specification: 1469918176385 ms is 01ARYZ6S41."""
    moment = START.fromtimestamp(1469918176.385, tz=START.tzinfo)
    assert ids.UlidSource(lambda bits: 0).next(moment) == "01ARYZ6S41" + "0" * 16
    assert ids.UlidSource(lambda bits: (1 << bits) - 1).next(moment) == "01ARYZ6S41" + "Z" * 16


@given(steps=st.lists(st.integers(-5000, 5000), min_size=1, max_size=30))
def test_ids_grow_strictly_whatever_the_clock_does(steps: list[int]):
    source, now = ids.UlidSource(), START
    made = []
    for step in steps:
        now += timedelta(milliseconds=step)
        made.append(source.next(now))
    assert made == sorted(set(made))
    assert all(len(id_) == ids.LENGTH and set(id_) <= set(ids.ALPHABET) for id_ in made)


def test_ids_grow_past_the_end_of_a_millisecond():
    source = ids.UlidSource(lambda bits: (1 << bits) - 1)
    first, second = source.next(START), source.next(START)
    assert first < second
    assert source.next(START + timedelta(milliseconds=1)) > second


def test_threads_get_different_ids():
    source = ids.UlidSource()
    made: list[str] = []

    def work() -> None:
        made.extend([source.next(START) for _ in range(500)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8 * 500
