"""`torch.dequant`: dequantise weights with torch on a CUDA device, then cuBLAS.

Needs no FP4 hardware: what a server pays when it has nothing better for NVFP4 weights on Ampere, Ada or Hopper, and
what a native kernel must beat elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from . import _torch_cuda
from .backend import Availability, Config, ConfigValue, Parameter, Space
from .dequant_space import block_values, check_config, check_gemm, dequant_space
from .errors import UnsupportedError
from .problem import Format, Op, OutDtype

if TYPE_CHECKING:
    from .dequant_gemm import Plan
    from .device import Device
    from .operands import Operands
    from .problem import Problem

_BLOCKS = (512, 1024, 2048, 4096, 8192, 16384)
_MAX_BLOCK_BYTES = 256 << 20
_MORE_AT_ONCE = ("block_n", "experts_per_step")


class TorchDequant:
    """For CUDA devices from SM80 on.

    Parameters:
        decode: `lookup` (a byte indexes its pair of values) or `arithmetic` (bit operations on weights that are
            repacked once). Not for BF16.
        block_n: rows of B that are decoded and multiplied at a time: a block that stays in L2 against fewer launches.
        compute_dtype: `bfloat16`, or `float16` for NVFP4 activations: decoded values are exact in both. `float32`
            only where torch cannot return a product of BF16 in float32 and D needs it.
        swap_ab: multiply B · Aᵀ instead of A · Bᵀ, for which cuBLAS picks other kernels.
        experts_per_step: experts decoded and multiplied together, rows padded to those of the largest. Grouped only.
    """

    name = "torch.dequant"

    def probe(self, device: Device) -> Availability:
        """Available on a CUDA device from SM80 on that this build of torch has kernels for."""
        return _torch_cuda.probe(device)

    def versions(self, device: Device) -> dict[str, str]:  # noqa: ARG002 - part of the protocol
        """torch, CUDA, cuBLAS and the driver, as far as they are there."""
        return _torch_cuda.versions()

    def space(self, problem: Problem, device: Device) -> Space:
        """See the class."""
        self._check_device(device)
        return _space(problem)

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """As few launches as possible: look everything up in the largest block, then one BF16 matmul.

        Grouped, as many experts a step as the space allows with the largest block that allows it: a launch costs a GPU
        more than the padding (measured on an H200, torch 2.11: e512k10:16x256x4096 takes 1.5 ms with 16 experts a
        step and 9.4 ms with one).
        """
        space = self.space(problem, device)
        largest = {p.name: p.values[-1] for p in space.parameters if p.name in _MORE_AT_ONCE}
        first = {p.name: p.values[0] for p in space.parameters} | largest
        smaller_blocks = (
            {**first, "block_n": v} for p in space.parameters if p.name == "block_n" for v in p.values[::-1]
        )
        return next(dict(c) for c in (*smaller_blocks, *space) if c in space)

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """Blocks that fill half of L2, looked up and with arithmetic; then one expert at a time."""
        space, default = self.space(problem, device), self.default(problem, device)
        in_cache = max(1, device.l2_bytes // 2 // (2 * problem.k))
        blocks = [int(v) for p in space.parameters if p.name == "block_n" for v in p.values]
        block = max((b for b in blocks if b <= in_cache), default=blocks[0])
        guesses: list[dict[str, ConfigValue]] = [{"block_n": block}, {"block_n": block, "decode": "arithmetic"}]
        if problem.op is Op.GROUPED:
            guesses.append({"experts_per_step": 1, "block_n": blocks[-1]})
        configs = [{k: guess.get(k, v) for k, v in default.items()} for guess in guesses]
        return [c for i, c in enumerate(configs) if c in space and c != default and c not in configs[:i]]

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The callable launches on the current stream and can be captured into a CUDA graph."""
        check_config(self.name, config, _space(problem))
        from .dequant_gemm import prepare_dequant

        # Partial sums rounded to 16 bits would be too wrong for FP32 results.
        return _torch_cuda.with_matmul_settings(prepare_dequant(operands, _plan(problem, config)), reduced_sums=False)

    def _check_device(self, device: Device) -> None:
        unfit = _torch_cuda.why_unfit(device)
        if unfit:
            raise UnsupportedError(f"{self.name} cannot be used. {unfit}")


def _space(problem: Problem) -> Space:
    check_gemm(TorchDequant.name, problem)
    dtypes: tuple[ConfigValue, ...] = ("bfloat16", "float16") if problem.format is Format.NVFP4 else ("bfloat16",)
    if problem.out_dtype is not OutDtype.BF16 and not _torch_cuda.wide_products():
        is_enough = problem.out_dtype is OutDtype.FP16 and "float16" in dtypes
        dtypes = ("float16",) if is_enough else ("float32",)
    parameters = (
        Parameter("decode", ("lookup", "arithmetic")),
        Parameter("block_n", block_values(problem, _BLOCKS, _MAX_BLOCK_BYTES)),
        Parameter("compute_dtype", dtypes),
        Parameter("swap_ab", (False, True)),
    )
    return dequant_space(problem, parameters, _MAX_BLOCK_BYTES)


def _plan(problem: Problem, config: Config) -> Plan:
    """The engine's plan for a config of the space."""
    import torch

    from .dequant_gemm import Plan

    compute = str(config["compute_dtype"])
    product = compute
    if problem.out_dtype is OutDtype.FP32 or (problem.out_dtype is OutDtype.FP16 and compute == "bfloat16"):
        product = "float32"
    return Plan(
        decode=str(config.get("decode", "")),
        block_n=int(config["block_n"]),
        compute_dtype=getattr(torch, compute),
        product_dtype=getattr(torch, product),
        swap_ab=bool(config["swap_ab"]),
        experts_per_step=int(config.get("experts_per_step", 1)),
    )
