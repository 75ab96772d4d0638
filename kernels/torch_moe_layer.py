"""The layer of `torch.moe`: buffers that are allocated once, and the operations of one call.

The two products are grouped GEMMs of `dequant_gemm`, on operands whose activations this module fills in at each call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import silu

from .dequant_gemm import Plan, prepare_dequant
from .errors import UnsupportedError
from .moe_operands import MoeOperands
from .nvfp4 import pack, quantize_rows
from .operands import Operands, Quantized
from .problem import NVFP4_GROUP, Format, Op, OutDtype, Problem

if TYPE_CHECKING:
    from .backend import Config


def prepare_layer(operands: Operands, config: Config) -> Callable[[], None]:
    """The callable that computes a moe problem into `operands.out` with a config of `torch.moe`."""
    if not isinstance(operands, MoeOperands):
        raise UnsupportedError(f"torch.moe needs the operands of a moe problem, not of {operands.problem.key}.")
    return _Layer(operands, config).run


class _Layer:
    """Buffers and products of one prepared layer; see the module."""

    def __init__(self, operands: MoeOperands, config: Config) -> None:
        self._operands = operands
        problem, device = operands.problem, operands.out.device
        self._quantises = problem.format is Format.NVFP4
        flat = operands.experts.flatten().long().cpu()
        order = torch.argsort(flat, stable=True)  # pairs of token and expert, by expert; those on this rank come first
        pairs = order[: int((flat < problem.experts).sum())]
        offsets = torch.zeros(problem.experts + 1, dtype=torch.int64)
        torch.cumsum(flat[pairs].bincount(minlength=problem.experts)[: problem.experts], dim=0, out=offsets[1:])
        rows = len(pairs)
        self._token_of_row = (pairs // problem.top_k).to(device)
        self._scale_of_row = operands.mid_scale[flat[pairs].to(device)].unsqueeze(1)
        # Where each pair's row is; pairs on other ranks get the row of zeros behind all others.
        at = torch.full((flat.numel(),), rows)
        at[pairs] = torch.arange(rows)
        self._row_of_pair = at.to(device)
        self._shares = operands.weights.view(problem.m, 1, problem.top_k)
        compute = getattr(torch, str(config["compute_dtype"]))
        self._hidden = torch.empty(rows, 2 * problem.n, dtype=compute, device=device)
        self._down = torch.zeros(rows + 1, problem.k, dtype=compute, device=device)
        self._x = _activations(rows, problem.k, device, quantised=self._quantises)
        self._middle = _activations(rows, problem.n, device, quantised=self._quantises)
        plan = Plan(
            decode=str(config.get("decode", "")),
            block_n=int(config["block_n"]),
            compute_dtype=compute,
            product_dtype=compute,
            swap_ab=bool(config["swap_ab"]),
            experts_per_step=int(config["experts_per_step"]),
        )

        def product(
            name: str, a: Quantized | torch.Tensor, b: Quantized | torch.Tensor, alpha: torch.Tensor, out: torch.Tensor
        ) -> Callable[[], None]:
            gemm = _grouped(problem, n=out.shape[1], k=_width(a), out=compute)
            packed = operands.packed.setdefault(f"torch.moe.{name}", {})
            return prepare_dequant(Operands(gemm, a, b, offsets, alpha, out, operands.seed, packed=packed), plan)

        self._up = product("w13", self._x, operands.b, operands.alpha, self._hidden)
        self._out = product("w2", self._middle, operands.b2, operands.alpha2, self._down[:rows])

    def run(self) -> None:
        """Compute the layer into `operands.out`."""
        operands, problem = self._operands, self._operands.problem
        if self._token_of_row.numel():
            self._load_input()
            self._up()
            gate, up = self._hidden.float().chunk(2, dim=1)
            self._load_middle(silu(gate) * up)
            self._out()
        rows = self._down.index_select(0, self._row_of_pair).view(problem.m, problem.top_k, problem.k)
        operands.out.copy_(torch.bmm(self._shares, rows.float()).squeeze(1))

    def _load_input(self) -> None:
        """Quantise the tokens once, and give each expert its rows."""
        x = self._operands.x
        if not isinstance(self._x, Quantized):
            torch.index_select(x, 0, self._token_of_row, out=self._x)
            return
        codes, scale = quantize_rows(x, self._operands.a_scale)
        torch.index_select(pack(codes), 0, self._token_of_row, out=self._x.packed)
        gathered = scale.view(torch.uint8).index_select(0, self._token_of_row)
        self._x.scale.view(torch.uint8).copy_(gathered)

    def _load_middle(self, middle: torch.Tensor) -> None:
        """Requantise what goes into the second product."""
        if not isinstance(self._middle, Quantized):
            self._middle.copy_(middle)
            return
        codes, scale = quantize_rows(middle, self._scale_of_row)
        self._middle.packed.copy_(pack(codes))
        self._middle.scale.copy_(scale)


def _grouped(problem: Problem, *, n: int, k: int, out: torch.dtype) -> Problem:
    """The grouped problem that one of the two products is."""
    out_dtype = OutDtype.FP32 if out is torch.float32 else OutDtype.BF16
    return replace(problem, op=Op.GROUPED, n=n, k=k, out_dtype=out_dtype)


def _activations(rows: int, k: int, device: torch.device, *, quantised: bool) -> Quantized | torch.Tensor:
    """A buffer for the activations of a product: NVFP4, or BF16 [rows, K]."""
    if not quantised:
        return torch.empty(rows, k, dtype=torch.bfloat16, device=device)
    return Quantized(
        torch.empty(rows, k // 2, dtype=torch.uint8, device=device),
        torch.empty(rows, k // NVFP4_GROUP, dtype=torch.float8_e4m3fn, device=device),
        torch.empty(0, dtype=torch.uint8, device=device),  # dequantising reads the linear scales only
        torch.ones(1, device=device),
    )


def _width(a: Quantized | torch.Tensor) -> int:
    """K of activations, in elements."""
    return 2 * a.packed.shape[1] if isinstance(a, Quantized) else a.shape[1]
