"""What a backend is: a family of kernels that can run a problem, described so that a tuner can search it.

Contract. A backend is stateless and cheap to construct: no import of torch or of a GPU library at module
import or in `__init__`. `probe` never raises. `space` and `default` raise `UnsupportedError` with one
sentence when the backend cannot run the problem. `default` is always a member of `space`, and every member of
`space` is safe to hand to `prepare` (which may still raise `UnsupportedError`: a config can be invalid in a
way only its compiler knows). The callable that `prepare` returns writes every element of `operands.out`, reads
nothing else that it may change, and may be called any number of times. `tests/conformance.py` checks all this.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from .errors import NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from .device import Device
    from .operands import Operands
    from .problem import Problem

ENTRY_POINT_GROUP = "fp4tune.backends"

ConfigValue = str | int | float | bool
Config = Mapping[str, ConfigValue]
"""One point of a space: parameter name -> value. Always by name, never a bare index."""


def config_key(config: Config) -> str:
    """The canonical text of a config: JSON, keys sorted, no spaces. Two configs are equal iff their keys are."""
    return json.dumps(dict(config), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can be used, or the one sentence why not.

    Attributes:
        available: True if it can.
        reason: empty if available, else one sentence.
    """

    available: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One named dimension of a space.

    Attributes:
        name: what it is called in a config.
        values: its legal values, in the order of a sensible sweep, no duplicates.
    """

    name: str
    values: tuple[ConfigValue, ...]

    def allows(self, value: object) -> bool:
        """Whether `value` is one of the values and of its type: in a config's text, True is not 1 and 1.0 is not 1."""
        return any(type(value) is type(v) and value == v for v in self.values)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule over several parameters.

    Attributes:
        sentence: what the rule says, for people.
        holds: True for a config that satisfies it.
    """

    sentence: str
    holds: Callable[[Config], bool]


@dataclass(frozen=True)
class Space:
    """A finite search space: the product of its parameters' values, minus what the constraints forbid."""

    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()

    @cached_property
    def size(self) -> int:
        """Number of configs before constraints."""
        size = 1
        for parameter in self.parameters:
            size *= len(parameter.values)
        return size

    def __contains__(self, config: object) -> bool:
        """True if `config` names exactly these parameters, with legal values, and breaks no constraint."""
        if not isinstance(config, Mapping) or set(config) != {p.name for p in self.parameters}:
            return False
        if not all(p.allows(config[p.name]) for p in self.parameters):
            return False
        return all(c.holds(config) for c in self.constraints)

    def __iter__(self) -> Iterator[dict[str, ConfigValue]]:
        """Every legal config, in the order of the parameters' values."""
        names = [p.name for p in self.parameters]
        for values in itertools.product(*(p.values for p in self.parameters)):
            config = dict(zip(names, values, strict=True))
            if all(c.holds(config) for c in self.constraints):
                yield config


@runtime_checkable
class Backend(Protocol):
    """A family of kernels. See the module's docstring for the contract."""

    @property
    def name(self) -> str:
        """The backend's dotted name, as its entry point calls it: `cpu.dequant`."""
        ...

    def probe(self, device: Device) -> Availability:
        """Whether this backend can be used on `device` in this process, or why not. Never raises."""
        ...

    def versions(self, device: Device) -> dict[str, str]:
        """The versions that decide whether a config of this backend is still valid on `device`."""
        ...

    def space(self, problem: Problem, device: Device) -> Space:
        """The search space. Raises UnsupportedError."""
        ...

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """What the backend does when nobody tuned it. Raises UnsupportedError."""
        ...

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        """Configs worth trying first after the default, best guess first; may be empty."""
        ...

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """Build the callable that computes the problem into `operands.out`. Raises UnsupportedError."""
        ...


@dataclass(frozen=True, slots=True)
class StaticFacts:
    """What a compiler says of a config without running it. Such figures carry the source `compiled`.

    Attributes:
        target: what it was compiled for: `sm_90a`, `sm_120a`.
        registers: registers a thread.
        stack_bytes: stack frame a thread, spills included; 0 is what a GEMM should have.
        shared_bytes: shared memory a block, static and dynamic.
        instructions: matrix instructions in the machine code by opcode, `{"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": 64}`.
    """

    target: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    instructions: Mapping[str, int]


