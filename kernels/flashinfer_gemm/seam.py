"""How FlashInfer is reached: its AutoTuner from outside, and every name of it that a backend asks for.

FlashInfer has no public way to run a GEMM with a given tactic. Its public functions ask the process's AutoTuner which
runner and tactic to use (`choose_one`), and then call that runner; so `intercept` shadows `choose_one` around the
*public* call: every check of theirs, the list of inputs and the runner stay FlashInfer's own. From what was captured
follow the key that a cache file must have, and the tactics that FlashInfer itself would try.

What every backend needs is looked up when the seam is made, what one backend needs when it is probed (`why_lacking`); a
release that lacks a name is refused in a sentence. All of these names stand in names.py, and other modules get them
through `Seam.need` and no other way: FlashInfer is imported here and nowhere else. One thread at a time.
"""

# ruff: noqa: SLF001 - private names of FlashInfer are what this module is for

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from .cutlass_tiles import tiles_of_header
from .names import NEEDED, NEEDED_BY, is_listed
from .stand_ins import as_if_on, replaced, replaced_everywhere, stand_in
from .versions import installed_version, unfit_version

if TYPE_CHECKING:
    from ..device import Device

__all__ = ["Call", "Seam", "seam", "stand_in", "why_not"]

_FALLBACK = r"(?s).*falling back to default"
"""How FlashInfer's warnings say that cuDNN was run with another plan than the one asked for."""

_COMPILED = {
    "B12xFp4GemmRunner": (("flashinfer.gemm.gemm_base", "_B12X_MM_FP4_KERNEL_CACHE"),),
    "Sm12xCuTeFp4GemmRunner": (("flashinfer.gemm.kernels.sm12x_cute.runner", "_COMPILED"),),
}
"""Class of a runner -> (module, name) of the dictionaries in which it keeps compiled kernels."""

_LOCK = threading.RLock()


