"""The kernel of `triton.native`: NVFP4 by NVFP4 with FP4 matrix units. Importing this imports Triton.

One body for every schedule, load and layout; what a config chooses is constant when it is compiled. D[M, N] = A · Bᵀ:
A is u8 [M, K/2] and B u8 [N, K/2], two codes a byte; their scales are float8e4nv, one for 16 elements of K.

Work is cut into *tiles* of D and a tile's K into *steps* of BLOCK_K. A program computes one or more *segments*: steps
k0 to k1 of a tile. A segment that is a whole tile is stored at once. The others go to a slot of a scratch buffer in
FP32; each adds one to the tile's counter, and whoever finds that it was the last sums the slots, in the order of their
steps, so that the result does not depend on who arrives when, stores the tile, and sets the counter back to 0 for the
next launch. Nobody waits for anybody, so no schedule can hang, however few programs run at a time.
"""

# A kernel's parameters are Triton's, typed where it is compiled; constants are in capitals, as everywhere in Triton.
# One body for everything that a config chooses has many branches, all but one of which are gone once it is compiled.
# ruff: noqa: ANN001, ANN201, ANN202, N803, N806, SIM108, FURB136, C901, PLR0912, PLR0915

from __future__ import annotations

import triton
import triton.language as tl

DATA_PARALLEL = tl.constexpr(0)
"""One program a tile."""
SPLIT_K = tl.constexpr(1)
"""SPLITS programs a tile, each with its share of the steps."""
STREAM_K = tl.constexpr(2)
"""A fixed number of programs, each with its share of all steps of all tiles (Osama et al., arXiv:2301.03598)."""


@triton.jit
def _rows_of_tile(table_expert, table_row, table_rows, tile_m, m, BLOCK_M: tl.constexpr, GROUPED: tl.constexpr):
    """(expert, first row in A and D, rows) of a row tile."""
    if GROUPED:
        expert = tl.load(table_expert + tile_m)
        row = tl.load(table_row + tile_m)
        rows = tl.load(table_rows + tile_m)
    else:
        expert = tile_m * 0
        row = tile_m * BLOCK_M
        rows = tl.minimum(m - row, BLOCK_M)
    return expert, row, rows


@triton.jit
def _place(tile, tiles_m, TILES_N: tl.constexpr, GROUP_M: tl.constexpr):
    """(row tile, column tile) of a tile: GROUP_M row tiles pass over all columns together, so that B stays in L2."""
    group = tile // (GROUP_M * TILES_N)
    height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    within = tile - group * (GROUP_M * TILES_N)
    return group * GROUP_M + within % height, within // height


