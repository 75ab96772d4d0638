"""`torch.bf16`: BF16 weights and cuBLAS, which is what a layer costs that nobody quantised.

For BF16 problems it is a backend like any other. For NVFP4 ones it is a baseline: measured beside the others and never
served, because the weights that it reads are a copy 3.6 times as large. Weights and NVFP4 activations are decoded when
a config is prepared, once, to code · scale, which BF16 holds exactly; the global scales are applied to the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from . import _torch_cuda
from .backend import Availability, Config, ConfigValue, Constraint, Parameter, Space, nothing_to_run
from .dequant_space import check_config, check_gemm
from .errors import OutOfMemoryError, UnsupportedError
from .operands import Quantized, required_bytes
from .problem import Format, Op, OutDtype

if TYPE_CHECKING:
    import torch

    from .device import Device
    from .operands import Operands
    from .problem import Problem

_CHUNK = 1 << 24
"""Elements that are decoded at a time; the temporaries of a chunk take some 10 bytes an element."""

_GROUPED_MAJORS = (9, 10)
"""Major compute capabilities with a kernel behind torch's grouped product; elsewhere torch copies the offsets to the
host and loops, which cannot be captured into a CUDA graph (aten/src/ATen/native/cuda/GroupedBlas.cpp)."""

_GROUPED_ALIGNMENT = 8
"""BF16 elements in 16 bytes: what TMA wants every row of a grouped product's operands and result to begin at."""

_GROUPED_MAX = 1024
"""Most groups of torch's grouped product."""


