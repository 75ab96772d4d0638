"""What the CUDA driver says about itself and its devices: `cuInit` and queries through ctypes, never a context.

`torch.cuda.get_device_properties` initialises all of torch's CUDA side, and what that does to a device has changed
between releases. A query of the driver API needs `cuInit` alone (CUDA driver API, "Initialization" and "Device
Management"), so a process that only asks here allocates nothing on a device and is not listed on it. The order of
devices, and what CUDA_VISIBLE_DEVICES hides, are the same as for torch, which asks the same library.
"""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "libcuda.so.1"
"""The driver's library. The driver installs it, not the CUDA toolkit."""

# cuda.h, enum CUdevice_attribute.
_SMS = 16
_L2_BYTES = 38
_MAJOR = 75
_MINOR = 76

# cuda.h, enum cudaError_enum.
_NO_DEVICE = 100
_HINTS = {
    34: "the libcuda.so.1 that was found is a stub of the CUDA toolkit: take it out of LD_LIBRARY_PATH",
    101: "CUDA_VISIBLE_DEVICES names a device that is not there",
    802: "the system is not ready; on machines with NVSwitch the service nvidia-fabricmanager must run",
    803: "the kernel module and the driver's libraries are of different versions: reload the module or reboot",
    804: "the CUDA compatibility package does not work with this card: take it out of LD_LIBRARY_PATH",
}


class DriverError(Exception):
    """The driver cannot be used.

    Args:
        sentence: why.
        missing: True if there is no driver's library at all.
    """

    def __init__(self, sentence: str, *, missing: bool) -> None:
        super().__init__(sentence)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class DriverDevice:
    """A device as the driver describes it.

    Attributes:
        index: CUDA ordinal.
        name: `NVIDIA H200`; of a MIG slice with its profile, `NVIDIA H200 MIG 1g.18gb`.
        uuid: 32 hex digits in five groups, without `GPU-` or `MIG-`; of a MIG slice the slice's own. Empty if the
            driver does not say.
        compute_capability: `9.0`.
        sms: streaming multiprocessors. memory_bytes: device memory. l2_bytes: L2 cache.
    """

    index: int
    name: str
    uuid: str
    compute_capability: str
    sms: int
    memory_bytes: int
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver that works.

    Attributes:
        cuda: newest CUDA version it supports, (major, minor).
        devices: those that this process may see, by ordinal.
    """

    cuda: tuple[int, int]
    devices: tuple[DriverDevice, ...]


def query(library: str = LIBRARY) -> Driver:
    """Ask the driver.

    Args:
        library: the driver's library, by name or path.

    Raises:
        DriverError: there is none, or it cannot be initialised. No device is no error.
    """
    try:
        lib = ctypes.CDLL(library)
    except OSError as error:
        raise DriverError(f"the driver's library {Path(library).name} is not here", missing=True) from error
    code = lib.cuInit(0)
    if code == _NO_DEVICE:
        return Driver(_cuda_version(lib), ())
    if code:
        raise DriverError(
            f"the driver cannot be initialised: {_HINTS.get(code) or _error_text(lib, code)}", missing=False
        )
    count = ctypes.c_int()
    _check(lib, lib.cuDeviceGetCount(ctypes.byref(count)))
    return Driver(_cuda_version(lib), tuple(_device(lib, index) for index in range(count.value)))


def _device(lib: ctypes.CDLL, index: int) -> DriverDevice:
    handle = ctypes.c_int()
    _check(lib, lib.cuDeviceGet(ctypes.byref(handle), ctypes.c_int(index)))
    name = ctypes.create_string_buffer(256)
    _check(lib, lib.cuDeviceGetName(name, ctypes.c_int(len(name)), handle))
    memory = ctypes.c_size_t()
    _check(lib, lib.cuDeviceTotalMem_v2(ctypes.byref(memory), handle))
    return DriverDevice(
        index=index,
        name=name.value.decode(errors="replace"),
        uuid=_uuid(lib, handle),
        compute_capability=f"{_attribute(lib, handle, _MAJOR)}.{_attribute(lib, handle, _MINOR)}",
        sms=_attribute(lib, handle, _SMS),
        memory_bytes=memory.value,
        l2_bytes=_attribute(lib, handle, _L2_BYTES),
    )


def _uuid(lib: ctypes.CDLL, handle: ctypes.c_int) -> str:
    """The device's UUID, a MIG slice's own where the driver knows the newer call (CUDA 11.4); empty if it says none."""
    octets = ctypes.create_string_buffer(16)
    ask = getattr(lib, "cuDeviceGetUuid_v2", None) or lib.cuDeviceGetUuid
    return "" if ask(octets, handle) else str(uuid.UUID(bytes=octets.raw))


def _attribute(lib: ctypes.CDLL, handle: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int()
    _check(lib, lib.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(attribute), handle))
    return value.value


def _cuda_version(lib: ctypes.CDLL) -> tuple[int, int]:
    """1000 · major + 10 · minor, see cuDriverGetVersion."""
    number = ctypes.c_int()
    _check(lib, lib.cuDriverGetVersion(ctypes.byref(number)))
    return number.value // 1000, number.value % 1000 // 10


def _check(lib: ctypes.CDLL, code: int) -> None:
    if code:
        raise DriverError(f"the driver answered with an error: {_error_text(lib, code)}", missing=False)


def _error_text(lib: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    lib.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
    return f"{text.value.decode(errors='replace')} ({code})" if text.value else f"error {code}"
