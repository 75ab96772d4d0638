"""The operands of a problem: random, quantised once, shared by every backend that runs the problem."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .errors import OutOfMemoryError
from .problem import NVFP4_GROUP, Format, Op, OutDtype, Routing
from .routing import draw_offsets, drawn_load, drawn_tokens, max_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from .device import Device
    from .problem import Problem

_BANK = 1 << 24
"""Elements that are drawn and quantised at most for one operand; larger operands are put together from windows of
such a bank, each at its own offset. Quantising all of e512k10:16x2048x4096 would take minutes on a small CPU."""

CHUNK_BYTES = 256 << 20
"""What is set aside for the quantiser and the oracle, which work chunk by chunk, and at most for each of the two
operands of a backend that decodes block by block."""

MAX_SETS = 256
"""Operand sets at most. A problem of few bytes would need thousands, and every config is prepared for each of them.
With 256 a call that touches 0.74 MB still gets three L2s of an H200 (60 MiB), and one that touches 0.25 MB one."""

COLD_L2 = 3
"""L2s' worth of other bytes that pass between two runs on one set: an L2 need not replace the oldest line first."""

_UNKNOWN_L2 = 128 << 20
"""Taken for a device that does not say: the largest L2 among the cards of today (RTX PRO 6000)."""

_SPREAD = 2.0
"""Groups of 16 along K are scaled by 2^u, u uniform in [-2, 2], so that their E4M3 scales differ. Experts' global
scales are spread by half of it, so that an expert's alpha cannot be mistaken for another's."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A matrix (or a stack of them) in NVFP4.

    Attributes:
        packed: uint8 [..., rows, K/2]; the low nibble is the even k.
        scale: float8_e4m3fn [..., rows, K/16], linear layout.
        scale_128x4: uint8 view of E4M3 [..., padded_rows * padded_cols] in the 128x4 layout; padding is zero.
        global_scale: float32 [...] (one an expert) or [1]: 448·6/amax. Dequantised value = code · scale / global_scale.
    """

    packed: torch.Tensor
    scale: torch.Tensor
    scale_128x4: torch.Tensor
    global_scale: torch.Tensor


