"""What a selftest runs: which problems, which configs of a backend, in which order."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from ...kernels.backend import Config, config_key
from ...kernels.errors import UnsupportedError
from ...kernels.patience import OutOfTimeError
from ...kernels.problem import Problem, parse_shape
from ...kernels.triton_gemm.compiler import target_name
from ..executor import Candidate
from ..static_compile import configs_to_compile
from ..workers.spec import is_compiled, spec_of
from .report import Outcome

if TYPE_CHECKING:
    from ...kernels.backend import Backend
    from ...kernels.device import Device

SHAPES = ("4x2048x4096", "e8k2:16x512x1024", "moe:e8k2:16x512x1024")
"""One decode-sized dense layer, one grouped, one fused MoE. N and K suit every backend of SM120 (N a multiple of 128, K
of 256), M is a bucket of FlashInfer's, and the operands are a few MB: making and comparing them takes no time."""

MAX_CONFIGS = 64
"""Configs of one backend and problem at most. At the dense shape FlashInfer 0.7.4 offers for an RTX PRO 6000, without
padding, 33 for `flashinfer.cutlass`, 9 for `.b12x` and 2 for `.cute_dsl`; `.cudnn` tells only on the card. Of
`flashinfer.cutlass_moe` (514) and Triton's thousands it is a sample."""

MAX_LISTED = 64
"""Configs left out that are named one by one in the report."""

COUNTED = 100_000
"""Largest space whose legal configs are all listed, to put those without padding first and to say how many were left
out. Today's largest has 69,120 before constraints (`triton.native`, grouped) and is listed in 0.4 s."""

PAD_M = "pad_m"
"""Rows that A is padded to, 0 for none: see kernels/padding.py. Backends without it never pad."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What one backend would run of one problem.

    Attributes:
        backend: whose. configs: the default first, if it is among them. has_default: whether it is.
        more: how many legal configs there are beside these; None if the space is too large to count.
        why_more: why these are not planned, in a few words.
        reason: why there are none, empty if there are.
        outcome: what the reason is: `refused`, `wrong`, or `not run`.
    """

    backend: str
    configs: Sequence[Config] = field(default=())
    has_default: bool = True
    more: int | None = 0
    why_more: str = "beyond the sample"
    reason: str = ""
    outcome: Outcome = Outcome.REFUSED


def problems() -> list[Problem]:
    """The problems of SHAPES."""
    return [parse_shape(shape) for shape in SHAPES]


def plan(
    backends: Mapping[str, Backend],
    problem: Problem,
    device: Device,
    *,
    seed: int,
    slow: Mapping[str, str] | None = None,
) -> list[Planned]:
    """What each backend has for a problem, MAX_CONFIGS at most.

    The default, then what does not pad M, all of it or a sample if there is too much, then a sample of the rest. Seeds
    come first of their kind.

    Args:
        backends: available ones, by name.
        problem: what is computed.
        device: where.
        seed: of the samples.
        slow: backends whose compiler takes too long here, with why. Of those only what is compiled already is planned.
    """
    return [
        _planned(backend, problem, device, seed, (slow or {}).get(name)) for name, backend in sorted(backends.items())
    ]


def _planned(backend: Backend, problem: Problem, device: Device, seed: int, why_slow: str | None) -> Planned:
    """What one backend has for a problem."""
    name = backend.name
    try:
        configs, legal = _candidates(backend, problem, device, seed)
    except OutOfTimeError as error:
        return Planned(name, reason=f"{error} Give more time with --budget-s.", outcome=Outcome.NOT_RUN)
    except UnsupportedError as error:
        return Planned(name, reason=str(error))
    except Exception as error:  # noqa: BLE001 - somebody else's package; it is reported, not swallowed
        return Planned(name, reason=f"{type(error).__name__}: {error}", outcome=Outcome.WRONG)
    default, why_more = configs[0], "beyond the sample"
    if why_slow is not None:
        spec = spec_of({name: backend})
        configs = [one for one in configs if is_compiled(spec, problem, device, Candidate(name, one))]
        why_more = "not compiled yet" if len(configs) <= MAX_CONFIGS else "not compiled yet, or beyond the sample"
    if not configs:
        text = f"{why_slow} None is compiled yet: `{compile_command(backend, problem, device)}` does it."
        return Planned(name, reason=text, outcome=Outcome.NOT_RUN)
    configs = configs[:MAX_CONFIGS]
    more = None if legal is None else legal - len(configs)
    return Planned(name, configs, has_default=configs[0] is default, more=more, why_more=why_more)


def _candidates(backend: Backend, problem: Problem, device: Device, seed: int) -> tuple[list[Config], int | None]:
    """Configs in the order of `plan`, all different, and how many are legal.

    All of a space that can be listed; of a larger one MAX_CONFIGS at random, and None. Raises what the backend raises.
    """
    space = backend.space(problem, device)
    default, *others = [backend.default(problem, device), *backend.seeds(problem, device)]
    if space.size <= COUNTED:
        listed: list[Config] = list(space)
        legal = len(listed)
        random.Random(seed).shuffle(listed)  # noqa: S311 - a sample, not a secret
    else:
        listed, legal = configs_to_compile(backend, problem, device, n=MAX_CONFIGS, seed=seed), None
    others = sorted([*others, *listed], key=lambda config: bool(config.get(PAD_M, 0)))
    return list({config_key(config): config for config in [default, *others]}.values()), legal


def compile_command(backend: Backend, problem: Problem, device: Device) -> str:
    """The command that compiles a backend's default and some other configs for a problem on a device."""
    arch = f" --arch {target_name(device.capability)}" if device.kind == "cuda" else ""
    return f"fp4tune compile --backend {backend.name} --shape {problem.shape}{arch}"


def in_order(planned: Sequence[Planned]) -> list[tuple[Candidate, bool]]:
    """Candidates in the order in which they run, with whether each is its backend's default.

    Every backend's default first, then one of each backend in turn: time that runs out costs none of them all of its.
    """
    lists = [
        [(Candidate(one.backend, c), one.has_default and i == 0) for i, c in enumerate(one.configs)] for one in planned
    ]
    return [entry for entry in chain.from_iterable(zip_longest(*lists)) if entry is not None]
