"""What a worker makes its objects from: plain data that travels, instead of objects that may not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...kernels.backend import Backend, CompileNeed, UnavailableBackend, compile_need, family
from .serve import resolve

if TYPE_CHECKING:
    from ...kernels.device import Device
    from ...kernels.problem import Problem
    from ..executor import Candidate

BackendSpec = Mapping[str, str]
"""Backend name -> `package.module:Class`. Backends are stateless and made without arguments, so that is all of them."""


def spec_of(backends: Mapping[str, Backend]) -> dict[str, str]:
    """The spec of backends that this process has; without those that only stand for one that cannot be loaded."""
    return {
        name: f"{type(backend).__module__}:{type(backend).__qualname__}"
        for name, backend in backends.items()
        if not isinstance(backend, UnavailableBackend)
    }


def of_family(spec: BackendSpec, name: str) -> dict[str, str]:
    """The part of a spec that belongs to one family, so that a package of another one that is broken does no harm."""
    return {backend: target for backend, target in spec.items() if family(backend) == name}


def build(spec: BackendSpec) -> dict[str, Backend]:
    """The backends of a spec, in the process that calls this. Raises whatever their modules raise at import."""
    return {name: resolve(target)() for name, target in spec.items()}


def needs_of(spec: BackendSpec) -> dict[str, CompileNeed]:
    """What one compilation of each backend takes, as its class says; nothing is said by one that cannot be loaded."""
    needs: dict[str, CompileNeed] = {}
    for name, target in spec.items():
        try:
            needs[name] = compile_need(resolve(target))
        except Exception:  # noqa: BLE001 - whatever its module raises, it raises it again where it is to compile
            needs[name] = CompileNeed()
    return needs


def is_compiled(spec: BackendSpec, problem: Problem, device: Device, candidate: Candidate) -> bool:
    """Whether a config's backend says that compiling it is only finding it; False where it says nothing, or raises."""
    try:
        says = getattr(resolve(spec[candidate.backend])(), "is_compiled", None)
        return says is not None and bool(says(problem, device, candidate.config))
    except Exception:  # noqa: BLE001 - whatever is wrong, its compiler says it better
        return False


def own_sys_path() -> list[str]:
    """What this process would find modules by, for a worker; without the entry for where it was started."""
    return [entry for entry in sys.path if entry]
