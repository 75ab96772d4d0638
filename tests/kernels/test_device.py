"""Detection on machines that are described by a directory, and on this one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fp4tune.kernels import _host
from fp4tune.kernels.backend import Availability, load_backends
from fp4tune.kernels.device import Device, cublas_version, current_environment, detect, driver_version
from fp4tune.kernels.errors import Fp4tuneError, InvalidInputError, NotFoundError

GIB = 1 << 30
H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 * GIB, 50 << 20, 700.0)


@pytest.fixture
def machine(tmp_path):
    """Writes a file system from a dict of paths and texts, and returns its root."""

    def make(files):
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64 * GIB),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{8 * GIB}\n"}, 8 * GIB),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 64 * GIB),
        # The limit is on a parent of the process's own group.
        (
            {
                "proc/self/cgroup": "0::/kubepods/pod7/app\n",
                "sys/fs/cgroup/kubepods/pod7/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/kubepods/pod7/app/memory.max": "max\n",
            },
            4 * GIB,
        ),
        # A container that does not see the path it is said to be in.
        ({"proc/self/cgroup": "0::/docker/0123abcd\n", "sys/fs/cgroup/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        # Version 1, where no limit is a huge number.
        (
            {
                "proc/self/cgroup": "7:memory:/app\n3:cpu,cpuacct:/app\n0::/\n",
                "sys/fs/cgroup/memory/app/memory.limit_in_bytes": f"{6 * GIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            6 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "7:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            64 * GIB,
        ),
        ({"proc/self/cgroup": "garbage\n\n:::\n"}, 64 * GIB),
    ],
)
def test_memory_is_the_least_of_what_limits_it(machine, files, expected):
    root = machine({"proc/meminfo": f"MemTotal:       {64 * GIB >> 10} kB\nMemFree: 1 kB\n", **files})
    assert _host.memory_bytes(root) == expected


def test_the_last_level_cache_is_the_highest_that_holds_data(machine):
    cache = "sys/devices/system/cpu/cpu0/cache"
    files = {}
    for i, (level, kind, size) in enumerate(
        [(1, "Data", "32K"), (1, "Instruction", "64K"), (2, "Unified", "1024K"), (3, "Unified", "32M")]
    ):
        files |= {f"{cache}/index{i}/{k}": f"{v}\n" for k, v in (("level", level), ("type", kind), ("size", size))}
    assert _host.last_level_cache_bytes(machine(files)) == 32 << 20


def test_a_machine_that_says_nothing(tmp_path):
    assert _host.last_level_cache_bytes(tmp_path) == 0
    assert _host.memory_bytes(tmp_path) > 0
    assert _host.cpu_name(tmp_path)
    assert _host.nvidia_driver_version(tmp_path) == ""


def test_the_cpu_is_called_what_the_kernel_calls_it(machine):
    text = "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n\nprocessor\t: 1\nmodel name\t: other\n"
    assert _host.cpu_name(machine({"proc/cpuinfo": text})) == "AMD EPYC 9654 96-Core Processor"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024", "550.54.15"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@host)\nGCC",
            "580.65.06",
        ),
    ],
)
def test_driver_version(machine, text, version):
    assert _host.nvidia_driver_version(machine({"proc/driver/nvidia/version": text})) == version


def test_this_cpu():
    device = detect("cpu")
    assert device.kind == device.torch_device == "cpu"
    assert device.sms >= 1
    assert device.memory_bytes > 1 << 28
    assert (device.compute_capability, device.power_limit_w, device.index) == ("", 0.0, 0)
    assert detect("cpu") == device
    assert detect("cpu").fingerprint == device.fingerprint


@pytest.mark.parametrize("name", ["", "gpu0", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cuda:0 ", "cuda:99999", "cpu:0"])
def test_names_that_are_no_device(name):
    with pytest.raises(InvalidInputError, match="write auto, cpu, cuda or cuda:N"):
        detect(name)


class FakeCuda:
    """The part of torch that detection reads, for a machine with `count` devices."""

    def __init__(self, count, build="13.0"):
        self.__version__ = "2.11.0"
        self.version = type("version", (), {"cuda": build})
        properties = type(
            "properties", (),
            {"name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 140 * GIB,
             "L2_cache_size": 50 << 20},
        )  # fmt: skip
        self.cuda = type(
            "cuda", (),
            {"is_available": staticmethod(lambda: count > 0), "device_count": staticmethod(lambda: count),
             "get_device_properties": staticmethod(lambda index: properties)},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "name", "said"),
    [
        (0, "cuda", "There is no device cuda: PyTorch 2.11.0 (CUDA 13.0) sees no CUDA device."),
        (0, "cuda:1", "There is no device cuda:1: PyTorch 2.11.0 (CUDA 13.0) sees no CUDA device."),
        (1, "cuda:1", "There is no device cuda:1: PyTorch sees only cuda:0."),
        (2, "cuda:5", "There is no device cuda:5: PyTorch sees cuda:0 to cuda:1."),
        (2, "cuda", "There are 2 CUDA devices: write one of cuda:0 to cuda:1."),
    ],
)
def test_a_device_that_is_not_there_or_not_one(monkeypatch, count, name, said):
    monkeypatch.setitem(sys.modules, "torch", FakeCuda(count))
    with pytest.raises(NotFoundError) as caught:
        detect(name)
    assert str(caught.value) == said


@pytest.mark.parametrize("name", ["auto", "cuda:1", "cuda:0"])
def test_cuda_devices_as_torch_describes_them(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch", FakeCuda(2))
    device = detect(name)
    assert device.name == "NVIDIA H200"
    assert (device.compute_capability, device.sms, device.l2_bytes) == ("9.0", 132, 50 << 20)
    assert device.torch_device == ("cuda:1" if name == "cuda:1" else "cuda:0")
    assert device.fingerprint == detect("cuda:0").fingerprint, "equal cards are equal wherever they are plugged in"


class FakeNvml:
    """NVML's bindings for one card. Old ones return bytes."""

    class NVMLError(Exception):
        pass

    def __init__(self, uuid):
        self.uuid = uuid
        self.open = 0

    def nvmlInit(self):  # noqa: N802 - NVML's name
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802 - NVML's name
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):  # noqa: N802 - NVML's name
        return b"580.65.06"

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802 - NVML's name
        if uuid != self.uuid:
            raise self.NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802 - NVML's name
        return {"handle": 600_000}[handle]


