"""Devices and environments with sums that no trial is read for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from dashboard_stores import ODD_NUMBERS, ODD_WHOLE_NUMBERS, analyze, million, odd, orphans, twins
from fp4tune.db import Store
from fp4tune.db.dashboard.places import DeviceNames, DevicesSeen, EnvironmentNames, EnvironmentsSeen
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from query_plans import plans
from store_factory import CARD, CPU, LARGE, ON_CARD, ON_CPU, ROOFS, START, Clock, new_run, new_trial, new_winner


def test_an_empty_store_has_none(store: Store):
    for question in (DevicesSeen(), EnvironmentsSeen(), DeviceNames(), EnvironmentNames()):
        assert store.ask(question) == []


def test_what_is_not_stored_is_not_found(store: Store):
    with pytest.raises(NotFoundError, match="no device"):
        store.ask(EnvironmentsSeen(device="0" * 16))
    with pytest.raises(NotFoundError, match="no device"):
        store.ask(DeviceNames("0" * 16))
    with pytest.raises(NotFoundError, match="no environment"):
        store.ask(EnvironmentNames("0" * 16))
    assert store.ask(EnvironmentsSeen(environment="0" * 16)) == []
    with pytest.raises(InvalidInputError, match="limit"):
        store.ask(DevicesSeen(limit=0))


def test_sums_over_environments_and_devices(store: Store, clock: Clock):
    newer = replace(ON_CARD, versions={**ON_CARD.versions, "torch": "2.13.0"})
    first = store.create_run(new_run(pid=os.getpid()))
    store.add_trials([new_trial(first, n) for n in range(3)])
    store.add_winners([new_winner(first), new_winner(first), new_winner(first, problem=LARGE)])
    clock.advance(60)
    second = store.create_run(new_run(environment=newer))
    store.add_trials([new_trial(second, n, environment=newer) for n in range(5)])
    store.create_run(new_run(environment=ON_CPU))
    store.set_roofs(ON_CARD, ROOFS)

    cpu, card = store.ask(DevicesSeen())
    assert (cpu.device, cpu.measured.n_trials, cpu.n_environments) == (CPU, 0, 1)
    assert (card.device, card.fingerprint, card.since, card.n_environments) == (CARD, CARD.fingerprint, START, 2)
    measured = card.measured
    assert (measured.n_trials, measured.n_winners, measured.latest_run, measured.latest_run_at) == (
        8,
        2,
        second,
        clock.now,
    )

    found = store.ask(EnvironmentsSeen())
    assert [one.environment for one in found] == [ON_CPU, newer, ON_CARD]
    assert [(one.measured.n_trials, one.measured.n_winners) for one in found] == [(0, 0), (5, 0), (3, 2)]
    assert [one.roofs for one in found] == [None, None, ROOFS]
    assert found[2].measured.latest_run == first
    assert [one.fingerprint for one in store.ask(EnvironmentsSeen(CARD.fingerprint))] == [
        newer.fingerprint, ON_CARD.fingerprint,
    ]  # fmt: skip
    assert store.ask(EnvironmentsSeen(environment=ON_CARD.fingerprint)) == found[2:]
    assert store.ask(EnvironmentsSeen(CPU.fingerprint, ON_CARD.fingerprint)) == []


def test_names_have_the_chosen_one_however_old(store: Store):
    for n in range(4):
        store.create_run(new_run(environment=replace(ON_CARD, versions={"driver": str(n)})))
    oldest = replace(ON_CARD, versions={"driver": "0"})
    assert [one.versions["driver"] for _, one in store.ask(EnvironmentNames(limit=2))] == ["3", "2"]
    found = store.ask(EnvironmentNames(oldest.fingerprint, limit=2))
    assert [one.versions["driver"] for _, one in found] == ["3", "2", "0"]
    store.create_run(new_run(environment=ON_CPU))
    assert store.ask(DeviceNames(CARD.fingerprint, limit=1)) == [(CPU.fingerprint, CPU), (CARD.fingerprint, CARD)]


def test_two_devices_of_one_name_are_two(tmp_path: Path):
    twins(tmp_path / "a.db")
    with Store.open(tmp_path / "a.db", mode="read") as store:
        one, other = store.ask(DevicesSeen())
        assert one.device.name == other.device.name
        assert one.fingerprint != other.fingerprint
        assert (one.measured.n_trials, other.measured.n_trials) == (10, 10)


@pytest.mark.parametrize("number", [*ODD_NUMBERS.values(), *ODD_WHOLE_NUMBERS.values()])
def test_odd_numbers_come_through(tmp_path: Path, number: float):
    odd(tmp_path / "a.db", number)
    with Store.open(tmp_path / "a.db", mode="read") as store:
        assert store.ask(DevicesSeen())
        assert store.ask(EnvironmentsSeen())


@pytest.mark.parametrize("table", ["devices", "environments", "runs"])
def test_what_is_lost_is_left_out(tmp_path: Path, table: str):
    orphans(tmp_path / "a.db", table)
    with Store.open(tmp_path / "a.db", mode="read") as store:
        assert bool(store.ask(DevicesSeen())) == (table != "devices")
        assert bool(store.ask(EnvironmentsSeen())) == (table == "runs")


@pytest.mark.parametrize("analyzed", [False, True])
def test_no_question_reads_trials(tmp_path: Path, analyzed: bool):
    big = million(tmp_path / "a.db", 20_000)
    if analyzed:
        analyze(big.path)
    with Store.open(big.path, mode="read") as store:
        device, environment = big.main.device.fingerprint, big.main.fingerprint
        for question in (
            DevicesSeen(), EnvironmentsSeen(), EnvironmentsSeen(device, environment), DeviceNames(device),
            EnvironmentNames(environment),
        ):  # fmt: skip
            for plan in plans(store, lambda question=question: store.ask(question)):
                assert "trials" not in plan, plan
