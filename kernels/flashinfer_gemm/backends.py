"""The five dense NVFP4 backends of FlashInfer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from .. import cuda_stack
from ..backend import Config, ConfigValue, StaticFacts
from ..dequant_space import check_config
from ..errors import UnsupportedError
from ..problem import OutDtype
from .dense import Dense, offers
from .native_build import why_not_built
from .offers import PAD_M
from .seam import Seam, seam
from .tactics import B12xCodec, Codec, CudnnCodec, CuteDslCodec, CutlassCodec, TrtllmCodec
from .versions import DSL, JIT_CACHE, installed_version, unfit_version, why_no_dsl

if TYPE_CHECKING:
    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem
    from .arguments import Arguments

ARCH_LIST = "FLASHINFER_CUDA_ARCH_LIST"
"""Environment variable that says which architectures FlashInfer builds its native kernels for."""

_B12X_KERNEL = "flashinfer.gemm.kernels.dense_blockscaled_gemm_sm120_b12x"


class _Dsl(Dense):
    """Backends whose kernels CUTLASS's DSL compiles in the process, for which no card is needed."""

    compile_s: ClassVar[float] = 120.0
    """Seconds for one kernel: `raw` took 24 on a core that it shared with three others; see CompileNeed."""

    def versions(self, device: Device) -> dict[str, str]:
        """FlashInfer's and the DSL's, whose compiler decides how fast a kernel is."""
        return {**super().versions(device), "cutlass_dsl": installed_version(DSL)}

    def compile(self, problem: Problem, device: Device, config: Config) -> StaticFacts:
        """Compile a config's kernel for the device's architecture. 3 to 25 s, 0.5 GB, one core; needs no device.

        What b12x compiles is not kept (FlashInfer has no cache for it), so its process compiles it again in 3 s; what
        cute-dsl compiles is kept in FlashInfer's cache.

        Raises:
            UnsupportedError: FlashInfer or the DSL is missing, it spills, or it lacks the FP4 instruction.
        """
        from .dsl_compile import compile_config

        reason = self.why_not_on(device) or unfit_version() or why_no_dsl(self.name)
        if reason:
            raise UnsupportedError(f"{self.name} cannot be used. {reason}")
        check_config(self.name, config, offers(self, problem, device).space)
        return compile_config(self, problem, device, config)


class B12x(_Dsl):
    """`mm_fp4(backend="b12x")`: FlashInfer's own warp-level kernel for SM12x, its first choice on SM120.

    Parameters: tile_m, tile_n (of D, in elements), cluster, swap_ab (tokens on N, for small M), prefetch (of TMA
    descriptors and tiles), pad_m. Which tile the default takes depends on M, N, K and the number of SMs.
    """

    name = "flashinfer.b12x"
    backend = "b12x"

    def why_not_here(self, device: Device) -> str:  # noqa: ARG002 - of the card it asks nothing more
        """CUDA 12.9 (gemm_base.py: _MIN_B12X_CUDA_VERSION) and the DSL."""
        return cuda_stack.why_cuda_too_old((12, 9), self.name) or why_no_dsl(self.name)

    def codec(self, flashinfer: Seam) -> Codec:  # noqa: ARG002 - it is the same in every release
        """See B12xCodec."""
        return B12xCodec()

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """The tile that the default takes, with prefetch, which the default does not use."""
        (choose,) = seam().need(_B12X_KERNEL, "_select_default_dense_gemm_plan")
        plan = choose(problem.m, problem.n, problem.k, device.sms, expected_m=problem.m)
        tactic = (tuple(plan.mma_tiler_mn), (1, 1), bool(plan.swap_ab), True, "sm120", None)
        seed: dict[str, ConfigValue] = {**B12xCodec().decode(tactic), PAD_M: 0}
        return [seed] if seed in offers(self, problem, device).space else []


class CuteDsl(_Dsl):
    """`mm_fp4(backend="cute-dsl")` on SM12x, which FlashInfer never chooses by itself.

    Parameters: kernel (`independent` and `independent_tma` choose their tiles by the shape; `raw` is a persistent
    kernel, only where M and N are multiples of 128 and K of 256), the fields of a raw kernel, pad_m.
    """

    name = "flashinfer.cute_dsl"
    backend = "cute-dsl"
    out_dtypes = (OutDtype.BF16,)
    k_multiple = 64
    n_multiple = 64

    def why_not_here(self, device: Device) -> str:  # noqa: ARG002 - of the card it asks nothing more
        """A PyTorch for CUDA 13 (sm12x_cute/runner.py: check_requirement) and the DSL."""
        return cuda_stack.why_torch_too_old((13, 0), self.name) or why_no_dsl(self.name)

    def codec(self, flashinfer: Seam) -> Codec:  # noqa: ARG002 - it is the same in every release
        """See CuteDslCodec."""
        return CuteDslCodec()

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """Every kernel without padding: there are one to five."""
        return [config for config in offers(self, problem, device).space.listed[1:] if config[PAD_M] == 0]


