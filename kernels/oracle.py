"""The reference GEMM, and the comparison that a backend's result must pass before it is ever timed.

The reference multiplies exactly the bytes that the backend read, so no difference of quantisation enters: all that
a right result may differ by is the rounding of the output dtype and the order of an FP32 accumulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn.functional import pad

from .moe_operands import MoeOperands
from .nvfp4 import decode
from .operands import Operands, Quantized

TILE = 128
"""Rows and columns of the tiles that are compared one by one: a wrong tile must not drown in a large matrix."""

BOUNDS = {torch.bfloat16: 5e-3, torch.float16: 6.25e-4, torch.float32: 1e-4}
"""Relative Frobenius error that is allowed, overall and in each tile.

Rounding x to p significant bits errs by at most 2^-p at the bottom of a binade, and evenly up to it. Over mantissas
that are log-uniform the relative Frobenius error is 2^-p·sqrt(1/3 / (3/(2 ln 2))) = 0.39·2^-p: 1.5e-3 for BF16 (p = 8),
1.9e-4 for FP16 (p = 11). The bounds are 3.3 times that: enough for the two roundings of an epilogue that scales a
rounded product (2.2e-3), too little for one wrong element of typical size in a full tile (sqrt(2)/128 = 1.1e-2).
For FP32 rounding is nothing (6e-8) and the accumulation decides: tensor cores truncate where a CPU rounds (Fasi,
Higham, Mikaitis and Pranesh 2021), at most 2^-23 of a partial sum a step: 6e-5 over K = 16384 in steps of 32."""

_SMALL_TILE = 8.0
"""A tile of n elements is allowed bound·(1 + 8/sqrt(n)). The bounds hold on average over many elements; a few can meet
by chance where partial sums cancel, and a kernel that adds its splits up in the output's 16 bits (stream-K as engines
ship it) errs by more there: tiles of one row of 128 were seen at 1.2 to 1.4 bounds on an H200, and are allowed 1.7. One
wrong element of typical size is off by sqrt(2/n) of the tile, 0.125 at n = 128, so it is still found in any tile."""

ELEMENT_REL, ELEMENT_RMS = 2.0, 8.0
"""An element may differ from its reference by 2 bounds of it (2.6 units in the last place of BF16, the worst of two
roundings being 2) plus 8 bounds of the tile's root mean square (for split-K, whose partial sums are rounded too)."""

FLOOR = 1e-2
"""A tile whose reference is smaller than this part of the whole is judged against this part: a tile of a few elements
can be nearly zero by cancellation, and its relative error then says nothing."""

_CHUNK_BYTES = 64 << 20
"""FP32 bytes of dequantised B, of dequantised A and of reference that are held at a time."""

