"""FlashInfer's native libraries: whether they are built, and the command that builds one.

    python -m fp4tune.kernels.flashinfer_gemm.native_build flashinfer.cutlass --arch 12.0f

FlashInfer would build them when they are first called, which is inside a trial: 17 sources of five minutes and up to
8 GiB each. No compile pool and no worker waits for that, so it is a step of its own, or a package
(`flashinfer-jit-cache`).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from .. import cuda_stack
from ..errors import Fp4tuneError, InvalidInputError, UnsupportedError
from .versions import JIT_CACHE, installed_version

if TYPE_CHECKING:
    from .seam import Seam


class Library(NamedTuple):
    """A native library of FlashInfer. name: of the file. module, function: what describes how to build it."""

    name: str
    module: str
    function: str


LIBRARIES = {
    "flashinfer.cutlass": Library("fp4_gemm_cutlass_sm120", "flashinfer.jit.gemm", "gen_gemm_sm120_module_cutlass_fp4"),
    "flashinfer.cutlass_moe": Library(
        "fused_moe_120", "flashinfer.jit.fused_moe", "gen_cutlass_fused_moe_sm120_module"
    ),
    "flashinfer.group_gemm": Library("gemm_sm120", "flashinfer.jit.gemm", "gen_gemm_sm120_module"),
    "flashinfer.trtllm": Library("trtllm_gemm", "flashinfer.jit.gemm", "gen_trtllm_gen_gemm_module"),
}
"""By backend. A test compares the names with those that the installed FlashInfer gives."""

HEADERS = ("cuda_runtime.h", "curand_kernel.h")
"""What FlashInfer's sources include from the CUDA toolkit, and a toolkit put together from wheels may lack."""


def is_built(flashinfer: Seam, library: str) -> bool:
    """Whether a native library of FlashInfer lies in its cache or came with a package. Builds and downloads nothing.

    Args:
        flashinfer: the seam.
        library: name of it, `fp4_gemm_cutlass_sm120`.

    Raises:
        UnsupportedError: FlashInfer cannot be asked.
    """
    (spec,) = flashinfer.need("flashinfer.jit.core", "JitSpecNvcc")
    return bool(spec(library, [], None, None, None, None).is_compiled)


def why_not_built(flashinfer: Seam, backend: str) -> str:
    """Why a backend's library cannot be loaded at once, in one sentence, or nothing."""
    other = cuda_stack.why_other_nvcc()
    try:
        if is_built(flashinfer, LIBRARIES[backend].name):
            # A package's was built elsewhere. For one that was built here, see `cuda_stack.conflicts`.
            return "" if installed_version(JIT_CACHE) else other
    except UnsupportedError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - private, and a probe never raises
        said = f"{type(error).__name__}: {error}"
        return f"FlashInfer {flashinfer.version} cannot say whether its library is built ({said})."
    reason = other or cuda_stack.why_no_jit((12, 8), HEADERS)
    install = f"install flashinfer-jit-cache=={flashinfer.version}"
    if reason:
        return f"Its library is not built: {install}. It cannot be built here: {reason}"
    return (
        f"Its library is not built: {install}, or run python -m fp4tune.kernels.flashinfer_gemm.native_build {backend}."
    )


def build(backend: str, arch: str = "") -> str:
    """Build a backend's library into FlashInfer's cache; as many compilers side by side as memory allows.

    Args:
        backend: one of LIBRARIES.
        arch: what FLASHINFER_CUDA_ARCH_LIST says, `12.0f`; empty for the cards that are here.

    Returns:
        Path of the library.

    Raises:
        InvalidInputError: it is not one of LIBRARIES.
        UnsupportedError: there is no compiler, or it failed; the sentence says whether for want of memory.
    """
    if backend not in LIBRARIES:
        raise InvalidInputError(f"{backend!r} has no library to build; {', '.join(LIBRARIES)} have one.")
    reason = cuda_stack.why_other_nvcc() or cuda_stack.why_no_jit((12, 8), HEADERS)
    if reason:
        raise UnsupportedError(f"The library of {backend} cannot be built. {reason}")
    if arch:
        os.environ["FLASHINFER_CUDA_ARCH_LIST"] = arch  # FlashInfer reads it when it is imported
    os.environ.setdefault("MAX_JOBS", str(cuda_stack.jobs_that_fit()))
    from .seam import seam

    library = LIBRARIES[backend]
    (describe,) = seam().need(library.module, library.function)
    try:
        spec = describe()
        spec.build_and_load()
    except Exception as error:
        why = cuda_stack.why_jit_died(str(error), 1)
        raise UnsupportedError(why or f"The library of {backend} cannot be built ({error}).") from error
    return str(spec.get_library_path())


def main(arguments: list[str]) -> int:
    """The command. Returns its exit status."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m fp4tune.kernels.flashinfer_gemm.native_build")
    parser.add_argument("backend", choices=sorted(LIBRARIES))
    parser.add_argument("--arch", default="", help="what to build for, 12.0f; the cards that are here if left out")
    given = parser.parse_args(arguments)
    try:
        path = build(given.backend, given.arch)
    except Fp4tuneError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
