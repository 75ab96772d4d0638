"""What a selftest runs: which problems, which configs of a backend, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING

from ...kernels.backend import Config, config_key
from ...kernels.errors import UnsupportedError
from ...kernels.problem import Problem, parse_shape
from ..executor import Candidate
from ..static_compile import configs_to_compile

if TYPE_CHECKING:
    from ...kernels.backend import Backend
    from ...kernels.device import Device

SHAPES = ("4x2048x4096", "e8k2:16x512x1024", "moe:e8k2:16x512x1024")
"""One decode-sized dense layer, one grouped, one fused MoE. N and K suit every backend of SM120 (N a multiple of 128, K
of 256), M is a bucket of FlashInfer's, and the operands are a few MB: making and comparing them takes no time."""

MAX_CONFIGS = 64
"""Configs of one backend and problem at most: all of FlashInfer's dense tactics (33 for CUTLASS), a sample of spaces of
thousands."""

MAX_LISTED = 64
"""Configs left out that are named one by one in the report."""

COUNTED = 100_000
"""Largest space whose legal configs are counted, to say how many were left out."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What one backend would run of one problem.

    Attributes:
        backend: whose. configs: the default first. more: how many legal configs there are beside these; None if the
            space is too large to count.
        reason: why there are none, if the backend refuses the problem.
        broken: whether it did so in another way than it may.
    """

    backend: str
    configs: Sequence[Config] = field(default=())
    more: int | None = 0
    reason: str = ""
    broken: bool = False


def problems() -> list[Problem]:
    """The problems of SHAPES."""
    return [parse_shape(shape) for shape in SHAPES]


def plan(backends: Mapping[str, Backend], problem: Problem, device: Device, *, seed: int) -> list[Planned]:
    """What each backend has for a problem: its default, its seeds, then the rest of its space or a sample of it.

    Args:
        backends: available ones, by name.
        problem: what is computed.
        device: where.
        seed: of the sample.
    """
    planned = []
    for name, backend in sorted(backends.items()):
        try:
            drawn = configs_to_compile(backend, problem, device, n=MAX_CONFIGS - 1, seed=seed)
            first = [drawn[0], *backend.seeds(problem, device)]
            space = backend.space(problem, device)
        except UnsupportedError as error:
            planned.append(Planned(name, reason=str(error)))
            continue
        except Exception as error:  # noqa: BLE001 - somebody else's package; it is reported, not swallowed
            planned.append(Planned(name, reason=f"{type(error).__name__}: {error}", broken=True))
            continue
        configs = list({config_key(config): config for config in [*first, *drawn]}.values())[:MAX_CONFIGS]
        legal = sum(1 for _ in islice(space, COUNTED + 1)) if space.size <= COUNTED else COUNTED + 1
        planned.append(Planned(name, configs, None if legal > COUNTED else legal - len(configs)))
    return planned


def in_order(planned: Sequence[Planned]) -> list[tuple[Candidate, bool]]:
    """Candidates in the order in which they run, with whether each is its backend's default.

    Every backend's default first, then one of each backend in turn: time that runs out costs none of them all of its.
    """
    lists = [[(Candidate(one.backend, c), i == 0) for i, c in enumerate(one.configs)] for one in planned]
    return [entry for entry in chain.from_iterable(zip_longest(*lists)) if entry is not None]
