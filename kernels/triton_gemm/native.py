"""`triton.native`: NVFP4 by NVFP4 on the FP4 matrix units of SM100 and SM12x.

What it is for: at small M the time of today's SM120 kernels grows with K alone, 3.5 µs for every 1024 of it, while
the weights would arrive in half of that or less. So K is split, in two ways, beside everything else that a Triton GEMM
can choose. It is compiled for sm_120a and sm_100a in the tests, and its logic is run in Triton's CPU interpreter;
it has not run on a card (see docs/triton-native.md).
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..backend import Availability, StaticFacts, config_key, nothing_to_run
from ..dequant_space import check_config, check_gemm
from ..errors import UnsupportedError
from .compiler import bind, compile_kernel, triton_version, triton_versions, why_no_triton
from .facts import native_ptx, refuse_unfit, static_facts
from .native_plan import NativeConfig, build_of, call_of
from .native_space import native_default, native_seeds, native_space
from .pruning import SMALL_STACK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..backend import Config, ConfigValue, Space
    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem

FP4_GENERATIONS = (10, 12)
"""Major compute capabilities with FP4 matrix units that Triton knows: data-centre Blackwell, and RTX Blackwell."""

OLDEST_TRITON = {(12, 1): (3, 9)}
"""Oldest Triton that compiles the FP4 product for a compute capability, where it is not the oldest that we take at all:
3.6.0 ends in a failed pass for 12.1; 3.7 and 3.8 were not tried."""


class TritonNative:
    """The backend. See the module's docstring, and `native_space` for what can be chosen."""

    name = "triton.native"

    def probe(self, device: Device) -> Availability:
        """Whether the card has FP4 matrix units and Triton is there. Makes no CUDA context."""
        if device.kind != "cuda":
            return Availability(False, "It needs a CUDA device.")
        major, minor = device.capability
        if major not in FP4_GENERATIONS:
            return Availability(
                False,
                f"{device.name} (compute capability {major}.{minor}) has no FP4 matrix units: "
                "those came with 10.0 and 12.0.",
            )
        reason = why_no_triton()
        oldest, version = OLDEST_TRITON.get((major, minor)), triton_version()
        if not reason and oldest and version and version < oldest:
            reason = (
                f"Triton {version[0]}.{version[1]} does not compile FP4 products for compute capability "
                f"{major}.{minor}; {oldest[0]}.{oldest[1]} does."
            )
        return Availability(not reason, reason)

    def versions(self, device: Device) -> dict[str, str]:  # noqa: ARG002 - part of the protocol
        """Triton's, whose wheel brings the assembler."""
        return triton_versions()

    def space(self, problem: Problem, device: Device) -> Space:
        """The search space. Raises UnsupportedError."""
        self._check(device)
        check_gemm(self.name, problem)
        return native_space(problem, device)

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """An untuned guess. Raises UnsupportedError."""
        self._check(device)
        check_gemm(self.name, problem)
        return native_default(problem, device)

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """Variations of the default: other schedules, wider tiles, TMA, swizzled scales."""
        return native_seeds(problem, device)

    def compile(self, problem: Problem, device: Device, config: Config) -> StaticFacts:
        """Compile a config into Triton's cache, without a GPU.

        Raises:
            UnsupportedError: it spills, needs too much shared memory, or lacks the FP4 instruction; or Triton or its
                cache cannot be used.
        """
        check_config(self.name, config, self.space(problem, device))
        capability = device.capability
        kernel = _compile(problem, config, capability)
        facts = static_facts(kernel)
        refuse_unfit(kernel, facts, max_stack_bytes=SMALL_STACK_BYTES, ptx_words=native_ptx(capability))
        return facts

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """Build the callable. Raises UnsupportedError."""
        import torch

        from ..device import detect_once

        device = detect_once(str(operands.out.device))
        check_config(self.name, config, self.space(problem, device))
        call = call_of(operands, NativeConfig.of(config), sms=device.sms)
        if call is None:
            return nothing_to_run
        with torch.cuda.device(operands.out.device):
            capability = device.capability
            kernel = _loaded(problem, capability, config_key(config), torch.cuda.current_device())
            return bind(kernel, call.grid, list(call.arguments.values()))

    def _check(self, device: Device) -> None:
        """Raise the sentence of `probe`."""
        availability = self.probe(device)
        if not availability.available:
            raise UnsupportedError(f"{self.name} cannot be used. {availability.reason}")


@lru_cache(maxsize=16)
def _loaded(problem: Problem, capability: tuple[int, int], config: str, device: int) -> Any:  # noqa: ARG001 - a key
    """One kernel for all operand sets of a config: looked up and loaded onto the device once, not for every set."""
    return _compile(problem, json.loads(config), capability)


def _compile(problem: Problem, config: Config, capability: tuple[int, int]) -> Any:
    """The compiled kernel of a config, from the cache if it is there."""
    from .native_kernels import nvfp4_gemm

    typed = NativeConfig.of(config)
    build = build_of(problem, typed)
    return compile_kernel(
        nvfp4_gemm,
        signature=build.signature,
        constexprs=build.constexprs,
        divisible_by_16=build.aligned,
        target=capability,
        num_warps=typed.num_warps,
        num_stages=typed.num_stages,
    )
