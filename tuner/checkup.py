"""What `fp4tune doctor` looks at beside the device: driver, compilers, caches, neighbours. Makes no CUDA context."""

from __future__ import annotations

import ctypes.util
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from ..kernels import _cuda_driver
from ..kernels.backend import family
from ..kernels.cuda_stack import TOOLKIT, CudaStack, conflicts, dotted, jobs_that_fit, why_cudnn_too_old
from ..kernels.device import Device, device_uuid, driver_version, torch_problem
from ..kernels.errors import Fp4tuneError
from ..kernels.nvml import in_mig_mode, is_slice, nvml_session
from .occupants import look
from .workers.caches import unwritable
from .workers.device_lock import DeviceLock

if TYPE_CHECKING:
    from ..kernels.backend import Backend

OLDEST_CUDNN = (9, 10, 2)
"""First cuDNN that FlashInfer multiplies NVFP4 with (its own check, up to 0.7.4)."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what. ok: whether it is as tuning on a GPU needs it. text: what was found, or what is missing for what.
    """

    name: str
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that was looked at.

    Attributes:
        checks: in the order in which things depend on each other.
    """

    checks: tuple[Check, ...]


def check_up(
    device: Device,
    backends: Mapping[str, Backend],
    *,
    lock_dir: Path | None = None,
    library: str = _cuda_driver.LIBRARY,
) -> Checkup:
    """Look at everything that a run on a GPU needs.

    Args:
        device: where a run would be.
        backends: whose compiler caches are looked at.
        lock_dir: where device locks lie; None for the usual place.
        library: the CUDA driver's library.
    """
    checks = [*_driver(library), _nvml(), *_compilers(), *_caches(backends)]
    if device.kind == "cuda":
        checks += [_lock(device, lock_dir, library), _neighbours(device, library)]
    return Checkup(tuple(checks))


def _driver(library: str) -> Iterator[Check]:
    try:
        driver = _cuda_driver.query(library)
    except _cuda_driver.DriverError as error:
        yield Check("NVIDIA driver", False, f"{error}")
        return
    cuda = f"CUDA up to {driver.cuda[0]}.{driver.cuda[1]}"
    yield Check("NVIDIA driver", True, f"{driver_version() or 'version unknown'}, {cuda}")
    devices = "; ".join(f"cuda:{one.index} {one.name}" for one in driver.devices)
    yield Check("CUDA devices", bool(driver.devices), devices or "the driver shows none")
    slices = [one.name for one in driver.devices if is_slice(one.name)]
    with nvml_session() as nvml:
        mode = "on for a card" if nvml and in_mig_mode(nvml) else "off" if nvml else "cannot be known without NVML"
    hint = "; a slice is another device than its card" if slices else ""
    yield Check("MIG mode", not slices, f"{mode}{hint}")
    problem = torch_problem(driver.cuda)
    yield Check("PyTorch with CUDA", not problem, problem or _versions("torch"))


def _nvml() -> Check:
    with nvml_session() as nvml:
        if nvml is not None:
            return Check("NVML", True, _versions("nvidia-ml-py"))
    why = "the driver's library libnvidia-ml.so.1 is not here" if util.find_spec("pynvml") else "install nvidia-ml-py"
    return Check("NVML", False, f"{why}: clocks, throttling and neighbours cannot be seen")


def _compilers() -> Iterator[Check]:
    stack = CudaStack(toolkit=TOOLKIT)  # looked at anew, whatever this process has seen before
    yield _nvcc(stack)
    nvrtc = _nvrtc()
    yield Check(
        "NVRTC",
        bool(nvrtc),
        nvrtc or "no libnvrtc; Humming needs it or nvcc, humming-kernels[cu13] or [cu12] brings it",
    )
    for name, what in (("triton", "Triton"), ("humming-kernels", "Humming")):
        version = _versions(name)
        yield Check(what, bool(version), version or f"not installed ({name})")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    yield Check(
        "C compiler", compiler is not None, compiler or "no cc, gcc or clang; Triton builds its launchers with one"
    )
    yield from _cuda(stack)


def _nvcc(stack: CudaStack) -> Check:
    found = stack.nvcc
    if found is None:
        return Check("nvcc", False, f"{stack.why_no_nvcc.removesuffix('.')}; Humming then needs NVRTC")
    return Check("nvcc", True, f"{found.path}, CUDA {dotted(found.version)}")


def _cuda(stack: CudaStack) -> Iterator[Check]:
    """CUDA versions that would meet in one process, cuDNN, and how many compilers run side by side."""
    clashes = conflicts(stack)
    yield Check("CUDA versions", not clashes, " ".join(clashes) or "no two major versions")
    cudnn = why_cudnn_too_old(OLDEST_CUDNN, "flashinfer.cudnn", stack=stack)
    parts = [dotted(version) for version in (stack.cudnn_version, stack.cudnn_frontend_version) if version]
    yield Check("cuDNN", not cudnn, cudnn or f"{parts[0]}, frontend {parts[-1]}")
    fit = jobs_that_fit(stack=stack)
    jobs = str(stack.max_jobs) if stack.max_jobs else f"unset, {stack.jobs} compilers at once"
    too_many = f"; memory holds {fit} of CUTLASS's kernels: set MAX_JOBS={fit}"
    yield Check("MAX_JOBS", stack.jobs <= fit, jobs if stack.jobs <= fit else jobs + too_many)


def _nvrtc() -> str:
    """File name of the NVRTC library of the CUDA wheels, or of the system. Empty if there is none."""
    for distribution in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"):
        version = _versions(distribution)
        if version:
            return f"{distribution} {version}"
    return ctypes.util.find_library("nvrtc") or ""


def _caches(backends: Iterable[str]) -> Iterator[Check]:
    families = sorted({family(name) for name in backends})
    refused = unwritable(families)
    for name in families:
        if name in refused:
            yield Check(f"cache of {name}", False, refused[name])
    if not refused:
        yield Check("compiler caches", True, "can be written")


def _lock(device: Device, lock_dir: Path | None, library: str) -> Check:
    uuid = device_uuid(device, library=library)
    try:
        lock = DeviceLock(device, command="fp4tune doctor", directory=lock_dir, uuid=uuid)
        holder = lock.holder()
    except Fp4tuneError as error:
        return Check("device lock", False, str(error))
    return Check("device lock", holder is None, f"held by {holder}" if holder else f"free ({lock.path})")


def _neighbours(device: Device, library: str) -> Check:
    seen = look(device_uuid(device, library=library))
    if seen is None:
        return Check("other processes", False, "cannot be seen")
    idle = "none" if seen.percent is None else f"none, at {seen.percent} % load"
    return Check("other processes", not seen.shared, seen.sentence or idle)


def _versions(distribution: str) -> str:
    """Version of an installed distribution; empty if it is not."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
