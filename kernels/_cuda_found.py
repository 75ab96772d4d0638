"""What CUDA software is installed: packages are asked for their metadata, nvcc for its version and include folders.

Makes no CUDA context, imports no torch, raises nothing: what cannot be found out is None or empty. `cuda_stack` turns
what is missing into sentences.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import machinery, metadata
from pathlib import Path

from . import _cuda_driver, _host

Version = tuple[int, ...]
"""`(12, 9)`: compared number by number."""

TOOLKIT = Path("/usr/local/cuda")
"""Where NVIDIA's packages of the CUDA toolkit put it, often without putting nvcc on PATH."""

NVCC_S = 20.0
"""Seconds that a question to nvcc gets: it may lie on a network file system."""

_RUNTIMES = ("nvidia-cuda-runtime-cu11", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
"""Wheels of libcudart; the last, without a suffix, from CUDA 13 on."""

CUDNN_LIBRARY = "libcudnn.so.9"
"""FlashInfer and cuDNN's frontend want cuDNN 9."""

_CUDNN = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")

DSL = "nvidia-cutlass-dsl-libs-cu"
"""Wheels of the CUTLASS DSL's libraries, by CUDA's major version; both may be installed."""


@dataclass(frozen=True, slots=True)
class Nvcc:
    """A CUDA compiler that runs.

    Attributes:
        path: the executable.
        version: release, (major, minor).
        includes: folders that it looks for headers in, by itself.
    """

    path: Path
    version: tuple[int, int]
    includes: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Runtime:
    """A CUDA runtime library that a wheel brought.

    Attributes:
        package: the wheel's name.
        version: its version, numbers only.
    """

    package: str
    version: Version


class CudaStack:
    """The CUDA software that a process would find.

    Args:
        environ: its environment.
        path: where its packages lie; None for sys.path.
        toolkit: the toolkit's usual place.
        root: of the file system, for memory.
        library: the CUDA driver's library.
        cudnn: cuDNN's library, where it did not come as a wheel.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] = os.environ,
        path: Sequence[str] | None = None,
        toolkit: Path = TOOLKIT,
        root: Path = _host.ROOT,
        library: str = _cuda_driver.LIBRARY,
        cudnn: str = CUDNN_LIBRARY,
    ) -> None:
        self._environ, self._toolkit, self._root = environ, toolkit, root
        self._library, self._cudnn = library, cudnn
        self._path = list(sys.path if path is None else path)

    def package(self, name: str) -> str:
        """Version of an installed distribution; empty if it is not installed."""
        try:
            version = next((found.version for found in metadata.distributions(name=name, path=self._path)), None)
        except Exception:  # noqa: BLE001 - half of a package, as an install that was broken off leaves it, is none
            return ""
        return version or ""

    @cached_property
    def torch(self) -> tuple[str, Version | None] | None:
        """PyTorch's version and the CUDA that it is built for, None of a CPU build; None without PyTorch.

        Read from torch/version.py, as importing torch takes seconds.
        """
        spec = machinery.PathFinder.find_spec("torch", self._path)
        text = _host.read_text(Path(spec.origin).parent / "version.py") if spec and spec.origin else ""
        version = re.search(r"^__version__\s*=\s*'([^']+)'", text, re.MULTILINE)
        cuda = re.search(r"^cuda\b[^=\n]*=\s*'([^']+)'", text, re.MULTILINE)
        return (version[1], numbers(cuda[1]) if cuda else None) if version else None

    @property
    def torch_cuda(self) -> Version | None:
        """CUDA that PyTorch is built for."""
        return self.torch[1] if self.torch else None

    @cached_property
    def runtimes(self) -> tuple[Runtime, ...]:
        """Runtime libraries from wheels, oldest first."""
        found = ((name, numbers(self.package(name))) for name in _RUNTIMES)
        return tuple(Runtime(name, version) for name, version in found if version)

    @cached_property
    def driver_cuda(self) -> tuple[int, int] | None:
        """Newest CUDA that the driver supports; None without a driver that works."""
        try:
            return _cuda_driver.query(self._library).cuda
        except _cuda_driver.DriverError:
            return None

    @property
    def nvcc(self) -> Nvcc | None:
        """The compiler that builders of kernels would take; `why_no_nvcc` says why there is none."""
        return self._nvcc[0]

    @property
    def why_no_nvcc(self) -> str:
        """Why `nvcc` is None."""
        return self._nvcc[1]

    @cached_property
    def _nvcc(self) -> tuple[Nvcc | None, str]:
        """CUDA_HOME, CUDA_PATH, PATH, the toolkit's usual place: the order of FlashInfer and of PyTorch's extensions.

        As for them, a home that is named and holds no nvcc ends the search.
        """
        named = next((name for name in ("CUDA_HOME", "CUDA_PATH") if self._environ.get(name)), "")
        home = Path(self._environ[named]) if named else self._toolkit
        inside = shutil.which("nvcc", path=str(home / "bin"))
        path = inside if named else self.on_path("nvcc") or inside
        if path is None:
            where = f"in {home}/bin, which {named} names" if named else f"on PATH or in {home}/bin"
            wheel = self._wheel_home
            mend = f"set CUDA_HOME={wheel}, where a wheel put one" if wheel else "set CUDA_HOME to a CUDA toolkit"
            return None, f"There is no nvcc {where}: {mend}."
        said = self._ask(path, "--version")
        if said is None:
            return None, f"{path} does not run: set CUDA_HOME to a CUDA toolkit that does."
        release = re.search(r"release (\d+)\.(\d+)", said)
        if release is None:
            return None, f"{path} does not say its version: set CUDA_HOME to a CUDA toolkit."
        return Nvcc(Path(path), (int(release[1]), int(release[2])), self._includes(path)), ""

    @property
    def _wheel_home(self) -> Path | None:
        """The toolkit's folder of an nvcc that came as a wheel, which nobody looks for on PATH."""
        homes = (home for place in self._path for home in sorted(Path(place).glob("nvidia/cu[0-9]*"), reverse=True))
        return next((home for home in homes if os.access(home / "bin/nvcc", os.X_OK)), None)

    def _ask(self, path: str, *arguments: str) -> str | None:
        """What nvcc says, both streams; None if it does not run or fails."""
        try:
            done = subprocess.run(  # noqa: S603 - the compiler that kernels would be built with
                [path, *arguments], capture_output=True, text=True, timeout=NVCC_S, env=dict(self._environ), check=True
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
        return done.stdout + done.stderr

    def _includes(self, path: str) -> tuple[Path, ...]:
        """What nvcc adds by itself, from a dry run: right even where `nvcc` is a script that calls another."""
        said = self._ask(path, "--dryrun", "-E", "-x", "cu", os.devnull) or ""
        lines = [line for line in said.splitlines() if line.startswith("#$ INCLUDES")]
        own = re.findall(r'"-I([^"]+)"', " ".join(lines))
        beside = Path(path).parent.parent / "include"
        return tuple(dict.fromkeys([*(Path(os.path.normpath(one)) for one in own), beside]))

    def header(self, name: str) -> Path | None:
        """Where nvcc finds a header: its own folders, CPATH, CPLUS_INCLUDE_PATH, then the system's."""
        named = [self._environ.get(key, "").split(os.pathsep) for key in ("CPATH", "CPLUS_INCLUDE_PATH")]
        own = self.nvcc.includes if self.nvcc else ()
        places = [*own, *(Path(one) for group in named for one in group if one), self._root / "usr/include"]
        return next((place / name for place in places if (place / name).is_file()), None)

    @property
    def cuda_version(self) -> Version | None:
        """CUDA of kernels that are built here: nvcc's, and where there is none PyTorch's. FlashInfer's rule."""
        return self.nvcc.version if self.nvcc else self.torch_cuda

    @cached_property
    def cudnn_version(self) -> Version | None:
        """Version of cuDNN, (9, 10, 2, 21): the wheel's for PyTorch's CUDA, else another's, else the system's."""
        major = self.torch_cuda[0] if self.torch_cuda else None
        names = sorted(_CUDNN, key=lambda name: name != f"nvidia-cudnn-cu{major}")
        wheel = next((version for name in names if (version := numbers(self.package(name)))), None)
        return wheel or self._system_cudnn()

    def _system_cudnn(self) -> Version | None:
        """What a library outside of Python's packages says of itself, as NVIDIA's containers have one."""
        try:
            get_version = ctypes.CDLL(self._cudnn).cudnnGetVersion
        except (OSError, AttributeError):
            return None
        get_version.restype = ctypes.c_size_t
        number = int(get_version())  # 10000 · major + 100 · minor + patch since cuDNN 9, see cudnn_version.h
        return number // 10000, number // 100 % 100, number % 100

    @cached_property
    def cudnn_frontend_version(self) -> Version | None:
        """Version of the package nvidia-cudnn-frontend, cuDNN's Python side."""
        return numbers(self.package("nvidia-cudnn-frontend")) or None

    @property
    def max_jobs(self) -> int | None:
        """MAX_JOBS, compilers that run side by side; None if it is unset or no number, which means one a core."""
        text = self._environ.get("MAX_JOBS", "")
        return int(text) if text.isdigit() and int(text) > 0 else None

    @property
    def jobs(self) -> int:
        """Compilers that run side by side: MAX_JOBS, else one a core."""
        return self.max_jobs or _host.usable_cores()

    @cached_property
    def memory_bytes(self) -> int:
        """Memory that this process may use."""
        return _host.memory_bytes(self._root)

    @property
    def host_compiler(self) -> str:
        """Path of the C++ compiler that nvcc calls; empty if there is none."""
        names = (self._environ.get("CXX", ""), "g++", "c++")
        return next((path for name in names if name and (path := self.on_path(name))), "")

    def on_path(self, name: str) -> str:
        """Path of an executable that PATH has; empty if it has none."""
        return shutil.which(name, path=self._environ.get("PATH", "")) or ""

    @property
    def dsl_flavour(self) -> int | None:
        """CUDA major version of the libraries that the CUTLASS DSL loads: the newest that the driver supports."""
        there = [major for major in (12, 13) if self.package(f"{DSL}{major}")]
        driver = self.driver_cuda
        return max((major for major in there if driver is None or major <= driver[0]), default=None)


def numbers(text: str) -> Version:
    """The numbers that a version begins with: `9.10.2.21` as (9, 10, 2, 21), `13.0a1` as (13, 0); () of no version."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def dotted(version: Version) -> str:
    """`(12, 9)` as `12.9`."""
    return ".".join(map(str, version))


@lru_cache(maxsize=1)
def here() -> CudaStack:
    """The stack of this process, looked at once."""
    return CudaStack()
