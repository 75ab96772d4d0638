"""`flashinfer.b12x_moe`: b12x's fused MoE for SM12x in CuTe DSL (`b12x_fused_moe`).

It has no tactics. Which of its kernels runs follows from the routed rows, and the one choice that a server can make is
where it goes over from the static kernel to the dynamic one, by an environment variable. That is the parameter here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..backend import Config, ConfigValue, Parameter, Space
from ..dequant_space import check_config
from ..errors import UnsupportedError
from ..problem import Op
from . import moe_arguments
from .moe_base import Sm12x
from .seam import Seam, seam
from .tactics import DEFAULT
from .versions import DSL, installed_version, why_no_dsl

if TYPE_CHECKING:
    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem

CUTOVER_ENV = "FLASHINFER_B12X_STATIC_COMPACT_CUTOVER_PAIRS"
"""Routed rows up to which the static kernel is used, and for very few of them one of the micro kernels; 0: never.
moe_dispatch.py, `_get_static_compact_cutover_pairs`, which also reads three older names behind this one."""

_API = "flashinfer.fused_moe.cute_dsl.b12x_moe"
_DISPATCH = "flashinfer.fused_moe.cute_dsl.blackwell_sm12x.moe_dispatch"
_CONVERT = ("flashinfer.cute_dsl.utils", "convert_sf_to_mma_layout")
_REMEMBERED = "_STATIC_COMPACT_CUTOVER_PAIRS_CACHE"
"""What b12x remembers of the variable for each layer."""


class B12xMoe(Sm12x):
    """`b12x_fused_moe(quant_mode="nvfp4")`, BF16 in and out. Its kernels are compiled in the process, and kept on disk.

    Parameters:
        cutover_pairs: value of FLASHINFER_B12X_STATIC_COMPACT_CUTOVER_PAIRS in the process: `default` leaves it alone,
            0 takes the dynamic kernel, the problem's own number of routed rows the static one (or a micro kernel).

    Two other variables are no parameters: FLASHINFER_B12X_FORCE_MOE_W4A16 computes something else, and
    FLASHINFER_B12X_MICRO_SHARE_INPUT decides for another activation only (relu2).
    """

    name = "flashinfer.b12x_moe"
    op = Op.MOE
    # moe_dispatch.py, `_validate_w4a4_dimensions`.
    n_multiple = 16
    k_multiple = 128
    cuda = (13, 0)

    def why_not_here(self, device: Device) -> str:
        """CUDA 13 (b12x_moe.py) and CUTLASS's DSL."""
        return super().why_not_here(device) or why_no_dsl(self.name)

    def why_not_ready(self, flashinfer: Seam) -> str:
        """Releases without `input_global_scale` quantise x with the factor of the first product, which distorts it."""
        import inspect

        (fused_moe,) = flashinfer.need(_API, "b12x_fused_moe")
        if "input_global_scale" in inspect.signature(fused_moe).parameters:
            return ""
        return (
            f"b12x_fused_moe of FlashInfer {flashinfer.version} has no input_global_scale: it quantises the input with "
            "w1_alpha, which is wrong for a layer whose weights have a global scale; install flashinfer-python==0.7.4."
        )

    def versions(self, device: Device) -> dict[str, str]:
        """FlashInfer's and the DSL's, whose compiler decides how fast a kernel is."""
        return {**super().versions(device), "cutlass_dsl": installed_version(DSL)}

    def space_of(self, problem: Problem) -> Space:
        """The three values; see the class."""
        self.check_problem(problem)
        return Space((Parameter("cutover_pairs", (DEFAULT, 0, problem.m * problem.top_k)),))

    def default_of(self, problem: Problem) -> dict[str, ConfigValue]:
        """The environment as it is."""
        self.check_problem(problem)
        return {"cutover_pairs": DEFAULT}

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """The other two."""
        return list(self.space(problem, device))[1:]

    def check_problem(self, problem: Problem) -> None:
        """See Sm12x; and all experts are on this rank."""
        super().check_problem(problem)
        if problem.experts != problem.experts_total:
            raise UnsupportedError(
                f"{self.name} has no expert parallelism in nvfp4, and {problem.experts} of {problem.experts_total} "
                "experts are on this rank."
            )

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The public call, again and again, with the environment of the config.

        Raises:
            UnsupportedError: FlashInfer refuses the layer, or cannot compile or launch its kernel.
        """
        self.check_on_card(operands)
        check_config(self.name, config, self.space_of(problem))
        call = call_of(seam(), moe_arguments.of_operands(operands), problem)
        cutover = config["cutover_pairs"]

        def run() -> None:
            with environment(seam(), None if cutover == DEFAULT else int(cutover)):
                call()

        self.first_call(operands, config, run)
        return run


def call_of(flashinfer: Seam, given: moe_arguments.MoeArguments, problem: Problem) -> Callable[[], None]:
    """The public call, with our factors as b12x takes them. Read in its kernels; not run on a card yet.

    - `input_global_scale` is what x is divided by, 1/a_scale; b12x multiplies it back into the first product, so
      `w1_alpha` is the weights' own factor, 1/global scale. Without it `w1_alpha` would play both parts.
    - `fc2_input_scale` is what the intermediate is divided by, 1/mid_scale; it is not multiplied back, so `w2_alpha`
      holds both, 1/(mid_scale · global scale).
    """
    import torch

    fused_moe, convert = (*flashinfer.need(_API, "b12x_fused_moe"), *flashinfer.need(*_CONVERT))
    n, k, e = problem.n, problem.k, problem.experts
    w13_scale = convert(given.w13_scale.view(torch.float8_e4m3fn), m=2 * n, k=k, num_groups=e)
    w2_scale = convert(given.w2_scale.view(torch.float8_e4m3fn), m=k, k=n, num_groups=e)
    factors = {
        "w1_alpha": given.w13_global.reciprocal(),
        "input_global_scale": given.a_scale.reciprocal(),
        "fc2_input_scale": given.mid_scale.reciprocal(),
        "w2_alpha": given.alpha2,
    }

    def call() -> None:
        fused_moe(
            given.x,
            given.w13,
            w13_scale,
            given.w2,
            w2_scale,
            given.experts,
            given.weights,
            e,
            problem.top_k,
            output=given.out,
            quant_mode="nvfp4",
            **factors,
        )

    return call


@contextlib.contextmanager
def environment(flashinfer: Seam, cutover_pairs: int | None) -> Iterator[None]:
    """Within the block b12x goes over to its dynamic kernel beyond so many routed rows; None: where it would anyway."""
    (remembered,) = flashinfer.need(_DISPATCH, _REMEMBERED)
    before = os.environ.get(CUTOVER_ENV)
    if cutover_pairs is None:
        yield
        return
    os.environ[CUTOVER_ENV] = str(cutover_pairs)
    remembered.clear()
    try:
        yield
    finally:
        remembered.clear()
        del os.environ[CUTOVER_ENV]
        if before is not None:
            os.environ[CUTOVER_ENV] = before
