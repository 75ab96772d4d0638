"""What a decoder does, on NumPy arrays: the instructions of PTX that it needs, and a stand-in for Triton's language.

A decoder's own Python body runs with `Language` in the place of `tl` or `gl`, and its own PTX text is interpreted, so
that a test of the arithmetic follows the source. Every floating-point operation must be exact: one that would round
raises, as the decoders promise that none does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

UINT = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "f16": np.uint16, "bf16": np.uint16, "f32": np.uint32}
"""Kind of an element -> the integer that holds its bits."""


class InexactError(AssertionError):
    """An operation that the decoders call exact rounds."""


def values_of(bits: np.ndarray, kind: str) -> np.ndarray:
    """float64 values of bits."""
    if kind == "f16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    wide = bits.astype(np.uint32) << 16 if kind == "bf16" else bits.astype(np.uint32)
    return wide.view(np.float32).astype(np.float64)


def bits_of(values: np.ndarray, kind: str) -> np.ndarray:
    """The bits of float64 values, which `kind` must hold exactly, the sign of zero included."""
    with np.errstate(over="ignore"):
        if kind == "f16":
            bits = values.astype(np.float16).view(np.uint16)
        else:
            bits = values.astype(np.float32).view(np.uint32)
            bits = (bits >> 16).astype(np.uint16) if kind == "bf16" else bits
    back = values_of(bits, kind)
    if not (np.array_equal(back, values) and np.array_equal(np.signbit(back), np.signbit(values))):
        raise InexactError(f"{kind} does not hold {values[back != values][:4]}")
    return bits


def pair(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """32-bit registers of two 16-bit halves."""
    return low.astype(np.uint32) | high.astype(np.uint32) << 16


def halves(register: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The low and the high 16 bits."""
    return (register & 0xFFFF).astype(np.uint16), (register >> 16).astype(np.uint16)


def _lop3(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: int) -> np.ndarray:
    """Bit i of the table says what comes of a's, b's and c's bits where they are the digits of i (PTX ISA, lop3)."""
    out = np.zeros_like(a)
    for i in range(8):
        if table >> i & 1:
            out |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return out


def _prmt(a: np.ndarray, b: np.ndarray, selector: int) -> np.ndarray:
    """Byte i of the result is the byte of b:a that hex digit i of the selector names (PTX ISA, prmt, default mode)."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    out = np.zeros(both.shape, np.uint64)
    for i in range(4):
        digit = selector >> 4 * i & 15
        if digit > 7:
            raise NotImplementedError("replicating a sign")
        out |= (both >> np.uint64(8 * digit) & np.uint64(255)) << np.uint64(8 * i)
    return out.astype(np.uint32)


def _by_halves(kind: str, operation: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def run(*registers: np.ndarray) -> np.ndarray:
        results = (
            bits_of(operation(*(values_of(half, kind) for half in side)), kind)
            for side in zip(*map(halves, registers), strict=True)
        )
        return pair(*results)

    return run


INSTRUCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "mov.b32": lambda a: a,
    "shl.b32": lambda a, n: a << n,
    "shr.b32": lambda a, n: a >> n,
    "and.b32": lambda a, b: a & b,
    "lop3.b32": lambda a, b, c, table: _lop3(a, b, c, int(table)),
    "prmt.b32": lambda a, b, selector: _prmt(a, b, int(selector)),
    "mul.f16x2": _by_halves("f16", lambda a, b: a * b),
    "fma.rn.bf16x2": _by_halves("bf16", lambda a, b, c: a * b + c),
}


def interpret(assembly: str, inputs: Sequence[np.ndarray], outputs: int) -> list[np.ndarray]:
    """Run inline PTX.

    Args:
        assembly: statements; $0, $1, ... are the outputs and then the inputs.
        inputs: uint32 arrays of one shape, a register of every thread.
        outputs: how many registers it writes.
    """
    shape = inputs[0].shape
    registers = {f"${outputs + i}": array.astype(np.uint32) for i, array in enumerate(inputs)}
    declared = set(registers) | {f"${i}" for i in range(outputs)}
    for statement in re.split(r"[;{}]", assembly):
        words = statement.replace(",", " ").split()
        if not words:
            continue
        if words[0] == ".reg":
            declared |= set(words[2:])
            continue
        name, target, *sources = words
        assert target in declared, f"{target} is not declared"
        read = [
            registers[s] if s in registers else np.full(shape, int(s, 0), np.uint32)
            if name not in ("lop3.b32", "prmt.b32") or s != sources[-1]
            else int(s, 0)
            for s in sources
        ]  # fmt: skip
        registers[target] = INSTRUCTIONS[name](*read)
    return [registers[f"${i}"] for i in range(outputs)]


@dataclass(frozen=True)
class Tensor:
    """A tensor of Triton's: bits in an array, and what kind of elements they are."""

    bits: np.ndarray
    kind: str

    @property
    def values(self) -> np.ndarray:
        return values_of(self.bits, self.kind)

    def to(self, kind: str, bitcast: bool = False) -> Tensor:
        if bitcast or self.kind.startswith("u"):
            return Tensor(self.bits.astype(UINT[kind]), kind)
        return Tensor(bits_of(self.values, kind), kind)

    def __lshift__(self, places: int) -> Tensor:
        return Tensor((self.bits << places).astype(UINT[self.kind]), self.kind)

    def __mul__(self, factor: Any) -> Tensor:
        return Tensor(bits_of(self.values * float(getattr(factor, "value", factor)), self.kind), self.kind)


class Language:
    """The part of `triton.language`, and of Gluon's, that decoders use."""

    uint16, float16, bfloat16, float32 = "u16", "f16", "bf16", "f32"

    @staticmethod
    def reshape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
        return Tensor(tensor.bits.reshape(shape), tensor.kind)

    @staticmethod
    def expand_dims(tensor: Tensor, axis: int) -> Tensor:
        return Tensor(np.expand_dims(tensor.bits, axis), tensor.kind)

    @staticmethod
    def broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        bits = np.broadcast_arrays(a.bits, b.bits)
        return Tensor(bits[0], a.kind), Tensor(bits[1], b.kind)

    @staticmethod
    def inline_asm_elementwise(
        asm: Any, constraints: str, args: Sequence[Tensor], dtype: Sequence[str], is_pure: bool, pack: int
    ) -> tuple[Tensor, ...]:
        """With every four consecutive elements of the last axis in one thread."""
        assert (is_pure, pack) == (True, 4)
        registers = [register for tensor in args for register in _packed(tensor)]
        outputs = constraints.split(",").count("=r")
        assert constraints.split(",").count("r") == len(registers)
        written = interpret(asm.value, registers, outputs)
        each = outputs // len(dtype)
        return tuple(
            Tensor(
                np.stack([half for register in written[i * each : (i + 1) * each] for half in halves(register)], -1)
                .reshape(args[0].bits.shape),
                kind,
            )
            for i, kind in enumerate(dtype)
        )  # fmt: skip


def _packed(tensor: Tensor) -> list[np.ndarray]:
    """The registers of every thread that holds four consecutive elements."""
    four = tensor.bits.reshape(-1, 4)
    flat = np.ascontiguousarray(four).view(np.uint32)
    return [flat[:, i] for i in range(flat.shape[1])]


def emulated(function: Any, **names: Any) -> Callable[..., Any]:
    """A jit function's own body, with Triton's language replaced, and whatever else is named."""
    body = function.fn
    return FunctionType(body.__code__, {**body.__globals__, "tl": Language, "gl": Language, **names})