class Cutlass(Dense):
    """`mm_fp4(backend="cutlass")`: CUTLASS's GEMM in C++, one library for all tactics, built by nvcc or installed.

    Parameters: tile_m, tile_n, tile_k (CTA tile in elements), swap_ab, scheduler (`static` or `stream_k`), pad_m.
    FlashInfer offers all of them for every shape; those that do not fit fail when they are launched, and are refused
    then. Its default is its tactic 21: 128x128x256, static, not swapped.
    """

    name = "flashinfer.cutlass"
    backend = "cutlass"

    def why_not_here(self, device: Device) -> str:
        """CUDA 12.8 for 12.0 and 12.9 for 12.1 (compilation_context.py), and nvcc unless the kernels are installed."""
        minimum = (12, 9) if device.capability == (12, 1) else (12, 8)
        return cuda_stack.why_cuda_too_old(minimum, self.name)

    def why_not_ready(self, flashinfer: Seam) -> str:
        """Its library is built by a command, not in a trial: it takes an hour on a small machine."""
        return why_not_built(flashinfer, self.name)

    def codec(self, flashinfer: Seam) -> Codec:
        """With the tiles of the installed header."""
        return CutlassCodec(flashinfer.cutlass_tiles())

    def versions(self, device: Device) -> dict[str, str]:
        """FlashInfer's, and what built its library."""
        return {**super().versions(device), **built_by()}


class Cudnn(Dense):
    """`mm_fp4(backend="cudnn")`: cuDNN's plans, by engine and knobs, which only the card can list.

    When a plan fails, FlashInfer warns and runs cuDNN's own choice; here that is a refusal.
    """

    name = "flashinfer.cudnn"
    backend = "cudnn"
    live_only: ClassVar[bool] = True

    def why_not_here(self, device: Device) -> str:  # noqa: ARG002 - of the card it asks nothing more
        """At least cuDNN 9.10.2 and its frontend 1.13 (gemm_base.py: _check_cudnn_fp4_availability)."""
        return cuda_stack.why_cudnn_too_old((9, 10, 2), self.name)

    def codec(self, flashinfer: Seam) -> Codec:  # noqa: ARG002 - it is the same in every release
        """See CudnnCodec."""
        return CudnnCodec()

    def versions(self, device: Device) -> dict[str, str]:
        """FlashInfer's, cuDNN's and its frontend's: either may renumber the engines."""
        found = {"cudnn": cuda_stack.cudnn_version(), "cudnn_frontend": cuda_stack.cudnn_frontend_version()}
        return {
            **super().versions(device),
            **{name: cuda_stack.dotted(version) for name, version in found.items() if version},
        }


class Trtllm(Dense):
    """`mm_fp4(backend="trtllm")` on SM100 and SM103: TensorRT-LLM's cubins, on weights with shuffled rows."""

    name = "flashinfer.trtllm"
    backend = "trtllm"
    capabilities = ((10, 0), (10, 3))
    out_dtypes = (OutDtype.BF16,)
    n_multiple = 128
    live_only: ClassVar[bool] = True

    def why_not_here(self, device: Device) -> str:  # noqa: ARG002 - of the card it asks nothing more
        """CUDA 12.8, the first with SM100."""
        return cuda_stack.why_cuda_too_old((12, 8), self.name)

    def why_not_ready(self, flashinfer: Seam) -> str:
        """Its launcher is built by a command, and its cubins are downloaded by FlashInfer."""
        return why_not_built(flashinfer, self.name)

    def codec(self, flashinfer: Seam) -> Codec:
        """With the artifact that the installed release downloads."""
        (path,) = flashinfer.need("flashinfer.artifacts", "ArtifactPath.TRTLLM_GEN_GEMM")
        return TrtllmCodec(str(path).strip("/"))

    def versions(self, device: Device) -> dict[str, str]:
        """FlashInfer's, and what built its launcher."""
        return {**super().versions(device), **built_by()}

    def arguments(self, operands: Operands) -> Arguments:
        """With B's rows and their scales shuffled, once for a B."""
        from .shuffled import shuffled_arguments

        return shuffled_arguments(seam(), operands)


def built_by() -> dict[str, str]:
    """What built FlashInfer's native kernels: the package that holds them, or nvcc; and for what, if that is set.

    Kernels built for another architecture than the card's were reported to return garbage (flashinfer issue 2723).
    """
    found = {}
    if os.environ.get(ARCH_LIST):
        found["flashinfer_arch_list"] = os.environ[ARCH_LIST]
    cached, nvcc = installed_version(JIT_CACHE), cuda_stack.nvcc()
    if cached:
        found["flashinfer_jit_cache"] = cached
    elif nvcc:
        found["nvcc"] = cuda_stack.dotted(nvcc.version)
    return found
