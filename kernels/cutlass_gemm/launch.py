"""From operands to a callable that launches one kernel. Imports torch; runs on a CUDA device only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ..errors import UnsupportedError
from ..operands import Quantized
from ..padding import padded
from .builder import ensure_built
from .library import RASTERS, Library, Product, load
from .toolchain import toolchain

if TYPE_CHECKING:
    from ..backend import Config
    from ..operands import Operands
    from .build_config import BuildConfig


def prepare_launch(operands: Operands, config: Config, build: BuildConfig, *, sms: int) -> Callable[[], None]:
    """The callable that computes `operands` by one config into `operands.out`.

    Args:
        operands: on a card.
        config: of the problem's space.
        build: the part of it that is compiled in.
        sms: multiprocessors of the card.

    Returns:
        One launch on torch's current stream of the operands' device. For stream-K a memset goes before it; with `pad_m`
        the copies in and out are around it. It allocates nothing, so that a CUDA graph can hold it.

    Raises:
        UnsupportedError: the kernel cannot be built, or does not take the operands.
    """
    kernel = load(ensure_built(build, toolchain(build.target)).library)
    wide = padded(operands, int(config["pad_m"]), linear_scale=False)
    product = product_of(wide.operands, config, sms=sms)
    workspace = _workspace(kernel, product, operands.out.device)
    if workspace is not None:
        product.workspace, product.workspace_bytes = workspace.data_ptr(), workspace.numel()
    plan = kernel.plan(product)
    index, stream_of = product.device, torch._C._cuda_getCurrentRawStream  # noqa: SLF001 - as Triton asks for it

    def launch(_kept_alive: object = (wide, workspace)) -> None:
        kernel.run(plan, stream_of(index))

    return wide.around(launch)


def product_of(operands: Operands, config: Config, *, sms: int) -> Product:
    """The product without a workspace. Addresses of tensors that the caller keeps alive.

    Raises:
        UnsupportedError: the operands are no NVFP4, or one is not contiguous.
    """
    problem, a, b = operands.problem, operands.a, operands.b
    if not (isinstance(a, Quantized) and isinstance(b, Quantized)):
        raise UnsupportedError(f"cutlass multiplies NVFP4 by NVFP4, and {problem.key} is not that.")
    tensors = {
        "a": a.packed,
        "b": b.packed,
        "a_scale": a.scale_128x4,
        "b_scale": b.scale_128x4,
        "alpha": operands.alpha,
        "out": operands.out,
    }
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise UnsupportedError(f"cutlass needs {name} contiguous, and it is not.")
    return Product(
        m=problem.m,
        n=problem.n,
        k=problem.k,
        splits=int(config["splits"]),
        max_swizzle=int(config["max_swizzle"]),
        raster=RASTERS.index(str(config["raster"])),
        sms=sms,
        device=operands.out.device.index or 0,
        **{name: tensor.data_ptr() for name, tensor in tensors.items()},
    )


def _workspace(kernel: Library, product: Product, device: torch.device) -> torch.Tensor | None:
    """Partial sums and barriers of stream-K; None where the product needs none."""
    needed = kernel.workspace_bytes(product)
    return torch.empty(needed, dtype=torch.uint8, device=device) if needed else None
