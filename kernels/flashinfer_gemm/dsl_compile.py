"""Compile one kernel of b12x or cute-dsl for a card that need not be here, and read what came out.

FlashInfer compiles a kernel of CUTLASS's DSL when its runner is called. So the runner is called, on stand-ins: what it
compiles is kept, and what it then launches does nothing. The compiled object is an ELF file with the cubin inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backend import Config, StaticFacts
from ..errors import UnsupportedError
from ..humming_gemm.cubin import resources
from ..triton_gemm.compiler import target_name
from . import arguments
from .offers import split, whole_problem
from .seam import Call, Seam, seam
from .stand_ins import replaced

if TYPE_CHECKING:
    from ..device import Device
    from ..problem import Problem
    from .dense import Dense

MAX_STACK_BYTES = 512
"""Stack a thread that is accepted; those seen have none (DSL 4.8.1, sm_120a)."""

FP4_PTX = ("kind::mxf4nvf4", "scale_vec::4X")
"""What the PTX must say: FP4 by FP4 with a scale for 16 elements."""

_MACHINE_CUDA = 190
"""EM_CUDA, e_machine of a cubin."""

_DYNAMIC_SHARED = re.compile(
    r"(%\d+) = llvm\.getelementptr %\d+\[0, 2\] : \(!llvm\.ptr\) -> !llvm\.ptr, "
    r"!llvm\.struct<\(array<3 x i32>, array<3 x i32>, i64,[^\n]*\n\s*llvm\.store (%\d+), \1 : i64"
)
"""In the DSL's host code: the third member of a cudaLaunchConfig_t, dynamicSmemBytes, being set."""

_FACTS = ".fp4tune-facts-1.json"
"""Appended to the name of a kept object; the number grows when StaticFacts changes."""


def compile_config(backend: Dense, problem: Problem, device: Device, config: Config) -> StaticFacts:
    """Compile the kernel of a config; see `_Dsl.compile`.

    Raises:
        UnsupportedError: what came out must not be run.
    """
    flashinfer = seam()
    capability = device.capability
    pad_m, tactic = split(backend.codec(flashinfer), config)
    with _for_target(flashinfer, target_name(capability)), flashinfer.on(capability, device.sms):
        given = arguments.stand_ins(problem, whole_problem(problem, pad_m))
        call = given.call(flashinfer, backend.backend, tactic)
        return _compile(flashinfer, call, target_name(capability))


def _compile(flashinfer: Seam, call: Call, target: str) -> StaticFacts:
    """Call the runner with the DSL's compiler and FlashInfer's loader replaced."""
    dsl, real = flashinfer.need("cutlass", "cute", "cute.compile")
    (cached,) = flashinfer.need("flashinfer.jit.cute_dsl_core", "JitSpecCuteDsl")
    compiled: list[_Compiled] = []
    kept: list[Path] = []

    def compile_and_keep(*given: Any, options: str = "", **named: Any) -> _Compiled:
        with tempfile.TemporaryDirectory() as folder:
            made = real(*given, options=f"{options} --keep-ptx --dump-dir={folder}", **named)
            compiled.append(_Compiled(made))
        return compiled[-1]

    def note(spec: Any) -> Any:
        kept.append(Path(spec.object_path))
        return _does_nothing

    with replaced(dsl, "compile", compile_and_keep), replaced(cached, "_load_from_disk", note):
        flashinfer.forget_compiled(call)
        try:
            call.runners[0](inputs=call.inputs, tactic=call.tactic)
        finally:
            flashinfer.forget_compiled(call)
    if compiled:
        facts = compiled[-1].facts(target)
        for path in kept[-1:]:
            with contextlib.suppress(OSError):  # the facts are told anyway, and read again next time
                Path(f"{path}{_FACTS}").write_text(json.dumps(asdict(facts)), encoding="utf-8")
        return facts
    if kept:
        return _facts_of_kept(kept[-1], target)
    raise UnsupportedError(f"{call.runner_name} of FlashInfer {flashinfer.version} compiled nothing.")


