"""The card (or CPU) at hand, and the versions that decide whether a config found on it is still valid."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from . import _cuda_driver, _host
from ._cuda_driver import DriverDevice
from .errors import Fp4tuneError, InvalidInputError, NotFoundError
from .nvml import driver_version_of_nvml, in_mig_mode, is_slice, nvml_session, nvml_uuid, power_limit_w

if TYPE_CHECKING:
    from .backend import Backend


def _fingerprint(fields: object) -> str:
    """First 16 hex digits of the SHA-256 of canonical JSON."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Device:
    """A processor that problems run on.

    Attributes:
        kind: `cpu` or `cuda`.
        name: as the driver or the kernel calls it; of a MIG slice with its profile.
        compute_capability: `9.0`, `12.0`; empty for a CPU.
        sms: streaming multiprocessors; logical cores that this process may use for a CPU.
        memory_bytes: device memory; physical memory (or the cgroup's limit) for a CPU.
        l2_bytes: L2 cache; last-level cache for a CPU; 0 if unknown.
        power_limit_w: enforced board power limit in watts; 0 if unknown or a CPU.
        index: CUDA ordinal; 0 for a CPU. Not part of the fingerprint.
    """

    kind: str
    name: str
    compute_capability: str
    sms: int
    memory_bytes: int
    l2_bytes: int
    power_limit_w: float
    index: int = 0

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits over everything but the index: equal cards have equal fingerprints.

        Memory counts in whole GiB: drivers and kernels keep a little for themselves, and how much changes with their
        version, which must not make another device of the same card.
        """
        fields = asdict(self)
        del fields["index"], fields["memory_bytes"]
        return _fingerprint({**fields, "memory_gib": round(self.memory_bytes / 2**30)})

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice of a card, which is another device than the card and than other slices."""
        return self.kind == "cuda" and is_slice(self.name)

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability in two numbers, `12.0` as (12, 0); (0, 0) for a device without one."""
        major, _, minor = self.compute_capability.partition(".")
        return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)

    @property
    def torch_device(self) -> str:
        """What torch calls it: `cpu`, `cuda:0`."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


@dataclass(frozen=True)
class Environment:
    """A device and the versions of what runs on it.

    Attributes:
        device: the card.
        versions: name -> version (driver, cuda, cublas, torch, triton, flashinfer, ...); what is absent is
            not a key. Backends name the subset that decides about their configs.
    """

    device: Device
    versions: Mapping[str, str]

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits over the device's fingerprint and all versions."""
        return _fingerprint({"device": self.device.fingerprint, "versions": dict(self.versions)})


def detect(name: str = "auto", *, library: str = _cuda_driver.LIBRARY) -> Device:
    """The device called `name`.

    CUDA devices are read from the driver without a CUDA context, so nothing is allocated on them; torch is imported
    only to see whether it can use the driver. A CPU is read from the operating system and needs no torch.

    Args:
        name: `auto` (the only CUDA device there is, or the CPU if there is none), `cpu`, `cuda` (the only CUDA
            device) or `cuda:N`.
        library: the CUDA driver's library.

    Raises:
        InvalidInputError: the name is none of these.
        NotFoundError: there is no such device, it cannot be used, or the name could mean several. `auto` raises it,
            too, if there are CUDA devices: none is picked silently, nor passed over for the CPU.
    """
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d{1,4}))?", name)
    if match is None:
        raise InvalidInputError(f"{name!r} is not a device: write auto, cpu, cuda or cuda:N.")
    if name == "cpu":
        return _cpu()
    devices, why_not = _usable_devices(library)
    if not devices:
        if name != "auto":
            raise NotFoundError(f"There is no device {name}: {why_not.sentence}.")
        if why_not.mendable:
            raise NotFoundError(
                f"A CUDA device may be here, and cannot be used: {why_not.sentence}. Or use --device cpu."
            )
        return _cpu()
    if match[1] is None and len(devices) > 1:
        listed = ", ".join(f"cuda:{device.index} ({device.name})" for device in devices)
        raise NotFoundError(f"There are {len(devices)} CUDA devices, so one must be named with --device: {listed}.")
    index = int(match[1] or 0)
    if index >= len(devices):
        seen = "only cuda:0" if len(devices) == 1 else f"cuda:0 to cuda:{len(devices) - 1}"
        raise NotFoundError(f"There is no device {name}: the driver shows {seen}.")
    return _cuda(devices[index])


@lru_cache(maxsize=16)
def detect_once(name: str) -> Device:
    """As `detect`, asked of the driver once a process: for what is prepared again and again on one device."""
    return detect(name)


def device_uuid(device: Device, *, library: str = _cuda_driver.LIBRARY) -> str:
    """NVML's name of a device, `GPU-...`, or `MIG-...` for a slice: what tells one card from its twin.

    Not part of the device, because equal cards are equal wherever they are plugged in.

    Returns:
        Empty for a CPU, or if the driver does not say.
    """
    if device.kind == "cpu":
        return ""
    try:
        found = _cuda_driver.query(library).devices
    except _cuda_driver.DriverError:
        return ""
    return nvml_uuid(found[device.index]) if device.index < len(found) else ""


