"""What CUDA software is here, and in one sentence what it lacks. Makes no CUDA context, imports no torch.

Nothing raises. Facts that cannot be found out are None. A reason is one sentence with a full stop, for a backend to
hand on from `probe`, and empty if there is none. All functions answer for this process, which finds out once; `stack`
puts another in its place, for a test or for a diagnosis that wants to look again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ._cuda_found import DSL, TOOLKIT, CudaStack, Nvcc, Version, dotted, here, numbers
from ._host import usable_cores

__all__ = [
    "TOOLKIT", "CudaStack", "Nvcc", "Version", "conflict", "conflicts", "cuda_version", "cudnn_frontend_version",
    "cudnn_version", "dotted", "header", "here", "jobs_that_fit", "max_jobs", "numbers", "nvcc", "torch_cuda",
    "why_cuda_too_old", "why_cudnn_too_old", "why_jit_died", "why_no_jit", "why_other_dsl", "why_other_nvcc",
    "why_torch_too_old",
]  # fmt: skip

JOB_BYTES = 8 << 30
"""Memory that a compiler of CUTLASS kernels is given: 5.6 GiB was its peak for one NVFP4 GEMM of sm_120a (nvcc 13.0,
CUTLASS 4.5.0), and 8 GiB is the most that users of FlashInfer reported for one source."""

JIT_HEADERS = ("cuda_runtime.h",)
"""What any kernel needs. FlashInfer's need `curand_kernel.h` too, which a toolkit put together from wheels may lack."""

_KILLED = re.compile(
    # gcc's driver of cc1plus; nvcc's of cicc, cudafe++, ptxas; a shell's of anything.
    r"Killed signal terminated program (?P<gcc>\S+)"
    r"|'(?P<nvcc>[\w+.-]+)' died due to signal 9\b"
    r"|internal compiler error: Killed \(program (?P<ice>\w+)\)"
    r"|^\s*(?:\S+: line \d+:\s+)?(?:\d+\s+)?Killed\b",
    re.MULTILINE,
)
_NO_MEMORY = re.compile(
    r"virtual memory exhausted|cc1plus: out of memory|LLVM ERROR: out of memory"
    r"|ptxas fatal\s*: Memory allocation failure|std::bad_alloc|[Cc]annot allocate memory"
)
_KILL_CODES = (137, -9)
"""What a shell and what Python call a death by SIGKILL, which is how Linux takes memory back."""


def nvcc(stack: CudaStack | None = None) -> Nvcc | None:
    """The compiler that builders of kernels take: in CUDA_HOME or CUDA_PATH, else on PATH, else the usual place."""
    return (stack or here()).nvcc


def torch_cuda(stack: CudaStack | None = None) -> Version | None:
    """CUDA that PyTorch is built for, (12, 8)."""
    return (stack or here()).torch_cuda


def cuda_version(stack: CudaStack | None = None) -> Version | None:
    """CUDA of kernels that are built here: nvcc's, and where there is none PyTorch's. FlashInfer's rule."""
    return (stack or here()).cuda_version


def cudnn_version(stack: CudaStack | None = None) -> Version | None:
    """Version of cuDNN, (9, 10, 2, 21)."""
    return (stack or here()).cudnn_version


def cudnn_frontend_version(stack: CudaStack | None = None) -> Version | None:
    """Version of cuDNN's Python frontend, (1, 32, 0)."""
    return (stack or here()).cudnn_frontend_version


def header(name: str, stack: CudaStack | None = None) -> str:
    """Path of a header that nvcc finds; empty if it finds none of that name."""
    return str((stack or here()).header(name) or "")


def max_jobs(stack: CudaStack | None = None) -> int | None:
    """MAX_JOBS, how many compilers FlashInfer and PyTorch run side by side; None if unset, which means one a core."""
    return (stack or here()).max_jobs


