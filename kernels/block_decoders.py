"""Ways to bring a block of weights into the dtype it is multiplied in.

A decoder is made for one operand (a stack of matrices), allocates its buffers once, and binds blocks to callables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .nvfp4 import E2M1_VALUES
from .operands import Quantized
from .problem import NVFP4_GROUP

_PAIR = 2 * NVFP4_GROUP
"""Elements of two groups: in the planar order, byte i of a pair of groups holds element i of the first in its low
nibble and element i of the second in its high nibble."""

_BYTES = NVFP4_GROUP // 2
"""Bytes of a group's codes."""

_E2M1_AS_HALF = 2.0**-14
"""What a code's value is multiplied by when its bits are read as float16: exponent bias 1 against bias 15."""


@dataclass(frozen=True, slots=True)
class KOrder:
    """The order of K in decoded blocks.

    Attributes:
        natural: True for 0, 1, 2, ...; False for the planar order, the even groups of 16 before the odd ones.
        width: columns, K or K padded to whole pairs of groups.
    """

    natural: bool
    width: int

    def copier(self, target: torch.Tensor, source: torch.Tensor, k: int) -> Callable[[], None]:
        """A callable that copies [rows, K] in natural order into [rows, width] in this order, converting the dtype."""
        if self.natural:
            return lambda: _copy(target, source)
        rows, even, odd = target.shape[0], -(-k // _PAIR), k // _PAIR
        half = target.view(rows, 2, self.width // _PAIR, NVFP4_GROUP)
        groups = source.view(rows, k // NVFP4_GROUP, NVFP4_GROUP)
        pairs = ((half[:, 0, :even], groups[:, 0::2]), (half[:, 1, :odd], groups[:, 1::2]))

        def call() -> None:
            for to, of in pairs:
                to.copy_(of)

        return call


class BlockDecoder(Protocol):
    """Decodes blocks of a stack of matrices."""

    order: KOrder
    factor: float
    """What every decoded value is multiplied by, beside code · scale."""

    def bind(self, experts: tuple[int, ...], n0: int, n1: int) -> tuple[Callable[[], None], torch.Tensor]:
        """A callable that decodes rows n0:n1 of some experts, and the tensor it fills, [experts, n1 - n0, width].

        The tensor is overwritten by the next block.
        """
        ...


class LookupDecoder:
    """Takes a byte as the index of its pair of values. Reads the standard layout and keeps the order of K.

    Args:
        weights: a stack of NVFP4 matrices [experts, N, K].
        batch: experts that a block spans at most.
        block_n: rows of each that a block has at most.
        dtype: of the decoded values.
    """

    def __init__(self, weights: Quantized, batch: int, block_n: int, dtype: torch.dtype) -> None:
        self._blocks = _Blocks(weights.packed, weights.scale, batch, block_n, dtype)
        stage, device = self._blocks.stage, weights.packed.device
        self.order = KOrder(natural=True, width=2 * weights.packed.shape[-1])
        # Float16 is the one dtype with too little range for code · scale times the same of the other operand.
        self.factor = _E2M1_AS_HALF if dtype is torch.float16 else 1.0
        byte = torch.arange(256)
        values = torch.tensor(E2M1_VALUES) * self.factor
        pairs = torch.stack((values[byte & 0xF], values[byte >> 4]), dim=1).to(stage)
        # One element of the table is a pair of values, which is gathered as the integer of its size.
        self._as_integer = torch.int64 if stage is torch.float32 else torch.int32
        self._pairs = pairs.view(self._as_integer).view(-1).to(device)
        self._index = self._blocks.buffer(weights.packed.shape[-1], torch.int32)

    def bind(self, experts: tuple[int, ...], n0: int, n1: int) -> tuple[Callable[[], None], torch.Tensor]:
        """See BlockDecoder."""
        b = self._blocks
        fetch, packed, scale = b.fetch(experts, n0, n1)
        index = self._index[: packed.numel()]
        staged, weights = b.decoded(len(experts), n1 - n0, self.order.width)
        load_scale, by_group = b.scales(scale)
        groups = staged.view(*by_group.shape[:-1], NVFP4_GROUP)
        shaped, pairs, table = index.view(packed.shape), staged.view(self._as_integer).view(-1), self._pairs

        def decode() -> None:
            if fetch is not None:
                fetch()
            load_scale()
            shaped.copy_(packed)
            torch.index_select(table, 0, index, out=pairs)
            torch.mul(groups, by_group, out=groups)
            if staged is not weights:
                weights.copy_(staged)

        return decode, weights


class ArithmeticDecoder:
    """Moves the bits of a code into those of a float16 with shifts and masks, whole planes of nibbles at a time.

    Reads weights that were repacked once, as kernels with their own layout do when a model is loaded: byte i of a
    pair of groups then holds element i of the first group in its low nibble and element i of the second in its high
    one. The low nibbles of a row make one half of the decoded row and the high nibbles the other.

    Args:
        weights: a stack of NVFP4 matrices, repacked.
        batch: experts that a block spans at most.
        block_n: rows of each that a block has at most.
        dtype: of the decoded values.
    """

    def __init__(self, weights: PlanarCopy, batch: int, block_n: int, dtype: torch.dtype) -> None:
        self._blocks = _Blocks(weights.packed, weights.scale, batch, block_n, dtype)
        self.order = KOrder(natural=False, width=2 * weights.packed.shape[-1])
        self.factor = _E2M1_AS_HALF
        self._codes = self._blocks.buffer(weights.packed.shape[-1], torch.int16)
        self._bits = torch.empty_like(self._codes)

    def bind(self, experts: tuple[int, ...], n0: int, n1: int) -> tuple[Callable[[], None], torch.Tensor]:
        """See BlockDecoder."""
        b = self._blocks
        fetch, packed, scale = b.fetch(experts, n0, n1)
        codes, bits = (x[: packed.numel()].view(packed.shape) for x in (self._codes, self._bits))
        staged, weights = b.decoded(len(experts), n1 - n0, self.order.width)
        load_scale, by_group = b.scales(scale)
        groups = staged.view(*by_group.shape[:-1], NVFP4_GROUP)
        low, high = staged.chunk(2, dim=-1)
        half = bits.view(torch.float16)

        def decode() -> None:
            if fetch is not None:
                fetch()
            load_scale()
            codes.copy_(packed)
            # seem to bits 15 to 12, then an arithmetic shift and a mask: s in bit 15, eem in bits 11 to 9.
            for shift, plane in ((12, low), (8, high)):
                torch.bitwise_left_shift(codes, shift, out=bits)
                bits.bitwise_right_shift_(3).bitwise_and_(_HALF_MASK)
                plane.copy_(half)
            torch.mul(groups, by_group, out=groups)
            if staged is not weights:
                weights.copy_(staged)

        return decode, weights


class CastDecoder:
    """For BF16 weights: hands blocks through, or converts them.

    Args:
        weights: a stack of BF16 matrices [experts, N, K].
        batch: experts that a block spans at most.
        block_n: rows of each that a block has at most.
        dtype: of the weights that are handed out.
    """

    factor = 1.0

    def __init__(self, weights: torch.Tensor, batch: int, block_n: int, dtype: torch.dtype) -> None:
        self.order = KOrder(natural=True, width=weights.shape[-1])
        self._weights = weights
        size = batch * block_n * weights.shape[-1]
        self._gathered = torch.empty(size if batch > 1 else 0, dtype=weights.dtype, device=weights.device)
        self._cast = torch.empty(size if dtype != weights.dtype else 0, dtype=dtype, device=weights.device)

    def bind(self, experts: tuple[int, ...], n0: int, n1: int) -> tuple[Callable[[], None], torch.Tensor]:
        """See BlockDecoder."""
        fetch, block = _fetch(self._weights, experts, n0, n1, self._gathered)
        if self._cast.dtype == block.dtype:
            return fetch or _nothing, block
        cast = self._cast[: block.numel()].view(block.shape)

        def decode() -> None:
            if fetch is not None:
                fetch()
            cast.copy_(block)

        return decode, cast


_HALF_MASK = -0x7200
"""0x8E00 as a signed 16-bit number: sign, two lowest exponent bits and highest mantissa bit of a float16."""


_PLANAR = "dequant.planar"
"""What a PlanarCopy is called among an operand's packed copies."""


def make_decoder(
    weights: Quantized | torch.Tensor,
    decode: str,
    batch: int,
    block_n: int,
    dtype: torch.dtype,
    experts: Iterable[int],
    shared: dict[str, Any] | None = None,
) -> BlockDecoder:
    """The decoder called `decode` for some matrices of a stack; BF16 weights have but one.

    Args:
        weights: the stack.
        decode: `lookup` or `arithmetic`.
        batch: experts that a block spans at most.
        block_n: rows of each that a block has at most.
        dtype: of the decoded values.
        experts: which matrices will be asked for.
        shared: where a repacked copy of `weights` is kept for the next decoder (`Operands.packed`).
    """
    if not isinstance(weights, Quantized):
        return CastDecoder(weights, batch, block_n, dtype)
    if decode == "arithmetic":
        copies = {} if shared is None else shared
        if _PLANAR not in copies:
            copies[_PLANAR] = PlanarCopy(weights.packed, weights.scale)
        copy: PlanarCopy = copies[_PLANAR]
        copy.add(experts)
        return ArithmeticDecoder(copy, batch, block_n, dtype)
    return LookupDecoder(weights, batch, block_n, dtype)


class PlanarCopy:
    """A stack of matrices in ArithmeticDecoder's order, K padded with zeros to whole pairs of groups.

    Args:
        packed: uint8 [experts, N, K/2], standard order.
        scale: E4M3 [experts, N, K/16].

    Attributes:
        packed: uint8 [experts, N, K'/2]; of matrices that were not added, what was in that memory.
        scale: E4M3 [experts, N, K'/16]: scales of the even groups, then of the odd ones; the same holds.
    """

    def __init__(self, packed: torch.Tensor, scale: torch.Tensor) -> None:
        count, n, groups = scale.shape
        pairs = -(-groups // 2)
        self._source = packed, scale.view(torch.uint8)
        self._codes = torch.empty(count, n, pairs, _BYTES, 2, dtype=torch.uint8, device=packed.device)
        self._scales = torch.empty(count, n, 2, pairs, dtype=torch.uint8, device=packed.device)
        self._has: set[int] = set()
        self.packed = self._codes.view(count, n, -1)
        self.scale = self._scales.view(count, n, -1).view(torch.float8_e4m3fn)

    def add(self, experts: Iterable[int]) -> None:
        """Repack those of some matrices that are not there yet."""
        packed, scale = self._source
        _, n, pairs, *_ = self._codes.shape
        groups = scale.shape[-1]
        padded = torch.zeros(n, 2 * pairs, _BYTES, dtype=torch.uint8, device=packed.device)
        even, odd = padded[:, 0::2], padded[:, 1::2]
        for e in sorted(set(experts) - self._has):  # one at a time, for the temporaries
            padded[:, :groups] = packed[e].view(n, groups, _BYTES)
            self._codes[e, ..., 0] = (even & 0x0F) | (odd << 4)
            self._codes[e, ..., 1] = (even >> 4) | (odd & 0xF0)
            self._scales[e, :, 0] = scale[e][:, 0::2]
            self._scales[e, :, 1, : groups // 2] = scale[e][:, 1::2]
            self._scales[e, :, 1, groups // 2 :] = 0
            self._has.add(e)


class _Blocks:
    """What both decoders of NVFP4 need: where blocks come from, their scales, and where decoded values go.

    Attributes:
        stage: dtype that codes and scales are multiplied in. On a CPU float32 always, because torch's BF16
            multiplication with a scale that is broadcast over 16 elements is ten times slower; on a GPU the final one.
    """

    def __init__(self, packed: torch.Tensor, scale: torch.Tensor, batch: int, block_n: int, dtype: torch.dtype) -> None:
        self._packed, self._scale = packed, scale.view(torch.uint8)
        self._rows = batch * block_n
        self.stage = dtype if packed.is_cuda else torch.float32
        self._scale_table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(self.stage)
        self._scale_table = self._scale_table.to(packed.device)
        self._scale_index = self.buffer(scale.shape[-1], torch.int32)
        self._scale_values = self.buffer(scale.shape[-1], self.stage)
        self._staged = self.buffer(2 * packed.shape[-1], self.stage)
        self._cast = self._staged if dtype is self.stage else self.buffer(2 * packed.shape[-1], dtype)
        self._gathered = tuple(self.buffer(x.shape[-1] if batch > 1 else 0, torch.uint8) for x in (packed, scale))

    def buffer(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat buffer for `width` elements of every row of a block."""
        return torch.empty(self._rows * width, dtype=dtype, device=self._packed.device)

    def fetch(
        self, experts: tuple[int, ...], n0: int, n1: int
    ) -> tuple[Callable[[], None] | None, torch.Tensor, torch.Tensor]:
        """(a callable that must run first, or None; packed codes; scales) of a block, each [experts, rows, ...]."""
        fetch_packed, packed = _fetch(self._packed, experts, n0, n1, self._gathered[0])
        fetch_scale, scale = _fetch(self._scale, experts, n0, n1, self._gathered[1])
        if fetch_packed is None or fetch_scale is None:
            return None, packed, scale

        def fetch() -> None:
            fetch_packed()
            fetch_scale()

        return fetch, packed, scale

    def scales(self, scale: torch.Tensor) -> tuple[Callable[[], None], torch.Tensor]:
        """A callable that decodes the scales of a block, and the tensor it fills, [experts, rows, groups, 1]."""
        index, values = self._scale_index[: scale.numel()], self._scale_values[: scale.numel()]
        shaped, table = index.view(scale.shape), self._scale_table

        def load() -> None:
            shaped.copy_(scale)
            torch.index_select(table, 0, index, out=values)

        return load, values.view(*scale.shape, 1)

    def decoded(self, experts: int, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where a block is decoded, and where it is in the final dtype, [experts, rows, width]; may be the same."""
        staged = self._staged[: experts * rows * width].view(experts, rows, width)
        if self._cast is self._staged:
            return staged, staged
        return staged, self._cast[: experts * rows * width].view(experts, rows, width)


def _fetch(
    stack: torch.Tensor, experts: tuple[int, ...], n0: int, n1: int, buffer: torch.Tensor
) -> tuple[Callable[[], None] | None, torch.Tensor]:
    """Rows n0:n1 of some experts: a view if they are neighbours, else a part of `buffer` and what fills it."""
    first, count = experts[0], len(experts)
    if experts == tuple(range(first, first + count)):
        return None, stack[first : first + count, n0:n1]
    source = stack[:, n0:n1]
    index = torch.tensor(experts, device=stack.device)
    gathered = buffer[: count * (n1 - n0) * stack.shape[-1]].view(count, n1 - n0, stack.shape[-1])

    def fetch() -> None:
        torch.index_select(source, 0, index, out=gathered)

    return fetch, gathered


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def _nothing() -> None:
    """For blocks that are used as they lie."""
