"""What the kernel is compiled with: CUTLASS's headers, wherever a package brought them, and nvcc."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import machinery
from pathlib import Path

from .. import _host, cuda_stack
from .._cuda_found import dotted
from ..errors import UnsupportedError

HEADERS_VARIABLE = "FP4TUNE_CUTLASS_INCLUDE"
"""Names a folder of headers that goes before those of installed packages."""

MIN_CUTLASS = (4, 2, 0)
"""The oldest release that the kernel was compiled with."""

NARROW_CUTLASS = (4, 5, 0)
"""The oldest release known to have code for tiles of N below 128: it loads their scales as for 128. 4.2 has none, and
those between were not tried."""

MIN_CUDA = {"sm_120a": (12, 8), "sm_121a": (12, 9)}
"""First CUDA that knows a target (CUDA release notes)."""

_PLACES = (("flashinfer", "data/cutlass/include"), ("cutlass_library", "source/include"))
"""Top-level package -> where its CUTLASS headers lie: FlashInfer's, and those of the wheel nvidia-cutlass."""

_VERSION = re.compile(r"^#define CUTLASS_(MAJOR|MINOR|PATCH)\s+(\d+)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Headers:
    """CUTLASS's headers.

    Attributes:
        include: folder with `cutlass/` and `cute/` in it.
        version: major, minor, patch.
    """

    include: Path
    version: tuple[int, ...]

    @property
    def release(self) -> str:
        """`4.5.0`."""
        return dotted(self.version)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What compiles a kernel.

    Attributes:
        headers: CUTLASS's.
        nvcc: the compiler.
        nvcc_release: `13.0`.
        nvcc_build: `13.0.88`, as exact as it says; part of the cache's key.
    """

    headers: Headers
    nvcc: Path
    nvcc_release: str
    nvcc_build: str


def find_headers(environ: Mapping[str, str] = os.environ, path: Sequence[str] | None = None) -> Headers | None:
    """The folder that FP4TUNE_CUTLASS_INCLUDE names, else the newest headers of an installed package; None without any.

    Imports no package.

    Args:
        environ: the environment.
        path: where packages lie; None for sys.path.
    """
    if named := environ.get(HEADERS_VARIABLE):
        return _headers_in(Path(named))
    found = []
    for package, below in _PLACES:
        spec = machinery.PathFinder.find_spec(package, sys.path if path is None else path)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        found += [headers for folder in folders if (headers := _headers_in(Path(folder) / below))]
    return max(found, key=lambda headers: headers.version, default=None)


def _headers_in(include: Path) -> Headers | None:
    """The headers in a folder; None if it holds none."""
    numbers = dict(_VERSION.findall(_host.read_text(include / "cutlass/version.h")))
    if len(numbers) < 3 or not (include / "cute/tensor.hpp").is_file():
        return None
    return Headers(include, tuple(int(numbers[part]) for part in ("MAJOR", "MINOR", "PATCH")))


def why_unfit_headers(headers: Headers | None, environ: Mapping[str, str] = os.environ) -> str:
    """Why CUTLASS's headers cannot be used, in one sentence; empty if they can."""
    mend = f"install flashinfer-python or nvidia-cutlass, or name a folder in {HEADERS_VARIABLE}"
    if headers is None:
        named = environ.get(HEADERS_VARIABLE)
        if named:
            return f"{HEADERS_VARIABLE} names {named}, and there are no headers of CUTLASS in it."
        return f"The headers of CUTLASS are not here: {mend}."
    if headers.version < MIN_CUTLASS:
        return f"CUTLASS {dotted(MIN_CUTLASS)} is needed, and {headers.include} is {headers.release}: {mend}."
    return ""


def why_not(target: str) -> str:
    """Why nothing can be compiled for a target here, in one sentence; empty if it can.

    nvcc may be of another CUDA major version than PyTorch: a shared object has its CUDA runtime inside (`_SHARED_FLAGS`
    of builder.py) and shares with PyTorch the driver alone, whose streams and pointers are the same for both. So the
    driver must be new enough for nvcc's CUDA, which only a launch tells, in a sentence.
    """
    return cuda_stack.why_no_jit(MIN_CUDA[target]) or why_unfit_headers(find_headers())


def toolchain(target: str) -> Toolchain:
    """What compiles for a target here.

    Raises:
        UnsupportedError: the sentence of `why_not`.
    """
    reason, nvcc, headers = why_not(target), cuda_stack.nvcc(), find_headers()
    if reason or nvcc is None or headers is None:
        raise UnsupportedError(reason or "There is no nvcc.")
    return Toolchain(headers, nvcc.path, dotted(nvcc.version), nvcc_build(nvcc.path))


@lru_cache(maxsize=4)
def nvcc_build(nvcc: Path) -> str:
    """The exact version of a compiler, `13.0.88`; all that it says if that is not in it.

    Raises:
        UnsupportedError: it does not run.
    """
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise UnsupportedError(f"{nvcc} does not run ({error}); set CUDA_HOME to a CUDA toolkit that does.") from error
    match = re.search(r"\bV(\d+\.\d+\.\d+)", done.stdout)
    return match[1] if match else done.stdout.strip()
