"""How far a right result of a fused mixture-of-experts layer may be from its reference, and the verdict.

`moe_oracle` says why a right result of a requantised problem differs from the reference at all. What that makes of a
result was measured with the reference's own arithmetic, rounding gate and up, or the activation, to BF16 on the way, on
26 sets of operands with 1 to 128 groups of 16 intermediate values a token (`tests/kernels/test_moe_oracle.py` repeats
some). A kernel that does not requantise at all is off by 0.08 to 0.10 over all, and must be told from that; so must one
that loses an expert of a token, which is off by 0.3 in that token's row, give or take, with ten experts a token.

A single wrong element in 128 columns of a row is not told from rounding here, as it is in a GEMM; a wrong column, row
or tile is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from .oracle import BOUNDS, FLOOR, TILE, Comparison, allowed_error, unwritten_or_nonfinite
from .problem import Format

if TYPE_CHECKING:
    from .moe_operands import MoeOperands

ROW_BOUND, ROW_SCATTER = 0.15, 0.4
"""For one token's row in pieces of 128 columns: bound + scatter/sqrt(groups of 16 intermediate values behind it). The
intermediate of a token can be one group's almost alone, and a group whose E4M3 scale rounds the other way is off by up
to 1/8. Of one group in all, 0.20 was seen; of 32, 0.18."""

MOST = 0.25
"""Whatever the number of groups, no more is allowed: two right ways to round a group differ by less."""

TILE_BOUND, TILE_SCATTER = 6e-2, 0.6
"""For tiles of 128 tokens and 128 columns: bound + scatter/sqrt(groups of 16 intermediate values that went into them).
At most 0.87 of that was seen."""

BOUND, SCATTER = 5e-2, 0.5
"""The same over all; at most half of it was seen, and twice as much where nothing was requantised."""

BOUND_16_BIT = 1e-2
"""Where nothing is requantised: the intermediate may be kept in BF16, and gate and up before it, which errs by
3·0.39·2^-8 = 4.6e-3. Parts of n elements are allowed 1 + 8/sqrt(n) times that."""

_CHUNK = 1 << 23
"""Elements that are looked at in a piece: a few float32 copies of so many exist at a time, 32 MiB each."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of the result, whole tiles of them: squared norms of tiles of `height` rows and 128 columns.

    Attributes:
        first: the first row.
        height: rows of a tile.
        error2, norm2: of the difference and of the reference, float64 [row tiles, column tiles].
        allowed: relative error that is allowed, float64 [row tiles, column tiles].
        count: elements of each tile, like it.
    """

    first: int
    height: int
    error2: torch.Tensor
    norm2: torch.Tensor
    allowed: torch.Tensor
    count: torch.Tensor


class MoeTolerance:
    """What results of one set of moe operands may be. Has the methods of `tolerance.Tolerance`, and the last word.

    Args:
        operands: whose results.
        expected: `oracle.reference(operands)`, float32 [M, K]; it is kept, and must not change.
    """

    @torch.no_grad()
    def __init__(self, operands: MoeOperands, expected: torch.Tensor) -> None:
        problem = operands.problem
        self._expected = expected
        self._requantised = problem.format is Format.NVFP4
        self._bound = BOUND if self._requantised else max(BOUND_16_BIT, BOUNDS[operands.out.dtype])
        local = (operands.experts < problem.experts).sum(dim=1, dtype=torch.float64)
        self._groups = (local * problem.n / 16).clamp_(min=1)
        self._expected2 = float(sum(expected[rows].square().sum(dtype=torch.float64) for rows in self._pieces()))
        self._floor2 = FLOOR**2 * self._expected2 / expected.numel()

    @torch.no_grad()
    def accepts(self, out: torch.Tensor) -> float | None:
        """The relative Frobenius error of a result that is right; None of one that is not.

        Args:
            out: the result, [M, K].
        """
        verdict = self.judge(out)
        return verdict.rel_error if verdict.ok else None

    @torch.no_grad()
    def judge(self, out: torch.Tensor) -> Comparison:
        """Compare a result, [M, K], with the reference: overall, tile by tile, row by row."""
        n_unwritten, n_nonfinite, sentence = unwritten_or_nonfinite(out)
        if sentence:
            return Comparison(False, math.inf, math.inf, self._bound, n_unwritten, n_nonfinite, sentence)
        error2, worst, n_bad, n_tiles = 0.0, 0.0, 0, 0
        worst_over, where = 1.0, ""
        for piece in (p for rows in self._pieces() for p in self._measure(out, rows)):
            size2 = torch.maximum(piece.norm2, self._floor2 * piece.count)
            ratio = torch.where(piece.error2 > 0, (piece.error2 / size2).sqrt(), 0.0)
            over = ratio / piece.allowed
            n_bad, n_tiles = n_bad + int((over > 1).sum()), n_tiles + over.numel()
            at = int(over.argmax())
            if piece.height > 1:
                error2, worst = error2 + float(piece.error2.sum()), max(worst, float(ratio.max()))
            if float(over.flatten()[at]) > worst_over:
                worst_over = float(over.flatten()[at])
                where = self._sentence(piece, at, float(ratio.flatten()[at]))
        rel_error = math.sqrt(error2 / self._expected2) if self._expected2 else (math.inf if error2 else 0.0)
        if not where and rel_error <= (most := self._overall()):
            return Comparison(True, rel_error, worst, self._bound, 0, 0, "")
        if not where:
            where = f"The result differs from the reference by {rel_error:.1e} of its norm, {most:.1e} is allowed"
        return Comparison(
            False, rel_error, worst, self._bound, 0, 0, f"{where}; {n_bad} of {n_tiles} rows and tiles are wrong."
        )

    def _pieces(self) -> list[slice]:
        """Rows, whole tiles of them, that are looked at together."""
        rows, n = self._expected.shape
        height = max(1, _CHUNK // (n * TILE)) * TILE
        return [slice(start, min(start + height, rows)) for start in range(0, rows, height)]

    def _measure(self, out: torch.Tensor, rows: slice) -> list[_Piece]:
        """Some rows of a result by tile and by row."""
        expected, groups = self._expected[rows], self._groups[rows]
        error2, norm2 = (_by_columns(x.square()) for x in (torch.sub(out[rows], expected), expected))
        widths = _by_columns(torch.ones_like(expected[:1]))
        pieces = []
        for height in (TILE, 1):
            count = _by_rows(widths.expand(error2.shape), height)
            allowed = self._allowed(_by_rows(groups.unsqueeze(1), height), count, row=height == 1)
            pieces.append(_Piece(rows.start, height, _by_rows(error2, height), _by_rows(norm2, height), allowed, count))
        return pieces

    def _allowed(self, groups: torch.Tensor, count: torch.Tensor, *, row: bool) -> torch.Tensor:
        """Relative error that tiles of `count` elements are allowed, into which `groups` groups went."""
        if not self._requantised:
            return allowed_error(self._bound, count)
        bound, scatter = (ROW_BOUND, ROW_SCATTER) if row else (TILE_BOUND, TILE_SCATTER)
        return (bound + scatter / groups.sqrt()).clamp_(max=MOST).expand(count.shape)

    def _overall(self) -> float:
        """Relative error that the whole result is allowed."""
        if not self._requantised:
            return float(allowed_error(self._bound, torch.tensor(float(self._expected.numel()))))
        return min(MOST, BOUND + SCATTER / math.sqrt(float(self._groups.sum())))

    def _sentence(self, piece: _Piece, at: int, ratio: float) -> str:
        """What is wrong with a tile, for people."""
        row_tile, col_tile = divmod(at, piece.count.shape[1])
        row, col = piece.first + row_tile * piece.height, col_tile * TILE
        rows, n = self._expected.shape
        last = min(row + piece.height, rows)
        which = f"Row {row}" if last == row + 1 else f"Rows {row}:{last}"
        verb = "differs" if last == row + 1 else "differ"
        allowed = float(piece.allowed.flatten()[at])
        return (
            f"{which}, columns {col}:{min(col + TILE, n)} {verb} from the reference by {ratio:.1e} of "
            f"{'its' if last == row + 1 else 'their'} norm, {allowed:.1e} is allowed"
        )


def _by_columns(x: torch.Tensor) -> torch.Tensor:
    """Sums over the columns of each tile: [rows, columns] to float64 [rows, column tiles]."""
    rows, cols = x.shape
    return pad(x, (0, -cols % TILE)).view(rows, -1, TILE).sum(dim=2, dtype=torch.float64)


def _by_rows(x: torch.Tensor, height: int) -> torch.Tensor:
    """Sums over the rows of each tile: [rows, column tiles] to [row tiles, column tiles]."""
    rows, cols = x.shape
    return x if height == 1 else pad(x, (0, 0, 0, -rows % height)).view(-1, height, cols).sum(dim=1)