@pytest.mark.parametrize(("uuid", "power_limit_w"), [("GPU-0a1b", 600.0), ("GPU-other", 0.0)])
def test_the_power_limit_is_that_of_the_card_with_this_uuid(monkeypatch, uuid, power_limit_w):
    torch, nvml = FakeCuda(1), FakeNvml("GPU-0a1b")
    torch.cuda.get_device_properties(0).uuid = uuid.removeprefix("GPU-")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert detect("cuda:0").power_limit_w == power_limit_w
    assert nvml.open == 0, "NVML was not shut down"


def test_the_driver_is_read_from_nvml_where_the_kernel_module_is_hidden(monkeypatch, tmp_path):
    monkeypatch.setattr(_host, "nvidia_driver_version", lambda: "")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("GPU-0a1b"))
    assert driver_version() == "580.65.06"
    assert current_environment(H200, []).versions == {"driver": "580.65.06"}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert driver_version() == ""


def test_cublas_is_what_this_process_has_loaded(monkeypatch, machine):
    monkeypatch.setattr(_host, "ROOT", machine({"proc/self/maps": "7f00-7f01 r-xp 0 00:1 2 /usr/lib/libc.so.6\n"}))
    assert cublas_version() == ""


def test_auto_is_the_cpu_without_cuda(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", FakeCuda(0))
    assert detect("auto").kind == "cpu"
    monkeypatch.setitem(sys.modules, "torch", FakeCuda(0, build=None))
    assert detect("auto").kind == "cpu"
    with pytest.raises(NotFoundError, match="was built without CUDA"):
        detect("cuda")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # makes `import torch` fail as if it were not installed
from fp4tune.kernels.backend import load_backends
from fp4tune.kernels.device import current_environment, detect
from fp4tune.kernels.errors import NotFoundError
cpu = detect()
assert cpu.kind == "cpu" and cpu == detect("cpu")
backends = load_backends()
assert all(not b.probe(cpu).available and b.probe(cpu).reason for b in backends.values())
assert current_environment(cpu, backends.values()).versions == {}
try:
    detect("cuda:0")
except NotFoundError as error:
    assert "install fp4tune[cuda]" in str(error), error
else:
    raise AssertionError
"""


def test_everything_that_can_works_without_torch():
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, timeout=60)


# --- environments ------------------------------------------------------------------------------------------------


class Versioned:
    """A backend as far as an environment asks it."""

    def __init__(self, name, versions, *, available=True):
        self.name = name
        self._versions = versions
        self._available = available

    def probe(self, device):
        return Availability(self._available, "" if self._available else "Not here.")

    def versions(self, device):
        return self._versions


def test_an_environment_merges_what_available_backends_say():
    cpu = detect("cpu")
    found = current_environment(
        cpu,
        [
            Versioned("b", {"torch": "2.13.0", "triton": "3.5"}),
            Versioned("a", {"torch": "2.13.0", "flashinfer": "0.7.4"}),
            Versioned("c", {"humming": "1"}, available=False),
        ],
    )
    assert found.versions == {"flashinfer": "0.7.4", "torch": "2.13.0", "triton": "3.5"}
    assert list(found.versions) == sorted(found.versions)
    again = current_environment(cpu, [Versioned("x", dict(found.versions))])
    assert again.fingerprint == found.fingerprint


def test_backends_that_disagree_are_named():
    with pytest.raises(Fp4tuneError, match=r"Backend b says that torch is 2, and another says 1"):
        current_environment(detect("cpu"), [Versioned("a", {"torch": "1"}), Versioned("b", {"torch": "2"})])


def test_the_environment_of_this_machine():
    found = current_environment(detect("cpu"), load_backends().values())
    assert "torch" in found.versions
    assert "driver" not in found.versions


def test_a_fingerprint_changes_with_every_version_and_field():
    one = current_environment(H200, [Versioned("a", {"torch": "1"})])
    assert one.fingerprint != current_environment(H200, [Versioned("a", {"torch": "2"})]).fingerprint
    assert one.fingerprint != current_environment(detect("cpu"), [Versioned("a", {"torch": "1"})]).fingerprint


def test_a_driver_that_keeps_more_memory_for_itself_makes_no_other_device():
    from dataclasses import replace

    assert replace(H200, memory_bytes=H200.memory_bytes - (64 << 20)).fingerprint == H200.fingerprint
    assert replace(H200, memory_bytes=H200.memory_bytes // 2).fingerprint != H200.fingerprint
