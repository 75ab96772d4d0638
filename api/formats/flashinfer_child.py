"""FlashInfer itself, in a process of its own: what its live calls look up, and what it makes of a file.

Importing FlashInfer takes seconds, and its metadata needs a CUDA context, so neither happens in fp4tune's own process.
Everything is asked with stand-ins for the card (`kernels.flashinfer_gemm.stand_ins`): nothing runs on one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...kernels.backend import Config
from ...kernels.device import Device
from ...kernels.errors import UnsupportedError
from ...kernels.problem import Problem
from ...tuner.workers.spec import BackendSpec, build

if TYPE_CHECKING:
    from ...kernels.backend import Space
    from ...kernels.flashinfer_gemm.seam import Call, Seam

CHILD = "fp4tune.api.formats.flashinfer_child:Child"

ALPHA_SHAPES: tuple[tuple[int, ...], ...] = ((1,), ())
"""Shapes of alpha that a caller may pass: one element, or a scalar. Each has a key of its own, and an entry for the
other one is missed without a word."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A config that a file is to carry. problem: for what. backend: whose. config: decoded."""

    problem: Problem
    backend: str
    config: Config


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a cache file, and where it comes from.

    Attributes:
        wanted: the config that it carries, or a part of it.
        op: FlashInfer's name of the operation: a fused layer asks for each of its two products.
        alpha_shape: of the call; of a fused layer empty.
        key: four-part key. runner: class name. tactic: FlashInfer's own form. policy: how it is to be measured.
    """

    wanted: Wanted
    op: str
    alpha_shape: tuple[int, ...]
    key: str
    runner: str
    tactic: Any
    policy: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Looked:
    """What FlashInfer found for one entry after it loaded the file.

    Attributes:
        key: of the entry.
        hit: whether a call that serves found it. hit_while_tuning: whether one that tunes did, which also asks for the
            policy.
        tactic: what was found, in FlashInfer's own form.
    """

    key: str
    hit: bool
    hit_while_tuning: bool
    tactic: Any


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What became of a file.

    Attributes:
        loaded: what `load_configs` returned. metadata: what the file was compared with. looked: by entry.
    """

    loaded: bool
    metadata: Mapping[str, str]
    looked: Sequence[Looked]


