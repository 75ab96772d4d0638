"""Detection on machines that are described by a directory, and on this one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import fake_driver
import pytest
from fp4tune.kernels import _host
from fp4tune.kernels.backend import Availability, load_backends
from fp4tune.kernels.device import Device, cublas_version, current_environment, detect, device_uuid, driver_version
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


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A CUDA driver's library that says what FAKE_CUDA_* say."""
    return str(fake_driver.build(tmp_path_factory.mktemp("driver")))


@pytest.fixture
def card(monkeypatch, library):
    """Sets what the driver says, and which torch is installed. Returns the driver's library."""

    def make(*, build="13.0", **says):
        torch = type("torch", (), {"__version__": "2.11.0", "version": type("version", (), {"cuda": build})})
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in says.items():
            monkeypatch.setenv(f"FAKE_CUDA_{name.upper()}", str(value))
        return library

    return make


def refusal(name, library):
    with pytest.raises(NotFoundError) as caught:
        detect(name, library=library)
    return str(caught.value)


@pytest.mark.parametrize(
    ("count", "name", "said"),
    [
        (0, "cuda", "There is no device cuda: the NVIDIA driver shows none."),
        (0, "cuda:1", "There is no device cuda:1: the NVIDIA driver shows none."),
        (1, "cuda:1", "There is no device cuda:1: the driver shows only cuda:0."),
        (2, "cuda:5", "There is no device cuda:5: the driver shows cuda:0 to cuda:1."),
    ],
)
def test_a_device_that_is_not_there(card, count, name, said):
    assert refusal(name, card(count=count)) == said


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_of_several_devices_none_is_picked_silently(card, name):
    said = refusal(name, card(count=2))
    assert said == (
        "There are 2 CUDA devices, so one must be named with --device: cuda:0 (NVIDIA H200), cuda:1 (NVIDIA H200)."
    )


def test_hidden_devices_are_said_to_be_hidden(card, monkeypatch):
    library = card(init=100)
    assert refusal("cuda", library).endswith("the NVIDIA driver shows none.")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert refusal("cuda", library).endswith("the NVIDIA driver shows none, and CUDA_VISIBLE_DEVICES is ''.")
    assert detect("auto", library=library).kind == "cpu"


def test_no_driver(card, machine, monkeypatch, tmp_path):
    card()
    missing = str(tmp_path / "libcuda.so.1")
    monkeypatch.setattr(_host, "nvidia_driver_version", lambda: "")
    assert "there is no NVIDIA driver" in refusal("cuda:0", missing)
    monkeypatch.setattr(_host, "nvidia_driver_version", lambda: "580.65.06")
    assert "kernel module 580.65.06 is loaded, and the driver's library libcuda.so.1 is not here" in refusal(
        "cuda", missing
    )
    assert detect("auto", library=missing).kind == "cpu"


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_a_driver_too_old_for_torch(card, monkeypatch, name):
    monkeypatch.setattr(_host, "nvidia_driver_version", lambda: "550.54.15")
    said = refusal(name, card(version=12040))
    assert "driver 550.54.15 is too old for PyTorch 2.11.0: it supports CUDA up to 12.4" in said
    assert "built for CUDA 13.0. Update the driver" in said


@pytest.mark.parametrize(("driver", "build"), [(13000, "13.0"), (13000, "13.2"), (13020, "12.8"), (12020, "12.8")])
def test_a_driver_runs_older_builds_and_every_minor_version_of_its_own(card, driver, build):
    assert detect("cuda", library=card(version=driver, build=build)).kind == "cuda"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (802, "nvidia-fabricmanager must run"),
        (803, "of different versions: reload the module or reboot"),
        (999, "unknown error (999)"),
        (7, "error 7"),
    ],
)
def test_a_driver_that_cannot_be_initialised(card, code, says):
    library = card(init=code)
    assert says in refusal("cuda", library)
    assert refusal("auto", library).endswith("Or use --device cpu."), "a broken card is not passed over silently"


def test_a_card_that_torch_cannot_use(card, monkeypatch):
    library = card(build=None)
    assert "PyTorch 2.11.0 was built without CUDA; install a build for CUDA 13" in refusal("cuda", library)
    assert "was built without CUDA" in refusal("auto", library)
    assert detect("cpu", library=library).kind == "cpu"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "install fp4tune[cuda]" in refusal("auto", library)


@pytest.mark.parametrize("name", ["cuda:1", "cuda:0"])
def test_cuda_devices_as_the_driver_describes_them(card, name):
    library = card(count=2)
    device = detect(name, library=library)
    assert device.name == "NVIDIA H200"
    assert (device.compute_capability, device.sms, device.l2_bytes) == ("9.0", 132, 50 << 20)
    assert device.memory_bytes == 140 * GIB
    assert device.torch_device == name
    assert not device.is_slice
    assert device.fingerprint == detect("cuda:0", library=library).fingerprint, (
        "equal cards are equal wherever they are"
    )
    assert device_uuid(device, library=library) == f"GPU-0a000000-0000-0000-0000-00000000000{name[-1]}"


