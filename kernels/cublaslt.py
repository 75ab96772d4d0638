"""`cublaslt`: cuBLASLt's NVFP4 GEMM, through the operator behind `torch.nn.functional.scaled_mm`.

PyTorch asks cuBLASLt's heuristic for one algorithm and runs it, so there is nothing to choose but the shape that it is
asked for: `pad_m`. Alpha is the second-level scale: A's tensor-wise scale is alpha and B's is 1, PyTorch multiplies the
two on the device and hands the product to cuBLASLt as its `alpha`, which is applied to the FP32 sum. That is one call
of the operator, and two kernels. It has not run on a card that has FP4: see docs/cublaslt.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _torch_cuda, cuda_stack
from .backend import Availability, Config, ConfigValue, Parameter, Space
from .dequant_space import check_config
from .device import cublas_version
from .errors import OtherKindError, UnsupportedError
from .operands import Quantized
from .padding import pad_values, padded
from .problem import Format, Op

if TYPE_CHECKING:
    from .device import Device
    from .operands import Operands
    from .problem import Problem

MIN_CUDA = {(10, 0): (12, 8), (10, 3): (12, 9), (11, 0): (13, 0), (12, 0): (12, 8), (12, 1): (12, 9)}
"""Compute capability with FP4 matrix units -> first CUDA that knows it (CUDA release notes; cuBLASLt's block scales
begin with 12.8). Any other is held to the newest of these, and cuBLASLt has the last word."""

MIN_TORCH = (2, 10)
"""First PyTorch with the second-level scale of NVFP4 (pytorch/pytorch#165774). Before it `torch._scaled_mm` multiplies
NVFP4 without alpha, which a kernel of its own would have to apply to a rounded result; that is not what is served."""

K_MULTIPLE, N_MULTIPLE = 32, 16
"""K in whole 16 bytes and N in whole 16 elements: what the operator checks (ScaledBlas.cpp, and for its meta function
torch/_meta_registrations.py)."""


class CublasLt:
    """Dense NVFP4 on cards with FP4 matrix units, from PyTorch 2.10 with CUDA 12.8 on. Any M; outputs BF16, FP16, FP32.

    Parameters:
        pad_m: 0, or rows that A is padded to before the call (`padding`); another M may get another algorithm.
    """

    name = "cublaslt"

    def probe(self, device: Device) -> Availability:
        """Whether the card has FP4 and PyTorch the operator. Looks at versions before it imports torch."""
        reason = _why_no_fp4(device) or _why_no_torch(device)
        if reason:
            return Availability(False, reason)
        available = _torch_cuda.probe(device)
        if available.available and _operator() is None:
            return Availability(False, "This PyTorch lacks the operator _scaled_mm_v2 with a result to write into.")
        return available

    def versions(self, device: Device) -> dict[str, str]:  # noqa: ARG002 - part of the protocol
        """PyTorch, CUDA, cuBLAS and the driver, as far as they are there."""
        return _torch_cuda.versions()

    def space(self, problem: Problem, device: Device) -> Space:
        """The values of pad_m that change something. Raises UnsupportedError."""
        reason = _why_no_fp4(device)
        if reason:
            raise UnsupportedError(f"{self.name} cannot be used. {reason}")
        _check_problem(problem)
        return _space(problem)

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """As it is. Raises UnsupportedError."""
        return {p.name: p.values[0] for p in self.space(problem, device).parameters}

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """The most padding: on an SM120 card M = 128 was published as faster than M = 1 for wide weights."""
        (parameter,) = self.space(problem, device).parameters
        return [{parameter.name: parameter.values[-1]}] if len(parameter.values) > 1 else []

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The callable launches on the current stream and can be captured into a CUDA graph.

        It is run once, because only cuBLASLt knows whether it has a kernel for a shape. Raises UnsupportedError.
        """
        _check_problem(problem)
        check_config(self.name, config, _space(problem))
        if not operands.out.is_cuda:
            where = operands.out.device
            raise UnsupportedError(f"{self.name} computes on CUDA devices, and the operands are on {where}.")
        operator = _operator()
        if operator is None:
            raise UnsupportedError(f"{self.name} needs PyTorch {cuda_stack.dotted(MIN_TORCH)} or newer.")
        wide = padded(operands, int(config["pad_m"]), linear_scale=False)
        arguments, out = arguments_of(wide.operands), wide.operands.out

        def gemm() -> None:
            operator(*arguments, out=out)

        run = wide.around(gemm)
        try:
            run()
        except RuntimeError as error:
            if "CUBLAS_STATUS_NOT_SUPPORTED" not in str(error):
                raise
            raise UnsupportedError(
                f"cuBLASLt {cublas_version()} has no NVFP4 kernel for {wide.operands.problem.shape} in "
                f"{problem.out_dtype.value.upper()} on this card."
            ) from error
        return run


def arguments_of(operands: Operands) -> tuple[Any, ...]:
    """Positional arguments of `aten::_scaled_mm_v2` for operands of a dense NVFP4 problem: views, and one tensor of 1.

    Codes are viewed as float4_e2m1fn_x2, [M, K/2] row-major and [N, K/2] transposed, the only pair of layouts that
    cuBLASLt takes on compute capability 12.x before its release 13.6 (pytorch/pytorch#198188). Scales are the 128x4
    buffers viewed as E4M3, [up(rows, 128) · up(K/16, 4)].

    Raises:
        UnsupportedError: the operands are not NVFP4 both.
    """
    import torch
    from torch.nn.functional import ScalingType, SwizzleType

    a, b = operands.a, operands.b
    if not (isinstance(a, Quantized) and isinstance(b, Quantized)):
        raise UnsupportedError(f"cublaslt multiplies NVFP4 by NVFP4, and {operands.problem.key} is not that.")
    codes_a, codes_b = (x.packed.view(torch.float4_e2m1fn_x2) for x in (a, b))
    scale_a, scale_b = (x.scale_128x4.view(torch.float8_e4m3fn) for x in (a, b))
    recipe = [ScalingType.BlockWise1x16.value, ScalingType.TensorWise.value]
    swizzle = [SwizzleType.SWIZZLE_32_4_4.value, SwizzleType.NO_SWIZZLE.value]
    scales_a, scales_b = [scale_a, operands.alpha], [scale_b, torch.ones_like(operands.alpha)]
    bias = None
    return codes_a, codes_b.t(), scales_a, recipe, swizzle, scales_b, recipe, swizzle, bias, operands.out.dtype


def _operator() -> Callable[..., Any] | None:
    """The operator behind `scaled_mm` that writes into a result of ours; None if this PyTorch has none."""
    import torch

    packet = getattr(torch.ops.aten, "_scaled_mm_v2", None)
    public = hasattr(torch.nn.functional, "scaled_mm")
    found: Callable[..., Any] | None = packet.out if packet is not None and "out" in packet.overloads() else None
    return found if public else None


def _why_no_fp4(device: Device) -> str:
    """Why cuBLASLt has no FP4 product for a device, or nothing."""
    if device.kind != "cuda":
        return f"It needs a CUDA device, and {device.name} is a {device.kind} device."
    if device.capability[0] < 10:
        return (
            f"{device.name} (compute capability {device.compute_capability}) has no FP4 matrix units: those came with "
            "10.0 and 12.0."
        )
    return ""


def _why_no_torch(device: Device) -> str:
    """Why the installed PyTorch cannot multiply NVFP4 on a device, or nothing; read without importing it."""
    minimum = MIN_CUDA.get(device.capability, max(MIN_CUDA.values()))
    reason = cuda_stack.why_torch_too_old(minimum, "It")
    here = cuda_stack.here().torch
    if not reason and here and cuda_stack.numbers(here[0]) < MIN_TORCH:
        reason = f"It needs PyTorch {cuda_stack.dotted(MIN_TORCH)} or newer, and {here[0]} is installed."
    return reason


def _check_problem(problem: Problem) -> None:
    """Raises UnsupportedError for what the operator does not multiply."""
    if problem.format is not Format.NVFP4 or problem.op is not Op.DENSE:
        raise OtherKindError(f"cublaslt multiplies dense NVFP4 by NVFP4, and {problem.key} is not that.")
    if problem.k % K_MULTIPLE or problem.n % N_MULTIPLE:
        raise UnsupportedError(
            f"cublaslt needs K in multiples of {K_MULTIPLE} and N in multiples of {N_MULTIPLE}, and the problem is "
            f"{problem.shape}."
        )


def _space(problem: Problem) -> Space:
    return Space((Parameter("pad_m", pad_values(problem)),))
