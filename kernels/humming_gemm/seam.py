"""The only place that touches Humming, with seam_older.py: what is called, what is replaced, what must be there.

Humming's Python has no declared public interface; the engines call the same functions. They are named in `NEEDED`,
looked up once, and a version that lacks one is refused in a sentence. `import humming` happens here and nowhere else.

Humming reads the device of the process wherever it needs a figure. `Library.seen_as(device)` makes it read ours: in a
process that already uses this very card nothing is replaced; everywhere else (the tuner's parent, which must not make
a CUDA context; a compile process, which has no card; a machine without one) a few names are replaced until the block
ends.
"""

# ruff: noqa: SLF001 - private names of Humming are what this module is for

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UnsupportedError
from .figures import REGISTERS, figures_of
from .schedule import absent, block, gemm_type_of, instruction_of, stores_by_tma, warp
from .versions import DISTRIBUTION, installed_version, unfit_fields, unfit_version

if TYPE_CHECKING:
    import torch

    from ..backend import Config
    from ..device import Device
    from .plan import Plan

_LOCK = threading.RLock()


@functools.cache
def load() -> Library:
    """Humming, imported and looked over.

    Raises:
        UnsupportedError: it is missing, of another version, cannot be imported, or is not what its version says.
    """
    from .seam_older import OlderLibrary

    unfit = unfit_version()
    if unfit:
        raise UnsupportedError(f"humming cannot be used. {unfit}")
    version = installed_version()
    kind = OlderLibrary if version == OlderLibrary.release else Library
    # At import Humming starts processes that build its native parts; they are in the wheel, or are built when needed.
    os.environ.setdefault("HUMMING_DISABLE_PARALLEL_BUILD", "1")
    try:
        modules = {module: importlib.import_module(module) for module in kind.needed}
    except Exception as error:
        raise UnsupportedError(
            f"Humming {version} cannot be imported ({type(error).__name__}: {error}); "
            f"install {DISTRIBUTION}[cu13]=={version} or [cu12], as your PyTorch needs."
        ) from error
    names = {name: getattr(modules[module], name, None) for module, wanted in kind.needed.items() for name in wanted}
    missing = [name for name, found in names.items() if found is None]
    if missing:
        raise UnsupportedError(f"Humming {version} lacks {', '.join(missing)}, which fp4tune needs.")
    library = kind(names)
    unfit = unfit_fields(version, library.fields)
    if unfit:
        raise UnsupportedError(unfit)
    return library


