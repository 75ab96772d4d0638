"""Roofs: one for each environment, the last that were measured; on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fp4tune.db import Store
from fp4tune.kernels.errors import StoreError
from store_factory import ON_CARD, ON_CPU, ROOFS, START, Clock


def test_none_were_measured(store: Store):
    assert store.roofs(ON_CARD) is None


def test_the_last_ones_stay_each_in_its_environment(store: Store, clock: Clock):
    store.set_roofs(ON_CARD, ROOFS)
    assert store.roofs(ON_CARD) == ROOFS
    assert store.roofs(ON_CPU) is None
    later = replace(ROOFS, copy_bytes_per_s=4.0e12, measured_at=clock.advance(10))
    store.set_roofs(ON_CPU, ROOFS)
    store.set_roofs(ON_CARD, later)
    assert (store.roofs(ON_CARD), store.roofs(ON_CPU)) == (later, ROOFS)
    store.set_roofs(ON_CARD, ROOFS)
    assert store.roofs(ON_CARD) == ROOFS, "what is measured now counts, whatever the clock said then"


def test_their_environment_is_stored_with_them(store: Store):
    store.set_roofs(ON_CARD, ROOFS)
    (stored,) = store.environments()
    assert (stored.environment.fingerprint, stored.created_at) == (ON_CARD.fingerprint, START)


def test_a_store_for_reading_takes_none(store: Store, url: str):
    store.set_roofs(ON_CARD, ROOFS)
    with Store.open(url, mode="read") as reader:
        with pytest.raises(StoreError, match="for reading only"):
            reader.set_roofs(ON_CARD, ROOFS)
        assert reader.roofs(ON_CARD) == ROOFS