@dataclass(frozen=True)
class Call:
    """One captured call of `choose_one`.

    Attributes:
        op: FlashInfer's name of the operation, `fp4_gemm`.
        runners: those that were to choose from; one, if the backend was named.
        config: its TuningConfig.
        inputs: what the runner takes.
        options: keyword arguments that go to the runner.
        tactic: what was answered.
        plans: of a cuDNN runner, (tactic asked for, index of the plan that was run or -1), one a launch.
    """

    op: str
    runners: Sequence[Any]
    config: Any
    inputs: list[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    tactic: Any = -1
    plans: list[tuple[Any, int]] = field(default_factory=list)

    @property
    def runner_name(self) -> str:
        """Class name of the first runner, which is how a cache file names it."""
        return type(self.runners[0]).__name__


class _EnoughError(BaseException):
    """Leaves the public call once everything is captured; never seen outside `intercept`."""


class _Idle:
    """A runner that does nothing, for stand-ins."""

    def __call__(self, **_: Any) -> None:
        """Nothing."""


@functools.cache
def seam() -> Seam:
    """FlashInfer, imported and looked over; one a process.

    Takes seconds the first time. Makes no CUDA context: what FlashInfer asks of the cards at import is answered by the
    driver.

    Raises:
        UnsupportedError: it is missing, outside the known range, cannot be imported, or lacks a name.
    """
    unfit = unfit_version()
    if unfit:
        raise UnsupportedError(f"FlashInfer cannot be used. {unfit}")
    version = installed_version()
    try:
        with _asking_the_driver():
            modules = {name: importlib.import_module(name) for name in NEEDED}
    except Exception as error:
        raise UnsupportedError(
            f"FlashInfer {version} cannot be imported ({type(error).__name__}: {error}); install it anew."
        ) from error
    names = {name: _look_up(modules[module], name) for module, wanted in NEEDED.items() for name in wanted}
    missing = [name for name, found in names.items() if found is None]
    if missing:
        raise UnsupportedError(f"FlashInfer {version} lacks {', '.join(missing)}, which fp4tune needs.")
    names["utils"] = modules["flashinfer.utils"]
    with contextlib.suppress(ImportError):
        names["get_max_active_clusters"] = importlib.import_module("flashinfer.cute_dsl.utils").get_max_active_clusters
    return Seam(version, names)


def why_not(device: Device | None = None) -> str:
    """Why FlashInfer cannot be used in this process, in one sentence, or nothing. Never raises.

    Args:
        device: where it is to run; a CPU is refused without importing anything.
    """
    if device is not None and device.kind != "cuda":
        return "It needs a CUDA device."
    unfit = unfit_version()
    if unfit:
        return unfit
    try:
        seam()
    except UnsupportedError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything, and a probe never does
        return f"FlashInfer cannot be used ({type(error).__name__}: {error})."
    return ""


class Seam:
    """FlashInfer's AutoTuner from outside. Made by `seam()`.

    Args:
        version: of the installed FlashInfer.
        names: what NEEDED lists.

    Attributes:
        version: the same.
    """

    def __init__(self, version: str, names: Mapping[str, Any]) -> None:
        self.version = version
        self._of = names
        self._standing_in = False

    @property
    def mm_fp4(self) -> Callable[..., Any]:
        """FlashInfer's public NVFP4 GEMM."""
        found: Callable[..., Any] = self._of["mm_fp4"]
        return found

    def why_lacking(self, what: str) -> str:
        """Which name this release lacks that a backend needs, in one sentence, or nothing.

        Args:
            what: a key of NEEDED_BY, the backend's name.
        """
        try:
            for module, names in NEEDED_BY[what].items():
                self.need(module, *names)
        except UnsupportedError as error:
            return str(error)
        return ""

    def need(self, module: str, *names: str) -> tuple[Any, ...]:
        """Objects of FlashInfer, or of the CUTLASS DSL, by names that stand in names.py.

        Raises:
            UnsupportedError: the module cannot be imported or lacks one; the sentence names it.
            LookupError: a name does not stand there, so that no probe looks for it.
        """
        unlisted = [name for name in names if not is_listed(module, name)]
        if unlisted:
            raise LookupError(f"{', '.join(unlisted)} of {module} must be listed in names.py.")
        library = f"FlashInfer {self.version}" if module.startswith("flashinfer") else "The installed CUTLASS DSL"
        try:
            with _LOCK:
                home = importlib.import_module(module)
        except Exception as error:
            raise UnsupportedError(f"{library} cannot import {module} ({type(error).__name__}: {error}).") from error
        found = {name: _look_up(home, name) for name in names}
        missing = [name for name, one in found.items() if one is None]
        if missing:
            raise UnsupportedError(f"{library} lacks {', '.join(missing)} in {module}, which fp4tune needs.")
        return tuple(found.values())

    @property
    def package(self) -> Path:
        """Folder of the installed package."""
        return Path(str(self._of["__file__"])).parent

    @contextlib.contextmanager
    def intercept(self, tactic: Any = -1, *, stop_after: int = 0) -> Iterator[list[Call]]:
        """Within the block, whatever public function of FlashInfer is called uses its first runner with `tactic`.

        Within `on` the runner that is answered does nothing, so that a public call on stand-ins ends after it was
        captured.

        Args:
            tactic: in FlashInfer's own form, or a mapping from operation to tactic; -1 is FlashInfer's own choice.
            stop_after: if not 0, the public call is left once so many calls are captured, and the block with it.

        Yields:
            The captured calls, growing.
        """
        tuner = self._of["AutoTuner"].get()
        calls: list[Call] = []

        def choose_one(op: str, runners: Sequence[Any], config: Any, inputs: list[Any], **options: Any) -> Any:
            answer = tactic.get(op, -1) if isinstance(tactic, Mapping) else tactic
            calls.append(Call(op, tuple(runners), config, list(inputs), options, answer))
            if len(calls) == stop_after:
                raise _EnoughError
            return (_Idle() if self._standing_in else runners[0]), answer

        original = self._of["_get_cudnn_plan_index_for_tactic"]

        def noted(graph: Any, asked: Any) -> int:
            index: int = original(graph, asked)
            if calls:
                calls[-1].plans.append((asked, index))
            return index

        with (
            _LOCK,
            replaced_everywhere(original, noted),
            _shadowed(tuner, "choose_one", choose_one),
            contextlib.suppress(_EnoughError),
        ):
            yield calls

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within the block a public call on real tensors is captured and runs nothing."""
        with _LOCK, replaced(self, "_standing_in", True):
            yield

    def tactics(self, call: Call) -> list[Any]:
        """The tactics that FlashInfer itself would try for a captured call, in its order, without -1.

        On stand-ins within `on`. For cuDNN and TensorRT-LLM only on the card. `Call.options` are for launching: the
        AutoTuner does not hand them to this question, and a runner may refuse them.
        """
        dim = self._of["StaticDim"]
        shapes = [[dim(size) for size in sizes] for sizes in self._sizes(call)]
        profile = self._of["OptimizationProfile"](shapes, [None] * len(shapes))
        found = call.runners[0].get_valid_tactics(call.inputs, profile)
        return [tactic for tactic in found if tactic != -1]

    def key(self, call: Call, *, bucket_m: int | None = None) -> str:
        """The four-part key that an entry of a cache file must have to serve this call.

        Args:
            call: captured. One on stand-ins is to be asked for within `on`: some keys name the card.
            bucket_m: the key as if M fell into this bucket; FlashInfer's own bucket of M, if None.
        """
        runner, tuner = call.runners[0], self._of["AutoTuner"]
        extras = tuple(runner.get_cache_key_extras(call.inputs))
        found = tuner._get_cache_key(call.op, runner, self._sizes(call), call.config, extras)
        if bucket_m is None:
            return str(found.file_key)
        profile = [list(sizes) for sizes in found.nearest_profile]
        for spec in call.config.dynamic_tensor_specs:
            for position, dim in zip(spec.input_idx, spec.dim_idx, strict=True):
                profile[position][dim] = bucket_m
        fields = (found.custom_op, found.runner_class_name, tuple(tuple(sizes) for sizes in profile), found.extras)
        return str(fields)

    def policy(self, call: Call) -> list[Any]:
        """How the operation is to be measured, as the third element of a v1 entry says it.

        Without it FlashInfer passes the entry over whenever it is tuning.
        """
        return list(self._of["AutoTuner"]._profiling_policy(call.config))

    def metadata(self) -> dict[str, str]:
        """What FlashInfer compares a cache file with: its versions and the card's name, of this very process.

        Asks torch for the current device, so it is no question for the tuner's parent.
        """
        return dict(self._of["_collect_metadata"]())

    @contextlib.contextmanager
    def on(self, capability: tuple[int, int], sms: int) -> Iterator[None]:
        """Within the block FlashInfer takes `cuda:0` for such a card: for stand-ins only. Makes no CUDA context.

        Args:
            capability: (12, 0).
            sms: streaming multiprocessors; they decide which tile b12x takes by itself.
        """
        with (
            _LOCK,
            as_if_on(self._of, capability, sms, len(self.cutlass_tiles()) * 4),
            replaced(self, "_standing_in", True),
        ):
            yield

    def cutlass_tiles(self) -> list[tuple[int, int, int]]:
        """(M, N, K) of the CTA tiles of the installed CUTLASS NVFP4 GEMM for SM12x, in the order of its tactics.

        Raises:
            UnsupportedError: the header is missing or says something else than it did.
        """
        header = self.package / "data/include/flashinfer/gemm/fp4_gemm_cutlass_template_sm120.h"
        return tiles_of_header(header, self.version)

    def ran(self, call: Call) -> Any:
        """The tactic that was really run last for a captured call: cuDNN may have run its default instead, -1.

        The other runners run what they are told or raise.
        """
        if not call.plans:
            return call.tactic
        asked, index = call.plans[-1]
        return asked if index >= 0 else -1

    def launcher(self, call: Call) -> Callable[[], None]:
        """What the public call does once runner and tactic are chosen, on the captured inputs, any number of times.

        Where cuDNN would fall back to another plan with a warning, it raises.
        """
        runner, inputs, tactic = call.runners[0], call.inputs, call.tactic
        if not call.runner_name.startswith("Cudnn"):

            def launch() -> None:
                runner(inputs=inputs, tactic=tactic, **call.options)

            return launch

        def launch_strictly() -> None:
            with no_fallback():
                runner(inputs=inputs, tactic=tactic, **call.options)

        return launch_strictly

    def forget_compiled(self, call: Call) -> None:
        """Empty the dictionaries in which a runner of CUTLASS's DSL keeps what it compiled, if it has one.

        Entries are by device ordinal, not by card, and what was compiled for stand-ins does not launch.
        """
        for module, name in _COMPILED.get(call.runner_name, ()):
            self.need(module, name)[0].clear()

    def _sizes(self, call: Call) -> tuple[tuple[int, ...], ...]:
        return tuple(self._of["AutoTuner"].get()._get_input_sizes(call.inputs))


def _look_up(home: Any, name: str) -> Any:
    """An object by its name, which may be dotted; None if there is none."""
    for part in name.split("."):
        home = getattr(home, part, None)
    return home


@contextlib.contextmanager
def no_fallback() -> Iterator[None]:
    """Within the block FlashInfer's warning that another plan was run is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=_FALLBACK)
        yield


@contextlib.contextmanager
def _shadowed(instance: Any, name: str, value: Any) -> Iterator[None]:
    """A method shadowed on one object; afterwards the object is as it was."""
    before = vars(instance).get(name)
    setattr(instance, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(instance, name)
        else:
            setattr(instance, name, before)


def _asking_the_driver() -> AbstractContextManager[None]:
    """While FlashInfer is imported, torch answers which cards there are from the driver, and makes no CUDA context."""
    import torch

    from .. import _cuda_driver

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # torch has no type for it
        return contextlib.nullcontext()
    try:
        devices = _cuda_driver.query(_cuda_driver.LIBRARY).devices
    except _cuda_driver.DriverError:
        devices = ()
    capabilities = [tuple(int(part) for part in device.compute_capability.split(".")) for device in devices]
    return replaced(torch.cuda, "get_device_capability", lambda index=0: capabilities[index])