class _Compiled:
    """A compiled kernel in FlashInfer's hands: it can be kept, and launching it does nothing."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __call__(self, *_: Any, **__: Any) -> None:
        """A launch on stand-ins."""

    def export_to_c(self, *given: Any, **named: Any) -> Any:
        """For FlashInfer's cache on disk."""
        return self._made.export_to_c(*given, **named)

    def facts(self, target: str) -> StaticFacts:
        """See StaticFacts; `shared_bytes` is 0 if the DSL's host code does not say."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.o"
            self._made.export_to_c(str(path), function_name="kernel")
            cubin = embedded_cubin(path.read_bytes())
        ptx = str(self._made.__ptx__ or "")
        missing = [word for word in FP4_PTX if word not in ptx]
        if missing:
            raise UnsupportedError(
                f"FlashInfer's kernel compiled for {target} without {', '.join(missing)} in its PTX."
            )
        return _checked(cubin, target, shared_bytes(str(self._made.ir_module)))


def _facts_of_kept(path: Path, target: str) -> StaticFacts:
    """Facts of a kernel that lay in FlashInfer's cache: noted when it was compiled here, or read from its cubin."""
    try:
        return StaticFacts(**json.loads(Path(f"{path}{_FACTS}").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass
    try:
        return _checked(embedded_cubin(path.read_bytes()), target, 0)
    except OSError as error:
        raise UnsupportedError(f"FlashInfer's compiled kernel {path} cannot be read ({error.strerror}).") from error


def _checked(cubin: bytes, target: str, shared: int) -> StaticFacts:
    """The facts of a cubin that may be run."""
    try:
        found = resources(cubin)
    except (ValueError, struct.error) as error:
        raise UnsupportedError(f"FlashInfer's kernel compiled for {target} cannot be read ({error}).") from error
    instructions = _instructions(cubin)
    if instructions and not any("E2M1" in opcode for opcode in instructions):
        raise UnsupportedError(f"FlashInfer's kernel compiled for {target} holds no FP4 matrix instruction.")
    if found.stack_bytes > MAX_STACK_BYTES:
        raise UnsupportedError(
            f"FlashInfer's kernel compiled for {target} with {found.stack_bytes} bytes of stack a thread, "
            f"{MAX_STACK_BYTES} are accepted."
        )
    return StaticFacts(target, found.registers, found.stack_bytes, shared, instructions)


def _instructions(cubin: bytes) -> Mapping[str, int]:
    """Matrix instructions, by the disassembler in Triton's wheel; none if there is no Triton."""
    from ..triton_gemm.facts import matrix_instructions

    try:
        return matrix_instructions(cubin)
    except ImportError:
        return {}


def embedded_cubin(blob: bytes) -> bytes:
    """The first cubin inside an object file.

    Raises:
        UnsupportedError: there is none.
    """
    start = blob.find(b"\x7fELF")
    while start >= 0:
        header = blob[start : start + 64]
        if len(header) == 64 and struct.unpack_from("<H", header, 0x12)[0] == _MACHINE_CUDA:
            return blob[start:]
        start = blob.find(b"\x7fELF", start + 4)
    raise UnsupportedError("FlashInfer's compiled object holds no kernel.")


def shared_bytes(host_code: str) -> int:
    """Dynamic shared memory a block of the kernel that the DSL's host code launches, in bytes; 0 if it does not say.

    The kernels have no static shared memory.
    """
    found = _DYNAMIC_SHARED.search(host_code)
    if found is None:
        return 0
    constants = re.findall(rf"{re.escape(found[2])} = llvm\.mlir\.constant\((\d+) : i64\)", host_code[: found.start()])
    return int(constants[-1]) if constants else 0


def _does_nothing(*_: Any, **__: Any) -> None:
    """Stands for a kernel that was loaded."""


@contextlib.contextmanager
def _for_target(flashinfer: Seam, target: str) -> Iterator[None]:
    """The architecture that the DSL and FlashInfer's cache compile for, set for a while.

    The DSL reads CUTE_DSL_ARCH once, when it is imported, and FlashInfer whenever it looks into its cache.
    """
    (dsl,) = flashinfer.need("cutlass.cutlass_dsl", "CuTeDSL._get_dsl")
    settings = dsl().envar  # the DSL has no other way to say it after its import
    if not hasattr(settings, "_arch"):
        raise UnsupportedError("The installed CUTLASS DSL cannot be told what to compile for: it lacks `_arch`.")
    before = os.environ.get("CUTE_DSL_ARCH")
    os.environ["CUTE_DSL_ARCH"] = target
    try:
        with replaced(settings, "_arch", target):
            yield
    finally:
        if before is None:
            del os.environ["CUTE_DSL_ARCH"]
        else:
            os.environ["CUTE_DSL_ARCH"] = before
