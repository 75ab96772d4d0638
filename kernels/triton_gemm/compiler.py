"""Compile a Triton kernel ahead, without a GPU, and launch exactly that kernel later in a process that has one.

`triton.jit`'s own way binds a kernel to its arguments at launch, and so compiles when the device waits. Here the
signature is said up front: the compile pool and the worker call `compile_kernel` with the same arguments, the first
compiles into Triton's cache on disk (TRITON_CACHE_DIR, `~/.triton/cache` without it), the second finds it there.
The cache's key holds the kernel's source and line (no path), constants, options, target, Triton's and ptxas's version.

Holds for Triton 3.6.0 and 3.9.0, whose sources were read. What both share: `CompiledKernel.run(grid_x, grid_y, grid_z,
stream, function, packed_metadata, launch_metadata, enter_hook, exit_hook, *arguments)` takes one argument for *every*
parameter of the kernel in order, constants included, which the launcher skips. A pointer may be an integer, which saves
the call of `data_ptr` and the question to the driver whose it is.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_TRITON = (3, 6)
"""The oldest Triton that the kernels are compiled with in the tests: the one of torch 2.11."""

ALIGNMENT = 16
"""Bytes (of a pointer) or units (of an integer) that Triton's `tt.divisibility` stands for: one 128-bit access."""

Grid = tuple[int, int, int]


def triton_version() -> tuple[int, int] | None:
    """Major and minor version of the Triton that would be imported; None if there is none, or it does not say."""
    numbers = _version_text().split(".")[:2]
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 and all(n.isdigit() for n in numbers) else None


def _version_text() -> str:
    """Triton's version without importing it, `3.9.0`; empty if there is none."""
    from importlib import metadata

    if importlib.util.find_spec("triton") is None:
        return ""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:  # a build from source or a nightly, under another distribution's name
        import triton

        return str(triton.__version__)


def triton_versions() -> dict[str, str]:
    """What decides whether a config of a Triton kernel is still valid: Triton's version; ptxas comes in its wheel."""
    text = _version_text()
    return {"triton": text} if text else {}


def why_no_triton() -> str:
    """One sentence why Triton cannot be used here; empty if it can."""
    version = triton_version()
    if version is None:
        return "Triton is not installed; it comes with PyTorch's CUDA builds, or `pip install triton`."
    if version < MIN_TRITON:
        return (
            f"Triton {version[0]}.{version[1]} is too old: {MIN_TRITON[0]}.{MIN_TRITON[1]} (PyTorch 2.11's) is the "
            "oldest that these kernels are compiled with."
        )
    return ""


def target_name(capability: tuple[int, int]) -> str:
    """What ptxas calls the target: `sm_80`, `sm_90a`, `sm_120a`; from 9.0 on Triton asks for the `a` features."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def compile_kernel(
    fn: Any,
    *,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    target: tuple[int, int],
    divisible_by_16: Collection[str] = (),
    num_warps: int = 4,
    num_stages: int = 3,
    **options: Any,
) -> Any:
    """Compile a `@triton.jit` function for a target, or take it from the cache. Needs no GPU and no driver.

    Args:
        fn: the function, Triton's or Gluon's. Every parameter must be in `signature` or in `constexprs`.
        signature: parameter -> Triton's type of what is passed at launch: `*bf16`, `*fp8e4nv`, `*u8`, `i32`, `fp32`,
            `tensordesc<u8[128, 64]>`.
        constexprs: parameter -> value compiled in.
        target: compute capability, (9, 0), (12, 0).
        divisible_by_16: names from `signature` whose pointer is a multiple of 16 bytes, or whose integer is a multiple
            of 16. A promise: a launch that breaks it reads other memory than it should.
        num_warps: warps a block, a power of two.
        num_stages: depth of the software pipeline.
        options: more of Triton's compile options, `maxnreg=128`.

    Returns:
        Triton's CompiledKernel, which is not loaded onto any device.

    Raises:
        UnsupportedError: the cache cannot be written, or a tool of Triton's is missing.
        ValueError: a parameter is neither in `signature` nor in `constexprs`, or a name is no parameter.
        Exception: whatever Triton's compiler raises: CompilationError, PTXASError, RuntimeError.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    names = list(fn.arg_names)
    unknown = (set(signature) | set(constexprs) | set(divisible_by_16)) - set(names)
    missing = [name for name in names if name not in signature and name not in constexprs]
    if unknown or missing:
        raise ValueError(f"{fn.__name__} has no parameters {sorted(unknown)}, and {missing} are not given")
    full = {name: "constexpr" if name in constexprs else signature[name] for name in names}
    attributes = {(names.index(name),): [["tt.divisibility", ALIGNMENT]] for name in divisible_by_16}
    source = _source_class(fn)(fn, full, dict(constexprs), attributes)
    chosen = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True, **options}
    with explain_file_errors():
        return triton.compile(source, target=GPUTarget("cuda", 10 * target[0] + target[1], 32), options=chosen)


