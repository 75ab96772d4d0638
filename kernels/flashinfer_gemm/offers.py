"""The search space of a backend of FlashInfer: exactly the tactics that FlashInfer offers, for every way to pad M."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..backend import Config, ConfigValue, Constraint, Parameter, Space, config_key
from ..errors import UnsupportedError
from .tactics import DEFAULT, Codec, plain

if TYPE_CHECKING:
    from ..problem import Problem

PAD_M = "pad_m"
"""Rows that A is padded to, 0 for none: a parameter of every dense backend, see kernels/padding.py."""


@dataclass(frozen=True)
class ListedSpace(Space):
    """A space that is a list. As a product it would be sparse: a tactic of ten fields is no ten choices.

    Attributes:
        listed: every legal config, in the order in which they are to be swept.
    """

    listed: tuple[Mapping[str, ConfigValue], ...] = ()

    @cached_property
    def size(self) -> int:
        """Number of configs."""
        return len(self.listed)

    def __iter__(self) -> Iterator[dict[str, ConfigValue]]:
        """Every config, as listed."""
        return (dict(config) for config in self.listed)


class Offers:
    """What FlashInfer offers for a problem.

    Args:
        codec: of the runner.
        version: of FlashInfer, for sentences.
        tactics: rows that A is padded to, 0 for none -> tactics in FlashInfer's own form, without -1.

    Attributes:
        space: every tactic and -1, for each padding.
        default: -1 without padding.

    Raises:
        UnsupportedError: a tactic has a form that the codec does not know.
    """

    def __init__(self, codec: Codec, version: str, tactics: Mapping[int, Sequence[Any]]) -> None:
        self._codec = codec
        listed: list[dict[str, ConfigValue]] = []
        for pad_m, offered in tactics.items():
            for tactic in (-1, *offered):
                config = {**codec.decode(plain(tactic)), PAD_M: pad_m}
                if config not in listed:
                    listed.append(config)
        keys = frozenset(config_key(config) for config in listed)
        parameters = [Parameter(name, _values(listed, name)) for name in (*codec.parameters, PAD_M)]
        sentence = f"FlashInfer {version} offers the tactic for this shape, padded so"
        self.space = ListedSpace(
            tuple(parameters), (Constraint(sentence, lambda c: config_key(c) in keys),), tuple(listed)
        )
        self.default: dict[str, ConfigValue] = {**codec.decode(-1), PAD_M: 0}

    def tactic_of(self, config: Config) -> tuple[int, Any]:
        """(rows that A is padded to or 0, tactic in FlashInfer's own form) of a config."""
        return split(self._codec, config)


def split(codec: Codec, config: Config) -> tuple[int, Any]:
    """(rows that A is padded to or 0, tactic in FlashInfer's own form) of a config.

    Raises:
        UnsupportedError: it has no `pad_m`, or says nothing to the codec.
    """
    pad_m = config.get(PAD_M)
    if type(pad_m) is not int:
        raise UnsupportedError(f"A config of {codec.runner} needs {PAD_M}, and this is {config_key(config)}.")
    return pad_m, codec.encode({name: value for name, value in config.items() if name != PAD_M})


def _values(configs: Sequence[Config], name: str) -> tuple[ConfigValue, ...]:
    """Values of a parameter: DEFAULT, then the others by type and size. All True and 1 apart are of one type."""
    found = list(dict.fromkeys(config[name] for config in configs))
    return tuple(sorted(found, key=lambda v: (v != DEFAULT, isinstance(v, str), v if isinstance(v, str) else 0, v)))


def whole_problem(problem: Problem, pad_m: int) -> int:
    """Rows that the kernel sees."""
    return pad_m or problem.m
