"""As if a card were here: meta tensors that say they are on it, and what FlashInfer asks of it answered from a table.

FlashInfer decides by a tensor's device what a kernel needs, and which tactics there are. The tuner's parent must not
make a CUDA context, a compile process has no card, and neither has this project's continuous integration; so for a
while the questions are answered from a `(capability, sms)`, and nothing is launched.
"""

# ruff: noqa: SLF001 - private names of FlashInfer are what this module and the seam are for

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError

if TYPE_CHECKING:
    import torch

FALLBACK_CUDA = "13.0"
"""What a PyTorch without CUDA is taken to be built for: only a check of FlashInfer's that is ours to make reads it."""

_SHARED_BYTES = {9: 232448, 10: 232448, 12: 101376}
"""Shared memory that a block can have, in bytes, by major compute capability: CUDA C++ Programming Guide, table of
compute capabilities (227 KiB; 99 KiB on 12.x)."""

_CACHED = ("get_device_properties", "get_compute_capability", "get_device_sm_count", "get_device_name")
"""Functions of flashinfer.utils that remember what they were told of a device."""


def stand_in(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor without memory that says it is on `cuda:0`: meta, so that no operation on it computes anything.

    Views of it stand in as well. Its address is made up: aligned, and no two stand-ins overlap.
    """
    import torch

    made: torch.Tensor = torch.empty(shape, dtype=dtype, device="meta").as_subclass(_stand_in_type())
    return made


def _stand_in_type() -> Any:
    """The class, made once torch is there."""
    import torch

    if not _TYPE:

        class StandIn(torch.Tensor):
            """A meta tensor that says it is on a card."""

            device = torch.device("cuda", 0)
            is_cuda = True

            def data_ptr(self) -> int:
                """An address of its own for every storage, a terabyte apart."""
                address: int = self.untyped_storage()._cdata << 40
                return address

        _TYPE.append(StandIn)
    return _TYPE[0]


_TYPE: list[Any] = []


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute with another value for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def replaced_everywhere(original: Any, value: Any) -> Iterator[None]:
    """A function of FlashInfer replaced in every module of it that imported it, or imports it meanwhile."""
    _swap(original, value)
    try:
        yield
    finally:
        _swap(value, original)


def _swap(old: Any, new: Any) -> None:
    names = {getattr(old, "__name__", ""), getattr(new, "__name__", "")}  # one of them is what it is imported as
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("flashinfer") and module is not None:
            for name in names:
                if vars(module).get(name) is old:
                    setattr(module, name, new)


@contextlib.contextmanager
def as_if_on(names: Mapping[str, Any], capability: tuple[int, int], sms: int, cutlass_tactics: int) -> Iterator[None]:
    """Within the block FlashInfer takes `cuda:0` for a card of `capability` with `sms` multiprocessors.

    Args:
        names: what the seam looked up.
        capability: (12, 0).
        sms: streaming multiprocessors.
        cutlass_tactics: what the native CUTLASS module would say it has; it is not built for a question.
    """
    import torch

    properties = SimpleNamespace(
        name=f"stand-in for SM{capability[0]}{capability[1]}",
        major=capability[0],
        minor=capability[1],
        multi_processor_count=sms,
        shared_memory_per_block_optin=_SHARED_BYTES.get(capability[0], _SHARED_BYTES[12]),
    )
    utils = names["utils"]
    _forget(utils)
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (torch.cuda, "get_device_properties", lambda *_: properties),
            (torch.cuda, "get_device_capability", lambda *_: capability),
            (torch.cuda, "get_device_name", lambda *_: properties.name),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "device", lambda _: contextlib.nullcontext()),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (torch.version, "cuda", torch.version.cuda or FALLBACK_CUDA),
        ):
            stack.enter_context(replaced(owner, name, value))
        for original, value in _instead(names, sms, cutlass_tactics):
            stack.enter_context(replaced_everywhere(original, value))
        stack.callback(_forget, utils)
        yield


def _instead(names: Mapping[str, Any], sms: int, cutlass_tactics: int) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """(function of FlashInfer, what stands for it): those that would allocate on, build for, or ask a card."""
    import torch

    def workspace(name: str, num_bytes: int, *_: Any, **__: Any) -> torch.Tensor:  # noqa: ARG001 - theirs
        return stand_in((num_bytes,), torch.uint8)

    for cache in ("_get_cache_buf", "_get_stream_cache_buf"):
        if hasattr(names["utils"], cache):  # the second came with 0.7.4
            yield getattr(names["utils"], cache), workspace

    native = SimpleNamespace(fp4_gemm=_nothing_runs, fp4_gemm_tactic_num=lambda: cutlass_tactics)
    yield (
        names["get_cutlass_fp4_gemm_module"],
        lambda *_: names["_create_cutlass_fp4_gemm_module"](native, "stand-in", "stand-in"),
    )
    trtllm = names["_get_trtllm_gemm_module_impl"]
    yield trtllm, getattr(trtllm, "__wrapped__", trtllm)  # without its cache: what stands in must not be remembered
    op = SimpleNamespace(trtllm_gemm=_nothing_runs, trtllm_gemm_tactics=_nothing_runs)
    library = SimpleNamespace(build_and_load=lambda: op, get_library_paths=tuple)
    yield names["gen_trtllm_gen_gemm_module"], lambda **_: library
    if names.get("get_max_active_clusters") is not None:
        yield names["get_max_active_clusters"], lambda cluster_size: sms // cluster_size


def _nothing_runs(*_: Any, **__: Any) -> None:
    """For what only a card can do."""
    raise UnsupportedError("FlashInfer was asked to run something on a card that is not here.")


def _forget(utils: Any) -> None:
    """What FlashInfer remembers of its devices."""
    for name in _CACHED:
        clear = getattr(getattr(utils, name, None), "cache_clear", None)
        if clear is not None:
            clear()
