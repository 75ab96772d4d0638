"""`flashinfer.cutlass_moe`: CUTLASS's fused MoE in C++ (`cutlass_fused_moe`), its two products pinned to tactics.

`profile_ids` is FlashInfer's public way to name the tactics of a call, so nothing of its AutoTuner is shadowed to run
one. Its AutoTuner is only listened to for the keys of a cache file (`captured`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..backend import Config, ConfigValue, Constraint, Parameter, Space
from ..dequant_space import check_config
from ..errors import UnsupportedError
from ..problem import Op, OutDtype
from . import moe_arguments
from .moe_base import Sm12x
from .moe_tactics import FINALIZE, PARAMETERS, MoeTactics, tactics_of_sources
from .seam import Call, Seam, seam
from .stand_ins import replaced_everywhere
from .tactics import DEFAULT

if TYPE_CHECKING:
    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem

_CORE = "flashinfer.fused_moe.core"
_NAMES = ("cutlass_fused_moe", "get_cutlass_fused_moe_module", "gen_cutlass_fused_moe_sm120_module")


class CutlassMoe(Sm12x):
    """`cutlass_fused_moe`, BF16 in: it quantises x while it sorts the tokens by expert.

    Parameters:
        gemm1_tile, gemm1_swap_ab: CTA tile of the first product, MxNxK in elements, and whether tokens are on N.
        gemm2_tile, gemm2_swap_ab: of the second.
        finalize: `fused` (FlashInfer's default; the sum over a token's experts by atomic additions in the second
            product, not deterministic) or `separate` (a kernel of its own, deterministic).

    The four others are `default` together: FlashInfer's own choice.
    """

    name = "flashinfer.cutlass_moe"
    op = Op.MOE
    out_dtypes = (OutDtype.BF16, OutDtype.FP16)
    # The binding wants the scales of w13 as two halves of rows padded to 64 (alignToSfDim with MinKDimAlignmentNVFP4),
    # of 2N rows padded to 128 as we have them that is the same only for such N. K: TMA's 16 bytes of both products.
    n_multiple = 64
    k_multiple = 32

    def space_of(self, problem: Problem) -> Space:
        """Every pair of tactics, with the finalize fused and separate, and FlashInfer's own choice with each."""
        self.check_problem(problem)
        tiles = self.tactics().tiles
        parameters = (
            Parameter("gemm1_tile", (DEFAULT, *tiles)),
            Parameter("gemm1_swap_ab", (DEFAULT, False, True)),
            Parameter("gemm2_tile", (DEFAULT, *tiles)),
            Parameter("gemm2_swap_ab", (DEFAULT, False, True)),
            Parameter(FINALIZE, ("fused", "separate")),
        )
        return Space(parameters, (Constraint("tactics are FlashInfer's choice for both products or for none", _whole),))

    def default_of(self, problem: Problem) -> dict[str, ConfigValue]:
        """FlashInfer's own tactics, the finalize fused."""
        self.check_problem(problem)
        return {**dict.fromkeys(PARAMETERS[:-1], DEFAULT), FINALIZE: "fused"}

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """FlashInfer's own tactics with the finalize separate: what an engine gets that asks for determinism."""
        return [self.default(problem, device) | {FINALIZE: "separate"}]

    def check_problem(self, problem: Problem) -> None:
        """See Sm12x; and ranks hold equally many experts each, because the call says it by the number of ranks."""
        super().check_problem(problem)
        if problem.experts_total % problem.experts:
            raise UnsupportedError(
                f"{self.name} needs ranks with equally many experts, and {problem.experts_total} are not divided "
                f"evenly by {problem.experts}."
            )

    def tactics(self) -> MoeTactics:
        """The installed release's."""
        flashinfer = seam()
        return tactics_of_sources(package_of(flashinfer), flashinfer.version)

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The public call, again and again.

        Raises:
            UnsupportedError: FlashInfer cannot launch the tactics here, or has others than its sources say.
        """
        self.check_on_card(operands)
        check_config(self.name, config, self.space_of(problem))
        flashinfer, tactics = seam(), self.tactics()
        pair, fused = tactics.encode(config)
        given = moe_arguments.of_operands(operands)

        def run() -> None:
            call(flashinfer, given, problem, fused=fused, profile_ids=list(pair))

        self.first_call(operands, config, run)
        check_counts(flashinfer, tactics)
        return run


def call(
    flashinfer: Seam,
    given: moe_arguments.MoeArguments,
    problem: Problem,
    *,
    fused: bool,
    profile_ids: Sequence[int] | None,
) -> None:
    """Call `cutlass_fused_moe` for the first rank of those that share the experts.

    Args:
        flashinfer: the seam.
        given: the tensors.
        problem: whose they are.
        fused: whether the finalize may be fused.
        profile_ids: tactics of both products, -1 for FlashInfer's choice; None asks its AutoTuner.
    """
    import torch

    (fused_moe,) = flashinfer.need(_CORE, _NAMES[0])
    fused_moe(
        given.x,
        given.experts,
        given.weights,
        given.w13.view(torch.int64),
        given.w2.view(torch.int64),
        given.out.dtype,
        [
            given.a_scale.view(()),
            given.w13_scale.view(torch.int32),
            given.alpha,
            given.mid_scale,
            given.w2_scale.view(torch.int32),
            given.alpha2,
        ],
        ep_size=problem.experts_total // problem.experts,
        ep_rank=0,
        output=given.out,
        use_fused_finalize=fused,
        profile_ids=None if profile_ids is None else list(profile_ids),
    )


def captured(flashinfer: Seam, problem: Problem, device: Device, *, fused: bool) -> tuple[Call, Call]:
    """What FlashInfer's AutoTuner is asked for the two products of a layer on a card that need not be here.

    The keys of both follow (`Seam.key`), and with `offered` the tactics.

    Raises:
        UnsupportedError: FlashInfer asks otherwise than it did.
    """
    tactics = tactics_of_sources(package_of(flashinfer), flashinfer.version)
    with (
        flashinfer.on(device.capability, device.sms),
        _without_module(flashinfer, tactics),
        flashinfer.intercept(stop_after=2) as calls,
    ):
        call(flashinfer, moe_arguments.stand_ins(problem), problem, fused=fused, profile_ids=None)
    if [c.op for c in calls] != ["trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2"]:
        raise UnsupportedError(f"FlashInfer {flashinfer.version} tunes its MoE in a way that fp4tune does not know.")
    return calls[0], calls[1]


def offered(flashinfer: Seam, calls: tuple[Call, Call]) -> tuple[list[int], list[int]]:
    """The tactics that FlashInfer itself would try for the two products, in its order."""
    found = []
    for stage, one in enumerate(calls, start=1):
        one.runners[0].gemm_idx_for_tuning = stage  # both calls have the same runner, which is told the stage before
        found.append([int(tactic) for tactic in flashinfer.tactics(one)])
    return found[0], found[1]


def check_counts(flashinfer: Seam, tactics: MoeTactics) -> None:
    """Compare what the loaded module says of its lists with what its sources say.

    Raises:
        UnsupportedError: they differ, so that an index means something else.
    """
    import torch

    (module,) = flashinfer.need(_CORE, _NAMES[1])
    for key, runner in module("120").MoERunner.runner_dict.items():
        # (x, weight, output dtype, ..., use_fused_finalize, humming); packed NVFP4 weights are int64.
        if key[1] is not torch.int64:
            continue
        counts = (runner.get_gemm1_tactic_count(), runner.get_gemm2_tactic_count())
        if counts != (tactics.n_gemm1, tactics.n_gemm2(fused=bool(key[-2]))):
            raise UnsupportedError(
                f"FlashInfer {flashinfer.version} was built with {counts[0]} and {counts[1]} MoE tactics, and its "
                f"sources list {tactics.n_gemm1} and {tactics.n_gemm2(fused=bool(key[-2]))}: install it anew."
            )


def package_of(flashinfer: Seam) -> Path:
    """The folder of the installed package."""
    return flashinfer.package


def _whole(config: Config) -> bool:
    chosen = [config[name] == DEFAULT for name in PARAMETERS[:-1]]
    return all(chosen) or not any(chosen)


@contextlib.contextmanager
def _without_module(flashinfer: Seam, tactics: MoeTactics) -> Iterator[None]:
    """Within the block the native module, which is not built for a question, is one that only counts."""
    _, load, describe = flashinfer.need(_CORE, *_NAMES)
    # Without its cache: what stands in must not be remembered.
    (fresh,) = flashinfer.need(_CORE, f"{_NAMES[1]}.__wrapped__")

    def init(*options: Any) -> SimpleNamespace:
        return SimpleNamespace(
            get_gemm1_tactic_count=lambda: tactics.n_gemm1,
            get_gemm2_tactic_count=lambda: tactics.n_gemm2(fused=bool(options[-2])),
            run_moe=lambda *_: None,
        )

    native = SimpleNamespace(
        init=init, set_deepgemm_jit_include_dirs=lambda _: None, interleave_moe_weights_for_sm90_mixed_gemm=None
    )
    spec = SimpleNamespace(build_and_load=lambda: native)
    with replaced_everywhere(describe, lambda *_: spec), replaced_everywhere(load, fresh):
        yield
