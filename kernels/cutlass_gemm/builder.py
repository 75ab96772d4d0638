"""From a build config to a shared object in a cache on disk: nvcc, once, however many processes ask for it.

One build takes a core one to three minutes and up to 5.6 GiB, nearly all of it in the compiler's middle for the one
kernel (nvcc 13.0). The cache's key holds everything that decides the code: our sources, the release of CUTLASS, the
exact compiler, its flags, the build config. An entry is a folder that appears with all its files or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .. import cuda_stack
from ..errors import UnsupportedError
from .build_config import BuildConfig
from .toolchain import Toolchain

CACHE_VARIABLE = "FP4TUNE_CUTLASS_CACHE_DIR"
DEFAULT_CACHE = "~/.cache/fp4tune/cutlass"

LIBRARY = "kernel.so"
"""Name of the shared object in its folder."""

BUILD_RECORD = "build.json"
"""What was run to make it, and what that took."""

ATTEMPTS = 2
"""One build was seen to end with a bare "Compilation terminated", and the same command succeeded a minute later."""

BUILD_S = 900.0
"""Seconds for one nvcc. The slowest build seen took 408 s, niced, on two cores with a load of ten."""

_SOURCES = ("nvfp4_gemm.cu", "abi.h")

_FLAGS = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-diag-suppress=20012",  # of CUTLASS's own headers: annotations on defaulted functions
)

_SHARED_FLAGS = (
    "-shared",
    # Several of these share one process, with torch's CUDA runtime beside: nothing but abi.h is seen from outside.
    "-Xcompiler=-fPIC,-fvisibility=hidden",
    "-Xlinker=-Bsymbolic",
    "--cudart=static",
    "--no-compress",  # so that the machine code can be read out of the file without a tool
)


@dataclass(frozen=True, slots=True)
class Built:
    """One entry of the cache.

    Attributes:
        folder: with LIBRARY, BUILD_RECORD, and what others keep there.
        was_cached: whether it was there already.
    """

    folder: Path
    was_cached: bool

    @property
    def library(self) -> Path:
        """The shared object."""
        return self.folder / LIBRARY


def cache_folder() -> Path:
    """Where entries are kept: FP4TUNE_CUTLASS_CACHE_DIR, else `~/.cache/fp4tune/cutlass`."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path(DEFAULT_CACHE).expanduser()


def command(build: BuildConfig, tools: Toolchain, output: Path, *, cubin: bool = False) -> list[str]:
    """The nvcc command of a build config.

    Args:
        build: what to compile.
        tools: with what.
        output: the file that is written.
        cubin: the kernel's machine code alone instead of a shared object, in half of the time.
    """
    digits = build.target.removeprefix("sm_")
    kind = ("-cubin",) if cubin else _SHARED_FLAGS
    return [
        str(tools.nvcc),
        *_FLAGS,
        f"-gencode=arch=compute_{digits},code=sm_{digits}",
        *kind,
        f"-I{tools.headers.include}",
        *build.definitions,
        "-o",
        str(output),
        str(_source()),
    ]


def key_of(build: BuildConfig, tools: Toolchain) -> str:
    """The name of a build config's folder: readable, then 16 hex digits over everything that decides the code."""
    parts = (_source_hash(), tools.headers.release, tools.nvcc_build, *_FLAGS, *_SHARED_FLAGS, str(build))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return f"{build.tile}-{build.schedule}-{build.scheduler}-{digest}"


def find_built(build: BuildConfig, tools: Toolchain) -> Built | None:
    """The entry of a build config, if it is in the cache."""
    found = Built(cache_folder() / key_of(build, tools), was_cached=True)
    return found if found.library.is_file() else None


