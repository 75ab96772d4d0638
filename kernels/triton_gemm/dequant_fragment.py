"""The kernel of `triton.dequant` for few rows: weights go from memory straight into the matrix unit's registers.

They are decoded on the way. Importing this imports Triton.

Written in Gluon, Triton's dialect with explicit layouts, because the layout is the whole idea. The matrix instruction
`mma.m16n8k16` (SM80 and everything after it) wants its left operand in registers in a fixed pattern: a thread holds a
few rows and, of each, consecutive elements of K. With a `k_width` of 16 these are 16 consecutive bytes of a row of B
(a byte has one even and one odd element), so that one 128-bit load brings a thread exactly the weights that it will
feed to the matrix unit: no shared memory, no shuffles, no repacked weights. B is the left operand (16 of its rows an
instruction), A the right one (8 rows), so eight tokens waste nothing where the usual orientation pads to sixteen.

A byte holds an even and an odd element of K. They are decoded into two operands, one of even and one of odd elements,
and multiplied one after the other; A is taken apart in the same way, and the order of a sum is free.

K is split twice: between the warps of a block (`k_warps`, summed through shared memory), and between blocks
(`split_k`, the block that finishes last sums the partial results, in a fixed order, so that the result does not depend
on who that is, and resets its counter for the next launch). A split has whole rounds of `shared_steps` steps, and the
splits follow each other: split s begins at byte s · steps · k_warps · k_bytes of a row, whatever K is.
"""

# A kernel's parameters are Triton's, typed where it is compiled; constants that are no parameter of a config are in
# capitals, as everywhere in Triton.
# One body for dense and grouped and for three loops; what a config does not choose is gone once it is compiled.
# ruff: noqa: ANN001, ANN201, ANN202, N803, C901, PLR0912, PLR0915

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from .dequant_decode import SCALED_BY, decode, expand_scale, take_pairs_apart

_barrier = getattr(gl, "thread_barrier", None) or gl.barrier
"""Of all threads of a block; renamed in Triton 3.7."""