def jobs_that_fit(job_bytes: int = JOB_BYTES, stack: CudaStack | None = None) -> int:
    """How many compilers of `job_bytes` each fit in memory and on the cores; at least one."""
    return max(1, min(usable_cores(), (stack or here()).memory_bytes // job_bytes))


def why_cuda_too_old(minimum: Version, what: str, stack: CudaStack | None = None) -> str:
    """Why kernels of `what` cannot be built: `cuda_version` is below `minimum`, or there is none.

    Args:
        minimum: (12, 9).
        what: who needs it, as it begins a sentence: `flashinfer.b12x`.
        stack: see the module.
    """
    s = stack or here()
    if s.cuda_version and s.cuda_version >= minimum:
        return ""
    needs = f"{what} needs CUDA {dotted(minimum)} or newer"
    if s.nvcc:
        return f"{needs}, and {s.nvcc.path} is of CUDA {dotted(s.nvcc.version)}: set CUDA_HOME to a newer toolkit."
    if s.torch and s.torch_cuda:
        return (
            f"{needs}, and PyTorch {s.torch[0]} is built for CUDA {dotted(s.torch_cuda)}, with no nvcc beside it: "
            "install a newer build, or a toolkit and set CUDA_HOME to it."
        )
    return f"{needs}, and there is neither nvcc nor a PyTorch with CUDA: install a PyTorch that is built for it."


def why_torch_too_old(minimum: Version, what: str, stack: CudaStack | None = None) -> str:
    """Why `what`, which calls libraries that came with PyTorch, cannot: PyTorch's CUDA is below `minimum`, or none."""
    s = stack or here()
    needs = f"{what} needs PyTorch built for CUDA {dotted(minimum)} or newer"
    if s.torch is None:
        return f"{needs}, and PyTorch is not installed."
    version, cuda = s.torch
    if cuda is None:
        return f"{needs}, and PyTorch {version} is built without CUDA."
    return "" if cuda >= minimum else f"{needs}, and PyTorch {version} is built for CUDA {dotted(cuda)}."


def why_cudnn_too_old(
    minimum: Version, what: str, *, frontend: Version = (1, 13), stack: CudaStack | None = None
) -> str:
    """Why `what` cannot use cuDNN: the library or its Python frontend is missing, or below its minimum.

    Args:
        minimum: least cuDNN, (9, 10, 2).
        what: who needs it, as it begins a sentence.
        frontend: least nvidia-cudnn-frontend; FlashInfer's own check is 1.13.
        stack: see the module.
    """
    s = stack or here()
    major = s.torch_cuda[0] if s.torch_cuda else 13
    parts = (
        ("cuDNN", s.cudnn_version, minimum, f"nvidia-cudnn-cu{major}"),
        ("cuDNN's frontend", s.cudnn_frontend_version, frontend, "nvidia-cudnn-frontend"),
    )
    for name, version, least, package in parts:
        if version is None or version < least:
            found = f"{dotted(version)} is installed" if version else "it is not installed"
            return f"{what} needs {name} {dotted(least)} or newer, and {found}: install {package}>={dotted(least)}."
    return ""


def why_no_jit(minimum: Version = (12, 9), headers: Sequence[str] = JIT_HEADERS, stack: CudaStack | None = None) -> str:
    """Why CUDA C++ cannot be compiled here when it is needed.

    Args:
        minimum: least CUDA of nvcc; FlashInfer's and CUTLASS's FP4 kernels of the 12.x family need 12.9.
        headers: what sources include from outside; see JIT_HEADERS.
        stack: see the module.
    """
    s = stack or here()
    if s.nvcc is None:
        return s.why_no_nvcc
    if s.nvcc.version < minimum:
        return why_cuda_too_old(minimum, "Compiling its kernels", s)
    if not s.host_compiler:
        return "There is no C++ compiler on PATH, and nvcc needs one: install g++."
    for name in headers:
        if s.header(name) is None:
            package = f"nvidia-curand=={s.nvcc.version[0]}.*" if name.startswith("curand") else "the CUDA toolkit"
            return (
                f"{s.nvcc.path} does not find the header {name}: install {package}, and name the folder of its headers "
                "in CPATH."
            )
    return ""


def conflicts(stack: CudaStack | None = None) -> tuple[str, ...]:
    """Every pair of CUDA major versions that would meet in one process, a sentence each.

    A process that loads both may work. But kernels of one toolchain in a process of another were reported to return
    zeros (FlashInfer issue 3398, nvcc 12.8 beside 13.2), so that is what to mend first.
    """
    s = stack or here()
    found = []
    if len({one.version[0] for one in s.runtimes}) > 1:
        named = " and ".join(f"{one.package} {dotted(one.version)}" for one in s.runtimes)
        which = f"CUDA {s.torch_cuda[0]}, which PyTorch is built for" if s.torch_cuda else "one"
        found.append(f"Two CUDA runtimes are installed, {named}: keep that of {which}, and uninstall the other.")
    return (*found, *(reason for reason in (why_other_nvcc(s), why_other_dsl(s)) if reason))


def why_other_nvcc(stack: CudaStack | None = None) -> str:
    """Why what nvcc builds must not be loaded beside PyTorch: their CUDA major versions differ."""
    s = stack or here()
    if s.torch is None or s.torch_cuda is None or s.nvcc is None or s.nvcc.version[0] == s.torch_cuda[0]:
        return ""
    compiler = f"{s.nvcc.path} is of CUDA {dotted(s.nvcc.version)}"
    return f"{_torch_is(s)}, and {compiler}: set CUDA_HOME to a toolkit of CUDA {s.torch_cuda[0]}."


def why_other_dsl(stack: CudaStack | None = None) -> str:
    """Why the CUTLASS DSL must not be used beside PyTorch: its libraries are of another CUDA major version."""
    s = stack or here()
    if s.torch is None or s.torch_cuda is None or not s.dsl_flavour or s.dsl_flavour == s.torch_cuda[0]:
        return ""
    major, package = s.torch_cuda[0], f"{DSL}{s.dsl_flavour}"
    mend = f"uninstall {package}" if s.dsl_flavour > major else f"install nvidia-cutlass-dsl[cu{major}]"
    return f"{_torch_is(s)}, and the CUTLASS DSL would load {package} {s.package(package)}: {mend}."


def _torch_is(s: CudaStack) -> str:
    return f"PyTorch {s.torch[0]} is built for CUDA {dotted(s.torch_cuda)}" if s.torch and s.torch_cuda else ""


def conflict(stack: CudaStack | None = None) -> str:
    """The first of `conflicts`; empty if there is none."""
    return next(iter(conflicts(stack)), "")


def why_jit_died(output: str, returncode: int, stack: CudaStack | None = None) -> str:
    """Whether a compiler died for want of memory, and what to do then; empty if it failed for another reason.

    Args:
        output: what the build wrote, ninja's or nvcc's.
        returncode: its exit status, negative for a signal; 1 is what ninja makes of a killed compiler.
        stack: see the module.
    """
    killed, no_memory = _KILLED.search(output), _NO_MEMORY.search(output)
    if not (killed or no_memory or returncode in _KILL_CODES) or returncode == 0:
        return ""
    s = stack or here()
    who = next((name for name in killed.groupdict().values() if name), "") if killed else ""
    gib = f"{s.memory_bytes / 2**30:.0f} GiB of memory"
    happened = f"ran out of memory ({no_memory[0].strip()})" if no_memory and not killed else "was killed"
    least = " already" if s.jobs == 1 else ""
    mend = (
        "give the machine more memory, or build where there is more"
        if s.jobs == 1
        else f"set MAX_JOBS to {max(1, min(s.jobs - 1, jobs_that_fit(stack=s)))}"
    )
    set_to = f"MAX_JOBS is{least} {s.max_jobs}" if s.max_jobs else f"MAX_JOBS is unset, which means {s.jobs} compilers"
    return (
        f"A compiler {f'({who}) ' if who else ''}{happened}, as happens for want of memory: {set_to}, each takes up to "
        f"{JOB_BYTES >> 30} GiB, and there are {gib}; {mend}."
    )
