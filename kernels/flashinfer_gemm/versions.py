"""The releases of FlashInfer that fp4tune knows. Reads metadata; imports nothing of FlashInfer."""

from __future__ import annotations

import re
from importlib import metadata

from .. import cuda_stack

DISTRIBUTION = "flashinfer-python"

JIT_CACHE = "flashinfer-jit-cache"
"""Distribution with FlashInfer's native kernels built."""

DSL = "nvidia-cutlass-dsl"
"""Distribution of CUTLASS's Python DSL, whose compiler builds the kernels of b12x and cute-dsl."""

KNOWN = ("0.7.2", "0.7.2.post1", "0.7.4")
"""Releases that the seam was tried with: SGLang 0.5.23 pins the first, vLLM 0.33 the second. The contract tests run on
the first and the last in continuous integration. There is no 0.7.3 to install."""

NEWEST = KNOWN[-1]

_OLDEST_KEY, _NEWEST_KEY = (0, 7, 2), (0, 7, 4)
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?(?:\+[\w.]+)?", re.ASCII)


def installed_version(distribution: str = DISTRIBUTION) -> str:
    """Version of an installed distribution, or empty; reads its metadata and imports nothing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def in_range(version: str) -> bool:
    """Whether `version` is a release from 0.7.2 to 0.7.4; a pre-release or a development build is not.

    A release inside that is not of KNOWN (a later `.post`) is let through: the seam asks for every name it needs.
    """
    found = _RELEASE.fullmatch(version)
    return found is not None and _OLDEST_KEY <= tuple(int(part) for part in found.groups()) <= _NEWEST_KEY


def unfit_version() -> str:
    """Why the installed FlashInfer cannot be used, in one sentence, or nothing."""
    version = installed_version()
    if not version:
        return f"FlashInfer is not installed; install {DISTRIBUTION}=={NEWEST}."
    if not in_range(version):
        return f"It knows FlashInfer 0.7.2 to {NEWEST}, and {version} is installed."
    return ""


def why_no_dsl(name: str) -> str:
    """Why the backend called `name` has no CUTLASS DSL that it could use, in one sentence, or nothing."""
    if not installed_version(DSL):
        return f"{name} needs the CUTLASS DSL, which is not installed: install {DSL}."
    return cuda_stack.why_other_dsl()