class TorchBf16:
    """BF16 on CUDA devices from SM80 on.

    Parameters:
        method: `grouped_mm` (one launch for all experts, where torch has a kernel for it) or `loop` (one product for
            every expert that has rows). Grouped only.
        library: `cublas` or `cublaslt`: which of them torch asks for a product.
        reduction: dtype that partial sums of a split-K product may be rounded to; `bfloat16` is what torch allows when
            nobody says otherwise.
        swap_ab: multiply B · Aᵀ and transpose the product, instead of A · Bᵀ.
    """

    name = "torch.bf16"

    def serves(self, problem: Problem) -> bool:
        """Only what is in BF16 anyway."""
        return problem.format is Format.BF16

    def probe(self, device: Device) -> Availability:
        """Available on a CUDA device from SM80 on that this build of torch has kernels for."""
        return _torch_cuda.probe(device)

    def versions(self, device: Device) -> dict[str, str]:  # noqa: ARG002 - part of the protocol
        """torch, CUDA, cuBLAS and the driver, as far as they are there."""
        return _torch_cuda.versions()

    def space(self, problem: Problem, device: Device) -> Space:
        """See the class. Raises OutOfMemoryError, too, if the weights do not fit in BF16."""
        unfit = _torch_cuda.why_unfit(device)
        if unfit:
            raise UnsupportedError(f"{self.name} cannot be used. {unfit}")
        needed = required_bytes(problem) + _weights_bytes(problem)
        if needed > device.memory_bytes:
            raise OutOfMemoryError(
                f"{problem.shape} with its weights in BF16 needs {needed / 2**30:.1f} GiB, "
                f"the device has {device.memory_bytes / 2**30:.1f} GiB ({device.name})."
            )
        if problem.out_dtype is not OutDtype.BF16 and not _torch_cuda.wide_products():
            raise UnsupportedError(
                f"{self.name} needs PyTorch 2.8 or newer, with CUDA, for a product of BF16 in "
                f"{problem.out_dtype.value.upper()}."
            )
        return _space(problem, device.capability)

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """One grouped product where there is one; cuBLAS, sums in float32, not swapped."""
        return {p.name: p.values[0] for p in self.space(problem, device).parameters}

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """What torch does when nobody says anything, then cuBLASLt, then one product an expert."""
        space, default = self.space(problem, device), self.default(problem, device)
        guesses: list[dict[str, ConfigValue]] = [
            {"method": "loop", "reduction": "bfloat16"},
            {"method": "loop", "library": "cublaslt", "reduction": "bfloat16"},
            {"method": "loop"},
        ]
        configs = [{k: guess.get(k, v) for k, v in default.items()} for guess in guesses]
        return [c for i, c in enumerate(configs) if c in space and c != default and c not in configs[:i]]

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The callable launches on the current stream and can be captured into a CUDA graph.

        The first config of a problem decodes the weights; the others find them in `operands.packed`.
        """
        import torch

        on_cuda = operands.out.is_cuda
        capability = torch.cuda.get_device_capability(operands.out.device) if on_cuda else None
        check_config(self.name, config, _space(problem, capability))
        a, b = _activations(operands), _weights(operands)
        gemm = _by_grouped_product if config.get("method") == "grouped_mm" else _by_products
        return _torch_cuda.with_matmul_settings(
            gemm(operands, a, b, swap_ab=bool(config["swap_ab"])),
            reduced_sums=config["reduction"] == "bfloat16",
            library=str(config["library"]) if on_cuda else None,
        )


def _space(problem: Problem, capability: tuple[int, int] | None) -> Space:
    """The space on a device of this compute capability; None for operands on a CPU, where torch can do all of it."""
    check_gemm(TorchBf16.name, problem)
    reductions = ("float32", "bfloat16") if problem.out_dtype is OutDtype.BF16 else ("float32",)
    parameters = (
        Parameter("library", ("cublas", "cublaslt")),
        Parameter("reduction", reductions),
        Parameter("swap_ab", (False, True)),
    )
    if problem.op is Op.DENSE:
        return Space(parameters)
    methods = ("grouped_mm", "loop") if _has_grouped_product(problem, capability) else ("loop",)
    untouched = {p.name: p.values[0] for p in parameters}

    def holds(config: Config) -> bool:
        return config["method"] == "loop" or all(config[name] == value for name, value in untouched.items())

    sentence = "the other parameters are what cuBLAS is told, which grouped_mm does not ask"
    return Space((Parameter("method", methods), *parameters), (Constraint(sentence, holds),))


def _has_grouped_product(problem: Problem, capability: tuple[int, int] | None) -> bool:
    """Whether torch has one launch for all experts of a problem: BF16 results only, rows of whole 16 bytes."""
    import torch

    fits = problem.out_dtype is OutDtype.BF16 and problem.experts <= _GROUPED_MAX
    aligned = problem.n % _GROUPED_ALIGNMENT == 0 and problem.k % _GROUPED_ALIGNMENT == 0
    offered = hasattr(torch.nn.functional, "grouped_mm") or hasattr(torch, "_grouped_mm")
    return fits and aligned and offered and (capability is None or capability[0] in _GROUPED_MAJORS)


def _by_products(operands: Operands, a: torch.Tensor, b: torch.Tensor, *, swap_ab: bool) -> Callable[[], None]:
    """A product for the whole, or for every expert that has rows."""
    out = operands.out
    alphas = operands.alpha.tolist()
    if operands.offsets is None:
        parts = [(0, out.shape[0], b, alphas[0])]
    else:
        bounds = enumerate(pairwise(operands.offsets.tolist()))
        parts = [(first, last, b[e], alphas[e]) for e, (first, last) in bounds if last > first]
    height = max((last - first for first, last, _, _ in parts), default=0)
    product_dtype = a.dtype if out.dtype == a.dtype else _float32()
    needs_buffer = swap_ab or product_dtype != out.dtype
    buffer = out.new_empty(height * out.shape[1] if needs_buffer else 0, dtype=product_dtype)
    calls = [
        _product(out[first:last], a[first:last], w, alpha, buffer, swap_ab=swap_ab) for first, last, w, alpha in parts
    ]

    def run() -> None:
        for call in calls:
            call()

    return run


def _product(
    out: torch.Tensor, a: torch.Tensor, w: torch.Tensor, alpha: float, buffer: torch.Tensor, *, swap_ab: bool
) -> Callable[[], None]:
    """Multiply into `out` alpha · a · wᵀ, through `buffer` if it has elements.

    cuBLAS applies alpha to the sum in float32, before it rounds (the `alpha` of cublasGemmEx).
    """
    import torch

    left, right = (w, a.t()) if swap_ab else (a, w.t())
    product = buffer[: out.numel()].view(left.shape[0], right.shape[1]) if buffer.numel() else out
    result = product.t() if swap_ab else product
    if product.dtype != a.dtype:

        def wide() -> None:
            torch.mm(left, right, out_dtype=product.dtype, out=product)
            if alpha != 1 or result is not out:
                torch.mul(result, alpha, out=out)

        return wide

    def call() -> None:
        if alpha == 1:
            torch.mm(left, right, out=product)
        else:
            torch.addmm(product, left, right, beta=0, alpha=alpha, out=product)
        if result is not out:
            out.copy_(result)

    return call


def _by_grouped_product(
    operands: Operands,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    swap_ab: bool,  # noqa: ARG001 - as _by_products
) -> Callable[[], None]:
    """One product for all experts, then every row times its expert's alpha: torch's has neither `out` nor alpha."""
    import torch

    out, offsets = operands.out, operands.offsets
    if offsets is None:
        raise UnsupportedError("A dense problem has no experts to group.")
    if not out.numel():
        return nothing_to_run
    grouped: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm  # noqa: SLF001 - its name in 2.8
    ends = offsets[1:].to(device=out.device, dtype=torch.int32)
    alpha = operands.alpha.repeat_interleave(offsets.diff().to(out.device)).unsqueeze(1)
    weights = b.transpose(1, 2)

    def run() -> None:
        torch.mul(grouped(a, weights, offs=ends), alpha, out=out)

    return run


def _activations(operands: Operands) -> torch.Tensor:
    """A in BF16. Sets that share B have an A of their own, so its copy is kept beside the one that it is a copy of."""
    if not isinstance(operands.a, Quantized):
        return operands.a
    key = f"torch.bf16 a {id(operands.a)}"
    if key not in operands.packed:
        operands.packed[key] = (operands.a, _decoded(operands.a))
    copy: torch.Tensor = operands.packed[key][1]
    return copy


def _weights(operands: Operands) -> torch.Tensor:
    """B in BF16. Raises OutOfMemoryError."""
    import torch

    if not isinstance(operands.b, Quantized):
        return operands.b
    if "torch.bf16" not in operands.packed:
        device, problem = operands.out.device, operands.problem
        needed = _weights_bytes(problem)
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            if needed > free:
                raise OutOfMemoryError(
                    f"The weights of {problem.shape} take {needed / 2**30:.1f} GiB in BF16, and {free / 2**30:.1f} GiB "
                    "are free on the device."
                )
        operands.packed["torch.bf16"] = _decoded(operands.b)
    copy: torch.Tensor = operands.packed["torch.bf16"]
    return copy


def _weights_bytes(problem: Problem) -> int:
    """Bytes of a BF16 copy of B; none for a problem whose B is BF16."""
    return 0 if problem.format is Format.BF16 else 2 * max(1, problem.experts) * problem.n * problem.k


def _decoded(x: Quantized) -> torch.Tensor:
    """Decode to code · scale in BF16, [..., rows, K]; exact."""
    import torch

    from .nvfp4 import decode

    k = 2 * x.packed.shape[-1]
    out = torch.empty(*x.packed.shape[:-1], k, dtype=torch.bfloat16, device=x.packed.device)
    flat, packed, scale = out.view(-1, k), x.packed.view(-1, k // 2), x.scale.view(-1, x.scale.shape[-1])
    step = max(1, _CHUNK // k)
    for row in range(0, flat.shape[0], step):
        rows = slice(row, row + step)
        flat[rows] = decode(packed[rows], scale[rows], torch.bfloat16)
    return out


def _float32() -> torch.dtype:
    import torch

    return torch.float32
