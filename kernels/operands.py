"""The operands of a problem: random, quantised once, shared by every backend that runs the problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import OutOfMemoryError
from .problem import NVFP4_GROUP, Format, Op, OutDtype
from .routing import draw_offsets, max_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from .device import Device
    from .problem import Problem

_BANK = 1 << 24
"""Elements that are drawn and quantised at most for one operand; larger operands are put together from windows of
such a bank, each at its own offset. Quantising all of e512k10:16x2048x4096 would take minutes on a small CPU."""

_CHUNK_BYTES = 256 << 20
"""What is set aside for the quantiser and the oracle, which work chunk by chunk, and at most for each of the two
operands of a backend that decodes block by block."""

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
        problem: the problem they belong to.
        a: NVFP4 or BF16 [rows, K]; for grouped, rows sorted by expert.
        b: NVFP4 or BF16 [N, K]; for grouped [experts, N, K].
        offsets: int64 [experts + 1] on the CPU: expert e owns rows offsets[e]:offsets[e+1] of `a` and `out`;
            None for dense.
        alpha: float32 [1], or [experts] for grouped: 1 / (global scale of A · global scale of B), 1 for BF16.
        out: [rows, N] of the problem's output dtype; written by the backend.
        seed: what they were drawn from.
    """

    problem: Problem
    a: Quantized | torch.Tensor
    b: Quantized | torch.Tensor
    offsets: torch.Tensor | None
    alpha: torch.Tensor
    out: torch.Tensor
    seed: int


def make_operands(problem: Problem, device: Device, seed: int) -> Operands:
    """Draw and quantise the operands of `problem`.

    Values are normal with a spread from group to group. They are drawn and quantised on the CPU, so that a seed
    means the same bytes on every device, and moved.

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
    generator = torch.Generator().manual_seed(seed)
    grouped = problem.op is Op.GROUPED
    offsets = draw_offsets(problem, seed) if grouped else None
    rows = problem.m if offsets is None else int(offsets[-1])
    quantised_a, quantised_b = problem.format is Format.NVFP4, problem.format is not Format.BF16
    a = _draw((rows, problem.k), generator, target, quantised=quantised_a)
    b_shape = (problem.n, problem.k)
    b = _draw((problem.experts, *b_shape) if grouped else b_shape, generator, target, quantised=quantised_b)
    alpha = torch.ones(max(1, problem.experts), dtype=torch.float32, device=target)
    for operand in (a, b):
        if isinstance(operand, Quantized):
            alpha = alpha / operand.global_scale
    out_dtype = {OutDtype.BF16: torch.bfloat16, OutDtype.FP16: torch.float16, OutDtype.FP32: torch.float32}
    out = torch.empty(rows, problem.n, dtype=out_dtype[problem.out_dtype], device=target)
    return Operands(problem, a, b, offsets, alpha, out, seed)


def required_bytes(problem: Problem) -> int:
    """Memory that operands, oracle and backend of `problem` take together at their peak, in bytes; an estimate.

    Counts the operands with their second scale layout; A, D and one product in float32 (the oracle's, the
    backend's); one copy of B in another layout (a backend may repack its weights); the bank that values are drawn
    from; and what is worked on chunk by chunk.
    """
    rows = max_rows(problem)
    matrices = max(1, problem.experts)
    elements_a, elements_b, elements_d = rows * problem.k, matrices * problem.n * problem.k, rows * problem.n
    bytes_a = _operand_bytes(1, rows, problem.k, quantised=problem.format is Format.NVFP4)
    bytes_b = _operand_bytes(matrices, problem.n, problem.k, quantised=problem.format is not Format.BF16)
    float32 = 4 * (elements_a + 2 * elements_d)
    bank = 10 * min(_BANK + problem.k, max(elements_a, elements_b))
    # Blocks are decoded at 8 bytes an element, and have 32 rows at least, however large K is.
    blocks = sum(max(min(_CHUNK_BYTES, 8 * e), 8 * 32 * problem.k) for e in (elements_a, elements_b))
    chunks = _CHUNK_BYTES + blocks
    return bytes_a + 2 * bytes_b + 4 * elements_d + float32 + bank + chunks


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


def _operand_bytes(matrices: int, rows: int, k: int, *, quantised: bool) -> int:
    """Bytes of an operand as it is kept: NVFP4 with both scale layouts, or BF16."""
    if not quantised:
        return matrices * rows * k * 2
    groups = k // NVFP4_GROUP
    padded = (rows + 127) // 128 * 128 * ((groups + 3) // 4 * 4)
    return matrices * (rows * (k // 2 + groups) + padded)


def _draw(
    shape: tuple[int, ...], generator: torch.Generator, target: torch.device, *, quantised: bool
) -> Quantized | torch.Tensor:
    """One operand of `shape`, [rows, K] or [experts, rows, K]."""
    import torch

    from . import nvfp4

    *stack, rows, k = shape
    matrices = stack[0] if stack else 1
    bank_rows = min(matrices * rows, max(1, _BANK // k))
    groups = -(-k // NVFP4_GROUP)
    spread = torch.empty(bank_rows, groups, 1).uniform_(-_SPREAD, _SPREAD, generator=generator).exp2_()
    values = torch.empty(bank_rows, groups, NVFP4_GROUP).normal_(generator=generator).mul_(spread).flatten(1)[:, :k]
    windows = list(_windows(matrices, rows, bank_rows, generator))

    def assemble(bank: torch.Tensor) -> torch.Tensor:
        """Copy the bank's windows to their places in a tensor of the operand's shape."""
        out = torch.empty(matrices * rows, bank.shape[1], dtype=bank.dtype, device=target)
        bank = bank.to(target)
        for start, source, count in windows:
            out[start : start + count] = bank[source : source + count]
        return out.view(*stack, rows, bank.shape[1])

    if not quantised:
        return assemble(values.to(torch.bfloat16))
    q = nvfp4.quantize(values.contiguous())
    scale = assemble(q.scale.view(torch.uint8))
    scale_128x4 = torch.empty(*stack, nvfp4.swizzled_bytes(rows, k // NVFP4_GROUP), dtype=torch.uint8, device=target)
    for linear, swizzled in zip(
        scale.view(matrices, rows, groups), scale_128x4.view(matrices, scale_128x4.shape[-1]), strict=True
    ):
        swizzled.copy_(nvfp4.swizzle_128x4(linear))
    factor = torch.ones(1)
    if stack:
        factor = torch.empty(matrices).uniform_(-_SPREAD / 2, _SPREAD / 2, generator=generator).exp2_()
    return Quantized(
        assemble(q.packed), scale.view(torch.float8_e4m3fn), scale_128x4, (q.global_scale * factor).to(target)
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
