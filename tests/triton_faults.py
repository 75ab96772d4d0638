"""Triton kernels that do harm, for the tests of worker processes on a GPU."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def out_of_bounds(out, far):
    """Writes where nothing is."""
    tl.store(out + far, 1.0)


@triton.jit
def for_ever(flag, out):
    """Waits for a flag that nobody sets."""
    spins = 0
    while tl.load(flag, volatile=True) == 0:
        spins += 1
    tl.store(out, spins.to(tl.float32))


@triton.jit
def misaligned(out):
    """Stores four bytes where only one may begin."""
    tl.inline_asm_elementwise(
        "{ .reg .u64 odd; add.u64 odd, $1, 1; st.global.u32 [odd], 0; mov.u32 $0, 0; }",
        "=r,l",
        [out.to(tl.uint64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def trap(out):
    """Gives up in the middle."""
    tl.inline_asm_elementwise(
        "{ trap; mov.u32 $0, 0; }", "=r,l", [out.to(tl.uint64)], dtype=tl.int32, is_pure=False, pack=1
    )
