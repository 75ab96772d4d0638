"""Who else is on a device, by what NVML's bindings say."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from fp4tune.tuner.occupants import IDLE_S, Occupancy, Occupant, look, wait_until_idle

UUID = "GPU-0a1b"


class FakeNvml:
    """NVML's bindings for one card with processes on it."""

    class NVMLError(Exception):
        pass

    def __init__(self, *pids, percent=0, names=None):
        self.processes = [SimpleNamespace(pid=pid, usedGpuMemory=3 << 30) for pid in pids]
        self.percent = percent
        self.names = names or {}

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802 - NVML's name
        if uuid != UUID:
            raise self.NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802 - NVML's name
        return self.processes

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802 - NVML's name
        if self.percent is None:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=self.percent, memory=0)

    def nvmlSystemGetProcessName(self, pid):  # noqa: N802 - NVML's name
        try:
            return self.names[pid]
        except KeyError:
            raise self.NVMLError("Not Found") from None


@pytest.fixture
def neighbour():
    """A process that is nobody's child here: started by a shell that is gone."""
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    yield pid
    os.kill(pid, 9)


GONE = 2**22 + 7
"""Above the kernel's largest pid: a process of another pid namespace."""


def test_nobody_is_there():
    seen = look(UUID, nvml=FakeNvml())
    assert seen == Occupancy((), 0)
    assert not seen.busy
    assert not seen.shared
    assert seen.sentence == ""


def test_a_neighbour_is_named_with_its_load(neighbour):
    seen = look(UUID, nvml=FakeNvml(neighbour, percent=87))
    assert seen.busy
    assert seen.sentence == f"in use by sleep (pid {neighbour}, 3.0 GiB), at 87 % load"


def test_a_neighbour_that_only_holds_memory_shares_the_device_and_does_not_make_it_busy(neighbour):
    seen = look(UUID, nvml=FakeNvml(neighbour, percent=4))
    assert seen.shared
    assert not seen.busy


def test_this_process_and_its_children_are_no_neighbours():
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert look(UUID, nvml=FakeNvml(os.getpid(), child.pid)) == Occupancy((), 0)
    finally:
        child.kill()
        child.wait()


def test_names_of_processes_outside_of_this_container_come_from_nvml():
    nvml = FakeNvml(GONE, GONE + 1, percent=9, names={GONE: b"/usr/bin/tritonserver\x1b[2J"})
    seen = look(UUID, nvml=nvml)
    assert [other.name for other in seen.others] == ["tritonserver?[2J", ""]
    assert f"a process (pid {GONE + 1}, 3.0 GiB)" in seen.sentence


def test_a_load_without_a_process_to_see():
    assert look(UUID, nvml=FakeNvml(percent=50)).sentence == (
        "in use by a process that cannot be seen from here, at 50 % load"
    )


def test_a_slice_that_knows_no_load(neighbour):
    seen = look(UUID, nvml=FakeNvml(neighbour, percent=None))
    assert seen.percent is None
    assert seen.shared
    assert not seen.busy
    assert "load" not in seen.sentence


def test_a_device_that_nvml_does_not_know(monkeypatch):
    assert look("GPU-other", nvml=FakeNvml()) is None
    assert look("", nvml=FakeNvml()) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert look(UUID) is None


class Time:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def waited(loads, **options):
    """Wait with these observations, the last of which stays. What was seen last, what was told, seconds it took."""
    time, told, left = Time(), [], list(loads)
    seen = wait_until_idle(
        UUID, tell=told.append, clock=time, sleep=time.sleep,
        observe=lambda _: left.pop(0) if len(left) > 1 else left[0], **options,
    )  # fmt: skip
    return seen, told, time.now - 100


IDLE = Occupancy((), 0)
BUSY = Occupancy((Occupant(7, "train", None),), 99)
PAUSE = Occupancy((Occupant(7, "train", None),), 0)


def test_idle_means_idle_for_some_time():
    assert waited([IDLE]) == (IDLE, [], IDLE_S)


def test_a_pause_between_two_steps_is_not_idle():
    seen, told, took = waited([BUSY, PAUSE, BUSY, PAUSE])
    assert seen == PAUSE
    assert told == ["waiting until the device is idle: in use by train (pid 7), at 99 % load"]
    assert took == 1.0 + IDLE_S


def test_waiting_has_an_end():
    seen, _, took = waited([BUSY], timeout_s=20)
    assert seen.busy
    assert 20 <= took < 22


def test_what_cannot_be_known_is_not_waited_for():
    assert waited([None]) == (None, [], 0)
