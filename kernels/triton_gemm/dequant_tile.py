"""The kernel of `triton.dequant` for many rows: a block decodes tiles of A and B, and multiplies from shared memory.

Importing this imports Triton.

Where many rows share a weight, decoding it in every warp that needs it (`dequant_fragment`) costs more than the way
through shared memory, and on SM90 the matrix unit reads its operands from there anyhow. The packed bytes are what the
software pipeline keeps in flight, 9/32 of the bytes that BF16 tiles would take.

The sum over `split_k` blocks is that of `dequant_fragment`; but here blocks take turns at K's steps.
"""

# A kernel's parameters are Triton's, typed where it is compiled; constants that are no parameter of a config are in
# capitals, as everywhere in Triton. Loads, product and sum over blocks share their places, which is many statements.
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0915

from __future__ import annotations

import triton
import triton.language as tl

from .dequant_decode import BF16_SCALE, FP16_SCALE, SCALED_BY, TILE_BF16, TILE_FP16, TILE_PAIRS


@triton.jit
def _decode(codes, scale, rows: tl.constexpr, k_bytes: tl.constexpr, TO_BF16: tl.constexpr):
    """Even and odd elements, [rows, k_bytes] each, of codes times their scale and 2^-7.

    Args:
        codes: uint8 [rows, k_bytes].
        scale: E4M3 bits, uint8 [rows, k_bytes / 8].
        rows: a power of two.
        k_bytes: a power of two, 8 at least.
        TO_BF16: BF16 instead of FP16.
    """
    as_fp16 = (scale.to(tl.uint16) << 7).to(tl.float16, bitcast=True)
    groups = tl.reshape(codes, [rows, k_bytes // 8, 8])
    if TO_BF16:
        factor = (as_fp16.to(tl.float32) * BF16_SCALE).to(tl.bfloat16)
        factor, groups = tl.broadcast(tl.expand_dims(factor, 2), groups)
        even, odd = tl.inline_asm_elementwise(TILE_BF16, "=r,=r,=r,=r,r,r,r", [groups, factor],
                                              dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4)  # fmt: skip
    else:
        factor = as_fp16 * FP16_SCALE
        factor, groups = tl.broadcast(tl.expand_dims(factor, 2), groups)
        even, odd = tl.inline_asm_elementwise(TILE_FP16, "=r,=r,=r,=r,r,r,r", [groups, factor],
                                              dtype=(tl.float16, tl.float16), is_pure=True, pack=4)  # fmt: skip
    return tl.reshape(even, [rows, k_bytes]), tl.reshape(odd, [rows, k_bytes])


@triton.jit
def tile_gemm(x_ptr, xs_ptr, w_ptr, ws_ptr, alpha_ptr, out_ptr, scratch_ptr, counter_ptr,
              tile_expert_ptr, tile_row_ptr, tile_rows_ptr, m_rows,
              N: tl.constexpr, K: tl.constexpr, GROUPED: tl.constexpr, FOUR_BIT_A: tl.constexpr,
              block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, split_k: tl.constexpr,
              stages: tl.constexpr):  # fmt: skip
    """D = alpha · A · Bᵀ, dense or grouped.

    Grid and arguments: as `fragment_gemm`'s, but that a part of the scratch is [block_m, block_n].
    """
    row_bytes: tl.constexpr = K // 2
    row_scales: tl.constexpr = K // 16
    k_bytes: tl.constexpr = block_k // 2
    steps: tl.constexpr = (row_bytes + k_bytes * split_k - 1) // (k_bytes * split_k)
    block, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = m_rows - tile * block_m
    first_row = (tile * block_m).to(tl.int64)
    if GROUPED:
        rows = tl.load(tile_rows_ptr + tile)
        expert = tl.load(tile_expert_ptr + tile).to(tl.int64)
        first_row = tl.load(tile_row_ptr + tile).to(tl.int64)
        w_ptr += expert * (N * row_bytes)
        ws_ptr += expert * (N * row_scales)
        alpha_ptr += expert
    if rows > 0:
        x_ptr += first_row * row_bytes
        xs_ptr += first_row * row_scales
        out_ptr += first_row * N
        m = tl.arange(0, block_m)
        n_tile = tl.arange(0, block_n)
        n = block * block_n + n_tile
        k = tl.arange(0, k_bytes)
        k8 = tl.arange(0, k_bytes // 8)
        acc = tl.zeros([block_m, block_n], tl.float32)
        for step in tl.range(0, steps, num_stages=stages):
            first = (step * split_k + split) * k_bytes
            inside_k = (first + k < row_bytes)[None, :]
            inside_k8 = (first // 8 + k8 < row_scales)[None, :]
            w = tl.load(w_ptr + n[:, None] * row_bytes + first + k[None, :], mask=(n[:, None] < N) & inside_k, other=0)
            ws = tl.load(ws_ptr + n[:, None] * row_scales + first // 8 + k8[None, :],
                         mask=(n[:, None] < N) & inside_k8, other=0)  # fmt: skip
            x = tl.load(x_ptr + m[:, None] * row_bytes + first + k[None, :],
                        mask=(m[:, None] < rows) & inside_k, other=0)  # fmt: skip
            if FOUR_BIT_A:
                xs = tl.load(xs_ptr + m[:, None] * row_scales + first // 8 + k8[None, :],
                             mask=(m[:, None] < rows) & inside_k8, other=0)  # fmt: skip
                x_even, x_odd = _decode(x, xs, block_m, k_bytes, False)
            else:
                x_even, x_odd = tl.inline_asm_elementwise(TILE_PAIRS, "=r,=r,=r,=r,r,r,r,r", [x],
                                                          dtype=(tl.bfloat16, tl.bfloat16), is_pure=True,
                                                          pack=4)  # fmt: skip
            w_even, w_odd = _decode(w, ws, block_n, k_bytes, not FOUR_BIT_A)
            acc = tl.dot(x_even, tl.trans(w_even), acc)
            acc = tl.dot(x_odd, tl.trans(w_odd), acc)
        inside = (m[:, None] < rows) & (n[None, :] < N)
        alpha = tl.load(alpha_ptr)
        if FOUR_BIT_A:
            alpha *= SCALED_BY * SCALED_BY
        else:
            alpha *= SCALED_BY
        out = out_ptr + m[:, None] * N + n[None, :]
        if split_k == 1:
            tl.store(out, (acc * alpha).to(out_ptr.dtype.element_ty), mask=inside)
        else:
            place = tile * tl.num_programs(0) + block
            size: tl.constexpr = block_m * block_n
            part = scratch_ptr + place.to(tl.int64) * (split_k * size) + m[:, None] * block_n + n_tile[None, :]
            tl.store(part + split * size, acc, mask=inside)
            tl.debug_barrier()  # every thread's part must be there before one of them counts this block as done
            done = tl.atomic_add(counter_ptr + place, 1, sem="acq_rel", scope="gpu")
            if done == split_k - 1:
                total = tl.zeros([block_m, block_n], tl.float32)
                for i in tl.static_range(split_k):
                    total += tl.load(part + i * size, mask=inside, other=0.0, cache_modifier=".cg")
                tl.store(out, (total * alpha).to(out_ptr.dtype.element_ty), mask=inside)
                tl.store(counter_ptr + place, 0)
