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
