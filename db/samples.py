"""Samples as a compact blob: little-endian float32, at most 256 of them.

float32 keeps a relative error below 6e-8 (2**-24), a thousand times finer than the resolution of any timer that
took the samples; 256 samples are enough to draw a distribution or to recompute an interval of the median, and bound
a row to 1 KiB. The median and its interval are stored beside the blob in full, over all `n_samples`.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence

from ..kernels.errors import InvalidInputError

MAX_SAMPLES = 256


def pack(samples_us: Sequence[float]) -> bytes:
    """Encode samples; of more than 256, 256 are kept, evenly spaced over the order they were taken in.

    Raises:
        InvalidInputError: a sample is not a finite number within float32.
    """
    n = len(samples_us)
    stays = samples_us if n <= MAX_SAMPLES else [samples_us[i * n // MAX_SAMPLES] for i in range(MAX_SAMPLES)]
    packed = array("f", stays)
    for raw, stored in zip(stays, packed, strict=True):
        if not math.isfinite(stored):
            raise InvalidInputError(f"A sample must be a finite number of microseconds, and one is {raw}.")
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()


def shortest(blob: bytes) -> list[float]:
    """The samples as the floats with the fewest digits that `pack` makes the same blob of."""
    stored = unpack(blob)
    brief = [float(f"{sample:.7g}") for sample in stored]
    # Nine digits always tell a float32 from its neighbours; seven mostly do.
    return [
        short if again == exact else float(f"{exact:.9g}")
        for short, again, exact in zip(brief, array("f", brief), stored, strict=True)
    ]


def kept(indices: Sequence[int], n: int) -> list[int]:
    """Where those of `indices` into `n` samples that `pack` keeps stand among what it keeps."""
    if n <= MAX_SAMPLES:
        return list(indices)
    places = {i * n // MAX_SAMPLES: i for i in range(MAX_SAMPLES)}
    return [places[index] for index in indices if index in places]


def unpack(blob: bytes) -> tuple[float, ...]:
    """Decode samples, microseconds, in the order they were taken."""
    packed = array("f")
    packed.frombytes(blob)
    if sys.byteorder != "little":
        packed.byteswap()
    return tuple(packed)
