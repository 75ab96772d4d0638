"""How a grouped GEMM finds its work: a table of row tiles, made on the device from the routing's offsets.

A server knows the routing only on the device, and a captured graph must serve every routing. So the grid is as large as
the number of rows and experts could ever need (`max_tiles`), the table says what each row tile is, and what it does not
need is marked empty. `tile_table` uses no operation that waits for the device.

What is timed: the GEMM alone. Engines make this table once a layer as part of the routing (`moe_align_block_size` in
vLLM and SGLang) and use it for w13 and w2, so `prepare` makes it and the timed call reads it. A table holds for one
BLOCK_M: configs of w13 and w2 that differ in it cost an engine a second table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TileTable:
    """The row tiles of a grouped problem; all tensors int32 on the device.

    Attributes:
        expert: [max_tiles] whose weights tile i is multiplied with; 0 where it is empty.
        first_row: [max_tiles] its first row in A and D; 0 where it is empty.
        rows: [max_tiles] how many rows it has, 1 to BLOCK_M; 0 where it is empty. Empty ones come last.
        count: [1] how many are not empty.
    """

    expert: torch.Tensor
    first_row: torch.Tensor
    rows: torch.Tensor
    count: torch.Tensor


def max_tiles(rows: int, experts: int, block_m: int) -> int:
    """Row tiles that `rows` rows over `experts` experts can need at most, however they are routed.

    An expert with c > 0 rows needs 1 + (c - 1) // BLOCK_M tiles, so the most are needed when as many experts as can
    have a row and the rest fills whole tiles.
    """
    busy = min(rows, experts)
    return busy + (rows - busy) // block_m


def tile_table(offsets: torch.Tensor, rows: int, block_m: int, device: torch.device | str) -> TileTable:
    """The table of a routing.

    Args:
        offsets: int64 or int32 [experts + 1], anywhere: expert e owns the rows offsets[e]:offsets[e+1].
        rows: offsets[-1], which the host knows as tokens times top_k, or the most that it can be.
        block_m: rows of a tile.
        device: where the table is to be, and where it is computed if `offsets` are there.
    """
    import torch

    offsets = offsets.to(device=device, dtype=torch.int64)
    counts = offsets.diff()
    tiles = (counts + (block_m - 1)) // block_m
    ends = tiles.cumsum(0)
    index = torch.arange(max_tiles(rows, counts.numel(), block_m), device=offsets.device)
    expert = torch.searchsorted(ends, index, right=True)  # skips experts without rows, whose end is their start
    used = index < ends[-1]
    expert = torch.where(used, expert, 0)
    within = (index - (ends - tiles)[expert]) * block_m
    table = torch.stack((expert, offsets[expert] + within, (counts[expert] - within).clamp(max=block_m)))
    table = torch.where(used, table, 0).to(torch.int32)
    return TileTable(table[0], table[1], table[2], ends[-1:].to(torch.int32))
