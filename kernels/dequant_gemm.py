"""Dequantise a block of weights, multiply, take the next: the engine of `cpu.dequant` and `torch.dequant`.

Device-agnostic torch operations into buffers that are allocated once, when a GEMM is prepared. What a block is
decoded with, how large it is, in which dtype and orientation it is multiplied, and how many experts are taken
together is the plan's; the backends decide which plans make sense on their device.

Codes and block scales are decoded exactly (see `nvfp4.decode`); alpha is applied to the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from .block_decoders import BlockDecoder, LookupDecoder, make_decoder
from .operands import Operands, Quantized

_ALONE_ROWS = 256
"""An expert with more rows than this is never batched: padding the others to it would cost more than it saves."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to compute a GEMM.

    Attributes:
        decode: `lookup`, `arithmetic`; ignored for BF16 weights.
        block_n: rows of B (of each expert) that are decoded and multiplied at a time.
        compute_dtype: dtype of the product's operands.
        product_dtype: dtype of the product before alpha; wider than compute_dtype only where torch.mm can do that.
        swap_ab: multiply B · Aᵀ instead of A · Bᵀ.
        experts_per_step: experts that are decoded together and multiplied by one batched product.
    """

    decode: str
    block_n: int
    compute_dtype: torch.dtype
    product_dtype: torch.dtype
    swap_ab: bool
    experts_per_step: int = 1


def prepare_dequant(operands: Operands, plan: Plan) -> Callable[[], None]:
    """The callable that computes `operands` into `operands.out` by `plan`; it allocates nothing of size."""
    gemm = _DequantGemm(operands, plan)
    return gemm.run


@dataclass(frozen=True, slots=True)
class _Step:
    """Experts that are computed together.

    Attributes:
        experts: their indices, ascending; (0,) for dense.
        rows: how many rows each has; all in all they are contiguous in A and D, because experts between them have none.
        first: the first of these rows.
    """

    experts: tuple[int, ...]
    rows: tuple[int, ...]
    first: int

    @property
    def last(self) -> int:
        """The first row after them."""
        return self.first + sum(self.rows)

    @property
    def height(self) -> int:
        """Rows of the expert that has most."""
        return max(self.rows)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The rows of a step's experts, for one batched product.

    Attributes:
        gather: fills `a`.
        a: [experts, height, K].
        valid: which of the experts · height rows are no padding, int64 [rows].
        alpha: float32 [rows, 1].
    """

    gather: Callable[[], None]
    a: torch.Tensor
    valid: torch.Tensor
    alpha: torch.Tensor