def ensure_built(build: BuildConfig, tools: Toolchain, *, timeout_s: float = BUILD_S) -> Built:
    """The shared object of a build config, from the cache or made now.

    Whoever asks while another process makes it waits for that one.

    Args:
        build: what to compile.
        tools: with what.
        timeout_s: seconds for one run of the compiler.

    Raises:
        UnsupportedError: it does not compile, twice; the sentence has the first thing that the compiler says is wrong.
            Or the cache cannot be written.
        TimeoutError: the compiler took longer than it may.
    """
    if found := find_built(build, tools):
        return found
    root = cache_folder()
    folder = root / key_of(build, tools)
    with _explain_file_errors(root), _locked(root, folder.name):
        if found := find_built(build, tools):  # somebody else has made it meanwhile
            return found
        with tempfile.TemporaryDirectory(prefix=".build-", dir=root) as temporary:
            made = Path(temporary) / "entry"
            made.mkdir()
            line = command(build, tools, made / LIBRARY)
            seconds = run_compiler(line, build, tools, temporary=Path(temporary), timeout_s=timeout_s)
            record = {
                "build": str(build),
                "cutlass": tools.headers.release,
                "nvcc": tools.nvcc_build,
                "command": shlex.join(line),
                "seconds": round(seconds, 1),
            }
            (made / BUILD_RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)  # one that somebody took the library out of
            made.rename(folder)
    return Built(folder, was_cached=False)


def run_compiler(
    line: list[str], build: BuildConfig, tools: Toolchain, *, temporary: Path, timeout_s: float = BUILD_S
) -> float:
    """Run nvcc, once more if it fails.

    Args:
        line: from `command`.
        build: what it compiles, for the sentence.
        tools: with what.
        temporary: folder for its own files.
        timeout_s: seconds for one run.

    Returns:
        Seconds that the run took that succeeded.

    Raises:
        UnsupportedError, TimeoutError: see `ensure_built`.
    """
    said, returncode = "", 0
    for _ in range(ATTEMPTS):
        start = time.monotonic()
        said, returncode = _run(line, temporary=temporary, timeout_s=timeout_s, what=str(build))
        if returncode == 0:
            return time.monotonic() - start
    reason = cuda_stack.why_jit_died(said, returncode) or first_error(said, returncode)
    raise UnsupportedError(
        f"nvcc {tools.nvcc_build} with CUTLASS {tools.headers.release} does not compile {build}: {reason}"
    )


def first_error(said: str, returncode: int) -> str:
    """The first line in which a compiler says what is wrong, without the path it is in; what there is without one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for line in lines:
        _, found, text = line.partition("error: ")
        if not found:
            _, found, text = line.partition("error   : ")
        if found:
            return f"{text.rstrip('.')}." if not text.endswith('."') else text
    last = lines[-1].rstrip(".") if lines else "it says nothing"
    return f"{last} (exit status {returncode})."


def _run(line: list[str], *, temporary: Path, timeout_s: float, what: str) -> tuple[str, int]:
    """What a command says on both streams, and its exit status. Ends it and what it started if it takes too long."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    try:
        process = subprocess.Popen(  # noqa: S603 - the compiler that cuda_stack found
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, errors="replace"
        )
    except OSError as error:
        return f"error: {line[0]} does not run ({error.strerror})", 127
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"Compiling {what} took longer than {timeout_s:g} s and was ended.") from None
    finally:
        if process.poll() is None:  # too long, or whoever waits was interrupted
            _kill_tree(process.pid)
            process.communicate()
    return said, process.returncode


def _kill_tree(pid: int) -> None:
    """Kill a process and its descendants. Not by process group: nvcc stays in that of its worker, to end with it."""
    with suppress(OSError):
        os.kill(pid, signal.SIGSTOP)  # so that it starts nothing more
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                _kill_tree(int(child))
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def _locked(root: Path, name: str) -> Iterator[None]:
    """Hold the lock of an entry. The kernel gives it back when this process ends, however it does."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _explain_file_errors(root: Path) -> Iterator[None]:
    """Turn what the operating system says of the cache into a sentence that names what to do."""
    try:
        yield
    except TimeoutError:  # an OSError, too
        raise
    except OSError as error:
        raise UnsupportedError(
            f"The cache of compiled CUTLASS kernels in {root} cannot be used ({error.strerror or error}); set "
            f"{CACHE_VARIABLE} to a directory that can be written."
        ) from error


def _source() -> Path:
    """The kernel's source, beside this file."""
    return Path(__file__).with_name(_SOURCES[0])


@lru_cache(maxsize=1)
def _source_hash() -> str:
    """SHA-256 of our sources."""
    folder = Path(__file__).parent
    return hashlib.sha256(b"\0".join((folder / name).read_bytes() for name in _SOURCES)).hexdigest()
