"""The table of a grouped problem's row tiles: every row once, whatever the routing."""

from __future__ import annotations

import pytest
import torch
from fp4tune.kernels.triton_gemm.grouping import max_tiles, tile_table
from hypothesis import given
from hypothesis import strategies as st

COUNTS = st.lists(st.one_of(st.just(0), st.integers(0, 300)), min_size=1, max_size=40)
BLOCKS = st.sampled_from([8, 16, 64, 128])


def offsets_of(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *counts]).cumsum(0)


@given(COUNTS, BLOCKS, st.integers(0, 5))
def test_every_row_lies_in_one_tile_of_its_expert(counts: list[int], block_m: int, spare: int):
    rows = sum(counts)
    table = tile_table(offsets_of(counts), rows + spare, block_m, "cpu")
    used = int(table.count)
    covered = []
    for i, (expert, first, height) in enumerate(zip(table.expert, table.first_row, table.rows, strict=True)):
        if i >= used:
            assert (expert, first, height) == (0, 0, 0)
            continue
        assert 1 <= height <= block_m
        start = sum(counts[: int(expert)])
        assert start <= first
        assert first + height <= start + counts[int(expert)]
        assert (first - start) % block_m == 0
        covered += range(int(first), int(first + height))
    assert covered == list(range(rows))
    assert {t.dtype for t in (table.expert, table.first_row, table.rows, table.count)} == {torch.int32}


@given(COUNTS, BLOCKS)
def test_no_routing_needs_more_tiles_than_the_bound(counts: list[int], block_m: int):
    needed = sum(-(-c // block_m) for c in counts)
    assert needed <= max_tiles(sum(counts), len(counts), block_m)


@pytest.mark.parametrize(("rows", "experts", "block_m"), [(0, 4, 16), (3, 4, 16), (37, 4, 16), (1000, 7, 64)])
def test_some_routing_needs_as_many_as_the_bound(rows: int, experts: int, block_m: int):
    busy = min(rows, experts)
    counts = [1] * busy + [0] * (experts - busy)
    if busy:
        counts[0] += rows - busy
    assert sum(-(-c // block_m) for c in counts) == max_tiles(rows, experts, block_m)


def test_the_busiest_expert_may_have_everything():
    table = tile_table(offsets_of([0, 0, 300, 0]), 300, 128, "cpu")
    assert table.expert[: int(table.count)].tolist() == [2, 2, 2]
    assert table.rows[: int(table.count)].tolist() == [128, 128, 44]
