"""Which errors leave a process with a CUDA context that is of no more use, and which say that the device is gone.

Codes and names: `cudaError_t` (driver_types.h) and `CUresult` (cuda.h) of CUDA 13.0, whose comments say of nearly all
of these that the process must be terminated and relaunched. Texts: what cudaGetErrorString says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Sticky:
    """One such error.

    Attributes:
        code: its number, the same in both interfaces. name: what people call it.
        words: what of it appears in texts: cudaGetErrorString's sentence and the names of both enumerations.
    """

    code: int
    name: str
    words: tuple[str, ...]


_STICKY = (
    _Sticky(214, "uncorrectable ECC error", ("uncorrectable ecc error", "ECCUncorrectable", "ECC_UNCORRECTABLE")),
    _Sticky(220, "uncorrectable NVLink error", ("uncorrectable nvlink error", "NvlinkUncorrectable", "NVLINK_UNCORR")),
    _Sticky(226, "contained memory error", ("cudaErrorContained", "CUDA_ERROR_CONTAINED")),
    _Sticky(700, "illegal memory access", ("illegal memory access", "ErrorIllegalAddress", "ERROR_ILLEGAL_ADDRESS")),
    _Sticky(702, "launch timeout", ("launch timed out", "ErrorLaunchTimeout", "ERROR_LAUNCH_TIMEOUT")),
    _Sticky(709, "destroyed context", ("context is destroyed", "ContextIsDestroyed", "CONTEXT_IS_DESTROYED")),
    _Sticky(710, "device-side assert", ("device-side assert", "cudaErrorAssert", "CUDA_ERROR_ASSERT")),
    _Sticky(714, "hardware stack error", ("hardware stack error", "HardwareStackError", "HARDWARE_STACK_ERROR")),
    _Sticky(715, "illegal instruction", ("illegal instruction", "IllegalInstruction", "ILLEGAL_INSTRUCTION")),
    _Sticky(716, "misaligned address", ("misaligned address", "MisalignedAddress", "MISALIGNED_ADDRESS")),
    _Sticky(717, "invalid address space", ("global/shared address space", "InvalidAddressSpace", "INVALID_ADDRESS_SP")),
    _Sticky(718, "invalid program counter", ("invalid program counter", "cudaErrorInvalidPc", "ERROR_INVALID_PC")),
    _Sticky(719, "launch failure", ("unspecified launch failure", "ErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED")),
    _Sticky(721, "tensor memory leak", ("TensorMemoryLeak", "TENSOR_MEMORY_LEAK")),
    _Sticky(0, "lost device", ("gpu is lost", "fallen off the bus", "device lost")),
)

_NAMES = {one.code: one.name for one in _STICKY if one.code}
_PATTERN = re.compile(
    "|".join(f"(?P<s{i}>{'|'.join(map(re.escape, one.words))})" for i, one in enumerate(_STICKY)), re.IGNORECASE
)

_NO_DEVICE = re.compile(
    r"no cuda.capable device|no cuda gpus are available|found no nvidia driver|gpu is lost|fallen off the bus"
    r"|device lost|invalid device ordinal|cuda driver initialization failed|device\(s\) is/are busy or unavailable"
    r"|cuda unknown error|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE|cudaErrorDevicesUnavailable"
    r"|CUDA_ERROR_DEVICE_UNAVAILABLE|couldn't communicate with the nvidia driver",
    re.IGNORECASE,
)


class StickyError(RuntimeError):
    """Raised inside a worker: its CUDA context is of no more use.

    Args:
        name: of the error. text: what the library said.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def sticky_name(error: BaseException | None) -> str:
    """What the sticky CUDA error behind an exception is called; empty if there is none.

    Looks at RuntimeErrors (torch.AcceleratorError is one, Triton and Humming raise it, too) and at classes that call
    themselves CUDA's, and at what they were raised from.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, StickyError):
            return error.name
        code = getattr(error, "error_code", None)
        if isinstance(code, int) and code in _NAMES:
            return _NAMES[code]
        if name := sticky_in(type(error).__name__, str(error), is_runtime_error=isinstance(error, RuntimeError)):
            return name
        error = error.__cause__
    return ""


def sticky_in(type_name: str, text: str, *, is_runtime_error: bool = False) -> str:
    """The same of an exception of which only the class's name and the text are known."""
    if not (is_runtime_error or type_name in {"RuntimeError", "AcceleratorError"} or "cuda" in type_name.lower()):
        return ""
    match = _PATTERN.search(text)
    return _STICKY[int(match.lastgroup[1:])].name if match and match.lastgroup else ""


def no_device(text: str) -> bool:
    """Whether an error's text says that there is no device, or none any more."""
    return _NO_DEVICE.search(text) is not None
