"""`torch.moe`: a fused mixture-of-experts layer out of torch's own operations, on any device.

Quantise the input, dequantise and multiply the weights expert by expert, silu(gate) * up, requantise, multiply again,
add up. The products are those of `cpu.dequant` and `torch.dequant`. It needs no FP4 hardware, and is what a fused
kernel must beat; on a CPU it makes the whole job run for a moe problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from . import _torch_cuda
from .backend import Availability, Config, ConfigValue, Parameter, Space
from .cpu_dequant import CpuDequant, thread_values
from .dequant_space import block_values, check_config, dequant_space
from .errors import OtherKindError, UnsupportedError
from .problem import Op, OutDtype

if TYPE_CHECKING:
    from .device import Device
    from .operands import Operands
    from .problem import Problem

_BLOCKS = (64, 256, 1024, 4096, 16384)
_MAX_BLOCK_BYTES = 128 << 20
_DEFAULT_BLOCK = 1024


class TorchMoe:
    """For CPUs, and for CUDA devices from SM80 on. Moe problems only.

    Parameters:
        decode: `lookup` (a byte indexes its pair of values) or `arithmetic` (bit operations on weights that are
            repacked once). Not for BF16.
        block_n: rows of W1, W3 and W2 that are decoded and multiplied at a time.
        compute_dtype: of the products. `bfloat16` rounds gate and up before the activation, as kernels that keep them
            in BF16 do.
        swap_ab: multiply B · Aᵀ instead of A · Bᵀ, for which the BLAS picks other kernels.
        threads: of torch, while it runs. CPU only.
        experts_per_step: experts decoded and multiplied together, rows padded to those of the largest.
    """

    name = "torch.moe"

    def probe(self, device: Device) -> Availability:
        """Available on a CPU where torch can be imported, and on a CUDA device that torch has kernels for."""
        return CpuDequant().probe(device) if device.kind == "cpu" else _torch_cuda.probe(device)

    def versions(self, device: Device) -> dict[str, str]:
        """Of torch; on a CUDA device also CUDA, cuBLAS and the driver."""
        return CpuDequant().versions(device) if device.kind == "cpu" else _torch_cuda.versions()

    def space(self, problem: Problem, device: Device) -> Space:
        """See the class."""
        unfit = "" if device.kind == "cpu" else _torch_cuda.why_unfit(device)
        if unfit:
            raise UnsupportedError(f"{self.name} cannot be used. {unfit}")
        return _space(problem, thread_values(device.sms) if device.kind == "cpu" else ())

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """Look up, blocks of about 1024 rows, the first compute_dtype, A · Bᵀ, all cores.

        One expert at a time on a CPU; on a GPU, where a launch costs more than padding, as many as the space allows.
        """
        space = self.space(problem, device)
        config = {p.name: p.values[0] for p in space.parameters}
        blocks = [int(v) for p in space.parameters if p.name == "block_n" for v in p.values]
        config["block_n"] = min(blocks, key=lambda block: abs(block - _DEFAULT_BLOCK))
        if device.kind == "cpu":
            return config | {"threads": device.sms}
        steps = [v for p in space.parameters if p.name == "experts_per_step" for v in p.values]
        return next(c for v in reversed(steps) if (c := config | {"experts_per_step": v}) in space)

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """Arithmetic decoding, swapped and not."""
        space, default = self.space(problem, device), self.default(problem, device)
        guesses: list[dict[str, ConfigValue]] = [{"decode": "arithmetic"}, {"decode": "arithmetic", "swap_ab": True}]
        configs = [{k: guess.get(k, v) for k, v in default.items()} for guess in guesses]
        return [c for i, c in enumerate(configs) if c in space and c != default and c not in configs[:i]]

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The callable launches on the current stream and can be captured into a CUDA graph."""
        on_cpu = operands.out.device.type == "cpu"
        threads = config.get("threads", 1)
        if type(threads) is not int or threads < 1:
            raise UnsupportedError(f"{self.name} needs threads, a whole number of at least 1, not {threads!r}.")
        check_config(self.name, config, _space(problem, (threads,) if on_cpu else ()))
        from .torch_moe_layer import prepare_layer

        layer = prepare_layer(operands, config)
        if not on_cpu:
            return _torch_cuda.with_matmul_settings(layer, reduced_sums=False)
        return _with_threads(layer, threads)


def _space(problem: Problem, threads: tuple[int, ...]) -> Space:
    """The space with these values of `threads`; without that parameter if there are none."""
    if problem.op is not Op.MOE:
        raise OtherKindError(f"torch.moe computes fused mixture-of-experts layers, not {problem.op.value} problems.")
    # BF16 sums would be too wrong for an output of more bits, unless nothing but the requantised intermediate has them.
    is_wide = problem.out_dtype is not OutDtype.BF16
    wider = replace(problem, op=Op.GROUPED, n=max(2 * problem.n, problem.k), k=max(problem.k, problem.n))
    parameters = (
        Parameter("decode", ("lookup", "arithmetic")),
        Parameter("block_n", block_values(wider, _BLOCKS, _MAX_BLOCK_BYTES)),
        Parameter("compute_dtype", ("float32",) if is_wide else ("float32", "bfloat16")),
        Parameter("swap_ab", (False, True)),
        *((Parameter("threads", threads),) if threads else ()),
    )
    return dequant_space(wider, parameters, _MAX_BLOCK_BYTES)


def _with_threads(layer: Callable[[], None], threads: int) -> Callable[[], None]:
    """`layer` with so many of torch's threads."""
    import torch

    def run() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                layer()
        finally:
            torch.set_num_threads(before)

    return run
