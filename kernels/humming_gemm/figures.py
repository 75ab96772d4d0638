"""What Humming asks of a device, from what fp4tune knows of it, for processes that have no device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .plan import capability

if TYPE_CHECKING:
    from ..device import Device

_KIB = 1024

_SHARED_KIB = {80: (163, 164), 86: (99, 100), 87: (163, 164), 89: (99, 100), 90: (227, 228), 100: (227, 228),
               103: (227, 228), 110: (227, 228), 120: (99, 100), 121: (99, 100)}  # fmt: skip
"""Shared memory that one block may opt in to, and that a multiprocessor has, by compute capability (CUDA C++
Programming Guide, table of technical specifications)."""

_THREADS = {80: 2048, 90: 2048, 100: 2048, 103: 2048}
"""Resident threads of a multiprocessor; 1536 elsewhere (as above)."""

REGISTERS = 65536
"""Registers of a multiprocessor, on every card from SM80 on (as above)."""

_SPEED = {80: (2039.0, 1410), 86: (936.0, 1695), 89: (1008.0, 2520), 90: (4800.0, 1980), 100: (8000.0, 1965),
          120: (1792.0, 2410), 121: (273.0, 2418)}  # fmt: skip
"""Memory bandwidth in GB/s and boost clock in MHz of a card of this compute capability (data sheets of A100, RTX 3090,
RTX 4090, H200, B200, RTX 5090, GB10). Humming's heuristics for SM8x, SM12x and MMA on SM10x weigh one against the
other. Only used where the driver cannot be asked."""

_FP16_OPS = {80: 2048, 86: 1024, 87: 2048, 89: 1024, 90: 4096, 100: 8192, 103: 8192, 110: 8192, 120: 1024, 121: 1024}
"""FP16 operations that Humming counts for a multiprocessor and clock (its device_info.cpp)."""

_RATES = {"float16": 1, "bfloat16": 1, "float8e4m3": 2, "float8e5m2": 2, "int8": 2, "float4e2m1": 4, "int4": 4}


@dataclass(frozen=True, slots=True)
class Figures:
    """Stands in for Humming's DeviceInfo; the names are Humming's.

    Attributes:
        index: CUDA ordinal. name: as the driver says.
        sm_version: 90, 120. sm_major: and sm_minor: its digits.
        sm_count: multiprocessors.
        l2_cache_size: bytes. max_smem_size: bytes a block may have. smem_per_sm: bytes a multiprocessor has.
        max_threads_per_sm: resident threads. max_registers_per_sm: registers.
        memory_bandwidth_gbps: GB/s. sm_clock_khz: boost clock.
        tensorcore_tops: dtype -> dense tera-operations a second.
        is_ppu: False; Humming also runs on another maker's processors.
    """

    index: int
    name: str
    sm_version: int
    sm_major: int
    sm_minor: int
    sm_count: int
    l2_cache_size: int
    max_smem_size: int
    smem_per_sm: int
    max_threads_per_sm: int
    max_registers_per_sm: int
    memory_bandwidth_gbps: float
    sm_clock_khz: int
    tensorcore_tops: dict[str, float]
    is_ppu: bool = False


def figures_of(device: Device) -> Figures:
    """The figures of a device from SM80 on; of a compute capability that is not known, those of the next lower one."""
    sm = capability(device)
    block_kib, sm_kib = _SHARED_KIB[_known(sm, _SHARED_KIB)]
    bandwidth, mhz = _SPEED[_known(sm, _SPEED)]
    # Humming halves floating point on these, which accumulate in FP32 at half speed (its device_info.cpp).
    tops = fp16_tops(device) / (2 if sm in {86, 89} else 1)
    return Figures(
        index=device.index,
        name=device.name,
        sm_version=sm,
        sm_major=sm // 10,
        sm_minor=sm % 10,
        sm_count=device.sms,
        l2_cache_size=device.l2_bytes,
        max_smem_size=block_kib * _KIB,
        smem_per_sm=sm_kib * _KIB,
        max_threads_per_sm=_THREADS.get(sm, 1536),
        max_registers_per_sm=REGISTERS,
        memory_bandwidth_gbps=bandwidth,
        sm_clock_khz=mhz * 1000,
        tensorcore_tops={dtype: tops * rate for dtype, rate in _RATES.items()},
    )


def fp16_tops(device: Device) -> float:
    """Dense FP16 tera-operations a second at boost clock, accumulated in FP16, as Humming counts them."""
    sm = capability(device)
    return device.sms * _FP16_OPS[_known(sm, _FP16_OPS)] * _SPEED[_known(sm, _SPEED)][1] / 1e6


def _known(sm: int, table: Mapping[int, object]) -> int:
    return max(known for known in table if known <= sm)
