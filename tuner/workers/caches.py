"""Whether the compilers' caches can be written. Looked at before a run: a compiler that cannot write fails late."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Cache:
    """A directory that a family of backends compiles into.

    Attributes:
        family: of backends. variable: environment variable that moves it.
        home: environment variable that moves what it is under by default; empty if none does.
        below: where it is below the home directory by default.
        is_base: whether `variable` names what it is below, in the home directory's place.
    """

    family: str
    variable: str
    home: str
    below: str
    is_base: bool = False

    def directory(self, environment: Mapping[str, str]) -> Path:
        """Where it is."""
        home = environment.get(self.home) or environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111
        named = environment.get(self.variable)
        return Path(named) if named and not self.is_base else Path(named or home, self.below)


_CACHES = (
    _Cache("triton", "TRITON_CACHE_DIR", "TRITON_HOME", ".triton/cache"),  # triton/knobs.py, cache_knobs
    _Cache("humming", "HUMMING_CACHE_DIR", "", ".humming/cache"),  # humming/utils/jit.py
    _Cache("humming", "HUMMING_TMP_DIR", "", ".humming/tmp"),
    _Cache("cutlass", "FP4TUNE_CUTLASS_CACHE_DIR", "", ".cache/fp4tune/cutlass"),  # kernels/cutlass_gemm/builder.py
    _Cache("flashinfer", "FLASHINFER_WORKSPACE_BASE", "", ".cache/flashinfer", is_base=True),  # flashinfer/jit/env.py
)


def unwritable(families: Iterable[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The families whose compiler cannot write its cache, each with the sentence that says so and what to do."""
    wanted = set(families)
    refused: dict[str, str] = {}
    for cache in _CACHES:
        if cache.family not in wanted or cache.family in refused:
            continue
        directory = cache.directory(environment)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory) as file:
                file.write(b"\0" * 4096)  # a full disk takes the name and not the bytes
                file.flush()
        except OSError as error:
            refused[cache.family] = (
                f"The compiler cache of {cache.family} cannot be written ({directory}: {error.strerror or error}); "
                f"set {cache.variable} to a directory that can."
            )
    return refused
