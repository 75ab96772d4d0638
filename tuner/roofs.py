"""What a device reaches at most, measured on it, and the time that this allows a problem at least."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from datetime import UTC, datetime

from ..db.records import Roofs
from ..kernels.device import Device
from ..kernels.operands import touched_bytes
from ..kernels.problem import Format, Problem
from ..kernels.routing import drawn_load
from .clocks import CudaEagerClock, clock_for

_SAMPLES = 20
_WARMUP_S = 0.1
"""A clock that was idle needs some ten milliseconds to rise."""

_COPY_BYTES = 1 << 30
_COPY_L2S = 16
"""A copy is of so many bytes and of so many L2s at least: what stays in L2 from one copy to the next is then a
sixteenth of it at most."""

_CPU_COPY_BYTES = 64 << 20
_MATRIX, _CPU_MATRIX = 8192, 512
"""M, N and K of the product: 1.1·10^12 operations, a millisecond on the fastest card of today."""

_FP4_CAPABILITY = 10
"""First major compute capability with FP4 matrix units."""


def measure_roofs(device: Device) -> Roofs:
    """Measure a device's copy bandwidth and its BF16 matrix rate, in this process; takes a second or two.

    The copy is device to device and much larger than L2; bytes read and bytes written both count. The product is
    torch's (cuBLAS) of random operands: zeros would take less power, so that the clocks would stay higher.
    """
    n_bytes, copy_us = _copy(device)
    n, product_us = _product(device)
    return Roofs(2 * n_bytes / copy_us * 1e6, 2 * n**3 / product_us * 1e6, datetime.now(UTC))


def _copy(device: Device) -> tuple[int, float]:
    """(bytes, microseconds) of a copy."""
    import torch

    n_bytes = max(_COPY_BYTES, _COPY_L2S * device.l2_bytes) if device.kind == "cuda" else _CPU_COPY_BYTES
    n_bytes = min(n_bytes, device.memory_bytes // 16)
    source = torch.ones(n_bytes, dtype=torch.uint8, device=device.torch_device)
    sink = torch.empty_like(source)
    return n_bytes, _median_us(device, lambda: sink.copy_(source))


def _product(device: Device) -> tuple[int, float]:
    """(M, N and K, microseconds) of a product."""
    import torch

    n = _MATRIX if device.kind == "cuda" else _CPU_MATRIX
    generator = torch.Generator(device=device.torch_device).manual_seed(0)
    a, b = (torch.randn(n, n, device=device.torch_device, generator=generator).to(torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    return n, _median_us(device, lambda: torch.mm(a, b.t(), out=product))


def floor_us(problem: Problem, roofs: Roofs, seed: int, device: Device) -> float:
    """The time in microseconds that `roofs` allow a problem at least: bytes by the copy, operations by the product.

    Args:
        problem: what is computed.
        roofs: of the device.
        seed: of the operands: it decides the rows of a grouped problem, and which experts' weights are read.
        device: where. On a card with FP4 matrix units the BF16 rate is no bound for two NVFP4 operands, and only the
            bytes count.
    """
    bytes_us = touched_bytes(problem, seed) / roofs.copy_bytes_per_s * 1e6
    if not bf16_rate_bounds(problem, device):
        return bytes_us
    rows, _ = drawn_load(problem, seed)
    return max(bytes_us, rows * problem.flops_per_row / roofs.bf16_flops_per_s * 1e6)


def bf16_rate_bounds(problem: Problem, device: Device) -> bool:
    """Whether the BF16 rate is a bound: not for two NVFP4 operands on a card with FP4 matrix units."""
    has_fp4 = device.capability[0] >= _FP4_CAPABILITY
    return not (has_fp4 and problem.format is Format.NVFP4)


def _median_us(device: Device, call: Callable[[], object]) -> float:
    """Median time of a call, in microseconds."""

    def run() -> None:
        call()

    loaded = clock_for(device, CudaEagerClock.policy if device.kind == "cuda" else "").load([run], call_s=0.0)
    loaded.warm_up(_WARMUP_S)
    median = statistics.median(loaded.sample_us() for _ in range(_SAMPLES))
    loaded.release()
    return median