_INTEGERS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
_POISON = {
    torch.bfloat16: (0x7FE5, 0x7F5A),
    torch.float16: (0x7E5A, 0x7B5A),
    torch.float32: (0x7FC5A5A5, 0x7F5A5A5A),
}
"""Bits that an output is filled with before a run: a quiet NaN with a payload, and a large finite number (2.9e38,
60224, 2.9e38). The NaN shows that a kernel read what it should only write; the number survives code that drops NaN."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a result compares with the reference.

    Attributes:
        ok: True if it may be timed.
        rel_error: relative Frobenius error over all; infinite if an element is unwritten or not finite.
        worst_tile_error: the largest error of a tile, relative to the tile.
        bound: what both may be at most; parts of a few elements are allowed a little more.
        n_unwritten: elements that still hold the poison.
        n_nonfinite: other elements that are NaN or infinite.
        sentence: empty if ok, else what is wrong, and where.
    """

    ok: bool
    rel_error: float
    worst_tile_error: float
    bound: float
    n_unwritten: int
    n_nonfinite: int
    sentence: str


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of D whose first row and column start a tile, and the reference for it.

    Attributes:
        expert: whose rows they are; None for dense.
        rows: rows of D. cols: columns of D.
        expected: the reference [rows, columns].
    """

    expert: int | None
    rows: slice
    cols: slice
    expected: torch.Tensor

    def place(self, row: int, col: int) -> str:
        """An element of the chunk, for people."""
        where = f"row {self.rows.start + row}, column {self.cols.start + col}"
        return where if self.expert is None else f"{where} (expert {self.expert})"

    def tile_place(self, row_tile: int, col_tile: int) -> str:
        """A tile of the chunk, for people."""
        row, col = self.rows.start + row_tile * TILE, self.cols.start + col_tile * TILE
        where = f"rows {row}:{min(row + TILE, self.rows.stop)}, columns {col}:{min(col + TILE, self.cols.stop)}"
        return where if self.expert is None else f"{where} (expert {self.expert})"


def poison(out: torch.Tensor) -> None:
    """Fill `out` with two bit patterns, in a checkerboard, that no right result contains."""
    bits = out.view(_INTEGERS[out.dtype])
    nan, number = _POISON[out.dtype]
    bits[0::2, 0::2] = nan
    bits[0::2, 1::2] = number
    bits[1::2, 0::2] = number
    bits[1::2, 1::2] = nan


@torch.no_grad()
def reference(operands: Operands, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """D of `operands`, computed from the dequantised operands.

    Args:
        operands: `out` is not touched.
        dtype: what is accumulated and returned: float32, or float64 for small problems.

    Returns:
        [rows, N], for moe [M, K], of `dtype` on the operands' device.
    """
    if isinstance(operands, MoeOperands):
        from .moe_oracle import moe_reference

        return moe_reference(operands, dtype)
    expected = torch.empty(operands.out.shape, dtype=dtype, device=operands.out.device)
    for chunk in _chunks(operands, dtype):
        expected[chunk.rows, chunk.cols] = chunk.expected
    return expected


@torch.no_grad()
def compare(out: torch.Tensor, operands: Operands, expected: torch.Tensor | None = None) -> Comparison:
    """Whether `out` is the product of `operands`, tile by tile.

    Args:
        out: the result, [rows, N].
        operands: what it was computed from.
        expected: `reference(operands)`, if it is at hand; else it is computed, and dropped, chunk by chunk.
    """
    if isinstance(operands, MoeOperands):
        from .moe_tolerance import MoeTolerance

        return MoeTolerance(operands, reference(operands) if expected is None else expected).judge(out)
    bound = BOUNDS[out.dtype]
    faults = _Faults()
    sums = torch.zeros(3, dtype=torch.float64, device=out.device)  # |difference|^2, |expected|^2, <out, expected>
    tiles: list[_Tiles] = []
    for chunk in _chunks(operands, torch.float32) if expected is None else _slices(operands, expected):
        part = out[chunk.rows, chunk.cols]
        if not faults.scan(part, chunk):
            continue
        value = part.float()
        difference = value - chunk.expected
        sums += torch.stack([x.sum(dtype=torch.float64) for x in
                             (difference**2, chunk.expected**2, value * chunk.expected)])  # fmt: skip
        tiles.append(_Tiles.of(chunk, difference, bound))
    sentence = faults.sentence(out.numel())
    if sentence:
        return Comparison(False, math.inf, math.inf, bound, faults.n_unwritten, faults.n_nonfinite, sentence)
    return _judge(tiles, sums.tolist(), out.numel(), bound)


def unwritten_or_nonfinite(out: torch.Tensor) -> tuple[int, int, str]:
    """(elements that hold the poison, other elements that are NaN or infinite, a sentence or nothing) of a result."""
    faults = _Faults()
    faults.scan(out, _Chunk(None, slice(0, out.shape[0]), slice(0, out.shape[1]), out))
    return faults.n_unwritten, faults.n_nonfinite, faults.sentence(out.numel())


class _Faults:
    """Counts elements that cannot be compared at all, and words the first one found."""

    def __init__(self) -> None:
        self.n_unwritten = 0
        self.n_nonfinite = 0
        self._first_unwritten = self._first_nonfinite = ""

    def scan(self, part: torch.Tensor, chunk: _Chunk) -> bool:
        """Look at one chunk of the output; True if all of it, and all before it, can be compared."""
        nan, number = _POISON[part.dtype]
        bits = part.view(_INTEGERS[part.dtype])
        unwritten = (bits == nan) | (bits == number)
        nonfinite = ~torch.isfinite(part) & ~unwritten
        if bool(unwritten.any()):
            self.n_unwritten += int(unwritten.sum())
            self._first_unwritten = self._first_unwritten or chunk.place(*unwritten.nonzero()[0].tolist())
        if bool(nonfinite.any()):
            self.n_nonfinite += int(nonfinite.sum())
            self._first_nonfinite = self._first_nonfinite or chunk.place(*nonfinite.nonzero()[0].tolist())
        return not (self.n_unwritten or self.n_nonfinite)

    def sentence(self, n_elements: int) -> str:
        """What is wrong with an output of `n_elements`; empty if nothing is."""
        if self.n_unwritten:
            return (
                f"{self.n_unwritten} of {n_elements} elements were not written (or only added to), "
                f"first {self._first_unwritten}."
            )
        if self.n_nonfinite:
            return f"{self.n_nonfinite} of {n_elements} elements are NaN or infinite, first {self._first_nonfinite}."
        return ""


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Figures of the tiles of one chunk, each [row tiles, column tiles], on the CPU.

    Attributes:
        chunk: whose tiles they are.
        count: elements.
        error: Frobenius norm of the difference. norm: of the reference.
        excess: largest |difference| beyond what is allowed for the element's own size.
    """

    chunk: _Chunk
    count: torch.Tensor
    error: torch.Tensor
    norm: torch.Tensor
    excess: torch.Tensor

    @staticmethod
    def of(chunk: _Chunk, difference: torch.Tensor, bound: float) -> _Tiles:
        """Reduce a chunk to its tiles."""
        excess = difference.abs() - ELEMENT_REL * bound * chunk.expected.abs()
        return _Tiles(
            chunk,
            _reduce(torch.ones_like(difference), "sum").cpu(),
            _reduce(difference**2, "sum").sqrt().cpu(),
            _reduce(chunk.expected**2, "sum").sqrt().cpu(),
            _reduce(excess, "amax").cpu(),
        )