class Child:
    """Lives in the process. Arguments and results are plain data.

    Args:
        device: the card that calls are captured for; it need not be here.
        backends: those of FlashInfer whose configs are asked about.

    Raises:
        UnsupportedError: FlashInfer is missing, outside the known range, cannot be imported, or lacks what an export
            needs.
    """

    def __init__(self, device: Device, backends: BackendSpec) -> None:
        from ...kernels.flashinfer_gemm.names import EXPORT
        from ...kernels.flashinfer_gemm.seam import seam

        self._device = device
        self._backends: dict[str, Any] = build(backends)
        self._seam: Seam = seam()
        lacking = self._seam.why_lacking(EXPORT)
        if lacking:
            raise UnsupportedError(lacking)

    def metadata(self) -> dict[str, str]:
        """What FlashInfer says of this process."""
        return self._seam.metadata()

    def offered(self, problem: Problem) -> list[Wanted]:
        """For each backend a config that FlashInfer offers for a problem on the card; its default if that is all."""
        found = []
        for name, backend in self._backends.items():
            try:  # what a library that is not built would offer, too: nothing is launched
                space, default = self._space_of(backend, problem)
            except UnsupportedError:
                continue
            fitting = [config for config in space if not config.get("pad_m")]
            others = [config for config in fitting if config != default]
            found.append(Wanted(problem, name, (others or fitting)[-1]))
        return found

    def entries(self, wanted: Sequence[Wanted]) -> list[list[Entry] | str]:
        """The entries that a file needs for each config, or in one sentence why it cannot carry it."""
        return [self._entries(one) for one in wanted]

    def reload(self, path: str, entries: Sequence[Entry], as_if: Mapping[str, str] | None = None) -> Reloaded:
        """Have FlashInfer load a file, and look up every entry as a live call does.

        Args:
            path: of the file.
            entries: what it should hold.
            as_if: metadata to compare the file with, for a machine without the card; None for this process's own.
        """
        (get,) = self._seam.need("flashinfer.autotuner", "AutoTuner.get")
        tuner = get()
        metadata = dict(as_if) if as_if is not None else self._seam.metadata()
        with self._answering(as_if):
            loaded = bool(tuner.load_configs(path))
        return Reloaded(loaded, metadata, [self._look_up(tuner, entry) for entry in entries] if loaded else [])

    def _space_of(self, backend: Any, problem: Problem) -> tuple[Space, Config]:
        """A backend's space and default for a problem, whether or not it can run here."""
        from ...kernels.flashinfer_gemm.cutlass_moe import CutlassMoe
        from ...kernels.flashinfer_gemm.dense import offers

        if isinstance(backend, CutlassMoe):
            return backend.space_of(problem), backend.default_of(problem)
        offered = offers(backend, problem, self._device)
        return offered.space, offered.default

    def _entries(self, wanted: Wanted) -> list[Entry] | str:
        found = []
        m = wanted.problem.m
        try:
            live = self._live_calls(wanted)
            with self._on_card():  # some keys name the card's compute capability
                for alpha_shape, call, tactic in live:
                    key, policy = self._seam.key(call), tuple(self._seam.policy(call))
                    if key != self._seam.key(call, bucket_m=m):
                        return f"M = {m} is no bucket of FlashInfer's: measure at the bucket's own M."
                    found.append(Entry(wanted, call.op, alpha_shape, key, call.runner_name, tactic, policy))
        except UnsupportedError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - FlashInfer refuses in its own words
            return f"FlashInfer {self._seam.version} refuses the call ({type(error).__name__}: {error})."
        return found

    def _live_calls(self, wanted: Wanted) -> list[tuple[tuple[int, ...], Call, Any]]:
        """(shape of alpha, captured call, tactic of the config) of everything that the public call asks for.

        Raises:
            UnsupportedError: the config says nothing to this release. Whatever FlashInfer raises on the call.
        """
        from ...kernels.flashinfer_gemm import arguments, cutlass_moe
        from ...kernels.flashinfer_gemm.offers import split

        backend, problem = self._backends[wanted.backend], wanted.problem
        if isinstance(backend, cutlass_moe.CutlassMoe):
            tactics, fused = backend.tactics().encode(wanted.config)
            calls = cutlass_moe.captured(self._seam, problem, self._device, fused=fused)
            return [((), call, tactic) for call, tactic in zip(calls, tactics, strict=True)]
        pad_m, tactic = split(backend.codec(self._seam), wanted.config)
        if pad_m:
            raise UnsupportedError(f"It pads M to {pad_m}, and an engine does not.")
        found = []
        with self._on_card():
            for shape in ALPHA_SHAPES:
                given = arguments.stand_ins(problem, problem.m, alpha_shape=shape)
                found.append((shape, given.call(self._seam, backend.backend), tactic))
        return found

    def _look_up(self, tuner: Any, entry: Entry) -> Looked:
        """What FlashInfer's own lookup finds for a call, serving and tuning."""
        (call,) = [
            call
            for alpha_shape, call, _ in self._live_calls(entry.wanted)
            if (call.op, alpha_shape) == (entry.op, entry.alpha_shape)
        ]
        asked = (call.op, list(call.runners), _sizes(call), call.config, call.inputs)
        with self._on_card():
            hit, _, tactic, _ = tuner.search_cache(*asked)
            tuner.is_tuning_mode = True
            try:
                again, _, same, _ = tuner.search_cache(*asked)
            finally:
                tuner.is_tuning_mode = False
        return Looked(entry.key, bool(hit), bool(again) and same == tactic, tactic)

    def _on_card(self) -> AbstractContextManager[None]:
        """Within it FlashInfer takes stand-ins for tensors on the card."""
        return self._seam.on(self._device.capability, self._device.sms)

    @contextlib.contextmanager
    def _answering(self, metadata: Mapping[str, str] | None) -> Iterator[None]:
        """Within the block FlashInfer takes its process for one with this metadata; None changes nothing."""
        from ...kernels.flashinfer_gemm.stand_ins import replaced_everywhere

        if metadata is None:
            yield
            return
        (collect,) = self._seam.need("flashinfer.autotuner", "_collect_metadata")
        with replaced_everywhere(collect, lambda: dict(metadata)):
            yield


def _sizes(call: Call) -> tuple[tuple[int, ...], ...]:
    """Shapes of a call's inputs as FlashInfer counts them: (0,) for what is no tensor."""
    import torch

    return tuple(tuple(one.shape) if isinstance(one, torch.Tensor) else (0,) for one in call.inputs)
