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
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .errors import NotFoundError

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
        if any(config[p.name] not in p.values for p in self.parameters):
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


def load_backends() -> dict[str, Backend]:
    """Every registered backend by name, sorted; the one place that reads the entry points."""
    found = {point.name: point.load()() for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    return dict(sorted(found.items()))


def get_backend(name: str) -> Backend:
    """The backend called `name`.

    Raises:
        NotFoundError: no such backend; the sentence lists those there are.
    """
    backends = load_backends()
    if name not in backends:
        raise NotFoundError(f"There is no backend {name!r}; there are {', '.join(backends)}.")
    return backends[name]
