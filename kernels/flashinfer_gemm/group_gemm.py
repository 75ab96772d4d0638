"""`flashinfer.group_gemm`: FlashInfer's grouped NVFP4 GEMM for SM12x (`group_gemm_nvfp4_nt_groupwise`).

It has no AutoTuner: the tile and the swap are arguments. Every expert must begin at a row that is a multiple of 4, and
its scales at a multiple of 128. An engine's quantiser writes A in that form, so A is laid out when a config is prepared
and not timed; where rows were added between experts, copying the result out of there is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..backend import Config, ConfigValue, Parameter, Space, nothing_to_run
from ..dequant_space import check_config
from ..errors import UnsupportedError
from ..operands import Quantized
from ..problem import NVFP4_GROUP, Op, OutDtype
from .arguments import scale_shape
from .moe_base import Sm12x
from .seam import Seam, seam

if TYPE_CHECKING:
    import torch

    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem

_ROW_MULTIPLE = 4
_SCALE_ROWS = 128
_GEMM = "flashinfer.gemm.gemm_base"


class GroupGemm(Sm12x):
    """Grouped NVFP4.

    Parameters:
        tile_m, tile_n, tile_k: CTA tile in elements; tile_m is 128 always.
        swap_ab: tokens on N, FlashInfer's default.
    """

    name = "flashinfer.group_gemm"
    op = Op.GROUPED
    out_dtypes = (OutDtype.BF16, OutDtype.FP16)
    # gemm_base.py, `_check_group_gemm_nvfp4_nt_groupwise_problem_size`.
    n_multiple = 8
    k_multiple = 128

    def space_of(self, problem: Problem) -> Space:
        """The twelve combinations that FlashInfer accepts."""
        self.check_problem(problem)
        return Space(
            (
                Parameter("tile_m", (128,)),
                Parameter("tile_n", (32, 64, 128)),
                Parameter("tile_k", (128, 256)),
                Parameter("swap_ab", (True, False)),
            )
        )

    def default_of(self, problem: Problem) -> dict[str, ConfigValue]:
        """The function's own defaults."""
        self.check_problem(problem)
        return {"tile_m": 128, "tile_n": 128, "tile_k": 128, "swap_ab": True}

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """The narrowest tile of tokens, for few rows an expert."""
        return [self.default(problem, device) | {"tile_n": 32}]

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The public call, and a copy of the rows where some were added.

        Raises:
            UnsupportedError: FlashInfer refuses the call, or cannot launch it.
        """
        self.check_on_card(operands)
        check_config(self.name, config, self.space_of(problem))
        if not operands.out.numel():
            return nothing_to_run
        call = call_of(seam(), laid_out(operands), operands, config)
        self.first_call(operands, config, call)
        return call


class Laid(NamedTuple):
    """A grouped problem's rows as FlashInfer wants them.

    Attributes:
        a: uint8 [padded rows, K/2]; rows that were added are zero.
        a_scale: uint8 [scale rows, up(K/16, 4)]: each expert's block scales in the 128x4 layout from a row on that
            `scale_start` gives, everything else zero.
        indptr: int32 [experts + 1], multiples of 4.
        rows: int64 [rows], where each row went; None if they are where they were.
    """

    a: torch.Tensor
    a_scale: torch.Tensor
    indptr: torch.Tensor
    rows: torch.Tensor | None


def scale_start(first_row: int, expert: int) -> int:
    """The row of an expert's first scale: `sf_m_offset` in group_gemm_nvfp4_groupwise_sm120.cuh."""
    return (first_row + expert * (_SCALE_ROWS - 1)) // _SCALE_ROWS * _SCALE_ROWS


def laid_out(operands: Operands) -> Laid:
    """The rows of a grouped problem as FlashInfer wants them; made once for all of its configs.

    Raises:
        UnsupportedError: A is not NVFP4, or the problem is not grouped.
    """
    import torch

    from ..nvfp4 import swizzle_128x4

    a, offsets = operands.a, operands.offsets
    if not isinstance(a, Quantized) or offsets is None:
        raise UnsupportedError(f"FlashInfer's grouped GEMM multiplies grouped NVFP4, not {operands.problem.key}.")
    key = f"flashinfer.group_gemm.{a.packed.data_ptr()}.{hash(operands.routed)}"
    if key in operands.packed:
        found: Laid = operands.packed[key]
        return found
    counts = offsets.diff()
    padded = torch.zeros_like(offsets)
    torch.cumsum((counts + _ROW_MULTIPLE - 1) // _ROW_MULTIPLE * _ROW_MULTIPLE, dim=0, out=padded[1:])
    shift = (padded[:-1] - offsets[:-1]).repeat_interleave(counts)
    rows = torch.arange(int(offsets[-1])) + shift
    groups = operands.problem.k // NVFP4_GROUP
    experts, last = len(counts), int(padded[-1])
    device = a.packed.device
    packed = torch.zeros(last, a.packed.shape[1], dtype=torch.uint8, device=device)
    packed[rows.to(device)] = a.packed
    n_scale_rows = scale_start(last, experts) + _SCALE_ROWS
    scale = torch.zeros(n_scale_rows, scale_shape(1, operands.problem.k)[1], dtype=torch.uint8, device=device)
    for expert, (first, count) in enumerate(zip(offsets.tolist(), counts.tolist(), strict=False)):
        if count:
            start = scale_start(int(padded[expert]), expert)
            one = swizzle_128x4(a.scale[first : first + count].view(torch.uint8).view(count, groups))
            scale.view(-1)[start * scale.shape[1] :][: one.numel()] = one
    moved = not torch.equal(padded, offsets)
    laid = Laid(packed, scale, padded.to(torch.int32).to(device), rows.to(device) if moved else None)
    operands.packed[key] = laid
    return laid


def call_of(flashinfer: Seam, laid: Laid, operands: Operands, config: Config) -> Callable[[], None]:
    """The public call with a config, and the copy of the rows where some were added."""
    import torch

    (group_gemm,) = flashinfer.need(_GEMM, "group_gemm_nvfp4_nt_groupwise")
    b, problem = operands.b, operands.problem
    if not isinstance(b, Quantized):
        raise UnsupportedError(f"FlashInfer's grouped GEMM needs NVFP4 weights, not those of {problem.key}.")
    b_scale = b.scale_128x4.view(problem.experts, *scale_shape(problem.n, problem.k))
    rows = laid.rows
    wide: Any = operands.out
    if rows is not None:
        wide = operands.out.new_empty(laid.a.shape[0], problem.n)

    def call() -> None:
        group_gemm(
            laid.a, b.packed, laid.a_scale, b_scale, laid.indptr, operands.alpha, out=wide, out_dtype=wide.dtype,
            tile_m=config["tile_m"], tile_n=config["tile_n"], tile_k=config["tile_k"], swap_ab=config["swap_ab"],
        )  # fmt: skip
        if rows is not None:
            torch.index_select(wide, 0, rows, out=operands.out)

    return call
