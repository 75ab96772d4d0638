"""What the compiler says of a kernel without running it: registers, stack, shared memory, matrix instructions.

Read with the `cuobjdump` and `nvdisasm` that come inside Triton's wheel, found the way Triton finds them, so that no
CUDA toolkit need be installed and the disassembler is never older than the assembler.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backend import StaticFacts
from ..errors import UnsupportedError
from .compiler import explain_file_errors, target_name
from .pruning import shared_limit_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

NVFP4_PTX = {
    10: ("kind::mxf4nvf4", "block16|scale_vec::4X"),
    12: ("kind::mxf4nvf4", "scale_vec::4X", "ue4m3"),
}
"""What the PTX of a native NVFP4 GEMM must say, by major compute capability: E2M1 operands, a scale for 16 elements of
K, scales in UE4M3 (which tcgen05 says in a register instead). Triton 3.9 takes byte-typed scales without a word, and
then emits for SM12x `scale_vec::2X` and `ue8m0`: half of the scales, read as powers of two. `|` parts spellings."""

_FACTS_FILE = "fp4tune-facts-1.json"
"""Name in the kernel's cache folder; the number grows when StaticFacts changes."""

TOOL_TIMEOUT_S = 60.0
"""A disassembly takes a tenth of a second; a kernel of megabytes that spills takes a few."""

_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
_MATRIX_OPCODE = re.compile(r"\b(?:[HIQO]G?MMA|DMMA|BMMA|UTC[A-Z]*MMA)[.\w]*")
"""Warp (HMMA, QMMA, OMMA), warp group (HGMMA, QGMMA) and tensor memory (UTCHMMA, UTCOMMA) matrix products in SASS."""


def static_facts(kernel: Any) -> StaticFacts:
    """The facts of a kernel from `compile_kernel`.

    They are kept beside the kernel in Triton's cache: nvdisasm takes 0.5 to 0.9 s to start, as much as a compilation.

    Raises:
        UnsupportedError: cuobjdump in Triton's wheel is missing or cannot read the cubin, or the cache cannot be
            written.
    """
    from triton.runtime.cache import get_cache_manager

    with explain_file_errors():
        cache = get_cache_manager(kernel.hash)
        kept = cache.get_file(_FACTS_FILE)
        if kept is not None:
            return StaticFacts(**json.loads(Path(kept).read_text(encoding="utf-8")))
        facts = _read_facts(kernel)
        cache.put(json.dumps(asdict(facts)), _FACTS_FILE, binary=False)
    return facts


def _read_facts(kernel: Any) -> StaticFacts:
    """The facts out of the cubin."""
    cubin = kernel.asm["cubin"]
    registers, stack = resources(cubin)
    return StaticFacts(
        target=target_name(_capability(kernel)),
        registers=registers,
        stack_bytes=stack,
        shared_bytes=int(kernel.metadata.shared),
        instructions=matrix_instructions(cubin),
    )


def _capability(kernel: Any) -> tuple[int, int]:
    """What a kernel was compiled for, (12, 0)."""
    major, minor = divmod(int(kernel.metadata.target.arch), 10)
    return major, minor


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes a thread of the one kernel in a cubin.

    The stack is the figure to judge by: ptxas reports few registers for some kernels that keep everything in memory
    (40 registers and 12,920 bytes of stack were seen).
    """
    found = _RESOURCES.findall(_run_tool("cuobjdump", ["-res-usage"], cubin))
    if not found:
        raise UnsupportedError("cuobjdump says nothing of the kernel's resources; install Triton anew.")
    return max(int(r) for r, _ in found), max(int(s) for _, s in found)


def matrix_instructions(cubin: bytes) -> dict[str, int]:
    """Matrix instructions in the machine code: opcode with its modifiers -> how often it stands there.

    Empty, too, if the disassembler cannot read the file: Triton 3.6's compiles for sm_103a and does not know it.
    """
    try:
        text = _run_tool("nvdisasm", ["-c"], cubin)
    except UnsupportedError:
        return {}
    return dict(sorted(Counter(_MATRIX_OPCODE.findall(text)).items()))


def missing_from_ptx(ptx: str, words: Iterable[str]) -> list[str]:
    """Those of `words` that do not stand in the PTX; `x|y` stands there if x or y does."""
    return [word for word in words if not any(spelling in ptx for spelling in word.split("|"))]


def native_ptx(capability: tuple[int, int]) -> tuple[str, ...]:
    """The words of NVFP4_PTX for a compute capability."""
    return NVFP4_PTX[capability[0]]


def refuse_unfit(kernel: Any, facts: StaticFacts, *, max_stack_bytes: int, ptx_words: Sequence[str] = ()) -> None:
    """Refuse what compiled and must not be run.

    Args:
        kernel: from `compile_kernel`.
        facts: of it.
        max_stack_bytes: stack a thread that is still accepted.
        ptx_words: what its PTX must hold.

    Raises:
        UnsupportedError: it spills more than that, its PTX lacks a word, or it needs more shared memory than the target
            gives a block, which Triton would notice no sooner than when it loads the kernel.
    """
    limit = shared_limit_bytes(_capability(kernel))
    what = f"{kernel.name} compiled for {facts.target}"
    missing = missing_from_ptx(kernel.asm["ptx"], ptx_words)
    if missing:
        raise UnsupportedError(f"{what} without {', '.join(missing)} in its PTX.")
    if facts.stack_bytes > max_stack_bytes:
        raise UnsupportedError(
            f"{what} spills: {facts.stack_bytes} bytes of stack a thread, {max_stack_bytes} are accepted."
        )
    if facts.shared_bytes > limit:
        raise UnsupportedError(f"{what} needs {facts.shared_bytes} bytes of shared memory, a block can have {limit}.")


def _run_tool(name: str, arguments: list[str], cubin: bytes) -> str:
    """Output of one of Triton's tools on a cubin."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        try:
            tool = getattr(knobs.nvidia, name).path
            done = subprocess.run(  # noqa: S603 - a tool of the installed Triton
                [tool, *arguments, file.name], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=True
            )
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            raise UnsupportedError(f"{name}, which comes with Triton, does not work here ({error}).") from error
    return done.stdout