@runtime_checkable
class Compiling(Protocol):
    """A backend whose configs are compiled, so that they can be compiled ahead, elsewhere, while the device is busy.

    Its class may say more, as `compile_memory_bytes` and `compile_s`: see `CompileNeed`. One whose compiler takes much
    may have a method `is_compiled(problem, device, config)`, True if compiling it is only finding it in the cache, so
    that it does not wait for memory that it will not need. It is quick, and may raise whatever `compile` does.
    """

    def compile(self, problem: Problem, device: Device, config: Config) -> StaticFacts:
        """Compile a config into the backend's cache on disk, where `prepare` in another process finds it.

        Needs no device: `device` says what to compile for. Takes one core.

        Raises:
            UnsupportedError: it compiled, and what came out must not be run (it spills, it lacks the instruction that
                it is there for); or the compiler is missing, or its cache cannot be written. Any other exception is
                the compiler's.
        """
        ...


class CompileNeed(NamedTuple):
    """What one compilation takes where that is more than a pool gives every compiler.

    Attributes:
        memory_bytes: peak memory of the process that compiles with all that it starts; the attribute
            `compile_memory_bytes` of a backend's class.
        seconds: what it may take before it is given up, on a busy core; the attribute `compile_s`.
    """

    memory_bytes: int = 0
    seconds: float = 0.0


def compile_need(backend: object) -> CompileNeed:
    """What a compiling backend, or its class, says that it needs; zeros where it says nothing."""
    return CompileNeed(getattr(backend, "compile_memory_bytes", 0), getattr(backend, "compile_s", 0.0))


@runtime_checkable
class Baseline(Protocol):
    """A backend that may be measured beside the others without ever being served."""

    def serves(self, problem: Problem) -> bool:
        """False if what it computes for `problem` is only there to compare with: BF16 weights for NVFP4 ones."""
        ...


def can_serve(backend: Backend, problem: Problem) -> bool:
    """Whether a config of `backend` may be a winner of `problem`: True unless it is a baseline that says no."""
    return backend.serves(problem) if isinstance(backend, Baseline) else True


def nothing_to_run() -> None:
    """What a backend prepares for a rank that no token was routed to."""


def family(name: str) -> str:
    """The family of a backend, which shares a worker process: `triton` of `triton.dequant`."""
    return name.split(".", 1)[0]


class UnavailableBackend:
    """Stands for a registered backend that could not be loaded, so that one broken package does not stop the rest.

    Args:
        name: as its entry point calls it.
        reason: one sentence.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def probe(self, device: Device) -> Availability:  # noqa: ARG002 - part of the protocol
        """Never available."""
        return Availability(False, self.reason)

    def versions(self, device: Device) -> dict[str, str]:  # noqa: ARG002 - part of the protocol
        """None are known."""
        return {}

    def space(self, problem: Problem, device: Device) -> Space:  # noqa: ARG002 - part of the protocol
        """Raises UnsupportedError."""
        raise UnsupportedError(f"{self.name} cannot be used. {self.reason}")

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:  # noqa: ARG002 - as above
        """Raises UnsupportedError."""
        raise UnsupportedError(f"{self.name} cannot be used. {self.reason}")

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:  # noqa: ARG002 - part of the protocol
        """None."""
        return ()

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:  # noqa: ARG002
        """Raises UnsupportedError."""
        raise UnsupportedError(f"{self.name} cannot be used. {self.reason}")


def load_backends() -> dict[str, Backend]:
    """Every registered backend by name, sorted; the one place that reads the entry points.

    An entry point that cannot be loaded, is no backend, has another name than its backend, or is claimed by two
    packages becomes an UnavailableBackend whose `probe` says so.
    """
    points: dict[str, dict[str, metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        points.setdefault(point.name, {})[point.value] = point  # the same claim twice is one: a package seen twice
    return {name: _load(name, list(claims.values())) for name, claims in sorted(points.items())}


def _load(name: str, claims: list[metadata.EntryPoint]) -> Backend:
    """The backend behind an entry point, or what stands for it if there is none."""
    if len(claims) > 1:
        values = " and ".join(point.value for point in claims)
        return UnavailableBackend(name, f"Two packages register it, as {values}; uninstall one.")
    (point,) = claims
    where = f"{point.value} of {point.dist.name}" if point.dist else point.value
    try:
        backend = point.load()()
    except Exception as error:  # noqa: BLE001 - whatever somebody's module raises, the other backends must load
        return UnavailableBackend(name, f"Loading {where} failed: {type(error).__name__}: {error}.")
    if not isinstance(backend, Backend):
        return UnavailableBackend(name, f"{where} is no backend: it lacks a part of fp4tune.kernels.backend.Backend.")
    if backend.name != name:
        return UnavailableBackend(name, f"{where} is registered as {name}, and calls itself {backend.name}.")
    return backend


def get_backend(name: str) -> Backend:
    """The backend called `name`.

    Raises:
        NotFoundError: no such backend; the sentence lists those there are.
    """
    backends = load_backends()
    if name not in backends:
        raise NotFoundError(f"There is no backend {name!r}; there are {', '.join(backends)}.")
    return backends[name]
