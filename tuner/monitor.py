"""What a GPU is like while it is measured: clocks, temperature, power and what holds the clocks back, through NVML.

NVML is the driver's own library and its bindings (nvidia-ml-py) are optional: what cannot be read is None, and nothing
here ever fails a measurement. Temperature, power and clocks are only read now and then and while kernels run, because
those calls take longer; throttle reasons are read around every sample, as long as that takes little time (REST).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

from ..db.records import Conditions
from ..kernels.device import Device, device_uuid
from ..kernels.nvml import nvml_session

READ_EVERY_S = 0.02
"""Clocks, temperature and power are read at most this often."""

FRESH_S = 0.002
"""Throttle reasons read so long ago at most are still those before the next sample."""

REST = 9
"""So many times as long as reading took, nothing is read: a driver that answers slowly is asked less often, and at most
a tenth of the time goes into asking it. (Data center cards answer through a processor of their own.)"""

REASONS = {
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that are throttling, by the names of nvml.h's constants
(nvmlClocksEventReason..., nvmlClocksThrottleReason... in older headers)."""

BENIGN = 0x001 | 0x002
"""Bits that are none: the GPU idles, or an application set its clocks."""


class Watch(Protocol):
    """Looks on while one config is measured."""

    def before(self) -> None:
        """A sample is about to be taken."""
        ...

    def during(self) -> None:
        """The device is at work on a sample."""
        ...

    def after(self) -> bool:
        """A sample was taken; whether the clocks were held back meanwhile."""
        ...

    def conditions(self) -> Conditions | None:
        """What was seen so far; None if nothing can be seen here."""
        ...


class Monitor(Protocol):
    """Makes watches for one device."""

    def watch(self) -> Watch:
        """A watch over one config."""
        ...

    def close(self) -> None:
        """Give NVML back. May be called twice."""
        ...


class BlindMonitor:
    """For devices that NVML does not know, and machines without it."""

    def watch(self) -> Watch:
        """See Monitor."""
        return BlindWatch()

    def close(self) -> None:
        """See Monitor."""


class BlindWatch:
    """Sees nothing; see Watch."""

    def before(self) -> None:
        """See Watch."""

    def during(self) -> None:
        """See Watch."""

    def after(self) -> bool:
        """See Watch."""
        return False

    def conditions(self) -> Conditions | None:
        """See Watch."""
        return None


def monitor_for(device: Device) -> Monitor:
    """NVML's view of a CUDA device, found by its UUID; a blind monitor where there is none."""
    uuid = device_uuid(device) if device.kind == "cuda" else ""
    if not uuid:
        return BlindMonitor()
    session = contextlib.ExitStack()
    nvml = session.enter_context(nvml_session())
    if nvml is not None:
        with contextlib.suppress(Exception):  # a card that NVML does not know, or bindings too old for it
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            if uuid.startswith("MIG-"):  # clocks, power and temperature are the whole card's
                handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            return NvmlMonitor(nvml, handle, on_close=session.close)
    session.close()
    return BlindMonitor()


class NvmlMonitor:
    """Reads one card.

    Args:
        nvml: NVML's bindings, initialised.
        handle: of the card.
        on_close: gives the bindings back.
        now: seconds of a monotonic clock.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        *,
        on_close: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_close = on_close
        self.now = now
        self._readings: dict[str, Callable[[], int]] = {
            "sm_clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "power": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
            "reasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            "reasons_before_driver_535": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        }
        self._last_s = -float("inf")
        self._last_bits = 0
        self._bits_due_s = self._figures_due_s = -float("inf")

    def watch(self) -> Watch:
        """See Monitor."""
        return NvmlWatch(self)

    def close(self) -> None:
        """See Monitor."""
        on_close, self._on_close = self._on_close, lambda: None
        self._readings.clear()
        with contextlib.suppress(Exception):
            on_close()

    def read(self, name: str) -> int | None:
        """A figure; None if the card does not say. It is not asked for again then: a failing call costs time, too."""
        reading = self._readings.get(name)
        if reading is None:
            return None
        try:
            return int(reading())
        except Exception:  # noqa: BLE001 - a lost GPU, a figure this card lacks, bindings of any age
            del self._readings[name]
            return None

    def throttle_bits(self, *, fresh_s: float = 0.0) -> int:
        """Throttle reasons, benign ones left out; what was read in the last `fresh_s` seconds will do."""
        start = self.now()
        if start - self._last_s >= fresh_s and start >= self._bits_due_s:
            bits = self.read("reasons")
            if bits is None:
                bits = self.read("reasons_before_driver_535")
            self._last_bits = (bits or 0) & ~BENIGN
            self._last_s = self.now()
            self._bits_due_s = self._last_s + REST * (self._last_s - start)
        return self._last_bits

    def figures(self, *, needed: bool) -> dict[str, int]:
        """Clocks, temperature and power, those that the card says; nothing if it is too early to ask again.

        Args:
            needed: read them in any case.
        """
        start = self.now()
        if start < self._figures_due_s and not needed:
            return {}
        read = {name: self.read(name) for name in ("sm_clock", "memory_clock", "temperature", "power")}
        end = self.now()
        self._figures_due_s = end + REST * (end - start)
        return {name: value for name, value in read.items() if value is not None}


class NvmlWatch:
    """Keeps the extremes of what is read; see Watch."""

    def __init__(self, monitor: NvmlMonitor) -> None:
        self._monitor = monitor
        self._seen: dict[str, tuple[int, int]] = {}
        self._next_s = -float("inf")
        self._bits = 0
        self._all_bits = 0
        self._n_samples = 0
        self._throttled: list[int] = []

    def before(self) -> None:
        """See Watch."""
        self._bits = self._monitor.throttle_bits(fresh_s=FRESH_S)

    def during(self) -> None:
        """See Watch."""
        if self._monitor.now() < self._next_s:
            return
        for name, value in self._monitor.figures(needed=not self._seen).items():
            low, high = self._seen.get(name, (value, value))
            self._seen[name] = (min(low, value), max(high, value))
            self._next_s = self._monitor.now() + READ_EVERY_S

    def after(self) -> bool:
        """See Watch."""
        self._bits |= self._monitor.throttle_bits()
        self._all_bits |= self._bits
        if self._bits:
            self._throttled.append(self._n_samples)
        self._n_samples += 1
        return bool(self._bits)

    def conditions(self) -> Conditions | None:
        """See Watch."""
        temperature, power = self._seen.get("temperature"), self._seen.get("power")
        return Conditions(
            sm_clock_mhz=self._seen.get("sm_clock"),
            memory_clock_mhz=self._seen.get("memory_clock"),
            temperature_c=None if temperature is None else temperature[1],
            power_w=None if power is None else round(power[1] / 1000, 1),  # NVML: milliwatts
            throttle_reasons=reason_names(self._all_bits),
            throttled_samples=tuple(self._throttled),
        )


def reason_names(bits: int) -> tuple[str, ...]:
    """Names of throttle reasons, sorted; a bit that is newer than this table by its value."""
    found = (1 << i for i in range(bits.bit_length()) if bits >> i & 1 and not 1 << i & BENIGN)
    return tuple(sorted(REASONS.get(bit, f"bit_{bit:#x}") for bit in found))