def _reduce(x: torch.Tensor, how: str) -> torch.Tensor:
    """Sum or maximum (of what is positive) over each tile: [rows, columns] to [row tiles, column tiles]."""
    rows, cols = x.shape
    by_cols = getattr(pad(x, (0, -cols % TILE)).view(rows, -1, TILE), how)(dim=2)
    padded: torch.Tensor = pad(by_cols, (0, 0, 0, -rows % TILE)).view(-1, TILE, by_cols.shape[1])
    reduced: torch.Tensor = getattr(padded, how)(dim=1)
    return reduced


def _judge(tiles: list[_Tiles], sums: list[float], n_elements: int, bound: float) -> Comparison:
    """The verdict on an output whose elements are all written and finite."""
    if not n_elements:
        return Comparison(True, 0.0, 0.0, bound, 0, 0, "")
    difference2, expected2, _ = sums
    rel_error = math.sqrt(difference2 / expected2) if expected2 else (math.inf if difference2 else 0.0)
    floor_rms = FLOOR * math.sqrt(expected2 / n_elements)
    worst_error, n_bad, n_tiles = 0.0, 0, 0
    worst, worst_tile, element = 0.0, "", ""
    for t in tiles:
        size = torch.maximum(t.norm, floor_rms * t.count.sqrt())
        ratio = torch.where(t.error > 0, t.error / size, torch.zeros_like(size))
        allowed = ELEMENT_RMS * bound * size / t.count.sqrt()
        n_tiles += ratio.numel()
        n_bad += int(((ratio > allowed_error(bound, t.count)) | (t.excess > allowed)).sum())
        worst_error = max(worst_error, float(ratio.max()))
        over = ratio / allowed_error(bound, t.count)
        if float(over.max()) > worst:
            worst = float(over.max())
            at = int(over.argmax())
            worst_tile = (
                f"{t.chunk.tile_place(*divmod(at, ratio.shape[1]))} differ from the reference by "
                f"{float(ratio.view(-1)[at]):.1e} of their norm, {bound:.1e} is allowed"
            )
        if not element and bool((t.excess > allowed).any()):
            at = int((t.excess - allowed).argmax())
            element = (
                f"an element of {t.chunk.tile_place(*divmod(at, ratio.shape[1]))} is off by more than "
                f"{float(allowed.view(-1)[at]):.1e} beyond the rounding of its value"
            )
    if not n_bad and rel_error <= allowed_error(bound, torch.tensor(n_elements)):
        return Comparison(True, rel_error, worst_error, bound, 0, 0, "")
    if worst > 1:
        sentence = worst_tile
    elif element:
        sentence = element
    else:
        sentence = f"the result differs from the reference by {rel_error:.1e} of its norm, {bound:.1e} is allowed"
    sentence = f"{sentence[0].upper()}{sentence[1:]}; {n_bad} of {n_tiles} tiles are wrong."
    return Comparison(False, rel_error, worst_error, bound, 0, 0, sentence + _scale_hint(sums, bound))


