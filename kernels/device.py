"""The card (or CPU) at hand, and the versions that decide whether a config found on it is still valid."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import _host
from .errors import Fp4tuneError, InvalidInputError, NotFoundError

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
        name: as the driver or the kernel calls it.
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


def detect(name: str = "auto") -> Device:
    """The device called `name`.

    Reads CUDA devices through torch; no CUDA context is made, so nothing is allocated on the device. A CPU is read
    from the operating system and needs no torch.

    Args:
        name: `auto` (the first CUDA device that torch sees, else the CPU), `cpu`, `cuda` (the only CUDA device) or
            `cuda:N`.

    Raises:
        InvalidInputError: the name is none of these.
        NotFoundError: there is no such device, or `cuda` could mean several.
    """
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d{1,4}))?", name)
    if match is None:
        raise InvalidInputError(f"{name!r} is not a device: write auto, cpu, cuda or cuda:N.")
    if name == "cpu":
        return _cpu()
    torch, why_not = _torch_with_cuda()
    if torch is None:
        if name == "auto":
            return _cpu()
        raise NotFoundError(f"There is no device {name}: {why_not}")
    count = torch.cuda.device_count()
    if name == "cuda" and count > 1:
        raise NotFoundError(f"There are {count} CUDA devices: write one of cuda:0 to cuda:{count - 1}.")
    index = int(match[1] or 0)
    if index >= count:
        seen = "only cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise NotFoundError(f"There is no device {name}: PyTorch sees {seen}.")
    return _cuda(torch, index)


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
    version = _host.nvidia_driver_version()
    if version:
        return version
    with _nvml() as nvml:
        return _text(nvml.nvmlSystemGetDriverVersion()) if nvml else ""


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


def _torch_with_cuda() -> tuple[Any, str]:
    """(torch, nothing), or (None, why no CUDA device can be used)."""
    try:
        import torch
    except ImportError as error:
        if error.name == "torch":
            return None, "PyTorch is not installed; install fp4tune[cuda], or use the device cpu."
        return None, f"PyTorch cannot be imported ({error})."
    if torch.version.cuda is None:
        return None, f"PyTorch {torch.__version__} was built without CUDA."
    if not torch.cuda.is_available():
        return None, f"PyTorch {torch.__version__} (CUDA {torch.version.cuda}) sees no CUDA device."
    return torch, ""


def _cuda(torch: Any, index: int) -> Device:
    """A CUDA device as torch and NVML describe it."""
    properties = torch.cuda.get_device_properties(index)
    return Device(
        kind="cuda",
        name=properties.name,
        compute_capability=f"{properties.major}.{properties.minor}",
        sms=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=getattr(properties, "L2_cache_size", 0),
        power_limit_w=_power_limit_w(str(getattr(properties, "uuid", ""))),
        index=index,
    )


def _power_limit_w(uuid: str) -> float:
    """Enforced power limit of the card with this UUID in watts, 0 if NVML is not there or does not say.

    By UUID and not by index, because CUDA_VISIBLE_DEVICES renumbers CUDA's devices and not NVML's.
    """
    with _nvml() as nvml:
        if not nvml or not uuid:
            return 0.0
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            return round(float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000, 1)
        except nvml.NVMLError:
            return 0.0


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """NVML's bindings, initialised, or None where they or the library are missing."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - bindings of any age, a library of any age: what they say is optional
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """Older NVML bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
