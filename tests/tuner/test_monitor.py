"""NVML around samples, against its bindings as an object: there is no card here to ask."""

# ruff: noqa: N802 - NVML's names

from __future__ import annotations

import sys

import pytest
from fp4tune.db.records import Conditions
from fp4tune.kernels.device import Device, detect
from fp4tune.tuner import monitor as module
from fp4tune.tuner.monitor import READ_EVERY_S, REASONS, BlindMonitor, NvmlMonitor, monitor_for, reason_names

H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 60 << 20, 700.0)


class NVMLError(Exception):
    pass


class Nvml:
    """The part of nvidia-ml-py that is used. What is in `broken` raises, as a lost card or an old driver does."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVMLError = NVMLError

    def __init__(self):
        self.clocks = {1: 1980, 2: 3201}
        self.temperature, self.power_mw, self.bits = 45, 350_000, 0x1
        self.broken: set[str] = set()
        self.asked: list[str] = []
        self.sessions = 0

    def _ask(self, name, value):
        self.asked.append(name)
        if name in self.broken:
            raise NVMLError(name)
        return value

    def nvmlInit(self):
        self.sessions += 1

    def nvmlShutdown(self):
        self.sessions -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return self._ask("handle", uuid)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return self._ask("whole", f"whole card of {handle}")

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return self._ask(f"clock {kind}", self.clocks[kind])

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return self._ask("temperature", self.temperature)

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._ask("power", self.power_mw)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._ask("event reasons", self.bits)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._ask("throttle reasons", self.bits)


class Clock:
    def __init__(self):
        self.s = 100.0

    def __call__(self):
        return self.s


@pytest.fixture
def nvml():
    return Nvml()


@pytest.fixture
def now():
    return Clock()


def sample(watch, now, *, seconds=0.05, pause=0.01):
    now.s += pause
    watch.before()
    watch.during()
    now.s += seconds
    return watch.after()


def test_extremes_of_what_was_seen(nvml, now):
    watch = NvmlMonitor(nvml, "card", now=now).watch()
    assert not sample(watch, now)
    nvml.clocks[1], nvml.temperature, nvml.power_mw = 1500, 61, 698_765
    sample(watch, now)
    nvml.clocks[1], nvml.temperature, nvml.power_mw = 1700, 60, 400_000
    sample(watch, now)
    assert watch.conditions() == Conditions((1500, 1980), (3201, 3201), 61, 698.8)


def test_throttled_samples_are_marked_with_their_reasons(nvml, now):
    watch = NvmlMonitor(nvml, "card", now=now).watch()
    marks = []
    for bits in (0x1, 0x4, 0x2, 0x40 | 0x8 | 0x1, 0x0, 0x0):
        nvml.bits = bits
        marks.append(sample(watch, now))
    assert marks == [False, True, False, True, False, False]
    seen = watch.conditions()
    assert seen.throttled_samples == (1, 3)
    assert seen.throttle_reasons == ("hw_slowdown", "hw_thermal_slowdown", "sw_power_cap")


def test_a_reason_before_or_after_a_sample_counts_for_it(nvml, now):
    watch = NvmlMonitor(nvml, "card", now=now).watch()
    nvml.bits = 0x20
    watch.before()
    nvml.bits = 0
    assert watch.after(), "before"
    now.s += 1
    watch.before()
    nvml.bits = 0x20
    assert watch.after(), "after"
    watch.before()  # at once: what was on after the last sample is on before this one
    nvml.bits = 0
    assert watch.after()
    assert watch.conditions().throttled_samples == (0, 1, 2)


def test_configs_are_watched_each_for_itself(nvml, now):
    monitor = NvmlMonitor(nvml, "card", now=now)
    one, other = monitor.watch(), monitor.watch()
    nvml.bits = 0x4
    sample(one, now)
    nvml.bits = 0
    sample(other, now)
    assert one.conditions().throttled_samples == (0,)
    assert other.conditions().throttled_samples == ()


def test_slow_calls_are_made_now_and_then_only(nvml, now):
    watch = NvmlMonitor(nvml, "card", now=now).watch()
    for _ in range(10):
        sample(watch, now, seconds=READ_EVERY_S / 9.5, pause=0)
    assert nvml.asked.count("power") == 1
    sample(watch, now, seconds=READ_EVERY_S, pause=0)
    assert nvml.asked.count("power") == 2
    assert nvml.asked.count("event reasons") == 22 - 10, "what was read after a sample is fresh before the next"


def test_a_driver_that_answers_slowly_takes_a_tenth_of_the_time_at_most(nvml, now):
    asking = 0.0

    def slowly(ask, name, value):
        nonlocal asking
        now.s += 0.004
        asking += 0.004
        return ask(name, value)

    real = nvml._ask
    nvml._ask = lambda name, value: slowly(real, name, value)
    monitor, begin = NvmlMonitor(nvml, "card", now=now), now.s
    watches = [monitor.watch() for _ in range(4)]
    for _ in range(500):
        for watch in watches:
            sample(watch, now, seconds=0.002, pause=0.0)
    assert asking < 0.25 * (now.s - begin), "a tenth for each kind of figure, and a first look at every config"
    assert nvml.asked.count("power") > len(watches), "and still it is asked"
    assert all(watch.conditions().temperature_c == 45 for watch in watches)
    late = [monitor.watch() for _ in range(2)]
    for watch in late:
        sample(watch, now, seconds=0.002, pause=0.0)
    assert all(watch.conditions().temperature_c == 45 for watch in late), "a config of one sample is looked at, too"
    nvml.bits = 0x4
    for _ in range(50):
        sample(watches[0], now, seconds=0.002, pause=0.0)
    assert watches[0].conditions().throttle_reasons == ("sw_power_cap",)


def test_a_card_that_does_not_say_is_not_asked_again(nvml, now):
    nvml.broken = {"power", "temperature"}
    watch = NvmlMonitor(nvml, "card", now=now).watch()
    for _ in range(3):
        sample(watch, now)
    assert watch.conditions() == Conditions((1980, 1980), (3201, 3201), None, None)
    assert nvml.asked.count("power") == 1


def test_nvml_that_fails_midway_costs_figures_and_nothing_else(nvml, now):
    watch = NvmlMonitor(nvml, "card", now=now).watch()
    nvml.bits = 0x4
    sample(watch, now)
    nvml.broken = {"power", "temperature", "clock 1", "clock 2", "event reasons", "throttle reasons"}
    assert not sample(watch, now)
    assert not sample(watch, now)
    assert watch.conditions() == Conditions((1980, 1980), (3201, 3201), 45, 350.0, ("sw_power_cap",), (0,))


def test_an_older_driver_is_asked_by_the_older_name(nvml, now):
    nvml.broken, nvml.bits = {"event reasons"}, 0x80
    watch = NvmlMonitor(nvml, "card", now=now).watch()
    assert sample(watch, now)
    assert watch.conditions().throttle_reasons == ("hw_power_brake_slowdown",)
    del Nvml.nvmlDeviceGetCurrentClocksEventReasons  # bindings that are older still
    try:
        assert sample(NvmlMonitor(nvml, "card", now=now).watch(), now)
    finally:
        Nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda self, handle: self._ask("event reasons", self.bits)


def test_names_of_reasons():
    assert reason_names(0x1 | 0x2) == ()
    assert reason_names(sum(REASONS) | 0x3) == tuple(sorted(REASONS.values()))
    assert reason_names(0x8000) == ("bit_0x8000",)


@pytest.mark.parametrize("uuid", ["GPU-1234", "MIG-5678"])
def test_the_card_is_found_by_its_uuid_and_nvml_given_back(nvml, monkeypatch, uuid):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(module, "device_uuid", lambda device: uuid)
    monitor = monitor_for(H200)
    assert isinstance(monitor, NvmlMonitor)
    assert nvml.asked == (["handle", "whole"] if uuid.startswith("MIG") else ["handle"])
    assert nvml.sessions == 1
    monitor.close()
    monitor.close()
    assert nvml.sessions == 0
    watch = monitor.watch()
    watch.before()
    watch.during()
    assert not watch.after()
    assert watch.conditions() == Conditions()


def test_a_card_that_nvml_does_not_know_is_measured_blind(nvml, monkeypatch):
    nvml.broken = {"handle"}
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(module, "device_uuid", lambda device: "GPU-1234")
    assert isinstance(monitor_for(H200), BlindMonitor)
    assert nvml.sessions == 0


def test_without_a_card_or_bindings_nothing_is_seen(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(module, "device_uuid", lambda device: "GPU-1234")
    for device in (detect("cpu"), H200):
        watch = monitor_for(device).watch()
        watch.before()
        watch.during()
        assert not watch.after()
        assert watch.conditions() is None
