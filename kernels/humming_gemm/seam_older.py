"""Humming 0.1.12, which SGLang pins, behind the interface of the later releases.

What differs: the matrix instruction belongs to the layer, so that it decides how weights are packed and is no part of a
schedule; the device is read from torch and NVML; there is no check of registers; a kernel is loaded into the CUDA
context of the thread that makes it. Its schedules, compiled kernels and own checks are tested; it has not run on a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from .figures import REGISTERS, figures_of, fp16_tops
from .schedule import block, gemm_type_of, instruction_of, threads, warp
from .seam import Library

if TYPE_CHECKING:
    from ..backend import Config
    from ..device import Device
    from .plan import Plan

_WGMMA_OVERHEAD = 38
"""Registers of a thread beside its accumulators of a warp group instruction (testing/tuning.py of 0.1.12)."""

_LOADING_REGISTERS = 40
"""Registers of a thread that only loads (as above)."""


class OlderLibrary(Library):
    """See the module."""

    release: ClassVar[str] = "0.1.12"

    needed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "humming.config": ("LayerConfig", "TuningConfig", "GemmType"),
        "humming.jit.runtime": ("KernelRuntime",),
        "humming.kernel.humming": ("HummingKernel",),
        "humming.ops": ("launch_kernel",),
        "humming.transform": ("transform_humming_tensors",),
        "humming.tune": ("get_heuristics_config",),
        "humming.tune.raster": ("_device_l2_sms",),
        "humming.utils.cuda": ("find_all_cuda_paths",),
        "humming.utils.device": ("calculate_gpu_bandwidth", "estimate_tensorcore_max_tops", "get_device_name"),
        "humming.utils.jit": ("get_humming_cache_dir", "get_humming_tmp_dir"),
        "humming.utils.nvrtc": ("may_build_nvrtc_compile_binary",),
        "humming.utils.smem": ("estimate_smem_size_layer",),
    }

    mma_rows = 16
    indexed_reuses_last_stage = False
    _registers = "load_cubin"

    def _forget(self) -> None:
        self._of["get_heuristics_config"].cache_clear()
        self._of["_device_l2_sms"].cache_clear()

    def _stand_ins(self, device: Device) -> list[tuple[Any, str, Any]]:
        import torch

        figures = figures_of(device)
        properties = SimpleNamespace(
            name=device.name,
            major=figures.sm_major,
            minor=figures.sm_minor,
            multi_processor_count=figures.sm_count,
            L2_cache_size=figures.l2_cache_size,
        )
        runtime, module = self._of["KernelRuntime"], importlib.import_module("humming.utils.device")
        return [
            (torch.cuda, "get_device_properties", lambda _=None: properties),
            (torch.cuda, "get_device_capability", lambda _=None: (figures.sm_major, figures.sm_minor)),
            (torch.cuda, "get_device_name", lambda _=None: device.name),
            (runtime, "current_context", staticmethod(lambda: 0)),
            (runtime, "_ensure_cuda_context", staticmethod(lambda: None)),
            (
                module,
                "calculate_gpu_bandwidth",
                self._asked("calculate_gpu_bandwidth", device, figures.memory_bandwidth_gbps),
            ),
            (
                module,
                "estimate_tensorcore_max_tops",
                self._asked("estimate_tensorcore_max_tops", device, _usual_tops(device)),
            ),
        ]

    def _asked(self, name: str, device: Device, otherwise: float) -> Callable[..., float]:
        """Humming's question to NVML, whose first card it asks for; another answer where that is not `device`."""

        def answer(gpu_index: int = 0) -> float:
            with contextlib.suppress(Exception):  # no driver, no such card: NVML has an exception for each
                if self._of["get_device_name"](gpu_index) == device.name:
                    return float(self._of[name](gpu_index))
            return otherwise

        return answer

    def _layer_fields(self, plan: Plan) -> dict[str, object]:
        """Without the field that says how activations were quantised: here the group's size says it."""
        return {name: value for name, value in plan.layer_fields.items() if name != "input_quant_mode"}

    def default_mma(self, plan: Plan) -> str:
        """See Library."""
        return str(self.layer(plan).mma_type.value)

    def heuristic(self, plan: Plan, gemm_type: str, rows: int, device: Device) -> dict[str, Any]:  # noqa: ARG002
        """See Library."""
        return dict(self._of["get_heuristics_config"](self.layer(plan), shape_m=rows, gemm_type=gemm_type))

    def register_error(self, view: SimpleNamespace, config: Config) -> str:  # noqa: ARG002
        """See Library. The rule is that of the library's tests; for `mma` they have none."""
        if instruction_of(config) != "wgmma":
            return ""
        ctas, all_threads = int(config["ctas_per_sm"]), threads(config)
        loading = 128 if str(config["load"]).endswith("_ws") else 0
        needed = -(-(warp(config)[0] // 2 + _WGMMA_OVERHEAD) // 8) * 8
        budget = REGISTERS // (all_threads * ctas) // 8 * 8
        total = ctas * ((all_threads - loading) * needed + loading * _LOADING_REGISTERS)
        if needed > budget or total > REGISTERS:
            return f"a thread needs {needed} registers and has {budget}"
        return ""

    def shared_bytes(self, view: SimpleNamespace, config: Config) -> int:
        """See Library."""
        load = str(config["load"])
        size: int = self._of["estimate_smem_size_layer"](
            view,
            block(config),
            self._of["GemmType"](gemm_type_of(config)),
            config["stages"],
            warp_shape=warp(config),
            reduce_overlap_last_stage_only=config.get("reuse") == "last_stage",
            use_mbarrier=load != "async",
            use_warp_spec=load.endswith("_ws"),
        )
        return size

    def _prepare(self, plan: Plan, compute: str, tuning: Mapping[str, Any], device: Device) -> Any:  # noqa: ARG002
        """As a list of one, whose kernel is loaded in whatever thread this is; a bare one only in the main thread."""
        entry = [[0, 1 << 30, dict(tuning)]]
        return self._of["HummingKernel"].prepare_kernels(self.layer(plan).to_str(), compute, json.dumps(entry))

    def launch(self, **arguments: Any) -> None:
        """See Library. There is no second scale of the activations; ours is one anyway."""
        arguments.pop("input_scale_2", None)
        super().launch(**arguments)


def _usual_tops(device: Device) -> float:
    """What `estimate_tensorcore_max_tops` would say: nine tenths of the peak, all of it on SM80."""
    return fp16_tops(device) * (1.0 if device.compute_capability == "8.0" else 0.9)
