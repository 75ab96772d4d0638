"""From operands to a callable that launches one Humming kernel. Imports torch; runs on a CUDA device only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from ..backend import Config, nothing_to_run
from ..nvfp4 import decode
from ..operands import Quantized
from ..problem import NVFP4_GROUP
from .schedule import block, gemm_type_of, stream_k_locks

if TYPE_CHECKING:
    from ..device import Device
    from ..operands import Operands
    from .plan import Plan
    from .seam import Library

_CODES_A_BYTE = 2
_SCALES_A_WORD = 4


def prepare_launch(
    humming: Library, plan: Plan, operands: Operands, config: Config, tuning: Mapping[str, Any], device: Device
) -> Callable[[], None]:
    """The callable that computes `operands` by one schedule into `operands.out`.

    Args:
        humming: the library.
        plan: the problem in its terms.
        operands: on `device`.
        config: the schedule by our names.
        tuning: the same by Humming's.
        device: the card.

    Returns:
        One launch on torch's current stream; where N is no multiple of 8 a copy follows, because Humming writes rows
        of D in units of 16 bytes.
    """
    rows, n = operands.out.shape
    if not rows:
        return nothing_to_run
    with humming.seen_as(device), torch.inference_mode():
        weights = _weights(humming, plan, operands)
        kernel = humming.prepare_kernel(plan, gemm_type_of(config), tuning, device)
        out = operands.out if n == plan.n else operands.out.new_empty(rows, plan.n)
        # Zero before the first launch; each launch leaves it zero.
        locks = torch.zeros(max(1, stream_k_locks(config, device.sms)), dtype=torch.int32, device=operands.out.device)
        arguments: dict[str, Any] = {
            "configs": kernel,
            **_inputs(plan, operands),
            **weights,
            # The global scales of both operands. Humming multiplies the FP32 accumulators by it.
            "weight_scale_2": operands.alpha,
            "outputs": out,
            "locks": locks,
            **_routing(operands, config),
        }

    def run() -> None:
        with torch.inference_mode():
            humming.launch(**arguments)
            if out is not operands.out:
                operands.out.copy_(out[:, :n])

    return run


def _weights(humming: Library, plan: Plan, operands: Operands) -> dict[str, torch.Tensor]:
    """Weights and scales in Humming's layout, padded; made once for a B."""
    key = f"humming:{plan.scheme}:{plan.dtype}:{plan.padded_n}x{plan.padded_k}"
    if key not in operands.packed:
        b = operands.b
        if not isinstance(b, Quantized):
            raise TypeError("humming multiplies quantised weights")
        more_n, more_k = plan.n - b.packed.shape[-2], plan.k - b.packed.shape[-1] * _CODES_A_BYTE
        codes = pad(b.packed, (0, more_k // _CODES_A_BYTE, 0, more_n))
        scales = pad(b.scale.view(torch.uint8), (0, more_k // NVFP4_GROUP, 0, more_n))
        tensors = {
            "weight": codes.contiguous().view(torch.int32),
            "weight_scale": scales.contiguous().view(torch.float8_e4m3fn),
            "weight_scale_2": operands.alpha,
        }
        made = humming.transform(plan, tensors)
        operands.packed[key] = {name: made[name] for name in ("weight", "weight_scale")}
    found: dict[str, torch.Tensor] = operands.packed[key]
    return found


def _inputs(plan: Plan, operands: Operands) -> dict[str, torch.Tensor]:
    """Activations as the kernel reads them.

    NVFP4 for a W4A16 kernel: code times scale has six significant bits at most and lies between 2^-10 and 2688, so
    that both BF16 and FP16 hold it exactly.
    """
    a = operands.a
    if not isinstance(a, Quantized):
        return {"inputs": a}
    if plan.scheme == "w4a16":
        return {"inputs": decode(a.packed, a.scale).to(getattr(torch, plan.dtype))}
    more = plan.k - a.packed.shape[-1] * _CODES_A_BYTE
    scales = pad(a.scale.view(torch.uint8), (0, more // NVFP4_GROUP))
    scales = pad(scales, (0, -scales.shape[-1] % _SCALES_A_WORD)).contiguous().view(torch.int32)
    one = torch.ones(1, dtype=torch.float32, device=a.packed.device)
    codes = pad(a.packed, (0, more // _CODES_A_BYTE)).contiguous()
    return {"inputs": codes, "input_scale": scales, "input_scale_2": one}


def _routing(operands: Operands, config: Config) -> dict[str, Any]:
    """Which rows are whose, as the kind of GEMM wants it.

    Rows of A are sorted by expert, one for each token and expert. Indexed, that is what an engine has before w2: a
    list of row numbers, each expert's padded to whole blocks with a number that is no row, and each block's expert.
    """
    offsets, gemm_type = operands.offsets, gemm_type_of(config)
    if offsets is None:
        return {}
    device = operands.out.device
    if gemm_type == "grouped_contiguous":
        return {"expert_layout": offsets.to(device)}
    block_m = block(config)[0]
    ids, experts = indexed_rows(offsets, block_m)
    return {
        "sorted_ids": ids.to(device),
        "expert_ids": experts.to(device),
        "num_tokens_padded": torch.tensor([ids.numel()], dtype=torch.int32, device=device),
        "top_k": 1,
    }


def indexed_rows(offsets: torch.Tensor, block_m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers padded to blocks, and the expert of each block.

    Args:
        offsets: int64 [experts + 1] on the CPU.
        block_m: rows of a block.

    Returns:
        int32 [padded rows], padding being the number of rows; int32 [blocks].
    """
    rows = int(offsets[-1])
    counts = offsets[1:] - offsets[:-1]
    blocks = (counts + block_m - 1) // block_m
    experts = torch.repeat_interleave(torch.arange(len(counts)), blocks)
    first_block = torch.cumsum(blocks, 0) - blocks
    within = (torch.arange(len(experts)) - first_block[experts]).unsqueeze(1) * block_m + torch.arange(block_m)
    ids = torch.where(within < counts[experts].unsqueeze(1), offsets[experts].unsqueeze(1) + within, rows)
    return ids.flatten().to(torch.int32), experts.to(torch.int32)