class _DequantGemm:
    """Buffers and views of one prepared GEMM."""

    def __init__(self, operands: Operands, plan: Plan) -> None:
        self._plan = plan
        device = operands.out.device
        n, k = operands.problem.n, operands.problem.k
        steps = _steps(operands, plan.experts_per_step)
        block_n = min(plan.block_n, n)
        widest = max((len(s.experts) for s in steps), default=1)
        self._decoder: BlockDecoder = make_decoder(
            _stacked_b(operands),
            plan.decode,
            widest,
            block_n,
            plan.compute_dtype,
            [expert for step in steps for expert in step.experts],
            operands.packed,
        )
        factor_a = self._prepare_a(operands, k, block_n)
        scale = float(self._decoder.factor * factor_a)
        self._alphas = [alpha / scale for alpha in operands.alpha.tolist()]
        # A number on a CPU. On a GPU a tensor with dimensions, which makes torch scale a 16-bit product in float32.
        self._alpha_of: Sequence[float | torch.Tensor] = self._alphas
        if device.type == "cuda":
            self._alpha_of = torch.tensor(self._alphas, dtype=torch.float32, device=device).view(-1, 1, 1).unbind()
        size = max((len(s.experts) * s.height for s in steps), default=0) * block_n
        self._product, self._turned, self._picked = (
            torch.empty(size if needed else 0, dtype=plan.product_dtype, device=device)
            for needed in (True, widest > 1 and plan.swap_ab, widest > 1)
        )
        self._mm_dtype = {} if plan.product_dtype == plan.compute_dtype else {"out_dtype": plan.product_dtype}
        self._calls: list[Callable[[], None]] = []
        for step in steps:
            batch = self._batch(step) if len(step.experts) > 1 else None
            if batch is not None:
                self._calls.append(batch.gather)
            for n0 in range(0, n, block_n):
                n1 = min(n0 + block_n, n)
                decode, weights = self._decoder.bind(step.experts, n0, n1)
                out = operands.out[step.first : step.last, n0:n1]
                multiply = (
                    self._multiply_one(step, weights, out) if batch is None else self._multiply(batch, weights, out)
                )
                self._calls += [decode, multiply]

    def run(self) -> None:
        """Decode A, then every block of B, and multiply."""
        self._load_a()
        for call in self._calls:
            call()

    def _prepare_a(self, operands: Operands, k: int, block_n: int) -> float:
        """Set up A in the compute dtype and the decoder's order of K; returns the factor that it carries."""
        a, plan, order = operands.a, self._plan, self._decoder.order
        rows = operands.out.shape[0]
        if not isinstance(a, Quantized) and a.dtype == plan.compute_dtype and order.natural:
            self._a = a
            self._load_a: Callable[[], None] = _nothing
            return 1.0
        self._a = torch.zeros(rows, order.width, dtype=plan.compute_dtype, device=operands.out.device)
        if not isinstance(a, Quantized):
            self._load_a = order.copier(self._a, a, k)
            return 1.0
        # A arrives in the standard order at each call, so unlike B it cannot be repacked once; a lookup reads it as is.
        height = max(1, min(block_n, rows))
        decoder = LookupDecoder(_stack_of_one(a), 1, height, plan.compute_dtype)
        calls: list[Callable[[], None]] = []
        for r0 in range(0, rows, height):
            r1 = min(r0 + height, rows)
            decode, values = decoder.bind((0,), r0, r1)
            calls += [decode, order.copier(self._a[r0:r1], values[0], k)]

        def load() -> None:
            for call in calls:
                call()

        self._load_a = load
        return decoder.factor

    def _multiply_one(self, step: _Step, weights: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """The product of one expert's rows (or all rows) with a block of weights [1, columns, K]."""
        a, w = self._a[step.first : step.last], weights[0]
        m, width = out.shape
        alpha, mm_dtype = self._alpha_of[step.experts[0]], self._mm_dtype
        left, right, shape = (w, a.t(), (width, m)) if self._plan.swap_ab else (a, w.t(), (m, width))
        product = self._product[: m * width].view(shape)
        result = product.t() if self._plan.swap_ab else product

        def call() -> None:
            torch.mm(left, right, out=product, **mm_dtype)
            _scale_into(out, result, alpha)

        return call

    def _batch(self, step: _Step) -> _Batch:
        """Bring the rows of several experts to one height. Padding repeats an expert's last row."""
        index: list[int] = []
        valid: list[int] = []
        alphas: list[float] = []
        first = step.first
        for i, (expert, rows) in enumerate(zip(step.experts, step.rows, strict=True)):
            valid += [i * step.height + j for j in range(rows)]
            index += [first + min(j, rows - 1) for j in range(step.height)]
            alphas += [self._alphas[expert]] * rows
            first += rows
        a, device = self._a, self._a.device
        source = torch.tensor(index, device=device)
        padded = torch.empty(len(index), a.shape[1], dtype=a.dtype, device=device)

        def gather() -> None:
            torch.index_select(a, 0, source, out=padded)

        return _Batch(
            gather,
            padded.view(len(step.experts), step.height, -1),
            torch.tensor(valid, device=device),
            torch.tensor(alphas, dtype=torch.float32, device=device).unsqueeze(1),
        )

    def _multiply(self, batch: _Batch, weights: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """The products of several experts' padded rows with their blocks of weights [experts, columns, K]."""
        a, valid, alpha, mm_dtype, swap = batch.a, batch.valid, batch.alpha, self._mm_dtype, self._plan.swap_ab
        experts, height, width = *a.shape[:2], out.shape[1]
        left, right = (weights, a.transpose(1, 2)) if swap else (a, weights.transpose(1, 2))
        size = experts * height * width
        product = self._product[:size].view((experts, width, height) if swap else (experts, height, width))
        rows_first = self._turned[:size].view(experts, height, width) if swap else product
        padded = rows_first.view(experts * height, width)
        picked = self._picked[: out.numel()].view(out.shape)

        def call() -> None:
            torch.bmm(left, right, out=product, **mm_dtype)
            if swap:
                rows_first.copy_(product.transpose(1, 2))
            torch.index_select(padded, 0, valid, out=picked)
            _scale_into(out, picked, alpha)

        return call


def _scale_into(out: torch.Tensor, product: torch.Tensor, alpha: float | torch.Tensor) -> None:
    """Set `out` to product · alpha; may overwrite `product`. On a CPU torch.mul would convert through a new tensor."""
    if out.is_cuda or out.dtype == product.dtype:
        torch.mul(product, alpha, out=out)
    else:
        out.copy_(product.mul_(alpha))


def _nothing() -> None:
    """For an A that is used as it is."""


def _stack_of_one(x: Quantized) -> Quantized:
    """One matrix as a stack of one."""
    return replace(x, packed=x.packed.unsqueeze(0), scale=x.scale.unsqueeze(0), scale_128x4=x.scale_128x4.unsqueeze(0))


def _stacked_b(operands: Operands) -> Quantized | torch.Tensor:
    """B as a stack [experts, N, ...], of one for dense."""
    if operands.offsets is not None:
        return operands.b
    return _stack_of_one(operands.b) if isinstance(operands.b, Quantized) else operands.b.unsqueeze(0)


def _steps(operands: Operands, experts_per_step: int) -> Sequence[_Step]:
    """The experts that have rows, in order, as many together as the plan says."""
    if operands.offsets is None:
        return [_Step((0,), (operands.out.shape[0],), 0)]
    steps: list[_Step] = []
    for expert, (first, last) in enumerate(pairwise(operands.offsets.tolist())):
        rows = last - first
        if not rows:
            continue
        previous = steps[-1] if steps else None
        joins = previous is not None and len(previous.experts) < experts_per_step
        if previous is not None and joins and max(rows, previous.height) <= _ALONE_ROWS:
            steps[-1] = _Step((*previous.experts, expert), (*previous.rows, rows), previous.first)
        else:
            steps.append(_Step((expert,), (rows,), first))
    return steps
