"""The shared object by ctypes: abi.h, mirrored. Loading one needs no GPU and no driver."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError

ABI = 1
"""FP4TUNE_ABI of abi.h."""

PLAN_ALIGNMENT = 128
"""FP4TUNE_PLAN_ALIGNMENT of abi.h, bytes."""

RASTERS = ("auto", "along_m", "along_n")
"""In the order of FP4TUNE_RASTER_AUTO, FP4TUNE_RASTER_ALONG_M, FP4TUNE_RASTER_ALONG_N."""


class Description(ctypes.Structure):
    """What was compiled in: struct Fp4tuneDescription."""

    _fields_ = (
        *((name, c_int32) for name in (
            "abi", "cutlass_version", "tile_m", "tile_n", "tile_k", "stages", "pingpong", "stream_k", "swap_ab",
            "out_bits", "threads", "shared_bytes",
        )),
        ("plan_bytes", c_int64),
    )  # fmt: skip


class Product(ctypes.Structure):
    """One product: struct Fp4tuneProduct. Pointers are addresses on the device."""

    _fields_ = (
        *((name, c_int32) for name in ("m", "n", "k", "splits", "max_swizzle", "raster", "sms", "device")),
        *((name, c_void_p) for name in ("a", "b", "a_scale", "b_scale", "alpha", "out", "workspace")),
        ("workspace_bytes", c_int64),
    )


class Plan:
    """Memory that `fp4tune_plan` has filled.

    Attributes:
        address: of the plan, aligned.
    """

    def __init__(self, n_bytes: int) -> None:
        self._memory = ctypes.create_string_buffer(n_bytes + PLAN_ALIGNMENT)
        start = ctypes.addressof(self._memory)
        self.address = c_void_p(start + -start % PLAN_ALIGNMENT)


class Library:
    """One shared object.

    Attributes:
        path: of the file.
        description: what was compiled in.

    Args:
        path: of the file.

    Raises:
        UnsupportedError: it cannot be loaded, or is not one of ours.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._c = ctypes.CDLL(str(path))
            for name, result, arguments in _FUNCTIONS:
                function = getattr(self._c, f"fp4tune_{name}")
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise UnsupportedError(
                f"The compiled kernel {path} cannot be loaded ({error}); remove its folder."
            ) from error
        self.description = Description()
        self._c.fp4tune_describe(ctypes.byref(self.description))
        if self.description.abi != ABI:
            raise UnsupportedError(
                f"The compiled kernel {path} speaks version {self.description.abi} of its interface and not {ABI}; "
                "remove its folder."
            )

    def status_text(self, status: int) -> str:
        """What a status means."""
        text: bytes = self._c.fp4tune_status_text(status)
        return text.decode()

    def can_implement(self, product: Product) -> int:
        """0, or the status that says why the kernel does not take a product. Looks at no pointer."""
        return int(self._c.fp4tune_can_implement(ctypes.byref(product)))

    def workspace_bytes(self, product: Product) -> int:
        """Device memory that a product needs beside its operands. Looks at no pointer."""
        return int(self._c.fp4tune_workspace_bytes(ctypes.byref(product)))

    def plan(self, product: Product) -> Plan:
        """Everything that a launch of a product needs. Its device must be here.

        Raises:
            UnsupportedError: the kernel does not take the product, or the device or its driver cannot run it.
        """
        plan = Plan(self.description.plan_bytes)
        status = int(self._c.fp4tune_plan(ctypes.byref(product), plan.address))
        if status:
            raise UnsupportedError(f"cutlass cannot launch its kernel: {self.status_text(status)} (status {status}).")
        return plan

    def run(self, plan: Plan, stream: int) -> None:
        """Launch a plan on a stream, a cudaStream_t, without waiting.

        Raises:
            RuntimeError: the launch failed; the sentence has CUDA's.
        """
        status = self._c.fp4tune_run(plan.address, stream)
        if status:
            raise RuntimeError(f"CUDA error: {self.status_text(status)} (cutlass, status {status})")

    def sf_elems(self, rows: int, k: int) -> int:
        """Bytes of the scales of [rows, k] in the 128x4 layout, as CUTLASS counts them."""
        return int(self._c.fp4tune_sf_elems(rows, k))

    def sf_index(self, rows: int, k: int, row: int, group: int) -> int:
        """The byte at which CUTLASS looks for the scale of (row, group of 16 along k)."""
        return int(self._c.fp4tune_sf_index(rows, k, row, group))


_FUNCTIONS: tuple[tuple[str, Any, list[Any]], ...] = (
    ("status_text", c_char_p, [c_int32]),
    ("describe", None, [ctypes.POINTER(Description)]),
    ("can_implement", c_int32, [ctypes.POINTER(Product)]),
    ("workspace_bytes", c_int64, [ctypes.POINTER(Product)]),
    ("plan", c_int32, [ctypes.POINTER(Product), c_void_p]),
    ("run", c_int32, [c_void_p, c_void_p]),
    ("sf_elems", c_int64, [c_int32, c_int32]),
    ("sf_index", c_int64, [c_int32, c_int32, c_int32, c_int32]),
)


@lru_cache(maxsize=64)
def load(path: Path) -> Library:
    """As `Library`, each file once a process."""
    return Library(path)
