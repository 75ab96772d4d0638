"""What the compiler made of a build config: registers, stack, shared memory, matrix instructions."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..backend import StaticFacts
from ..errors import UnsupportedError
from ..humming_gemm.cubin import resources
from .library import load

if TYPE_CHECKING:
    from .builder import Built

FP4_OPCODE = "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"
"""Opcode of a 16x8x64 product of E2M1 codes with a UE4M3 scale for 16 of them: the FP4 unit of SM12x, with NVFP4's
scales."""

FACTS_FILE = "facts-1.json"
"""In the folder of an entry: nvdisasm takes a second. The number grows when StaticFacts changes."""

_ELF = b"\x7fELF\x02\x01"
_EM_CUDA = 190


def static_facts(built: Built, target: str) -> StaticFacts:
    """The facts of an entry of the cache, kept in its folder.

    Matrix instructions are counted with the disassembler in Triton's wheel, and there are none without Triton.

    Raises:
        UnsupportedError: the file cannot be read, or holds no kernel.
    """
    kept = built.folder / FACTS_FILE
    try:
        facts = StaticFacts(**json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # not there yet, or half of it
        facts = read_facts(built.library, target)
        _keep(kept, facts)
    return facts


def read_facts(library: Path, target: str) -> StaticFacts:
    """The facts of a shared object. Raises UnsupportedError as `static_facts`."""
    try:
        cubin = kernel_cubin(library.read_bytes())
        used = resources(cubin)
    except (OSError, ValueError, struct.error) as error:
        raise UnsupportedError(f"The compiled kernel {library} cannot be read ({error}); remove its folder.") from error
    return StaticFacts(
        target=target,
        registers=used.registers,
        stack_bytes=used.stack_bytes,
        shared_bytes=int(load(library).description.shared_bytes),
        instructions=_instructions(cubin),
    )


def kernel_cubin(shared_object: bytes) -> bytes:
    """The machine code of the one kernel in a shared object: an ELF file within it, which is not compressed.

    Raises:
        ValueError: there is none.
    """
    start = shared_object.find(_ELF, 1)
    while start >= 0:
        image = _elf_at(shared_object, start)
        if image is not None:
            try:
                resources(image)
            except (ValueError, struct.error):  # that of an empty link step
                pass
            else:
                return image
        start = shared_object.find(_ELF, start + 1)
    raise ValueError("it holds no machine code of a kernel")


def _elf_at(data: bytes, start: int) -> bytes | None:
    """The CUDA ELF file that begins at an offset; None if what begins there is none."""
    if len(data) < start + 64 or struct.unpack_from("<H", data, start + 18)[0] != _EM_CUDA:
        return None
    segments, sections = struct.unpack_from("<QQ", data, start + 0x20)
    segment_size, n_segments, section_size, n_sections = struct.unpack_from("<HHHH", data, start + 0x36)
    return data[start : start + max(segments + segment_size * n_segments, sections + section_size * n_sections)]


def _instructions(cubin: bytes) -> dict[str, int]:
    """Matrix instructions by opcode; empty without Triton."""
    from ..triton_gemm.facts import matrix_instructions

    try:
        return matrix_instructions(cubin)
    except ImportError:
        return {}


def _keep(path: Path, facts: StaticFacts) -> None:
    """Write the facts down; where that cannot be done they are read again."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(asdict(facts)), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