def _source_class(fn: Any) -> Any:
    """What Triton calls the source of a function: Gluon, its dialect with explicit layouts, has another one."""
    if fn.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


def launcher(kernel: Any, grid: Grid) -> Callable[..., None]:
    """A callable that launches a compiled kernel on the device that is current now, on torch's current stream there.

    Args:
        kernel: from `compile_kernel`; loaded onto the current device by this call.
        grid: program ids in x, y and z.

    Returns:
        A callable that takes the arguments named in `signature` in the order of the kernel's parameters: tensors,
        tensor descriptors, addresses or numbers; constants are left out.

    Raises:
        UnsupportedError: the device has not the shared memory, tensor memory or threads; or Triton's launcher cannot
            be built, because there is no C compiler.
    """
    start, place = _start(kernel, grid), _argument_places(kernel)

    def launch(*arguments: Any) -> None:
        start(*place(arguments))

    return launch


def bind(kernel: Any, grid: Grid, arguments: Sequence[Any]) -> Callable[[], None]:
    """As `launcher`, with the arguments bound: what a call costs the host then is the launch alone.

    Args:
        kernel: from `compile_kernel`; loaded onto the current device by this call.
        grid: program ids in x, y and z.
        arguments: as the callable of `launcher` takes them. Tensors are bound by address, and kept alive.

    Raises:
        UnsupportedError: as in `launcher`.
    """
    import torch

    start, kept = _start(kernel, grid), _argument_places(kernel)(arguments)
    bound = tuple(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in kept)

    def launch(_kept_alive: Any = kept) -> None:
        start(*bound)

    return launch


def _start(kernel: Any, grid: Grid) -> Callable[..., None]:
    """What launches a kernel with one argument for every parameter, constants included."""
    import torch

    _load(kernel)
    run, function, packed = kernel.run, kernel.function, kernel.packed_metadata
    device = torch.cuda.current_device()
    stream_of = torch._C._cuda_getCurrentRawStream  # noqa: SLF001 - what Triton asks, too, and it makes no object
    x, y, z = grid

    def start(*arguments: Any) -> None:
        # A kernel is loaded on one device, and launched on whichever is current.
        if torch.cuda.current_device() != device:
            with torch.cuda.device(device):
                start(*arguments)
            return
        # No metadata and no hooks: those are for Triton's profiler.
        run(x, y, z, stream_of(device), function, packed, None, None, None, *arguments)

    return start


def _argument_places(kernel: Any) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What puts None where the kernel's constants stand, between the arguments."""
    types = list(kernel.src.signature.values())
    expected = sum(kind != "constexpr" for kind in types)

    def place(arguments: Sequence[Any]) -> tuple[Any, ...]:
        if len(arguments) != expected:
            raise TypeError(f"{kernel.name} takes {expected} arguments and got {len(arguments)}")
        rest = iter(arguments)
        return tuple(None if kind == "constexpr" else next(rest) for kind in types)

    return place


def _load(kernel: Any) -> None:
    """Load a kernel onto the current device and build its launcher."""
    from triton.runtime.errors import OutOfResources

    try:
        kernel.run  # noqa: B018 - the property loads
    except OutOfResources as error:
        raise UnsupportedError(
            f"{kernel.name} needs {error.required} of {error.name}, and the device has {error.limit}."
        ) from error
    except RuntimeError as error:
        if "C compiler" not in str(error):
            raise
        raise UnsupportedError(
            "Triton builds the launcher of a kernel with a C compiler, and finds none: install gcc, or set CC."
        ) from error


@contextmanager
def explain_file_errors() -> Iterator[None]:
    """Turn what the operating system says of Triton's files into an UnsupportedError that names what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnsupportedError(f"A tool or file of Triton's is missing ({error}); install Triton anew.") from error
    except OSError as error:
        from triton import knobs

        raise UnsupportedError(
            f"Triton's cache in {knobs.cache.dir} cannot be used ({error.strerror or error}); set TRITON_CACHE_DIR to "
            "a directory that can be written."
        ) from error