def allowed_error(bound: float, count: torch.Tensor) -> torch.Tensor:
    """Relative error that is allowed over `count` elements."""
    return bound * (1 + _SMALL_TILE / count.sqrt())


def _scale_hint(sums: list[float], bound: float) -> str:
    """A further sentence if the result is the reference times a number, as it is when alpha was not applied."""
    difference2, expected2, product = sums
    if not expected2 or not product:
        return ""
    factor = product / expected2
    out2 = difference2 + 2 * product - expected2
    residual2 = max(0.0, out2 - factor * product)
    if abs(factor - 1) <= bound or residual2 > bound**2 * out2:
        return ""
    return f" It is {factor:.4g} times the reference everywhere, as when alpha is not applied."


def _slices(operands: Operands, expected: torch.Tensor) -> Iterator[_Chunk]:
    """The chunks of a reference that is at hand."""
    rows, n = expected.shape
    width = max(TILE, _CHUNK_BYTES // 4 // max(1, min(rows, 1 << 13)) // TILE * TILE)
    for expert, first, last in _experts(operands):
        for row in range(first, last, 1 << 13):
            for col in range(0, n, width):
                r, c = slice(row, min(row + (1 << 13), last)), slice(col, min(col + width, n))
                yield _Chunk(expert, r, c, expected[r, c])


def _chunks(operands: Operands, dtype: torch.dtype) -> Iterator[_Chunk]:
    """The reference, computed part by part."""
    n, k = operands.problem.n, operands.problem.k
    width = max(TILE, _CHUNK_BYTES // 4 // k // TILE * TILE)
    height = max(TILE, min(_CHUNK_BYTES // 4 // k, _CHUNK_BYTES // 4 // min(width, n)) // TILE * TILE)
    alphas = operands.alpha.to(dtype)
    for expert, first, last in _experts(operands):
        for col in range(0, n, width):
            cols = slice(col, min(col + width, n))
            b = _values(operands.b, cols, expert, dtype)
            for row in range(first, last, height):
                rows = slice(row, min(row + height, last))
                expected = _values(operands.a, rows, None, dtype) @ b.t()
                yield _Chunk(expert, rows, cols, expected.mul_(alphas[expert or 0]))


def _experts(operands: Operands) -> Iterator[tuple[int | None, int, int]]:
    """(expert, first row, last row + 1) of those that have rows; (None, 0, rows) for dense."""
    if operands.offsets is None:
        yield None, 0, operands.out.shape[0]
        return
    offsets = operands.offsets.tolist()
    for expert, (first, last) in enumerate(pairwise(offsets)):
        if last > first:
            yield expert, first, last


def _values(x: Quantized | torch.Tensor, rows: slice, expert: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Rows of an operand, of one expert if given, decoded but for the global scale; [rows, K] of `dtype`."""
    if isinstance(x, Quantized):
        packed, scale = (x.packed, x.scale) if expert is None else (x.packed[expert], x.scale[expert])
        return decode(packed[rows], scale[rows], dtype)
    return (x if expert is None else x[expert])[rows].to(dtype)
