"""The backend `cutlass`. See docs/cutlass.md. It has been compiled for sm_120a, and has not run on a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend import Availability
from ..dequant_space import check_config
from ..errors import UnsupportedError
from .build_config import BuildConfig
from .space import MAX_STACK_BYTES, build_space, check_problem, default_config, seed_configs
from .toolchain import find_headers, toolchain, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..backend import Config, ConfigValue, Space, StaticFacts
    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem

TARGETS = {"12.0": "sm_120a", "12.1": "sm_121a"}
"""Compute capability -> what its kernels are compiled for."""


class Cutlass:
    """NVFP4 by NVFP4 on SM120 and SM121, dense.

    Parameters (the first four are compiled in, a shared object for every combination):
        tile, schedule, scheduler, swap_ab: see BuildConfig.
        splits: parts that stream-K cuts K into; 1 leaves it to CUTLASS.
        max_swizzle: most tiles walked side by side. raster: the side along which tiles are walked.
        pad_m: rows that A is padded to, 0 for none.
    """

    name = "cutlass"
    compile_memory_bytes = 7 << 30
    """One nvcc took 5.2 to 6.0 GiB (nvcc 13.0, CUTLASS 4.5.0), beside the process that starts it."""

    compile_s = 1800.0
    """Two attempts of at most fifteen minutes. One took 408 s, niced, on two cores with a load of ten."""

    def probe(self, device: Device) -> Availability:
        """Whether the card is SM120 or SM121, and nvcc and CUTLASS's headers are here. Makes no CUDA context."""
        if device.kind != "cuda":
            return Availability(False, "It needs a CUDA device.")
        target = TARGETS.get(device.compute_capability)
        if target is None:
            return Availability(
                False, f"It is for compute capability 12.0 and 12.1, and {device.name} has {device.compute_capability}."
            )
        try:
            reason = why_not(target)
        except Exception as error:  # noqa: BLE001 - a broken installation may raise anything, and probe never does
            reason = f"Its compiler cannot be looked for ({type(error).__name__}: {error})."
        return Availability(not reason, reason)

    def versions(self, device: Device) -> dict[str, str]:
        """CUTLASS's headers and nvcc."""
        if not self.probe(device).available:
            return {}
        tools = toolchain(TARGETS[device.compute_capability])
        return {"cutlass": tools.headers.release, "nvcc": tools.nvcc_release}

    def space(self, problem: Problem, device: Device) -> Space:
        """The search space. Raises UnsupportedError."""
        check_problem(problem)
        self._check(device)
        headers = find_headers()
        return build_space(problem, headers.version if headers else ())

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """One tile of 128x128x128, the automatic schedule. Raises UnsupportedError."""
        check_problem(problem)
        self._check(device)
        return default_config()

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """Two or three other shared objects, by the number of tokens."""
        return seed_configs(problem, self.space(problem, device))

    def compile(self, problem: Problem, device: Device, config: Config) -> StaticFacts:
        """Build the shared object of a config, a core for one to three minutes, or find it.

        Raises:
            UnsupportedError: it does not compile, spills, or lacks the FP4 instruction; or the compiler or its cache
                cannot be used.
            TimeoutError: the compiler took too long.
        """
        from .builder import ensure_built
        from .facts import FP4_OPCODE, static_facts

        check_config(self.name, config, self.space(problem, device))
        build = build_of(problem, device, config)
        facts = static_facts(ensure_built(build, toolchain(build.target)), build.target)
        if facts.stack_bytes > MAX_STACK_BYTES:
            raise UnsupportedError(
                f"cutlass compiled {build} with {facts.stack_bytes} bytes of stack a thread, "
                f"{MAX_STACK_BYTES} are accepted."
            )
        if facts.instructions and FP4_OPCODE not in facts.instructions:
            raise UnsupportedError(f"cutlass compiled {build} without {FP4_OPCODE}.")
        return facts

    def is_compiled(self, problem: Problem, device: Device, config: Config) -> bool:
        """Whether the shared object of a config is in the cache. Raises UnsupportedError as `compile`."""
        from .builder import find_built

        build = build_of(problem, device, config)
        return find_built(build, toolchain(build.target)) is not None

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The callable launches one kernel on the current stream, before it for stream-K the clearing of its barriers.

        Builds the shared object if nobody has: minutes.

        Raises:
            UnsupportedError: the operands are on no such card, or the kernel cannot be built or does not take them.
        """
        from ..device import detect_once
        from .launch import prepare_launch

        if not operands.out.is_cuda:
            raise UnsupportedError("cutlass runs on CUDA devices, and the operands are elsewhere.")
        device = detect_once(f"cuda:{operands.out.device.index or 0}")
        check_config(self.name, config, self.space(problem, device))
        return prepare_launch(operands, config, build_of(problem, device, config), sms=device.sms)

    def _check(self, device: Device) -> None:
        """Raise the sentence of `probe`."""
        state = self.probe(device)
        if not state.available:
            raise UnsupportedError(f"{self.name} cannot be used. {state.reason}")


def build_of(problem: Problem, device: Device, config: Config) -> BuildConfig:
    """What is compiled for a config of a problem on a device: M, N and K decide nothing."""
    return BuildConfig.of(config, problem.out_dtype, TARGETS[device.compute_capability])