def current_environment(device: Device, backends: Iterable[Backend]) -> Environment:
    """`device` with the versions of what runs on it: those that available backends name, and the driver.

    Args:
        device: where configs are to be valid.
        backends: every backend that is to be used; those that are not available name no versions.

    Raises:
        Fp4tuneError: two backends name different versions of the same thing.
    """
    versions: dict[str, str] = {}
    if device.kind == "cuda" and driver_version():
        versions["driver"] = driver_version()
    for backend in backends:
        if not backend.probe(device).available:
            continue
        for name, version in backend.versions(device).items():
            if versions.setdefault(name, version) != version:
                raise Fp4tuneError(
                    f"Backend {backend.name} says that {name} is {version}, and another says {versions[name]}; "
                    "one environment needs one version."
                )
    return Environment(device, dict(sorted(versions.items())))


def driver_version() -> str:
    """Version of the NVIDIA driver, from the kernel module or else from NVML; empty if neither is there."""
    return _host.nvidia_driver_version() or driver_version_of_nvml()


def cublas_version() -> str:
    """Version of the cuBLASLt library that this process has loaded, `13.1.0`; empty if none is."""
    match = re.search(r"(/\S*libcublasLt\.so\S*)$", _host.read_text(_host.ROOT / "proc/self/maps"), re.MULTILINE)
    if match is None:
        return ""
    get_version = ctypes.CDLL(match[1]).cublasLtGetVersion
    get_version.restype = ctypes.c_size_t
    number = int(get_version())  # 10000 · major + 100 · minor + patch since CUDA 12, see cublasLt.h
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _cpu() -> Device:
    """This machine's CPU, as far as this process may use it."""
    return Device(
        kind="cpu",
        name=_host.cpu_name(),
        compute_capability="",
        sms=_host.usable_cores(),
        memory_bytes=_host.memory_bytes(),
        l2_bytes=_host.last_level_cache_bytes(),
        power_limit_w=0.0,
    )


class _WhyNot(NamedTuple):
    """Why no CUDA device can be used. mendable: a card is or may be here, so that falling back would surprise."""

    sentence: str
    mendable: bool


def _usable_devices(library: str) -> tuple[Sequence[DriverDevice], _WhyNot]:
    """The CUDA devices that this process and its torch may use, or none and why."""
    try:
        driver = _cuda_driver.query(library)
    except _cuda_driver.DriverError as error:
        return (), _WhyNot(f"{_without_library() if error.missing else error}", mendable=not error.missing)
    if not driver.devices:
        return (), _WhyNot(_without_devices(), mendable=False)
    problem = torch_problem(driver.cuda)
    return ((), _WhyNot(problem, mendable=True)) if problem else (driver.devices, _WhyNot("", mendable=False))


def torch_problem(driver_cuda: tuple[int, int]) -> str:
    """Why torch cannot use a driver, without a full stop; empty if it can.

    Args:
        driver_cuda: newest CUDA version the driver supports. A driver runs every minor version of its major one and all
            older ones (CUDA Compatibility, "Minor Version Compatibility"), so the major version decides.
    """
    try:
        import torch
    except ImportError as error:
        if error.name == "torch":
            return "PyTorch is not installed; install fp4tune[cuda]"
        return f"PyTorch cannot be imported ({error})"
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} was built without CUDA; install a build for CUDA {driver_cuda[0]}"
    needs = torch.version.cuda
    if int(needs.split(".", 1)[0]) > driver_cuda[0]:
        driver = f"the NVIDIA driver {driver_version()}".strip()
        return (
            f"{driver} is too old for PyTorch {torch.__version__}: it supports CUDA up to "
            f"{driver_cuda[0]}.{driver_cuda[1]}, and that PyTorch is built for CUDA {needs}. Update the driver, or "
            f"install a PyTorch for CUDA {driver_cuda[0]}"
        )
    return ""


def _without_library() -> str:
    """Why there may be no driver's library."""
    module = _host.nvidia_driver_version()
    if module:
        return (
            f"the NVIDIA kernel module {module} is loaded, and the driver's library libcuda.so.1 is not here; "
            "a container must be started with access to the GPU (docker run --gpus all)"
        )
    return "there is no NVIDIA driver (neither /proc/driver/nvidia nor libcuda.so.1); install it"


def _without_devices() -> str:
    """Why a working driver may show no device."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return f"the NVIDIA driver shows none, and CUDA_VISIBLE_DEVICES is {visible!r}"
    with nvml_session() as nvml:
        if nvml and in_mig_mode(nvml):
            return (
                "a card is in MIG mode and has no slice that this process may use; make one "
                "(nvidia-smi mig -cgi PROFILE -C), or switch MIG mode off"
            )
    return "the NVIDIA driver shows none"


def _cuda(found: DriverDevice) -> Device:
    """A CUDA device as the driver and NVML describe it."""
    uuid = nvml_uuid(found)
    name = found.name
    if uuid.startswith("MIG-") and not is_slice(name):
        name = f"{name} MIG"  # whatever the driver calls it, a slice must never be taken for the whole card
    return Device(
        kind="cuda",
        name=name,
        compute_capability=found.compute_capability,
        sms=found.sms,
        memory_bytes=found.memory_bytes,
        l2_bytes=found.l2_bytes,
        power_limit_w=power_limit_w(uuid),
        index=found.index,
    )
