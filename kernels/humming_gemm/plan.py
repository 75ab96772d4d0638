"""What a problem is to Humming: dtypes, padded shape, kinds of GEMM. Needs neither torch nor Humming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UnsupportedError
from ..problem import NVFP4_GROUP, Format, Op, OutDtype

if TYPE_CHECKING:
    from ..device import Device
    from ..problem import Problem

PAD_N, PAD_K = 256, 128
"""Multiples that vLLM pads N and K of a layer to before it hands the layer to Humming (0.33). Weights are padded with
zeros once; activations and output are not, so that padding costs reads of weights and arithmetic, but no copies."""

_N_STEP = 8
"""Humming writes rows of D in units of 16 bytes."""

_K_STEP = {"w4a16": 16, "w4a4": 32}
"""Humming reads rows of A in units of 16 bytes: 8 elements of 16 bits (NVFP4 has 16 in a group), 32 of four."""

_MIN_CAPABILITY = 80
_DTYPES = {OutDtype.BF16: "bfloat16", OutDtype.FP16: "float16"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem on a device in Humming's terms.

    Attributes:
        sm: compute capability as one number: 90, 120.
        n: columns that are written: N rounded up to 8.
        k: elements of K that are read of A: K rounded up to 16 (W4A16) or 32 (W4A4).
        padded_n: N of the weights. padded_k: K of the weights.
        experts: 0 for dense.
        scheme: `w4a16` (activations of 16 bits) or `w4a4` (activations NVFP4).
        dtype: of D, and of A for W4A16: `bfloat16` or `float16`.
        gemm_types: kinds of GEMM that can run it, the one that engines default to first.
        m: tokens, which is the most rows that one expert can get.
        rows: rows of D, routed rows on average for grouped: what Humming's heuristic is asked for.
    """

    sm: int
    n: int
    k: int
    padded_n: int
    padded_k: int
    experts: int
    scheme: str
    dtype: str
    gemm_types: tuple[str, ...]
    m: int
    rows: int

    @property
    def layer_fields(self) -> dict[str, object]:
        """Humming's LayerConfig, as JSON would hold it."""
        fields: dict[str, object] = {
            "shape_n": self.padded_n,
            "shape_k": self.padded_k,
            "pad_shape_n": self.padded_n - self.n,
            "pad_shape_k": self.padded_k - self.k,
            "num_experts": self.experts,
            "a_dtype": self.dtype,
            "b_dtype": "float4e2m1",
            "c_dtype": self.dtype,
            "bs_dtype": "float8e4m3",
            "weight_scale_group_size": NVFP4_GROUP,
            "weight_scale_type": "group",
            "weight_scale_2_type": "tensor",
        }
        if self.scheme == "w4a4":
            fields |= {
                "a_dtype": "float4e2m1",
                "as_dtype": "float8e4m3",
                "input_scale_group_size": NVFP4_GROUP,
                "input_quant_mode": "static_tensor_dynamic_group",
            }
        return fields


def make_plan(problem: Problem, device: Device) -> Plan:
    """How Humming runs `problem` on `device`.

    W4A4 problems run as W4A4 on SM12x. Elsewhere they run as W4A16, as both engines run a W4A4 checkpoint there.

    Raises:
        UnsupportedError: it does not.
    """
    unfit = unfit_device(device)
    if unfit:
        raise UnsupportedError(f"humming cannot be used. {unfit}")
    if problem.format is Format.BF16:
        raise UnsupportedError("humming multiplies quantised weights, and this problem's are BF16.")
    if problem.out_dtype not in _DTYPES:
        raise UnsupportedError(f"humming writes BF16 or FP16, not {problem.out_dtype.value}.")
    sm = capability(device)
    native = problem.format is Format.NVFP4 and sm // 10 == 12
    if problem.format is Format.NVFP4_W4A16 and problem.out_dtype is not OutDtype.BF16:
        raise UnsupportedError(
            f"humming writes what it reads: BF16 activations give BF16, not {problem.out_dtype.value}."
        )
    scheme = "w4a4" if native else "w4a16"
    n, k = _round_up(problem.n, _N_STEP), _round_up(problem.k, _K_STEP[scheme])
    grouped = problem.op is Op.GROUPED
    return Plan(
        sm=sm,
        n=n,
        k=k,
        padded_n=_round_up(n, PAD_N),
        padded_k=_round_up(k, PAD_K),
        experts=problem.experts,
        scheme=scheme,
        dtype=_DTYPES[problem.out_dtype],
        gemm_types=("indexed", "grouped_contiguous") if grouped else ("dense",),
        m=problem.m,
        rows=max(1, problem.rows),
    )


def unfit_device(device: Device) -> str:
    """Why this kind of device can never be used, or nothing."""
    if device.kind != "cuda":
        return f"It needs a CUDA device, and {device.name} is a {device.kind} device."
    if capability(device) < _MIN_CAPABILITY:
        return (
            f"It needs compute capability 8.0 (BF16 tensor cores), and {device.name} has {device.compute_capability}."
        )
    return ""


def capability(device: Device) -> int:
    """`9.0` as 90."""
    major, minor = device.capability
    return 10 * major + minor


def target(sm: int) -> str:
    """What Humming compiles for: `sm_80`, `sm_90a`, `sm_120a`."""
    return f"sm_{sm}a" if sm >= 90 else f"sm_{sm}"


def heuristic_rows(rows: int, *, sm: int, grouped: bool) -> int:
    """The M that the entry of Humming's list for `rows` was computed for.

    An engine looks a list of intervals up, each computed for its upper end: `DeviceHeuristics.get_configs` walks
    1, 2, 4, 8, then steps of 8 (SM90) or 16 that grow, and the last entry goes on for ever.
    """
    if rows <= 8:
        return 1 << (rows - 1).bit_length()
    last_step, end = (128, 65536) if grouped else (64, 8192)
    rows = min(rows, (end - 1) // last_step * last_step)
    step = 8 if sm == 90 else 16
    for boundary, coarser in ((1024, 16), (2048, 32), (4096, 64), (16384, 128)):
        if rows > boundary:
            step = max(step, coarser)
    return _round_up(rows, step)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
