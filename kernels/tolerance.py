"""Judges many results of the same operands in one pass each, by the oracle's bounds.

`oracle.compare` walks through the experts, and costs some 70 operations and a handful of waits for each: 37 000 and
5000 for e512k10:256x256x4096, which takes a GPU a third of a second, a hundred times the GEMM. What a result may
differ by follows from the reference alone, so that is worked out once here, for all tiles of all experts side by side.
A result then takes some twenty operations and one wait, however many experts there are.

The oracle keeps the last word: bounds are a hair stricter than its own (_STRICTER), so that it would accept whatever
is accepted here, and what is not is for it to judge and to word.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import pad

from .moe_operands import MoeOperands
from .moe_tolerance import MoeTolerance
from .operands import Operands
from .oracle import BOUNDS, ELEMENT_REL, ELEMENT_RMS, FLOOR, TILE, allowed_error

_STRICTER = 1e-4
"""By how much, relatively. Sums of a tile's 16384 squares in float32 are known to 1e-6 or better, in whatever order."""

_CHUNK = 1 << 23
"""Elements that are looked at in a piece: a few float32 copies of so many exist at a time, 32 MiB each."""


def tolerance_for(operands: Operands, expected: torch.Tensor) -> Tolerance | MoeTolerance:
    """What results of `operands` may be, with `oracle.reference(operands)` at hand."""
    return MoeTolerance(operands, expected) if isinstance(operands, MoeOperands) else Tolerance(operands, expected)


class Tolerance:
    """What results of one set of operands may be.

    Args:
        operands: whose results.
        expected: `oracle.reference(operands)`, float32 [rows, N]; it is kept, and must not change.
    """

    @torch.no_grad()
    def __init__(self, operands: Operands, expected: torch.Tensor) -> None:
        rows, n = expected.shape
        self._expected = expected
        self._factor = ELEMENT_REL * BOUNDS[operands.out.dtype]
        tile_of_row = _tile_of_row(operands)
        self._n_tiles = int(tile_of_row[-1]) + 1 if rows else 0
        self._tile_of_row = tile_of_row.to(expected.device)
        if not rows:
            return
        bound = BOUNDS[operands.out.dtype]
        widths = torch.full((1, -(-n // TILE)), float(TILE), dtype=torch.float64)
        widths[0, -1] = n - TILE * (widths.shape[1] - 1)
        count = tile_of_row.bincount(minlength=self._n_tiles).unsqueeze(1) * widths
        norm2 = torch.cat([self._by_tile(_by_columns(expected[:, cols].square(), "sum")) for cols in self._pieces()], 1)
        norm2 = norm2.double().cpu()
        self._expected2 = float(norm2.sum())
        size = torch.maximum(norm2.sqrt(), FLOOR * math.sqrt(self._expected2 / (rows * n)) * count.sqrt())
        stricter = 1 - _STRICTER
        error2 = (stricter * allowed_error(bound, count) * size) ** 2
        excess = stricter * ELEMENT_RMS * bound * size / count.sqrt()
        self._max_error2, self._max_excess = error2.float().to(expected.device), excess.float().to(expected.device)
        most = stricter * float(allowed_error(bound, torch.tensor(rows * n)))
        self._max_total = most**2 * self._expected2 if math.isfinite(self._expected2) else -1.0

    @torch.no_grad()
    def accepts(self, out: torch.Tensor) -> float | None:
        """The relative Frobenius error of a result that is right; None of one that `oracle.compare` must look at.

        Args:
            out: the result, [rows, N].
        """
        if not self._n_tiles:
            return 0.0
        # A NaN, and so whatever a poisoned element gives, is not less than or equal to anything.
        figures = [torch.ones((), dtype=torch.float64, device=out.device)]
        for cols in self._pieces():
            expected, tiles = self._expected[:, cols], slice(cols.start // TILE, -(-cols.stop // TILE))
            difference = torch.sub(out[:, cols], expected)  # in float32, whatever the result is of
            excess = _by_columns(difference.abs().sub_(expected.abs(), alpha=self._factor), "amax")
            error2 = self._by_tile(_by_columns(difference.square_(), "sum"))
            figures[0] *= (excess <= self._max_excess[:, tiles][self._tile_of_row]).all()
            figures[0] *= (error2 <= self._max_error2[:, tiles]).all()
            figures.append(error2.sum(dtype=torch.float64))
        is_right, *errors2 = torch.stack(figures).tolist()
        total = sum(errors2)
        if not is_right or not total <= self._max_total:
            return None
        return math.sqrt(total / self._expected2) if total else 0.0

    def _pieces(self) -> list[slice]:
        """Columns, whole tiles of them, that are looked at together."""
        rows, n = self._expected.shape
        width = max(1, _CHUNK // (rows * TILE)) * TILE
        return [slice(start, min(start + width, n)) for start in range(0, n, width)]

    def _by_tile(self, by_columns: torch.Tensor) -> torch.Tensor:
        """Sums over the rows of each tile: [rows, column tiles] to [row tiles, column tiles]."""
        sums = by_columns.new_zeros(self._n_tiles, by_columns.shape[1])
        return sums.index_add_(0, self._tile_of_row, by_columns)


def _tile_of_row(operands: Operands) -> torch.Tensor:
    """The row tile of every row, int64 [rows] on the CPU: tiles begin anew with every expert."""
    if operands.offsets is None:
        return torch.arange(operands.out.shape[0]) // TILE
    counts = operands.offsets.diff()
    tiles = -(-counts // TILE)
    first_tile = tiles.cumsum(0) - tiles
    within = torch.arange(int(operands.offsets[-1])) - operands.offsets[:-1].repeat_interleave(counts)
    return first_tile.repeat_interleave(counts) + within // TILE


def _by_columns(x: torch.Tensor, how: str) -> torch.Tensor:
    """Sum or maximum (of what is positive) over the columns of each tile: [rows, columns] to [rows, column tiles]."""
    rows, cols = x.shape
    if cols % TILE:
        x = pad(x, (0, -cols % TILE))
    reduced: torch.Tensor = getattr(x.reshape(rows, -1, TILE), how)(dim=2)
    return reduced