@triton.jit
def _codes(
    source, row, rows, step, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE_ROWS: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """u8 [ROWS, BLOCK_K/2] from row `row` on; what lies past K is 0, and with pointers what lies past `rows`."""
    if TMA:
        codes = source.load([row.to(tl.int32), step * (BLOCK_K // 2)])
    else:
        r = tl.arange(0, ROWS)[:, None]
        k = step * (BLOCK_K // 2) + tl.arange(0, BLOCK_K // 2)[None, :]
        pointers = source + row.to(tl.int64) * (K // 2) + r * (K // 2) + k
        if K % BLOCK_K != 0:
            codes = tl.load(pointers, mask=(r < rows) & (k < K // 2), other=0)
        elif WHOLE_ROWS:
            codes = tl.load(pointers)
        else:
            codes = tl.load(pointers, mask=r < rows, other=0)
    return codes


@triton.jit
def _bytes_of(words):
    """float8e4nv [..., 4] of the four bytes of u32 [...], the lowest first."""
    shifts = (tl.arange(0, 4) * 8).to(tl.uint32)
    return (tl.expand_dims(words, -1) >> shifts & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True)


@triton.jit
def _linear_scales(
    source, row, rows, step, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE_ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """float8e4nv [ROWS, BLOCK_K/16] out of [rows, K/16]; 0 past `rows` and past K.

    WORDS reads four scales as one u32; K must be a multiple of 64. Loads of less than four bytes a thread cannot be
    asynchronous, and one that is not waits for memory in every step.
    """
    UNIT: tl.constexpr = 64 if WORDS else 16
    r = tl.arange(0, ROWS)[:, None]
    g = step * (BLOCK_K // UNIT) + tl.arange(0, BLOCK_K // UNIT)[None, :]
    if WORDS:
        base = source.to(tl.pointer_type(tl.uint32))
        ZERO: tl.constexpr = 0
    else:
        base = source
        ZERO: tl.constexpr = 0.0
    pointers = base + row.to(tl.int64) * (K // UNIT) + r * (K // UNIT) + g
    if K % BLOCK_K != 0:
        values = tl.load(pointers, mask=(r < rows) & (g < K // UNIT), other=ZERO)
    elif WHOLE_ROWS:
        values = tl.load(pointers)
    else:
        values = tl.load(pointers, mask=r < rows, other=ZERO)
    if WORDS:
        scales = _bytes_of(values).reshape(ROWS, BLOCK_K // 16)
    else:
        scales = values
    return scales


@triton.jit
def _swizzled_scales(
    source, row, row_blocks, step, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, WORDS: tl.constexpr
):
    """float8e4nv [ROWS, BLOCK_K/16] out of the 128x4 layout, whose padding is 0; `row` is a multiple of ROWS.

    Row r and group g lie at (r//128)·(C//4)·512 + (g//4)·512 + (r%32)·16 + (r%128//32)·4 + g%4. Read in the order of
    the memory, [128-row block, 4-group block, r%32, r%128//32, g%4], and then turned. WORDS: as in `_linear_scales`.
    """
    BLOCKS: tl.constexpr = ROWS // 128 if ROWS > 128 else 1
    QUARTERS: tl.constexpr = (ROWS // 32 if ROWS > 32 else 1) if ROWS < 128 else 4
    LINES: tl.constexpr = ROWS if ROWS < 32 else 32
    COLUMNS: tl.constexpr = BLOCK_K // 64
    K_BLOCKS: tl.constexpr = (K // 16 + 3) // 4
    block = row // 128 + tl.arange(0, BLOCKS)[:, None, None, None]
    column = step * COLUMNS + tl.arange(0, COLUMNS)[None, :, None, None]
    line = row % 32 + tl.arange(0, LINES)[None, None, :, None]
    quarter = row % 128 // 32 + tl.arange(0, QUARTERS)[None, None, None, :]
    words = block.to(tl.int64) * (K_BLOCKS * 128) + column * 128 + line * 4 + quarter
    inside = (block < row_blocks) & (column < K_BLOCKS)
    if WORDS:
        pointers = source.to(tl.pointer_type(tl.uint32)) + words
        ZERO: tl.constexpr = 0
    else:
        pointers = source + tl.expand_dims(words * 4, 4) + tl.arange(0, 4)
        inside = tl.expand_dims(inside, 4)
        ZERO: tl.constexpr = 0.0
    if (BLOCKS > 1) or (K_BLOCKS % COLUMNS != 0):
        values = tl.load(pointers, mask=inside, other=ZERO)
    else:
        values = tl.load(pointers)
    if WORDS:
        scales = _bytes_of(values)
    else:
        scales = values
    return scales.trans(0, 3, 2, 1, 4).reshape(ROWS, BLOCK_K // 16)


@triton.jit
def _decode(codes, scales, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """float32 [ROWS, BLOCK_K] of codes and scales, exactly: what the matrix unit does, for the CPU interpreter."""
    nibble = tl.join(codes & 0xF, codes >> 4).reshape(ROWS, BLOCK_K).to(tl.int32)
    exponent, mantissa = (nibble >> 1) & 3, (nibble & 1).to(tl.float32)
    power = (1 << exponent).to(tl.float32) * 0.5
    magnitude = tl.where(exponent == 0, mantissa * 0.5, power * (1.0 + mantissa * 0.5))
    values = tl.where(nibble >= 8, -magnitude, magnitude)
    groups = values.reshape(ROWS, BLOCK_K // 16, 16) * scales.to(tl.float32)[:, :, None]
    return groups.reshape(ROWS, BLOCK_K)


@triton.jit
def _multiply(
    a, a_scale, b, b_scale, acc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EMULATE: tl.constexpr,
):  # fmt: skip
    """`acc` + A · Bᵀ of one step, for an A of BLOCK_M rows and a B of BLOCK_N.

    EMULATE is for Triton's CPU interpreter, whose `dot_scaled` takes every scale for a power of two.
    """
    if EMULATE:
        left = _decode(a, a_scale, BLOCK_M, BLOCK_K)
        right = _decode(b, b_scale, BLOCK_N, BLOCK_K)
        acc = tl.dot(left, right.trans(), acc, input_precision="ieee")
    else:
        acc = tl.dot_scaled(a, a_scale, "e2m1", b.trans(), b_scale, "e2m1", acc)
    return acc


@triton.jit
def _segment(
    a, b, a_scale, b_scale, expert, row, rows, column, k0, k1, m,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, SWIZZLED_A: tl.constexpr, SWIZZLED_B: tl.constexpr, WORDS_A: tl.constexpr,
    WORDS_B: tl.constexpr, SWAP_AB: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """FP32 [BLOCK_M, BLOCK_N] sum of the steps k0 to k1 of a tile; SWAP_AB takes it as the transpose of B · Aᵀ."""
    b_row = expert.to(tl.int64) * N + column
    columns = N - column
    WHOLE_N: tl.constexpr = N % BLOCK_N == 0
    N_BLOCKS: tl.constexpr = (N + 127) // 128
    K_BLOCKS: tl.constexpr = (K // 16 + 3) // 4
    if SWAP_AB:
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(k0, k1):
        a_codes = _codes(a, row, rows, step, K, BLOCK_M, BLOCK_K, False, TMA)
        b_codes = _codes(b, b_row, columns, step, K, BLOCK_N, BLOCK_K, WHOLE_N, TMA)
        if SWIZZLED_A:
            a_scales = _swizzled_scales(a_scale, row, (m + 127) // 128, step, K, BLOCK_M, BLOCK_K, WORDS_A)
        else:
            a_scales = _linear_scales(a_scale, row, rows, step, K, BLOCK_M, BLOCK_K, False, WORDS_A)
        if SWIZZLED_B:
            of_expert = b_scale + expert.to(tl.int64) * (N_BLOCKS * K_BLOCKS * 512)
            b_scales = _swizzled_scales(of_expert, column, N_BLOCKS, step, K, BLOCK_N, BLOCK_K, WORDS_B)
        else:
            b_scales = _linear_scales(b_scale, b_row, columns, step, K, BLOCK_N, BLOCK_K, WHOLE_N, WORDS_B)
        if SWAP_AB:
            acc = _multiply(b_codes, b_scales, a_codes, a_scales, acc, BLOCK_N, BLOCK_M, BLOCK_K, EMULATE)
        else:
            acc = _multiply(a_codes, a_scales, b_codes, b_scales, acc, BLOCK_M, BLOCK_N, BLOCK_K, EMULATE)
    if SWAP_AB:
        acc = acc.trans()
    return acc


@triton.jit
def _store(out, acc, factor, row, rows, column, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store a finished tile, times alpha."""
    r = tl.arange(0, BLOCK_M)[:, None]
    c = column + tl.arange(0, BLOCK_N)[None, :]
    value = (acc * factor).to(out.dtype.element_ty)
    tl.store(out + row.to(tl.int64) * N + r * N + c, value, mask=(r < rows) & (c < N))


@triton.jit
def _slot(scratch, slot, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Pointers [BLOCK_M, BLOCK_N] into a slot of the scratch buffer."""
    r = tl.arange(0, BLOCK_M)[:, None]
    c = tl.arange(0, BLOCK_N)[None, :]
    return scratch + slot.to(tl.int64) * (BLOCK_M * BLOCK_N) + r * BLOCK_N + c


@triton.jit
def _arrive(scratch, slot, counter, acc, rows, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Leave a partial sum in its slot and count; how many had arrived before."""
    in_rows = tl.arange(0, BLOCK_M)[:, None] < rows
    tl.store(_slot(scratch, slot, BLOCK_M, BLOCK_N), acc, mask=in_rows)
    # One thread counts for all: the barrier puts their stores before its release.
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")


@triton.jit
def _add_slot(scratch, slot, acc, rows, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """`acc` + what lies in a slot, read past L1, which other programs' stores do not reach."""
    in_rows = tl.arange(0, BLOCK_M)[:, None] < rows
    return acc + tl.load(_slot(scratch, slot, BLOCK_M, BLOCK_N), mask=in_rows, other=0.0, cache_modifier=".cg")


@triton.jit
def nvfp4_gemm(
    a, b, a_scale, b_scale, out, alpha, table_expert, table_row, table_rows, table_count, scratch, counters, m,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SCHEDULE: tl.constexpr, SPLITS: tl.constexpr, GROUPED: tl.constexpr, TMA: tl.constexpr,
    SWIZZLED_A: tl.constexpr, SWIZZLED_B: tl.constexpr, WORDS_A: tl.constexpr, WORDS_B: tl.constexpr,
    SWAP_AB: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """D = alpha · A · Bᵀ.

    a, b: u8 pointers, or with TMA descriptors of blocks [BLOCK_M, BLOCK_K/2] and [BLOCK_N, BLOCK_K/2] over
        [rows, K/2] and [experts·N, K/2].
    a_scale, b_scale: float8e4nv, linear, or with SWIZZLED_* in the 128x4 layout (of every expert by itself).
    out: [rows, N]. alpha: float32, one an expert.
    table_*: a TileTable for GROUPED, else None. m: rows of A, or row tiles in the table for GROUPED.
    scratch: float32 slots of a tile each, and counters: int32, one a tile, all 0; None for DATA_PARALLEL.
        SPLIT_K needs a slot for every tile and split, STREAM_K two for every program.
    """
    TILES_N: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    if GROUPED:
        tiles_m = m
    else:
        tiles_m = (m + BLOCK_M - 1) // BLOCK_M
    program = tl.program_id(0)

    if SCHEDULE == STREAM_K:
        if GROUPED:
            tiles_m = tl.load(table_count)
        total = tiles_m.to(tl.int64) * (TILES_N * STEPS)
        # At most as many programs as steps take part, so that nobody has an empty share.
        programs = tl.maximum(tl.minimum(tl.num_programs(0), total), 1)
        share = tl.minimum(program, programs)
        begin = (share * total // programs).to(tl.int32)
        end = (tl.minimum(share + 1, programs) * total // programs).to(tl.int32)
        first_tile = begin // STEPS
        for i in range((end + STEPS - 1) // STEPS - first_tile):
            tile = first_tile + i
            k0 = tl.maximum(begin - tile * STEPS, 0)
            k1 = tl.minimum(end - tile * STEPS, STEPS)
            tile_m, tile_n = _place(tile, tiles_m, TILES_N, GROUP_M)
            expert, row, rows = _rows_of_tile(table_expert, table_row, table_rows, tile_m, m, BLOCK_M, GROUPED)
            acc = _segment(
                a, b, a_scale, b_scale, expert, row, rows, tile_n * BLOCK_N, k0, k1, m, N, K, BLOCK_M, BLOCK_N,
                BLOCK_K, TMA, SWIZZLED_A, SWIZZLED_B, WORDS_A, WORDS_B, SWAP_AB, EMULATE,
            )  # fmt: skip
            factor = tl.load(alpha + expert)
            if k1 - k0 == STEPS:
                _store(out, acc, factor, row, rows, tile_n * BLOCK_N, N, BLOCK_M, BLOCK_N)
            else:
                # The programs with steps of this tile: p·total//programs <= step holds for the last one of a step.
                first = ((tile.to(tl.int64) * STEPS + 1) * programs - 1) // total
                last = ((tile.to(tl.int64) * STEPS + STEPS) * programs - 1) // total
                # A program has two slots: 0 for the tile that its share begins in, 1 for the one that it ends in.
                own = program * 2 + tl.where(tile == first_tile, 0, 1)
                before = _arrive(scratch, own, counters + tile, acc, rows, BLOCK_M, BLOCK_N)
                if before == last - first:
                    begins_here = (first * total // programs) // STEPS == tile
                    acc = _add_slot(
                        scratch, first * 2 + tl.where(begins_here, 0, 1), tl.zeros_like(acc), rows, BLOCK_M, BLOCK_N
                    )
                    for behind in range(1, (last - first + 1).to(tl.int32)):
                        acc = _add_slot(scratch, (first + behind) * 2, acc, rows, BLOCK_M, BLOCK_N)
                    _store(out, acc, factor, row, rows, tile_n * BLOCK_N, N, BLOCK_M, BLOCK_N)
                    tl.store(counters + tile, 0)
    else:
        # Splits of a tile are neighbours, so that they run at the same time and A comes from L2.
        tile = program // SPLITS
        k0, k1 = 0, STEPS
        if SPLITS > 1:
            k0, k1 = program % SPLITS * STEPS // SPLITS, (program % SPLITS + 1) * STEPS // SPLITS
        tile_m, tile_n = _place(tile, tiles_m, TILES_N, GROUP_M)
        expert, row, rows = _rows_of_tile(table_expert, table_row, table_rows, tile_m, m, BLOCK_M, GROUPED)
        if rows > 0:
            acc = _segment(
                a, b, a_scale, b_scale, expert, row, rows, tile_n * BLOCK_N, k0, k1, m, N, K, BLOCK_M, BLOCK_N,
                BLOCK_K, TMA, SWIZZLED_A, SWIZZLED_B, WORDS_A, WORDS_B, SWAP_AB, EMULATE,
            )  # fmt: skip
            factor = tl.load(alpha + expert)
            if SPLITS == 1:
                _store(out, acc, factor, row, rows, tile_n * BLOCK_N, N, BLOCK_M, BLOCK_N)
            else:
                before = _arrive(scratch, program, counters + tile, acc, rows, BLOCK_M, BLOCK_N)
                if before == SPLITS - 1:
                    acc = tl.zeros_like(acc)
                    for other in range(SPLITS):
                        acc = _add_slot(scratch, tile * SPLITS + other, acc, rows, BLOCK_M, BLOCK_N)
                    _store(out, acc, factor, row, rows, tile_n * BLOCK_N, N, BLOCK_M, BLOCK_N)
                    tl.store(counters + tile, 0)