def test_a_uuid_that_nobody_knows(card, tmp_path):
    library = card(uuid_error=1)
    device = detect("cuda", library=library)
    assert device_uuid(device, library=library) == ""
    assert device_uuid(device, library=str(tmp_path / "none.so")) == ""
    assert device_uuid(detect("cpu"), library=library) == ""


def test_a_slice_is_another_device_than_its_card(card, monkeypatch):
    library = card()
    whole = detect("cuda", library=library)
    monkeypatch.setenv("FAKE_CUDA_NAME", "NVIDIA H200 MIG 1g.18gb")
    monkeypatch.setenv("FAKE_CUDA_SMS", "16")
    monkeypatch.setenv("FAKE_CUDA_GIB", "16")
    part = detect("cuda", library=library)
    assert part.is_slice
    assert part.fingerprint != whole.fingerprint
    assert device_uuid(part, library=library).startswith("MIG-")


def test_a_slice_is_known_by_nvml_where_its_name_does_not_say_so(card, monkeypatch):
    library = card()
    whole = detect("cuda", library=library)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("MIG-0a000000-0000-0000-0000-000000000000"))
    part = detect("cuda", library=library)
    assert part.is_slice
    assert part.fingerprint != whole.fingerprint
    assert part.power_limit_w == 700.0, "that of the whole card"


def test_a_card_in_mig_mode_without_a_slice(card, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("GPU-0a1b", mig=True))
    assert "a card is in MIG mode and has no slice" in refusal("cuda", card(count=0))


class FakeNvml:
    """NVML's bindings for one card or slice. Old ones return bytes."""

    class NVMLError(Exception):
        pass

    def __init__(self, uuid, *, mig=False):
        self.uuid = uuid
        self.mig = mig
        self.open = 0

    def nvmlInit(self):  # noqa: N802 - NVML's name
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802 - NVML's name
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):  # noqa: N802 - NVML's name
        return b"580.65.06"

    def nvmlDeviceGetCount(self):  # noqa: N802 - NVML's name
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802 - NVML's name
        return "handle"

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802 - NVML's name
        return [int(self.mig), int(self.mig)]

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802 - NVML's name
        if uuid != self.uuid:
            raise self.NVMLError("Not Found")
        return "slice" if uuid.startswith("MIG-") else "handle"

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):  # noqa: N802 - NVML's name
        return {"slice": "parent"}[handle]

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802 - NVML's name
        return {"handle": 600_000, "parent": 700_000}[handle]


@pytest.mark.parametrize(
    ("uuid", "power_limit_w"), [("GPU-0a000000-0000-0000-0000-000000000000", 600.0), ("GPU-other", 0.0)]
)
def test_the_power_limit_is_that_of_the_card_with_this_uuid(card, monkeypatch, uuid, power_limit_w):
    nvml = FakeNvml(uuid)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert detect("cuda:0", library=card()).power_limit_w == power_limit_w
    assert nvml.open == 0, "NVML was not shut down"


def test_the_driver_is_read_from_nvml_where_the_kernel_module_is_hidden(monkeypatch):
    monkeypatch.setattr(_host, "nvidia_driver_version", lambda: "")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("GPU-0a1b"))
    assert driver_version() == "580.65.06"
    assert current_environment(H200, []).versions == {"driver": "580.65.06"}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert driver_version() == ""


def test_cublas_is_what_this_process_has_loaded(monkeypatch, machine):
    monkeypatch.setattr(_host, "ROOT", machine({"proc/self/maps": "7f00-7f01 r-xp 0 00:1 2 /usr/lib/libc.so.6\n"}))
    assert cublas_version() == ""


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # makes `import torch` fail as if it were not installed
from fp4tune.kernels.backend import load_backends
from fp4tune.kernels.device import current_environment, detect
from fp4tune.kernels.errors import NotFoundError
cpu = detect(library="no-such-driver.so")
assert cpu.kind == "cpu" and cpu == detect("cpu")
backends = load_backends()
assert all(not b.probe(cpu).available and b.probe(cpu).reason for b in backends.values())
assert current_environment(cpu, backends.values()).versions == {}
try:
    detect("cuda:0", library="no-such-driver.so")
except NotFoundError as error:
    assert "no device cuda:0" in str(error), error
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


@pytest.mark.parametrize(("text", "pair"), [("12.0", (12, 0)), ("8.9", (8, 9)), ("", (0, 0)), ("x.y", (0, 0))])
def test_compute_capabilities_are_read(text, pair):
    assert replace(H200, compute_capability=text).capability == pair
