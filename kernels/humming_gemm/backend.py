"""The backend `humming`. See the package's page, docs/humming.md."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..backend import Availability, Config, ConfigValue, Space, StaticFacts
from ..dequant_space import check_config, check_gemm
from ..errors import UnsupportedError
from .figures import figures_of
from .plan import Plan, heuristic_rows, make_plan, target, unfit_device
from .schedule import decode, encode, gemm_type_of
from .space import build_space, restrict
from .values import Ground, mma_choices
from .versions import installed_version, unfit_version

if TYPE_CHECKING:
    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem
    from .seam import Library

MAX_STACK_BYTES = 512
"""Stack a thread that a compiled schedule may have: a good one has none or a little over a hundred bytes, one that does
not fit spills kilobytes (9 KB seen; sm_90a and sm_120a, nvrtc 13.0). Humming's own default is exempt."""

_SEEDS = 4


class Humming:
    """NVFP4 W4A16 from SM80 on and W4A4 on SM12x, dense and grouped.

    Parameters (which of them a problem has depends on the card and on the installed version):
        gemm_type: `indexed` or `grouped_contiguous`. Grouped only.
        mma: matrix instruction, `mma`, `wgmma`, `wgmma_split` (issued and awaited apart), `mxmma`, `umma`.
        warp_m, m_warps: rows of a warp's tile, and warps along M of a block; block_m is the product.
        warp_n, n_warps: the same along N. warp_k, k_warps: and along K.
        stages: tiles in flight. ctas_per_sm: blocks of a multiprocessor.
        stream_k: blocks share the tiles' K evenly; partial sums are added up in D.
        load: `async`, `tma`, or `tma_ws` (by warps of their own); D is stored by TMA where tiles are loaded so.
        multicast_a: blocks that share a tile of A. raster_m: rows of tiles that are walked together.
        reuse: which stages' shared memory the epilogue may use. evict_weights_first: a hint to L2.
        store, max_sms, pdl, producer_unroll, consumer_unroll, producer_registers, chunk_rows, cta_group,
        dequant_warpgroups: only where Humming's heuristic sets them.
    """

    name = "humming"

    def probe(self, device: Device) -> Availability:
        """Whether Humming, a compiler for it and a card for both are here. Imports Humming only if a card is."""
        from . import seam

        unfit = unfit_device(device) or unfit_version()
        if unfit:
            return Availability(False, unfit)
        try:
            import torch

            if not torch.cuda.is_available() or device.index >= torch.cuda.device_count():
                return Availability(False, f"PyTorch {torch.__version__} does not see CUDA device {device.index}.")
            humming = seam.load()
            unwritable = humming.unwritable()
            if unwritable:
                return Availability(False, unwritable)
            with humming.seen_as(device):
                humming.compiler()
        except UnsupportedError as error:
            return Availability(False, str(error))
        except Exception as error:  # noqa: BLE001 - a broken installation may raise anything, and probe never does
            return Availability(False, f"Humming cannot be used ({type(error).__name__}: {error}).")
        return Availability(True)

    def versions(self, device: Device) -> dict[str, str]:
        """Humming, torch, CUDA and the compiler: the one that compiles decides which schedules are fast."""
        from . import seam

        try:
            import torch

            humming = seam.load()
            with humming.seen_as(device):
                compiler = humming.compiler()
        except Exception:  # noqa: BLE001 - probe says why
            return {}
        return {
            "humming": installed_version(),
            "humming_compiler": compiler,
            "torch": str(torch.__version__),
            **({"cuda": str(torch.version.cuda)} if torch.version.cuda else {}),
        }

    def space(self, problem: Problem, device: Device) -> Space:
        """See the class."""
        return known(problem, device).space

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """What Humming's heuristic does for this shape in an engine."""
        return dict(known(problem, device).default)

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """What the heuristic does for neighbouring M, and for the other kind of grouped GEMM."""
        return [dict(seed) for seed in known(problem, device).seeds]

    def compile(self, problem: Problem, device: Device, config: Config) -> StaticFacts:
        """See Compiling. Runs nvrtc or nvcc as a process, 2 to 6 s for one config; 0.4 GB."""
        from . import seam
        from .cubin import kernel_facts

        found = known(problem, device)
        check_config(self.name, config, found.space)
        humming = seam.load()
        unwritable = humming.unwritable()
        if unwritable:
            raise UnsupportedError(unwritable)
        with humming.seen_as(device):
            humming.compiler()
            path, shared_bytes = humming.compile(found.plan, gemm_type_of(config), _tuning(humming, config))
        facts = kernel_facts(path, target=target(found.plan.sm), shared_bytes=shared_bytes)
        if facts.stack_bytes > MAX_STACK_BYTES and dict(config) != found.default:
            raise UnsupportedError(
                f"humming compiled this schedule for {facts.target} with {facts.stack_bytes} bytes of stack a thread, "
                f"{MAX_STACK_BYTES} are accepted."
            )
        return facts

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The callable launches one kernel on the current stream and can be captured into a CUDA graph.

        Weights are repacked once for a B; NVFP4 activations of a W4A16 kernel are decoded to 16 bits here, exactly,
        and are no part of what is timed.
        """
        from ..device import detect_once
        from . import seam
        from .launch import prepare_launch

        if not operands.out.is_cuda:
            raise UnsupportedError("humming runs on CUDA devices, and the operands are elsewhere.")
        device = detect_once(f"cuda:{operands.out.device.index or 0}")
        found = known(problem, device)
        check_config(self.name, config, found.space)
        humming = seam.load()
        return prepare_launch(humming, found.plan, operands, config, _tuning(humming, config), device)


class Known:
    """What is worked out once for a problem on a device.

    Attributes:
        plan: it in Humming's terms. space: the search space. default: the heuristic's config. seeds: its neighbours.
    """

    def __init__(self, problem: Problem, device: Device) -> None:
        from . import seam

        self.plan = make_plan(problem, device)
        humming = seam.load()
        try:
            with humming.seen_as(device):
                usual = humming.default_mma(self.plan)
                found = [
                    decode(humming.heuristic(self.plan, gemm_type, rows, device), gemm_type, mma=usual, sms=device.sms)
                    for gemm_type, rows in _asked(self.plan)
                ]
                mmas = mma_choices(self.plan, str(found[0]["mma"]), tuned="mma_type" in humming.fields)
                ground = Ground(
                    self.plan,
                    device,
                    max_shared=figures_of(device).max_smem_size,
                    mma_rows=humming.mma_rows,
                    mmas=mmas,
                    default=found[0],
                    others=tuple(found[1:]),
                )
                self.space = build_space(ground, humming)
        except UnsupportedError:
            raise
        except Exception as error:  # its heuristics assert, and look cards up that they do not know
            said = f"{type(error).__name__}: {error}".rstrip(": .")
            raise UnsupportedError(
                f"Humming {installed_version()} has no schedule for {problem.key} on {device.name} ({said})."
            ) from error
        self.default = restrict(found[0], self.space)
        self.seeds: list[dict[str, ConfigValue]] = []
        for decoded in found[1:]:
            seed = restrict(decoded, self.space)
            if seed in self.space and seed != self.default and seed not in self.seeds:
                self.seeds.append(seed)


@functools.lru_cache(maxsize=64)
def known(problem: Problem, device: Device) -> Known:
    """What `Known` says, worked out once in a process: asking Humming takes milliseconds.

    Raises:
        UnsupportedError: Humming cannot run the problem on the device, or cannot be used.
    """
    check_gemm(Humming.name, problem)
    return Known(problem, device)


def _asked(plan: Plan) -> list[tuple[str, int]]:
    """(kind of GEMM, M) that the heuristic is asked for: what an engine would ask, then its neighbours."""
    grouped = bool(plan.experts)
    rows = [heuristic_rows(m, sm=plan.sm, grouped=grouped) for m in (plan.rows, 2 * plan.rows, max(1, plan.rows // 2))]
    asked = [(plan.gemm_types[0], rows[0]), *((other, rows[0]) for other in plan.gemm_types[1:])]
    asked += [(plan.gemm_types[0], m) for m in rows[1:]]
    return list(dict.fromkeys(asked))[: 1 + _SEEDS]


def _tuning(humming: Library, config: Config) -> dict[str, Any]:
    """A config as the installed version spells it."""
    return encode(config, fields=humming.fields)
