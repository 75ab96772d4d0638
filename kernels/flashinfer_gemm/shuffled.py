"""Weights for TensorRT-LLM's kernels, whose rows of B are shuffled within blocks of 32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .arguments import Arguments, of_operands, scale_shape

if TYPE_CHECKING:
    from ..operands import Operands
    from .seam import Seam

EPILOGUE_TILE_M = 128
"""Rows of the epilogue's tile, which decides the shuffle: what FlashInfer's `nvfp4_quantize(do_shuffle=True)` uses."""

_KEPT = "flashinfer.trtllm.rows-shuffled-128"
"""Under which the shuffled weights are kept beside B."""


def shuffled_arguments(flashinfer: Seam, operands: Operands) -> Arguments:
    """Arguments with B's rows, and its scales' rows, in the order that `backend="trtllm"` expects.

    The order is FlashInfer's own; the scales are put into the 128x4 layout by ours, on whatever device they are.

    Raises:
        UnsupportedError: the operands are not of a dense NVFP4 problem, or FlashInfer lacks the function.
    """
    import torch

    from .. import nvfp4
    from ..operands import Quantized

    given = of_operands(operands)
    if _KEPT not in operands.packed and isinstance(operands.b, Quantized):
        (row_indices,) = flashinfer.need("flashinfer.utils", "get_shuffle_matrix_a_row_indices")
        rows = row_indices(operands.b.packed, EPILOGUE_TILE_M).to(operands.b.packed.device)
        scale = nvfp4.swizzle_128x4(operands.b.scale.view(torch.uint8)[rows])
        shape = scale_shape(operands.b.packed.shape[0], operands.problem.k)
        operands.packed[_KEPT] = (operands.b.packed[rows], scale.view(shape))
    b, b_scale = operands.packed[_KEPT]
    return given._replace(b=b, b_scale=b_scale)
