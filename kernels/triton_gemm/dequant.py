"""`triton.dequant`: NVFP4 GEMMs in Triton for cards without FP4 matrix units, and a rival on those that have them.

Decodes in the kernel, on the way into BF16 or FP16 matrix units: exact, so the result differs from the reference by the
accumulation and the output's rounding alone. NVFP4 activations (W4A4) are decoded, too, to FP16; BF16 ones (W4A16) are
used as they are. Weights stay as the checkpoint has them: nothing is repacked. See docs/triton-dequant.md.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..backend import Availability, config_key, nothing_to_run
from ..dequant_space import check_config, check_gemm
from ..errors import UnsupportedError
from ..problem import Format, Op, OutDtype
from .compiler import bind, compile_kernel, triton_versions, why_no_triton
from .dequant_plan import check_problem, default_of, plan_of, row_tiles, seeds_of, space_of
from .pruning import SMALL_STACK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..backend import Config, ConfigValue, Space, StaticFacts
    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem
    from .dequant_plan import Plan

_MIN_CAPABILITY = (8, 0)
_OUT_TYPES = {OutDtype.BF16: "*bf16", OutDtype.FP16: "*fp16", OutDtype.FP32: "*fp32"}


class TritonDequant:
    """NVFP4 by decoding, on CUDA devices from SM80 on.

    Two kernels, by how many rows share a weight (M, or an expert's rows on average): `dequant_fragment` up to
    `dequant_plan.FRAGMENT_ROWS`, `dequant_tile` above. Their parameters are those of the kernels' functions, with
    `num_warps` and `num_stages` for the second.
    """

    name = "triton.dequant"

    def probe(self, device: Device) -> Availability:
        """Available on a CUDA device from SM80 on with a Triton that the kernels compile with."""
        why_not = _unfit(device) or why_no_triton()
        return Availability(not why_not, why_not)

    def versions(self, device: Device) -> dict[str, str]:  # noqa: ARG002 - part of the protocol
        """Triton's, whose wheel brings the assembler."""
        return triton_versions()

    def space(self, problem: Problem, device: Device) -> Space:
        """The search space of the kernel that is the problem's. Raises UnsupportedError."""
        self._check(problem, device)
        return space_of(problem, device.capability)

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """A rule of thumb: enough warps to keep memory busy. Raises UnsupportedError."""
        self._check(problem, device)
        return default_of(problem, device.capability, device.sms)

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """Configs that were among the best on an H200. Raises UnsupportedError."""
        self._check(problem, device)
        return seeds_of(problem, device.capability, device.sms)

    def compile(self, problem: Problem, device: Device, config: Config) -> StaticFacts:
        """Compile a config into Triton's cache, without a GPU.

        Raises:
            UnsupportedError: the config is not in the space, spills, or needs too much shared memory; or Triton or its
                cache cannot be used.
        """
        from .facts import refuse_unfit, static_facts

        check_config(self.name, config, self.space(problem, device))
        kernel = _compiled(problem, device.capability, plan_of(config))
        facts = static_facts(kernel)
        refuse_unfit(kernel, facts, max_stack_bytes=SMALL_STACK_BYTES)
        return facts

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """Build the callable: one launch on torch's current stream, which can be captured into a CUDA graph.

        With `split_k` it has scratch and counters of its own, so that two of its launches must not run at once.

        Raises:
            UnsupportedError: the problem or the config cannot be run here, or Triton cannot be used.
        """
        import torch

        check_gemm(self.name, problem)
        check_problem(self.name, problem)
        device = operands.out.device
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
        if capability < _MIN_CAPABILITY:
            raise UnsupportedError(f"{self.name} needs a CUDA device of compute capability 8.0, not {device}.")
        check_config(self.name, config, space_of(problem, capability))
        rows = operands.out.shape[0]
        if not rows:
            return nothing_to_run
        plan = plan_of(config)
        with torch.cuda.device(device):
            kernel = _loaded(problem, capability, config_key(config), torch.cuda.current_device())
            tiles = row_tiles(problem, rows, plan.block_m)
            return bind(kernel, plan.grid(problem, tiles), _arguments(problem, operands, plan, rows, tiles))

    def _check(self, problem: Problem, device: Device) -> None:
        unfit = _unfit(device)
        if unfit:
            raise UnsupportedError(f"{self.name} cannot be used. {unfit}")
        check_gemm(self.name, problem)
        check_problem(self.name, problem)


def _unfit(device: Device) -> str:
    """Why this kind of device can never be used, or nothing."""
    if device.kind != "cuda":
        return f"It needs a CUDA device, and {device.name} is a {device.kind} device."
    if device.capability < _MIN_CAPABILITY:
        return (
            f"It needs compute capability 8.0 (BF16 matrix units), and {device.name} has {device.compute_capability}."
        )
    return ""


@lru_cache(maxsize=16)
def _loaded(problem: Problem, capability: tuple[int, int], config: str, device: int) -> Any:  # noqa: ARG001 - a key
    """One kernel for all operand sets of a config: looked up and loaded onto the device once, not for every set."""
    return _compiled(problem, capability, plan_of(json.loads(config)))


def _compiled(problem: Problem, capability: tuple[int, int], plan: Plan) -> Any:
    """The compiled kernel of a plan; from Triton's cache if it was compiled before."""
    why_not = why_no_triton()
    if why_not:
        raise UnsupportedError(why_not)
    four_bit_a = problem.format is Format.NVFP4
    signature = {
        "x_ptr": "*u8" if four_bit_a else "*i32",
        "xs_ptr": "*u8",
        "w_ptr": "*u8",
        "ws_ptr": "*u8",
        "alpha_ptr": "*fp32",
        "out_ptr": _OUT_TYPES[problem.out_dtype],
        "scratch_ptr": "*fp32",
        "counter_ptr": "*i32",
        "tile_expert_ptr": "*i32",
        "tile_row_ptr": "*i32",
        "tile_rows_ptr": "*i32",
        "m_rows": "i32",
    }
    constexprs = {
        "N": problem.n,
        "K": problem.k,
        "GROUPED": problem.op is Op.GROUPED,
        "FOUR_BIT_A": four_bit_a,
        **plan.constexprs,
    }
    if plan.kernel == "fragment":
        from .dequant_fragment import fragment_gemm as kernel
    else:
        from .dequant_tile import tile_gemm as kernel
    return compile_kernel(
        kernel,
        signature=signature,
        constexprs=constexprs,
        target=capability,
        # A table is a row of a matrix, aligned to 4 bytes, and is read one element at a time.
        divisible_by_16=[name for name in signature if name.endswith("_ptr") and not name.startswith("tile_")],
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )


def _arguments(problem: Problem, operands: Operands, plan: Plan, rows: int, tiles: int) -> list[Any]:
    """What the kernels take, in their order. Scratch is made here, once, not in the call."""
    import torch

    from ..operands import Quantized
    from .grouping import tile_table

    a, b, device = operands.a, operands.b, operands.out.device
    if not isinstance(b, Quantized):
        raise TypeError("the weights of an NVFP4 problem are quantised")
    counter = torch.zeros(max(1, plan.counters(problem, tiles)), dtype=torch.int32, device=device)
    scratch = torch.empty(max(1, plan.partial_sums(problem, tiles)), dtype=torch.float32, device=device)
    if isinstance(a, Quantized):
        x, x_scale = a.packed, a.scale.view(torch.uint8)
    else:
        x, x_scale = a.view(torch.int32), b.scale.view(torch.uint8)  # the second is not read
    table = [counter, counter, counter]  # not read
    if operands.offsets is not None:
        made = tile_table(operands.offsets, rows, plan.block_m, device)
        table = [made.expert, made.first_row, made.rows]
    return [
        x, x_scale, b.packed, b.scale.view(torch.uint8), operands.alpha, operands.out, scratch, counter, *table, rows,
    ]  # fmt: skip
