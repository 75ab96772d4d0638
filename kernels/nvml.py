"""NVML, the driver's library for looking at cards: optional, and never a CUDA context."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import Any

from ._cuda_driver import DriverDevice


@contextlib.contextmanager
def nvml_session() -> Iterator[Any]:
    """NVML's bindings (nvidia-ml-py), initialised, or None where they or the library are missing. No CUDA context."""
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


def driver_version_of_nvml() -> str:
    """Version of the NVIDIA driver; empty if NVML is not there."""
    with nvml_session() as nvml:
        return nvml_text(nvml.nvmlSystemGetDriverVersion()) if nvml else ""


def nvml_uuid(found: DriverDevice) -> str:
    """The UUID with NVML's prefix; empty if the driver does not say."""
    if not found.uuid:
        return ""
    if is_slice(found.name):
        return f"MIG-{found.uuid}"
    with nvml_session() as nvml:
        if nvml and not _knows(nvml, f"GPU-{found.uuid}") and _knows(nvml, f"MIG-{found.uuid}"):
            return f"MIG-{found.uuid}"
    return f"GPU-{found.uuid}"


def _knows(nvml: Any, uuid: str) -> bool:
    try:
        nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return False
    return True


def is_slice(name: str) -> bool:
    """Whether a device's name is that of a MIG slice: `NVIDIA H200 MIG 1g.18gb`."""
    return re.search(r"\bMIG\b", name) is not None


def in_mig_mode(nvml: Any) -> bool:
    """Whether a card is in MIG mode."""
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return any(nvml.nvmlDeviceGetMigMode(handle)[0] for handle in handles)
    except nvml.NVMLError:
        return False


def power_limit_w(uuid: str) -> float:
    """Enforced power limit of the card in watts, 0 if NVML is not there or does not say; of a slice its whole card's.

    By UUID and not by index, because CUDA_VISIBLE_DEVICES renumbers CUDA's devices and not NVML's.
    """
    with nvml_session() as nvml:
        if not nvml or not uuid:
            return 0.0
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            if uuid.startswith("MIG-"):
                handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            return round(float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000, 1)
        except nvml.NVMLError:
            return 0.0


def nvml_text(value: str | bytes) -> str:
    """Older NVML bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
