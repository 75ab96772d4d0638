"""Roofs are measured once, in another process, and a card where that fails is tuned without them."""

from __future__ import annotations

from datetime import UTC, datetime

from fp4tune.db.records import Roofs
from fp4tune.db.store import Store
from fp4tune.kernels.device import Device, Environment, detect
from fp4tune.tuner.known_roofs import RoofMeter, known_roofs
from fp4tune.tuner.workers.process import WorkerProcess

CARD = Environment(Device("cuda", "No Card", "9.0", 132, 140 << 30, 50 << 20, 0.0, index=4095), {"torch": "0"})
ROOFS = Roofs(4.2e12, 7.5e14, datetime(2026, 11, 2, tzinfo=UTC))


def test_roofs_that_are_known_are_not_measured_again(tmp_path):
    told = []
    with Store.open(tmp_path / "t.db") as store:
        store.set_roofs(CARD, ROOFS)
        assert known_roofs(store, CARD, tell=told.append) == ROOFS
    assert not told


def test_a_card_that_cannot_be_measured_has_no_roofs(tmp_path):
    """Device 4095 exists nowhere, so the worker fails for real."""
    told = []
    with Store.open(tmp_path / "t.db") as store:
        assert known_roofs(store, CARD, tell=told.append) is None
        assert store.roofs(CARD) is None
    assert "once per environment" in told[0]
    assert "there are no shares of them: The worker that measures the roofs failed in measure: " in told[1]


def test_a_cpu_has_none(tmp_path):
    with Store.open(tmp_path / "t.db") as store:
        assert known_roofs(store, Environment(detect("cpu"), {})) is None


def test_a_worker_measures():
    worker = WorkerProcess("The worker that measures the roofs")
    try:
        worker.start(f"{RoofMeter.__module__}:RoofMeter", [detect("cpu")], deadline_s=120)
        found = worker.request("measure", deadline_s=120)
    finally:
        worker.kill()
    assert found.copy_bytes_per_s > 0
    assert found.bf16_flops_per_s > 0