@dataclass(frozen=True, slots=True)
class Operands:
    """What a backend computes on.

    Attributes:
        problem: the problem they belong to; the fields of a moe problem are those of `moe_operands.MoeOperands`.
        a: NVFP4 or BF16 [rows, K]; for grouped, rows sorted by expert.
        b: NVFP4 or BF16 [N, K]; for grouped [experts, N, K].
        offsets: int64 [experts + 1] on the CPU: expert e owns rows offsets[e]:offsets[e+1] of `a` and `out`;
            None for dense.
        alpha: float32 [1], or [experts] for grouped: 1 / (global scale of A · global scale of B), 1 for BF16.
        out: [rows, N] of the problem's output dtype; written by the backend.
        seed: what they were drawn from.
        packed: what backends made of `b` (weights in their own layout), by a name of theirs with the layout in it;
            shared by all operand sets that share `b`, so that a layout is made once however many configs use it.
    """

    problem: Problem
    a: Quantized | torch.Tensor
    b: Quantized | torch.Tensor
    offsets: torch.Tensor | None
    alpha: torch.Tensor
    out: torch.Tensor
    seed: int
    packed: dict[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def routed(self) -> tuple[int, ...]:
        """What tells sets of one problem apart: the operands of two sets that have it in common are equal."""
        return () if self.offsets is None else tuple(self.offsets.tolist())

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights as they are kept."""
        return bytes_of(self.b)

    def with_own_weights(self) -> Operands:
        """The same with copies of all weights, and nothing made of them yet."""
        return replace(self, b=copy_of(self.b), packed={})

    def deals(self) -> list[dict[str, Any]]:
        """What to replace for the same rows to go to other experts, no expert twice; the first changes nothing."""
        return [{}] if self.offsets is None else [{"offsets": offsets} for offsets in _deals(self.offsets)]


def make_operands(problem: Problem, device: Device, seed: int) -> Operands:
    """Draw and quantise the operands of `problem`.

    Values are normal with a spread from group to group. They are drawn on the CPU and quantised where they are to be,
    which gives the same bytes on every device: the quantiser consists of correctly rounded operations.

    Args:
        problem: what is to be computed.
        device: where the tensors are to be.
        seed: decides every value and the routing.

    Raises:
        OutOfMemoryError: the device has less memory than the problem needs, nothing was allocated.
    """
    import torch

    check_memory(problem, device)
    target = torch.device(device.torch_device)
    if problem.op is Op.MOE:
        from .moe_operands import make_moe_operands

        return make_moe_operands(problem, target, seed)
    generator = torch.Generator().manual_seed(seed)
    grouped = problem.op is Op.GROUPED
    offsets = draw_offsets(problem, seed) if grouped else None
    rows = problem.m if offsets is None else int(offsets[-1])
    quantised_a, quantised_b = problem.format is Format.NVFP4, problem.format is not Format.BF16
    a = draw((rows, problem.k), generator, target, quantised=quantised_a)
    b_shape = (problem.n, problem.k)
    b = draw((problem.experts, *b_shape) if grouped else b_shape, generator, target, quantised=quantised_b)
    alpha = torch.ones(max(1, problem.experts), dtype=torch.float32, device=target)
    for operand in (a, b):
        if isinstance(operand, Quantized):
            alpha = alpha / operand.global_scale
    out = torch.empty(rows, problem.n, dtype=torch_dtype(problem.out_dtype), device=target)
    return Operands(problem, a, b, offsets, alpha, out, seed)


def torch_dtype(out_dtype: OutDtype) -> torch.dtype:
    """An output dtype as torch calls it."""
    import torch

    return {OutDtype.BF16: torch.bfloat16, OutDtype.FP16: torch.float16, OutDtype.FP32: torch.float32}[out_dtype]


def touched_bytes(problem: Problem, seed: int) -> int:
    """Bytes that one call on the operands of (problem, seed) reads and writes at least, each once.

    Scales count in one layout. Only experts that have rows are read. 0 for a grouped problem if none has; a moe
    problem's output is written even then, and of its input the tokens are read that go to any of them.
    """
    rows, experts = drawn_load(problem, seed)
    if problem.op is Op.MOE:
        written = problem.operand_bytes - problem.weight_bytes - 2 * problem.m * problem.k
        return experts * problem.expert_bytes + 2 * drawn_tokens(problem, seed) * problem.k + written
    one = replace(problem, m=1, op=Op.DENSE, experts=0, experts_total=0, top_k=0, routing=Routing.UNIFORM)
    of_a_row = one.operand_bytes - one.weight_bytes
    return rows * of_a_row + experts * one.weight_bytes if rows else 0


def operand_sets(operands: Operands, device: Device, *, sharing: int = 1) -> list[Operands]:
    """Sets to rotate through, so that none of what a call reads is still in L2 when it runs.

    Between two runs on one set the others touch COLD_L2 times the L2. Every set has its own A and out. A dense set has
    its own B. Grouped and moe sets share their weights, and each gives the same rows to experts that no other set uses;
    once too few experts are left for that, the weights are copied and their experts are dealt again. Copies are equal
    byte for byte, so sets that have `Operands.routed` in common have the same result.

    Args:
        operands: the first set.
        device: where they are.
        sharing: processes that make sets of one problem on the device at the same time, this one included.

    Returns:
        At least one, at most MAX_SETS, and no more than fit into half of this process's share of the memory that is
        free, with a layout of a backend's own for every B; only `operands` on a CPU, where a call runs warm.
    """
    touched = touched_bytes(operands.problem, operands.seed)
    if device.kind == "cpu" or not touched:
        return [operands]
    wanted = min(MAX_SETS, 1 + math.ceil(COLD_L2 * (device.l2_bytes or _UNKNOWN_L2) / touched))
    deals = operands.deals()
    # Beside out, a copy of a right result and, as every deal has its own, the reference in float32.
    for_rows = bytes_of(operands.a) + 2 * bytes_of(operands.out) + 4 * operands.out.numel()
    left = _free_bytes(device) // (2 * sharing)
    base, sets = operands, [operands]
    for i in range(1, wanted):
        copies_b = i % len(deals) == 0
        left -= for_rows + 2 * operands.weights_bytes * copies_b
        if left < 0:
            break
        if copies_b:
            base = operands.with_own_weights()
        own: dict[str, Any] = {"a": copy_of(operands.a), "out": operands.out.new_empty(operands.out.shape)}
        sets.append(replace(base, **own, **deals[i % len(deals)]))
    return sets


def _deals(offsets: torch.Tensor) -> list[torch.Tensor]:
    """Offsets that give the same rows to other experts, no expert twice; the first are `offsets` themselves."""
    counts = offsets.diff()
    busy = counts.nonzero().flatten()
    order = [*busy.tolist(), *(counts == 0).nonzero().flatten().tolist()]
    deals = [offsets]
    for first in range(len(busy), len(order) - len(busy) + 1, len(busy)):
        dealt = counts.new_zeros(counts.shape)
        dealt[sorted(order[first : first + len(busy)])] = counts[busy]
        shifted = offsets.new_zeros(offsets.shape)
        shifted[1:] = dealt.cumsum(dim=0)
        deals.append(shifted)
    return deals


def _tensors(x: Quantized | torch.Tensor) -> Sequence[torch.Tensor]:
    return (x.packed, x.scale, x.scale_128x4, x.global_scale) if isinstance(x, Quantized) else (x,)


def bytes_of(x: Quantized | torch.Tensor) -> int:
    """Bytes of an operand as it is kept."""
    return sum(t.numel() * t.element_size() for t in _tensors(x))


def copy_of(x: Quantized | torch.Tensor) -> Quantized | torch.Tensor:
    """A copy of an operand."""
    return Quantized(*(t.clone() for t in _tensors(x))) if isinstance(x, Quantized) else x.clone()


def _free_bytes(device: Device) -> int:
    """Device memory that can still be had: what the driver has left, and what torch keeps without using it."""
    import torch

    free, _ = torch.cuda.mem_get_info(device.index)
    return int(free + torch.cuda.memory_reserved(device.index) - torch.cuda.memory_allocated(device.index))


def required_bytes(problem: Problem) -> int:
    """Memory that operands, oracle and backend of `problem` take together at their peak, in bytes; an estimate.

    Counts the operands with their second scale layout; A, D and one product in float32 (the oracle's, the
    backend's); one copy of B in another layout (a backend may repack its weights); the bank that values are drawn
    from; and what is worked on chunk by chunk.
    """
    if problem.op is Op.MOE:
        from .moe_operands import moe_required_bytes

        return moe_required_bytes(problem)
    rows = max_rows(problem)
    matrices = max(1, problem.experts)
    elements_a, elements_b, elements_d = rows * problem.k, matrices * problem.n * problem.k, rows * problem.n
    bytes_a = stored_bytes(1, rows, problem.k, quantised=problem.format is Format.NVFP4)
    bytes_b = stored_bytes(matrices, problem.n, problem.k, quantised=problem.format is not Format.BF16)
    float32 = 4 * (elements_a + 2 * elements_d)
    bank = bank_bytes(problem.k, max(elements_a, elements_b))
    # Blocks are decoded at 8 bytes an element, and have 32 rows at least, however large K is.
    blocks = sum(max(min(CHUNK_BYTES, 8 * e), 8 * 32 * problem.k) for e in (elements_a, elements_b))
    chunks = CHUNK_BYTES + blocks
    return bytes_a + 2 * bytes_b + 4 * elements_d + float32 + bank + chunks


def bank_bytes(k: int, elements: int) -> int:
    """What drawing and quantising an operand of so many elements takes at most beside it, in bytes."""
    return 10 * min(_BANK + k, elements)


def check_memory(problem: Problem, device: Device) -> None:
    """Refuse a problem that the device cannot hold, before anything is allocated.

    Raises:
        OutOfMemoryError: `required_bytes` is more than the device's memory; the sentence names both.
    """
    needed = required_bytes(problem)
    if needed > device.memory_bytes:
        raise OutOfMemoryError(
            f"{problem.shape} ({problem.format.value}) needs {needed / 2**30:.1f} GiB, "
            f"the device has {device.memory_bytes / 2**30:.1f} GiB ({device.name})."
        )


def stored_bytes(matrices: int, rows: int, k: int, *, quantised: bool) -> int:
    """Bytes of an operand as it is kept: NVFP4 with both scale layouts, or BF16."""
    if not quantised:
        return matrices * rows * k * 2
    groups = k // NVFP4_GROUP
    padded = (rows + 127) // 128 * 128 * ((groups + 3) // 4 * 4)
    return matrices * (rows * (k // 2 + groups) + padded)


def draw(
    shape: tuple[int, ...],
    generator: torch.Generator,
    target: torch.device,
    *,
    quantised: bool,
    spread_of_experts: float = _SPREAD / 2,
) -> Quantized | torch.Tensor:
    """One operand of `shape`, [rows, K] or [experts, rows, K], of values as `make_operands` says.

    The global scales of experts differ by 2^u, u uniform in ±`spread_of_experts`.
    """
    import torch

    from . import nvfp4

    *stack, rows, k = shape
    matrices = stack[0] if stack else 1
    bank_rows = min(matrices * rows, max(1, _BANK // k))
    groups = -(-k // NVFP4_GROUP)
    spread = torch.empty(bank_rows, groups, 1).uniform_(-_SPREAD, _SPREAD, generator=generator).exp2_()
    drawn = torch.empty(bank_rows, groups, NVFP4_GROUP).normal_(generator=generator).mul_(spread).flatten(1)[:, :k]
    values = drawn.contiguous().to(target)
    windows = list(_windows(matrices, rows, bank_rows, generator))

    def assemble(bank: torch.Tensor) -> torch.Tensor:
        """Copy the bank's windows to their places in a tensor of the operand's shape."""
        out = torch.empty(matrices * rows, bank.shape[1], dtype=bank.dtype, device=target)
        for start, source, count in windows:
            out[start : start + count] = bank[source : source + count]
        return out.view(*stack, rows, bank.shape[1])

    if not quantised:
        return assemble(values.to(torch.bfloat16))
    q = nvfp4.quantize(values)
    scale = assemble(q.scale.view(torch.uint8))
    scale_128x4 = torch.empty(*stack, nvfp4.swizzled_bytes(rows, k // NVFP4_GROUP), dtype=torch.uint8, device=target)
    for linear, swizzled in zip(
        scale.view(matrices, rows, groups), scale_128x4.view(matrices, scale_128x4.shape[-1]), strict=True
    ):
        swizzled.copy_(nvfp4.swizzle_128x4(linear))
    factor = torch.ones(1)
    if stack:
        factor = torch.empty(matrices).uniform_(-spread_of_experts, spread_of_experts, generator=generator).exp2_()
    return Quantized(
        assemble(q.packed), scale.view(torch.float8_e4m3fn), scale_128x4, q.global_scale * factor.to(target)
    )


def _windows(matrices: int, rows: int, bank_rows: int, generator: torch.Generator) -> Iterator[tuple[int, int, int]]:
    """(first row, first row in the bank, rows) of every piece; no two pieces at one offset while offsets last."""
    import torch

    if matrices * rows <= bank_rows:
        yield 0, 0, matrices * rows
        return
    length = min(rows, max(1, bank_rows // 2))
    offsets = torch.randperm(bank_rows - length + 1, generator=generator).tolist()
    piece = 0
    for matrix in range(matrices):
        for start in range(0, rows, length):
            yield matrix * rows + start, offsets[piece % len(offsets)], min(length, rows - start)
            piece += 1
