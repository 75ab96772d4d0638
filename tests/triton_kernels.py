"""Small Triton kernels for the tests of how kernels are compiled and launched."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled_copy(source, out, n, BLOCK: tl.constexpr, factor):  # noqa: N803 - Triton's way to name a constant
    """out = source * factor; a constant stands between the arguments."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(source + at, mask=at < n) * factor, mask=at < n)


@triton.jit
def dot_scaled_of(a, b, a_scale, b_scale, out, SIZE: tl.constexpr):  # noqa: N803 - as above
    """One tile of a block-scaled product, whose scales may be of any type."""
    row, code, group = tl.arange(0, SIZE)[:, None], tl.arange(0, 64)[None, :], tl.arange(0, 8)[None, :]
    left, right = tl.load(a + row * 64 + code), tl.load(b + row * 64 + code)
    left_scale, right_scale = tl.load(a_scale + row * 8 + group), tl.load(b_scale + row * 8 + group)
    product = tl.dot_scaled(left, left_scale, "e2m1", right.trans(), right_scale, "e2m1")
    tl.store(out + row * SIZE + tl.arange(0, SIZE)[None, :], product)