@gluon.jit
def _weights(first, n_a, n_s, k_a, k_s, w_ptr, ws_ptr, N: gl.constexpr, K: gl.constexpr, TO_BF16: gl.constexpr,
             a_layout: gl.constexpr, k_warps: gl.constexpr, block_n: gl.constexpr,
             k_bytes: gl.constexpr):  # fmt: skip
    """Even and odd elements of a slice of B that starts at byte `first` of its rows, as left operands."""
    row_bytes: gl.constexpr = K // 2
    row_scales: gl.constexpr = K // 16
    ka, ks = k_a + first, k_s + first // 8
    w = gl.load(w_ptr + n_a * row_bytes + ka, mask=(n_a < N) & (ka < row_bytes), other=0)
    ws = gl.load(ws_ptr + n_s * row_scales + ks, mask=(n_s < N) & (ks < row_scales), other=0)
    groups = w.reshape([k_warps, block_n, k_bytes // 8, 8])
    scale, groups = gl.broadcast(expand_scale(ws, TO_BF16).expand_dims(3), groups)
    even, odd = decode(groups, scale, TO_BF16)
    even = gl.convert_layout(even.reshape([k_warps, block_n, k_bytes]), a_layout, assert_trivial=True)
    odd = gl.convert_layout(odd.reshape([k_warps, block_n, k_bytes]), a_layout, assert_trivial=True)
    return even, odd


@gluon.jit
def _activations(first, m_b, m_t, k_b, k_t, x_ptr, xs_ptr, x_rows, K: gl.constexpr, FOUR_BIT_A: gl.constexpr,
                 b_layout: gl.constexpr, k_warps: gl.constexpr, block_m: gl.constexpr,
                 k_bytes: gl.constexpr):  # fmt: skip
    """Even and odd elements of a slice of A, as right operands: every warp loads and decodes what it needs."""
    row_bytes: gl.constexpr = K // 2
    row_scales: gl.constexpr = K // 16
    kb, kt = k_b + first, k_t + first // 8
    x = gl.load(x_ptr + m_b * row_bytes + kb, mask=(m_b < x_rows) & (kb < row_bytes), other=0)
    if FOUR_BIT_A:
        xs = gl.load(xs_ptr + m_t * row_scales + kt, mask=(m_t < x_rows) & (kt < row_scales), other=0)
        groups = x.reshape([k_warps, k_bytes // 8, 8, block_m])
        scale, groups = gl.broadcast(expand_scale(xs, False).expand_dims(2), groups)
        even, odd = decode(groups, scale, False)
        even = gl.convert_layout(even.reshape([k_warps, k_bytes, block_m]), b_layout, assert_trivial=True)
        odd = gl.convert_layout(odd.reshape([k_warps, k_bytes, block_m]), b_layout, assert_trivial=True)
    else:
        even, odd = take_pairs_apart(x)
    return even, odd


@gluon.jit
def _share_activations(first, even_shared, odd_shared, x_ptr, xs_ptr, x_rows, K: gl.constexpr,
                       FOUR_BIT_A: gl.constexpr, block_m: gl.constexpr, k_warps: gl.constexpr,
                       k_bytes: gl.constexpr, warps: gl.constexpr):  # fmt: skip
    """Decode a slice of A into shared memory [k_warps, block_m, k_bytes], every element by one thread."""
    row_bytes: gl.constexpr = K // 2
    row_scales: gl.constexpr = K // 16
    width: gl.constexpr = k_warps * k_bytes
    lanes: gl.constexpr = 32 if width >= 256 else width // 8
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // lanes, lanes], [warps, 1], [1, 0])
    m = gl.arange(0, block_m, layout=gl.SliceLayout(1, layout))[:, None]
    k = gl.arange(0, width, layout=gl.SliceLayout(0, layout))[None, :] + first
    x = gl.load(x_ptr + m * row_bytes + k, mask=(m < x_rows) & (k < row_bytes), other=0)
    if FOUR_BIT_A:
        groups = x.reshape([block_m, width // 8, 8])
        s_layout: gl.constexpr = gl.SliceLayout(2, groups.type.layout)
        m_s = gl.arange(0, block_m, layout=gl.SliceLayout(1, s_layout))[:, None]
        k_s = gl.arange(0, width // 8, layout=gl.SliceLayout(0, s_layout))[None, :] + first // 8
        xs = gl.load(xs_ptr + m_s * row_scales + k_s, mask=(m_s < x_rows) & (k_s < row_scales), other=0)
        scale, groups = gl.broadcast(expand_scale(xs, False).expand_dims(2), groups)
        even, odd = decode(groups, scale, False)
    else:
        even, odd = take_pairs_apart(x)
    even_shared.store(even.reshape([block_m, k_warps, k_bytes]).permute([1, 0, 2]))
    odd_shared.store(odd.reshape([block_m, k_warps, k_bytes]).permute([1, 0, 2]))


@gluon.jit
def fragment_gemm(x_ptr, xs_ptr, w_ptr, ws_ptr, alpha_ptr, out_ptr, scratch_ptr, counter_ptr,
                  tile_expert_ptr, tile_row_ptr, tile_rows_ptr, m_rows,
                  N: gl.constexpr, K: gl.constexpr, GROUPED: gl.constexpr, FOUR_BIT_A: gl.constexpr,
                  block_m: gl.constexpr, warp_rows: gl.constexpr, n_warps: gl.constexpr, k_warps: gl.constexpr,
                  vector_bytes: gl.constexpr, chunks: gl.constexpr, split_k: gl.constexpr,
                  shared_steps: gl.constexpr, unroll: gl.constexpr):  # fmt: skip
    """D = alpha · A · Bᵀ, dense or grouped.

    Grid: (row blocks of B, row tiles of A, split_k).

    Args:
        x_ptr: A, uint8 [rows, K/2] if FOUR_BIT_A, else BF16 pairs as int32 [rows, K/2].
        xs_ptr: its scales, uint8 [rows, K/16]; read only if FOUR_BIT_A.
        w_ptr: B, uint8 [experts·N, K/2]; one expert for dense.
        ws_ptr: its scales, uint8 [experts·N, K/16].
        alpha_ptr: float32 [experts].
        out_ptr: D [rows, N].
        scratch_ptr: float32 [tiles · row blocks, split_k, block_m, block_n]; unused unless split_k > 1.
        counter_ptr: int32 [tiles · row blocks], zero, and zero again afterwards; unused unless split_k > 1.
        tile_expert_ptr: int32 [tiles]: whose weights a row tile takes. The tables are read only if GROUPED.
        tile_row_ptr: int32 [tiles]: its first row in A and D.
        tile_rows_ptr: int32 [tiles]: how many rows it has, 0 for a tile that is not needed.
        m_rows: rows of A and D; read only if not GROUPED, where tile i starts at row i·block_m.
        N: rows of B. N·K/2 must be below 2^31: places within a matrix are 32-bit numbers.
        K: a multiple of 16.
        GROUPED: as above.
        FOUR_BIT_A: as above.
        block_m: rows of a tile of A: 8, 16 or 32.
        warp_rows: rows of B a warp: 16, 32 or 64.
        n_warps: warps along N.
        k_warps: warps along K; n_warps · k_warps is what the kernel is compiled for.
        vector_bytes: consecutive bytes of a row that a thread takes: 8 or 16.
        chunks: how many of those a step.
        split_k: blocks that share a tile of D.
        shared_steps: steps whose A is decoded into shared memory together; 0: every warp decodes what it needs.
        unroll: the loop over K, where nothing is shared.
    """
    row_bytes: gl.constexpr = K // 2
    block_n: gl.constexpr = warp_rows * n_warps
    k_bytes: gl.constexpr = 8 * vector_bytes * chunks
    slice_bytes: gl.constexpr = k_warps * k_bytes
    together: gl.constexpr = shared_steps if shared_steps else 1  # noqa: FURB110 - `or` of constants makes a boolean
    per_split: gl.constexpr = slice_bytes * split_k * together
    steps: gl.constexpr = (row_bytes + per_split - 1) // per_split * together
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [k_warps, n_warps, 1], [1, 16, 8])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, mma, vector_bytes)
    b_layout: gl.constexpr = gl.DotOperandLayout(1, mma, vector_bytes)
    block, tile, split = gl.program_id(0), gl.program_id(1), gl.program_id(2)

    if GROUPED:
        rows = gl.load(tile_rows_ptr + tile)
        if rows == 0:
            return
        expert = gl.load(tile_expert_ptr + tile).to(gl.int64)
        first_row = gl.load(tile_row_ptr + tile).to(gl.int64)
        w_ptr += expert * (N * row_bytes)
        ws_ptr += expert * (N * (K // 16))
        alpha_ptr += expert
    else:
        first_row = (tile * block_m).to(gl.int64)
        rows = m_rows - tile * block_m
    x_ptr += first_row * row_bytes
    xs_ptr += first_row * (K // 16)
    out_ptr += first_row * N

    # Places of the fragments, and of the scales: one for eight bytes, laid out so that repeating it eight times along K
    # gives the fragment's own layout.
    wk = gl.arange(0, k_warps, layout=gl.SliceLayout(1, gl.SliceLayout(2, a_layout)))[:, None, None]
    n_a = gl.arange(0, block_n, layout=gl.SliceLayout(0, gl.SliceLayout(2, a_layout)))[None, :, None] + block * block_n
    k_a = gl.arange(0, k_bytes, layout=gl.SliceLayout(0, gl.SliceLayout(1, a_layout)))[None, None, :] + wk * k_bytes
    wk = gl.arange(0, k_warps, layout=gl.SliceLayout(1, gl.SliceLayout(2, b_layout)))[:, None, None]
    k_b = gl.arange(0, k_bytes, layout=gl.SliceLayout(0, gl.SliceLayout(2, b_layout)))[None, :, None] + wk * k_bytes
    m_b = gl.arange(0, block_m, layout=gl.SliceLayout(0, gl.SliceLayout(1, b_layout)))[None, None, :]
    like = gl.full([k_warps, block_n, k_bytes], 0, gl.uint8, layout=a_layout)
    ws_layout: gl.constexpr = gl.SliceLayout(3, like.reshape([k_warps, block_n, k_bytes // 8, 8]).type.layout)
    wk = gl.arange(0, k_warps, layout=gl.SliceLayout(1, gl.SliceLayout(2, ws_layout)))[:, None, None] * (k_bytes // 8)
    n_s = gl.arange(0, block_n, layout=gl.SliceLayout(0, gl.SliceLayout(2, ws_layout)))[None, :, None] + block * block_n
    k_s = gl.arange(0, k_bytes // 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, ws_layout)))[None, None, :] + wk
    like = gl.full([k_warps, k_bytes, block_m], 0, gl.uint8, layout=b_layout)
    xs_layout: gl.constexpr = gl.SliceLayout(2, like.reshape([k_warps, k_bytes // 8, 8, block_m]).type.layout)
    wk = gl.arange(0, k_warps, layout=gl.SliceLayout(1, gl.SliceLayout(2, xs_layout)))[:, None, None] * (k_bytes // 8)
    k_t = gl.arange(0, k_bytes // 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, xs_layout)))[None, :, None] + wk
    m_t = gl.arange(0, block_m, layout=gl.SliceLayout(0, gl.SliceLayout(1, xs_layout)))[None, None, :]

    acc = gl.zeros([k_warps, block_n, block_m], gl.float32, layout=mma)
    first_step = split * steps
    if shared_steps:
        a_dtype: gl.constexpr = gl.float16 if FOUR_BIT_A else gl.bfloat16
        shared: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, order=[2, 1, 0])
        even_shared = gl.allocate_shared_memory(a_dtype, [shared_steps, k_warps, block_m, k_bytes], shared)
        odd_shared = gl.allocate_shared_memory(a_dtype, [shared_steps, k_warps, block_m, k_bytes], shared)
        for round_ in range(steps // shared_steps):
            base = first_step + round_ * shared_steps
            for step in gl.static_range(shared_steps):
                _share_activations((base + step) * slice_bytes, even_shared.index(step), odd_shared.index(step), x_ptr,
                                   xs_ptr, rows, K, FOUR_BIT_A, block_m, k_warps, k_bytes,
                                   n_warps * k_warps)  # fmt: skip
            for step in gl.static_range(shared_steps):
                w_even, w_odd = _weights((base + step) * slice_bytes, n_a, n_s, k_a, k_s, w_ptr, ws_ptr, N, K,
                                         not FOUR_BIT_A, a_layout, k_warps, block_n, k_bytes)  # fmt: skip
                x_even = even_shared.index(step).permute([0, 2, 1]).load(b_layout)
                acc = mma_v2(w_even, x_even, acc)
                x_odd = odd_shared.index(step).permute([0, 2, 1]).load(b_layout)
                acc = mma_v2(w_odd, x_odd, acc)
    elif unroll:
        for step in gl.static_range(steps):
            first = (first_step + step) * slice_bytes
            w_even, w_odd = _weights(first, n_a, n_s, k_a, k_s, w_ptr, ws_ptr, N, K, not FOUR_BIT_A, a_layout, k_warps,
                                     block_n, k_bytes)  # fmt: skip
            x_even, x_odd = _activations(first, m_b, m_t, k_b, k_t, x_ptr, xs_ptr, rows, K, FOUR_BIT_A, b_layout,
                                         k_warps, block_m, k_bytes)  # fmt: skip
            acc = mma_v2(w_odd, x_odd, mma_v2(w_even, x_even, acc))
    else:
        for step in range(steps):
            first = (first_step + step) * slice_bytes
            w_even, w_odd = _weights(first, n_a, n_s, k_a, k_s, w_ptr, ws_ptr, N, K, not FOUR_BIT_A, a_layout, k_warps,
                                     block_n, k_bytes)  # fmt: skip
            x_even, x_odd = _activations(first, m_b, m_t, k_b, k_t, x_ptr, xs_ptr, rows, K, FOUR_BIT_A, b_layout,
                                         k_warps, block_m, k_bytes)  # fmt: skip
            acc = mma_v2(w_odd, x_odd, mma_v2(w_even, x_even, acc))
    y = gl.sum(acc, axis=0)

    y_layout: gl.constexpr = y.type.layout
    n_tile = gl.arange(0, block_n, layout=gl.SliceLayout(1, y_layout))[:, None]
    m_tile = gl.arange(0, block_m, layout=gl.SliceLayout(0, y_layout))[None, :]
    n_out = n_tile + block * block_n
    inside = (n_out < N) & (m_tile < rows)
    alpha = gl.load(alpha_ptr)
    if FOUR_BIT_A:
        alpha *= SCALED_BY * SCALED_BY
    else:
        alpha *= SCALED_BY
    out = out_ptr + m_tile * N + n_out
    if split_k == 1:
        gl.store(out, (y * alpha).to(out_ptr.dtype.element_ty), mask=inside)
    else:
        place = tile * gl.num_programs(0) + block
        part = scratch_ptr + place.to(gl.int64) * (split_k * block_n * block_m) + m_tile * block_n + n_tile
        gl.store(part + split * (block_n * block_m), y, mask=inside)
        _barrier()  # every thread's part must be there before one of them counts this block as done
        done = gl.atomic_add(counter_ptr + place, 1, sem="acq_rel", scope="gpu")
        if done == split_k - 1:
            total = gl.zeros([block_n, block_m], gl.float32, layout=y_layout)
            for i in gl.static_range(split_k):
                total += gl.load(part + i * (block_n * block_m), mask=inside, other=0.0, cache_modifier=".cg")
            gl.store(out, (total * alpha).to(out_ptr.dtype.element_ty), mask=inside)
            gl.store(counter_ptr + place, 0)
