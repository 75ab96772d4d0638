"""`cpu.dequant`: dequantise a block of weights with torch on the CPU, multiply, take the next.

No compilation and no extension: torch's own operations. It exists to make the whole job run on any machine, and it
is worth tuning there; benchmarks/cpu_space.py shows which parameter decides what (docs/cpu-space.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from .backend import Availability, Config, ConfigValue, Parameter, Space
from .dequant_space import block_values, check_config, check_gemm, dequant_space
from .errors import UnsupportedError
from .problem import Format, Op, OutDtype

if TYPE_CHECKING:
    from .device import Device
    from .operands import Operands
    from .problem import Problem

_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_MAX_BLOCK_BYTES = 64 << 20
"""Above any private cache by far; larger blocks were never faster."""

_DEFAULT_BLOCK = 256
_LARGE_M = 64
"""Rows from which the product and not the decoding is most of the work: 256x2560x4096 against 16x2560x4096."""


class CpuDequant:
    """The CPU backend. Needs torch, any build.

    Parameters:
        decode: `lookup` (a byte indexes its pair of values; a serial operation in torch) or `arithmetic` (bit
            operations on weights that are repacked once; more work, but split over the threads). Not for BF16.
        block_n: rows of B that are decoded and multiplied at a time, a matter of caches against overhead.
        compute_dtype: `float32`, or `bfloat16` where D is BF16 anyway: decoded values are exact in both.
        swap_ab: multiply B · Aᵀ instead of A · Bᵀ: other kernels inside the same BLAS.
        threads: of torch, while the GEMM runs.
        experts_per_step: experts decoded and multiplied together, rows padded to those of the largest. Grouped only.
    """

    name = "cpu.dequant"

    def probe(self, device: Device) -> Availability:
        """Available on a CPU where torch can be imported."""
        if device.kind != "cpu":
            return Availability(False, f"It computes on a CPU, and {device.name} is a {device.kind} device.")
        try:
            import torch  # noqa: F401 - whether it can be imported is the question
        except Exception as error:  # noqa: BLE001 - a broken installation may raise anything, and probe never does
            return Availability(False, f"PyTorch cannot be imported ({error}); install torch.")
        return Availability(True)

    def versions(self, device: Device) -> dict[str, str]:  # noqa: ARG002 - part of the protocol
        """torch's: it brings its BLAS along."""
        try:
            return {"torch": metadata.version("torch")}
        except metadata.PackageNotFoundError:
            return {}

    def space(self, problem: Problem, device: Device) -> Space:
        """See the class."""
        self._check_device(device)
        return self._space(problem, thread_values(device.sms))

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """What one writes first: look up, blocks of 256 rows, float32 (fast on every CPU), A · Bᵀ, all cores.

        For BF16 the operands are multiplied as they are, in the largest blocks.
        """
        blocks = [v for p in self.space(problem, device).parameters if p.name == "block_n" for v in p.values]
        plain = problem.format is Format.BF16 and problem.out_dtype is OutDtype.BF16
        config: dict[str, ConfigValue] = {} if problem.format is Format.BF16 else {"decode": "lookup"}
        config |= {
            "block_n": blocks[-1] if plain else min(blocks, key=lambda v: abs(int(v) - _DEFAULT_BLOCK)),
            "compute_dtype": "bfloat16" if plain else "float32",
            "swap_ab": False,
            "threads": device.sms,
        }
        return config if problem.op is Op.DENSE else config | {"experts_per_step": 1}

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """Arithmetic decoding, with BF16 products for many rows and swapped float32 ones for few, then both ways."""
        space, default = self.space(problem, device), self.default(problem, device)
        few: dict[str, ConfigValue] = {"decode": "arithmetic", "compute_dtype": "float32", "swap_ab": True}
        many: dict[str, ConfigValue] = {"decode": "arithmetic", "compute_dtype": "bfloat16", "swap_ab": False}
        guesses = (many, few) if problem.m >= _LARGE_M else (few, many)
        configs = [{k: guess.get(k, v) for k, v in default.items()} for guess in guesses]
        return [c for c in configs if c in space and c != default]

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The callable sets torch's thread count while it runs and restores it."""
        import torch

        from .dequant_gemm import Plan, prepare_dequant

        threads = config.get("threads")
        if type(threads) is not int or threads < 1:
            raise UnsupportedError(f"{self.name} needs threads, a whole number of at least 1, not {threads!r}.")
        if operands.out.device.type != "cpu":
            raise UnsupportedError(f"{self.name} computes on the CPU, and the operands are on {operands.out.device}.")
        check_config(self.name, config, self._space(problem, (threads,)))
        dtype = getattr(torch, str(config["compute_dtype"]))
        plan = Plan(
            decode=str(config.get("decode", "")),
            block_n=int(config["block_n"]),
            compute_dtype=dtype,
            product_dtype=dtype,
            swap_ab=bool(config["swap_ab"]),
            experts_per_step=int(config.get("experts_per_step", 1)),
        )
        gemm = prepare_dequant(operands, plan)

        def run() -> None:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                with torch.inference_mode():
                    gemm()
            finally:
                torch.set_num_threads(before)

        return run

    def _check_device(self, device: Device) -> None:
        if device.kind != "cpu":
            raise UnsupportedError(f"{self.name} computes on a CPU, not on {device.name}.")

    def _space(self, problem: Problem, threads: tuple[int, ...]) -> Space:
        check_gemm(self.name, problem)
        # torch rounds a BF16 product to BF16, which is only enough where D is BF16 too.
        dtypes = ("float32", "bfloat16") if problem.out_dtype is OutDtype.BF16 else ("float32",)
        parameters = (
            Parameter("decode", ("lookup", "arithmetic")),
            Parameter("block_n", block_values(problem, _BLOCKS, _MAX_BLOCK_BYTES)),
            Parameter("compute_dtype", dtypes),
            Parameter("swap_ab", (False, True)),
            Parameter("threads", threads),
        )
        return dequant_space(problem, parameters, _MAX_BLOCK_BYTES)


def thread_values(cores: int) -> tuple[int, ...]:
    """Powers of two below the number of cores, and all of them."""
    values = [1 << i for i in range(max(1, cores).bit_length()) if 1 << i < cores]
    return (*values, max(1, cores))
