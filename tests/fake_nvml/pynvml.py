"""A stand-in for NVML's bindings: one card, of which it says what FAKE_NVML_* in the environment say.

The card is that of fake_libcuda.c. FAKE_NVML_PIDS: processes on it, comma separated; FAKE_NVML_LOADS: its load in percent
each time somebody looks, comma separated; the last stays.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

UUID = "0a000000-0000-0000-0000-000000000000"
NVML_TEMPERATURE_GPU = 0


_loads = [int(load) for load in os.environ.get("FAKE_NVML_LOADS", "0").split(",")]


class NVMLError(Exception):
    pass


def nvmlInit():  # noqa: N802 - NVML's names, here and below
    pass


def nvmlShutdown():  # noqa: N802
    pass


def nvmlSystemGetDriverVersion():  # noqa: N802
    return "580.65.06"


def nvmlDeviceGetCount():  # noqa: N802
    return 1


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    return "card"


def nvmlDeviceGetHandleByUUID(uuid):  # noqa: N802
    if uuid not in (f"GPU-{UUID}", f"MIG-{UUID}"):
        raise NVMLError("Not Found")
    return "card"


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle):  # noqa: N802
    return handle


def nvmlDeviceGetMigMode(handle):  # noqa: N802
    return [0, 0]


def nvmlDeviceGetEnforcedPowerLimit(handle):  # noqa: N802
    return 700_000


def nvmlDeviceGetTemperature(handle, sensor):  # noqa: N802
    return 40


def nvmlDeviceGetComputeRunningProcesses(handle):  # noqa: N802
    pids = os.environ.get("FAKE_NVML_PIDS", "")
    return [SimpleNamespace(pid=int(pid), usedGpuMemory=12 << 30) for pid in pids.split(",") if pid]


def nvmlDeviceGetUtilizationRates(handle):  # noqa: N802
    if len(_loads) > 1:
        return SimpleNamespace(gpu=_loads.pop(0), memory=0)
    return SimpleNamespace(gpu=_loads[0], memory=0)


def nvmlSystemGetProcessName(pid):  # noqa: N802
    return "/opt/serve/engine"
