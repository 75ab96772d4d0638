"""Registers and stack of a compiled kernel, read from its ELF file without a tool.

Its matrix instructions are not read: nvdisasm takes 0.8 s for it, a third of what the compilation takes.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from ..backend import StaticFacts
from ..errors import UnsupportedError

_REGCOUNT, _FRAME_SIZE, _MIN_STACK_SIZE = 0x2F, 0x11, 0x12
"""Attributes of the section `.nv.info` (`cuobjdump -elf` calls them EIATTR_REGCOUNT and so on)."""

_SIZED_VALUE = 4
"""Format of an attribute that brings its size: EIFMT_SVAL."""


class Resources(NamedTuple):
    """What one thread of a kernel takes.

    Attributes:
        registers: registers. stack_bytes: stack frame, spills included.
    """

    registers: int
    stack_bytes: int


def kernel_facts(path: Path, *, target: str, shared_bytes: int) -> StaticFacts:
    """The facts of the one kernel in a cubin.

    Raises:
        UnsupportedError: the file cannot be read or says nothing of its kernel.
    """
    try:
        found = resources(path.read_bytes())
    except (OSError, ValueError, struct.error) as error:
        raise UnsupportedError(
            f"The compiled kernel {path} cannot be read ({error}); empty Humming's cache."
        ) from error
    return StaticFacts(
        target=target,
        registers=found.registers,
        stack_bytes=found.stack_bytes,
        shared_bytes=shared_bytes,
        instructions={},
    )


def resources(cubin: bytes) -> Resources:
    """Registers and stack of the kernel in a cubin that needs the most.

    Raises:
        ValueError: it is no cubin, or holds no kernel.
    """
    registers = stack = 0
    info = _section(cubin, ".nv.info")
    offset = 0
    while offset + 4 <= len(info):
        kind, attribute, size = struct.unpack_from("<BBH", info, offset)
        offset += 4
        if kind != _SIZED_VALUE:  # the other formats hold their value where this one holds its size
            continue
        if size == 8:
            _, value = struct.unpack_from("<II", info, offset)
            if attribute == _REGCOUNT:
                registers = max(registers, value)
            elif attribute in {_FRAME_SIZE, _MIN_STACK_SIZE}:
                stack = max(stack, value)
        offset += size
    if not registers:
        raise ValueError("it holds no kernel")
    return Resources(registers, stack)


def _section(elf: bytes, name: str) -> bytes:
    """The contents of a section of a 64-bit little-endian ELF file (System V gABI, chapter 4)."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * entry_size) for i in range(count)]
    names_offset = headers[names_index][4]
    for header in headers:
        start = names_offset + header[0]
        if elf[start : elf.index(b"\0", start)].decode() == name:
            return elf[header[4] : header[4] + header[5]]
    raise ValueError(f"it has no section {name}")