class Library:
    """Humming's functions for NVFP4, by what they do; as 0.1.19 and 0.1.20 have them.

    Args:
        names: what `needed` lists.

    Attributes:
        fields: of a schedule, in the installed version.
    """

    needed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "humming.config": ("LayerConfig", "TuningConfig", "GemmType", "MmaType"),
        "humming.config.mma": ("get_default_mma_type", "get_register_budget_error"),
        "humming.device": ("DeviceInfo",),
        "humming.jit.runtime": ("KernelRuntime",),
        "humming.kernel.humming": ("HummingKernel",),
        "humming.ops": ("launch_kernel",),
        "humming.transform": ("transform_humming_tensors",),
        "humming.tune": ("get_heuristics_config", "_get_heuristics_config"),
        "humming.utils.cuda": ("find_all_cuda_paths",),
        "humming.utils.device": ("_get_device_info_extension",),
        "humming.utils.jit": ("get_humming_cache_dir", "get_humming_tmp_dir"),
        "humming.utils.nvrtc": ("may_build_nvrtc_compile_binary",),
        "humming.utils.smem": ("estimate_smem_size_layer",),
    }
    """Module -> names in it."""

    mma_rows = 8
    """Rows of a warp's tile must be a multiple of this for the instruction `mma`."""

    indexed_reuses_last_stage = True
    """Whether an indexed schedule may have `reuse=last_stage`."""

    _registers = "register_kernel"  # what makes a compiled HummingKernel known to the driver

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._of = names
        self._seen: Device | None = None
        self._layers: dict[Plan, Any] = {}
        self.fields = frozenset(f.name for f in dataclasses.fields(names["TuningConfig"]))

    @contextlib.contextmanager
    def seen_as(self, device: Device) -> Iterator[None]:
        """Within the block Humming takes `device` for the current one. One thread at a time."""
        import torch

        with _LOCK:
            if device != self._seen:  # Humming remembers by layer and ordinal, and here two devices can have the same
                self._forget()
                self._layers.clear()
                self._seen = device
            if _is_in_use(torch, device):
                with torch.cuda.device(device.index):
                    yield
                return
            with contextlib.ExitStack() as stack:
                for owner, name, value in (
                    (torch.cuda, "device", lambda _: contextlib.nullcontext()),
                    (torch.cuda, "current_device", lambda: device.index),
                    (torch.version, "cuda", torch.version.cuda or self._toolkit()),
                    *self._stand_ins(device),
                ):
                    stack.enter_context(replaced(owner, name, value))
                yield

    def _forget(self) -> None:
        """Empty what Humming keeps by ordinal."""
        self._of["_get_heuristics_config"].cache_clear()

    def _stand_ins(self, device: Device) -> list[tuple[Any, str, Any]]:
        """(owner, name, value) that make Humming see `device`, torch's own apart."""
        info, figures = self._of["DeviceInfo"], self._figures(device)
        instance = object.__new__(info)
        instance._index, instance._value = device.index, figures
        return [(info, "_get_value", lambda _: figures), (info, "_instances", {device.index: instance})]

    def _figures(self, device: Device) -> Any:
        """What the driver says of this card, if it is here (that takes no CUDA context), else what we know of it."""
        try:
            found = self._of["_get_device_info_extension"]()._DeviceInfo(device.index)
            here = f"{found.sm_major}.{found.sm_minor}", found.sm_count, found.name
        except Exception:  # noqa: BLE001 - no driver, no device, no compiler for the extension: all mean the same
            return figures_of(device)
        return found if here == (device.compute_capability, device.sms, device.name) else figures_of(device)

    def _toolkit(self) -> str:
        """The CUDA version of the newest toolkit, for a PyTorch without CUDA."""
        found = [(env["major"] or 0, env["minor"] or 0) for env in self._of["find_all_cuda_paths"]()]
        major, minor = max(found, default=(13, 0))
        return f"{major}.{minor}"

    def layer(self, plan: Plan) -> Any:
        """Humming's LayerConfig for a plan; within `seen_as`."""
        if plan not in self._layers:
            self._layers[plan] = self._of["LayerConfig"](**self._layer_fields(plan))
        return self._layers[plan]

    def _layer_fields(self, plan: Plan) -> dict[str, object]:
        return plan.layer_fields

    def view(self, plan: Plan) -> SimpleNamespace:
        """All that `layer` says, read once, so that it can be asked thousands of times outside of `seen_as`."""
        layer, found = self.layer(plan), {}
        for name in dir(layer):
            if not name.startswith("_"):
                with contextlib.suppress(Exception):  # what needs a compiler; no static check asks for it
                    found[name] = getattr(layer, name)
        return SimpleNamespace(**{k: v for k, v in found.items() if not callable(v)})

    def default_mma(self, plan: Plan) -> str:
        """The matrix instruction that a schedule uses which names none; within `seen_as`."""
        return str(self._of["get_default_mma_type"](self.layer(plan)).value)

    def heuristic(self, plan: Plan, gemm_type: str, rows: int, device: Device) -> dict[str, Any]:
        """The schedule that Humming would use; a dictionary of the caller's own. Within `seen_as`."""
        found = self._of["get_heuristics_config"](
            self.layer(plan), shape_m=rows, gemm_type=gemm_type, device=device.index
        )
        return dict(found)

    def register_error(self, view: SimpleNamespace, config: Config) -> str:
        """Why a schedule needs more registers than there are, or nothing.

        Args:
            view: of the layer.
            config: its mma, tile, ctas_per_sm and load are read.
        """
        schedule = SimpleNamespace(
            mma_type=self._of["MmaType"](instruction_of(config)),
            block_shape=block(config),
            warp_shape=warp(config),
            num_ctas_per_sm=config["ctas_per_sm"],
            use_warp_spec=str(config["load"]).endswith("_ws"),
            wgmma_split_issue_wait=False,
            producer_registers=None,
            umma_num_dequant_warpgroups=config.get("dequant_warpgroups", 1),
        )
        return self._of["get_register_budget_error"](view, schedule, False, REGISTERS) or ""

    def shared_bytes(self, view: SimpleNamespace, config: Config) -> int:
        """Shared memory of a block, as Humming counts it."""
        mma, load = instruction_of(config), str(config["load"])
        size: int = self._of["estimate_smem_size_layer"](
            view,
            gemm_type=self._of["GemmType"](gemm_type_of(config)),
            block_shape=block(config),
            warp_shape=warp(config),
            num_stages=config["stages"],
            mma_type=mma,
            smem_reuse_mode=config.get("reuse", absent("reuse", mma)),
            use_tma=load.startswith("tma"),
            use_warp_spec=load.endswith("_ws"),
            use_tma_c=stores_by_tma(config),
            raster_group_m=config.get("raster_m", 1),
            output_chunk_rows=config.get("chunk_rows", 0),
            umma_cta_group_size=config.get("cta_group", 1),
        )
        return size

    def compiler(self) -> str:
        """The compiler that Humming would use and its version, `nvrtc 13.0`; within `seen_as`.

        Raises:
            UnsupportedError: there is none.
        """
        try:
            kind, _, version = self._of["KernelRuntime"]._get_compiler().signature().partition("+")
            if kind == "nvrtc":
                self._of["may_build_nvrtc_compile_binary"]()
        except Exception as error:
            said = " ".join(str(error).split())
            raise UnsupportedError(
                f"Humming finds no compiler ({said}); install {DISTRIBUTION}[cu13] or [cu12], as your PyTorch needs, "
                "or a CUDA toolkit with HUMMING_COMPILER=nvcc."
            ) from error
        return f"{kind} {version}"

    def unwritable(self) -> str:
        """Which of Humming's folders cannot be written, or nothing."""
        for variable, find in (("CACHE", "get_humming_cache_dir"), ("TMP", "get_humming_tmp_dir")):
            folder = os.environ.get(f"HUMMING_{variable}_DIR") or f"~/.humming/{variable.lower()}"
            try:
                folder = self._of[find]()
                Path(folder).mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder):
                    pass
            except OSError as error:
                return (
                    f"Humming's folder {folder} cannot be written ({error.strerror}); "
                    f"set HUMMING_{variable}_DIR to one that can."
                )
        return ""

    def compile(self, plan: Plan, gemm_type: str, tuning: Mapping[str, Any]) -> tuple[Path, int]:
        """Compile a schedule into Humming's cache, or find it there; within `seen_as`.

        Returns:
            The cubin, and the shared memory of a block in bytes.

        Raises:
            UnsupportedError: Humming's own checks refuse the schedule.
            RuntimeError: the compiler failed.
        """
        # Through JSON, as `prepare_kernel` hands it over, so that both make one kernel.
        config = json.loads(self.layer(plan).to_str()) | {"gemm_type": gemm_type} | json.loads(json.dumps(dict(tuning)))
        config.pop("num_sms", None)
        kernel_class = self._of["HummingKernel"]
        with replaced(kernel_class, self._registers, lambda _: None):
            try:
                kernel = kernel_class(**config)
            except (AssertionError, ValueError) as error:
                raise UnsupportedError(f"Humming refuses the schedule {json.dumps(tuning)}: {error}.") from error
            finally:
                # One that was never registered must not be found by a later launch in this process.
                instances = self._of["KernelRuntime"]._instances
                for key in [k for k, made in instances.items() if not hasattr(made, "kernel_id")]:
                    if isinstance(instances[key], kernel_class):
                        del instances[key]
        return Path(kernel.kernel_filename), int(kernel.estimated_smem_size)

    def prepare_kernel(self, plan: Plan, gemm_type: str, tuning: Mapping[str, Any], device: Device) -> torch.Tensor:
        """Compile or find one schedule and register it; within `seen_as` of a card in use.

        Returns:
            What `launch` takes: int64 [4], the range of M that is served by this kernel, its id and its SM cap.
        """
        try:
            found: torch.Tensor = self._prepare(plan, json.dumps({"gemm_type": gemm_type}), tuning, device)
        except (AssertionError, ValueError) as error:
            raise UnsupportedError(f"Humming refuses the schedule {json.dumps(tuning)}: {error}.") from error
        return found

    def _prepare(self, plan: Plan, compute: str, tuning: Mapping[str, Any], device: Device) -> Any:
        kernels = self._of["HummingKernel"]
        return kernels.prepare_kernels(self.layer(plan).to_str(), compute, json.dumps(tuning), device.index)

    def transform(self, plan: Plan, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Pad and repack weights into Humming's layout; within `seen_as` of a card in use."""
        found: dict[str, torch.Tensor] = self._of["transform_humming_tensors"](self.layer(plan), tensors)
        return found

    def launch(self, **arguments: Any) -> None:
        """Launch a prepared kernel on torch's current stream; see humming.ops.launch_kernel."""
        self._of["launch_kernel"](**arguments)


def _is_in_use(torch: Any, device: Device) -> bool:
    """Whether this process has a CUDA context already, and `device` is one of its cards."""
    if not torch.cuda.is_initialized() or device.index >= torch.cuda.device_count():
        return False
    found = torch.cuda.get_device_properties(device.index)
    return (f"{found.major}.{found.minor}", found.multi_processor_count) == (device.compute_capability, device.sms)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute with another value for a while."""
    before = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
