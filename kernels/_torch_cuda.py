"""What the backends that are made of torch's own CUDA operations share. No import of torch at module import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .backend import Availability
from .device import cublas_version, driver_version

if TYPE_CHECKING:
    from .device import Device

_MIN_CAPABILITY = (8, 0)
"""First compute capability with BF16 tensor cores."""


def probe(device: Device) -> Availability:
    """Available on a CUDA device from SM80 on that this build of torch has kernels for."""
    unfit = why_unfit(device)
    if unfit:
        return Availability(False, unfit)
    try:
        import torch

        if not torch.cuda.is_available() or device.index >= torch.cuda.device_count():
            return Availability(False, f"PyTorch {torch.__version__} does not see CUDA device {device.index}.")
        built_for = torch.cuda.get_arch_list()
        if not can_run(device.capability, built_for):
            return Availability(
                False, f"PyTorch {torch.__version__} was built for {', '.join(built_for)}, and {device.name} "
                f"has compute capability {device.compute_capability}.",
            )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything, and probe never does
        return Availability(False, f"PyTorch cannot be used ({error}); install torch with CUDA.")
    return Availability(True)


def versions() -> dict[str, str]:
    """torch, CUDA, cuBLAS and the driver, as far as they are there."""
    try:
        import torch
    except Exception:  # noqa: BLE001 - probe says why; without torch there are no versions
        return {}
    found = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cublas": cublas_version(),
        "driver": driver_version(),
    }
    return {name: version for name, version in found.items() if version}


def why_unfit(device: Device) -> str:
    """Why this kind of device can never be used, or nothing."""
    if device.kind != "cuda":
        return f"It needs a CUDA device, and {device.name} is a {device.kind} device."
    if device.capability < _MIN_CAPABILITY:
        return (
            f"It needs compute capability 8.0 (BF16 tensor cores), and {device.name} has {device.compute_capability}."
        )
    return ""


def can_run(capability_: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Whether one of torch's targets (`sm_90`, `compute_90`) runs on `capability_`.

    Machine code runs on the same major version from its minor version on, PTX on everything later (CUDA programming
    guide, binary and PTX compatibility).
    """
    for target in built_for:
        kind, _, digits = target.partition("_")
        number = digits.rstrip("af")
        if not number.isdigit():
            continue
        major, minor = int(number[:-1]), int(number[-1])
        if (kind == "sm" and major == capability_[0] and minor <= capability_[1]) or (
            kind == "compute" and (major, minor) <= capability_
        ):
            return True
    return False


def wide_products() -> bool:
    """Whether torch.mm can multiply 16-bit operands into float32: CUDA only, from torch 2.8 on."""
    import torch

    return torch.cuda.is_available() and hasattr(torch.ops.aten.mm, "dtype_out")


def with_matmul_settings(
    gemm: Callable[[], None], *, reduced_sums: bool, library: str | None = None
) -> Callable[[], None]:
    """`gemm` under torch's process-wide switches for matrix products, which are as they were afterwards.

    Args:
        gemm: launches on the current stream.
        reduced_sums: whether cuBLAS may round the partial sums of a split-K product to the operands' 16 bits.
        library: `cublas` or `cublaslt`; None for whichever torch takes.
    """
    import torch

    matmul, blas = torch.backends.cuda.matmul, torch.backends.cuda.preferred_blas_library

    def run() -> None:
        sums = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
        # An enumeration of torch's own, `_BlasBackend.Cublas`, which is set by its name in lower case.
        before = str(blas()).rpartition(".")[2].lower()
        other = library is not None and before != library
        matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = reduced_sums
        try:
            if other:
                blas(library)
            with torch.inference_mode():
                gemm()
        finally:
            matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction = sums
            if other:
                blas(before)

    return run
