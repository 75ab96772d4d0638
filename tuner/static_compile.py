"""Compile configs for a card that need not be there, and say what the compiler says. Nothing is run or timed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from typing import TYPE_CHECKING

from ..db.records import CompileStatus, NewStaticFacts, TrialStatus
from ..kernels.backend import Backend, Compiling, Config, Space, config_key
from ..kernels.errors import UnsupportedError
from .executor import Candidate
from .workers.compile_pool import CompilePool
from .workers.resources import usable_cores
from .workers.spec import spec_of

if TYPE_CHECKING:
    from ..kernels.device import Device
    from ..kernels.problem import Problem

DRAWS_A_CONFIG = 200
"""Draws from a space for every config that is wanted, before it is taken for exhausted: at least one in twenty-five is
legal in the spaces that there are, and of a small space most were seen before."""


def configs_to_compile(backend: Backend, problem: Problem, device: Device, *, n: int, seed: int) -> list[Config]:
    """The default and up to `n` other configs, drawn at random, all different.

    Raises:
        UnsupportedError: the backend cannot run the problem.
    """
    space, rng = backend.space(problem, device), random.Random(seed)  # noqa: S311 - a sample, not a secret
    chosen: dict[str, Config] = {}
    default = backend.default(problem, device)
    chosen[config_key(default)] = default
    for config in _draw(space, rng, n * DRAWS_A_CONFIG):
        if len(chosen) > n:
            break
        chosen.setdefault(config_key(config), config)
    return list(chosen.values())


def compile_without_device(
    backend: Backend,
    device: Device,
    work: Sequence[tuple[Problem, Config]],
    *,
    target: str,
    workers: int | None = None,
    deadline_s: float = 120.0,
) -> Iterator[NewStaticFacts]:
    """Compile configs in a pool of processes, and give what came of each as it is done.

    Args:
        backend: whose configs.
        device: what for.
        work: problems and configs of their spaces.
        target: what the device's architecture is called, for configs that did not compile.
        workers: most processes; None for one a core, as far as memory allows.
        deadline_s: seconds that one config may take.

    Raises:
        UnsupportedError: the backend compiles nothing ahead, or its cache cannot be written.
    """
    if not isinstance(backend, Compiling):
        raise UnsupportedError(f"{backend.name} has nothing that could be compiled ahead.")
    versions = backend.versions(device)
    pool = CompilePool(
        spec_of({backend.name: backend}), device, max_workers=workers or usable_cores(), deadline_s=deadline_s
    )
    try:
        futures = {pool.submit(Candidate(backend.name, config), problem): (problem, config) for problem, config in work}
        for future in as_completed(futures):
            (problem, config), done = futures[future], future.result()
            status = {TrialStatus.OK: CompileStatus.OK, TrialStatus.UNSUPPORTED: CompileStatus.UNSUPPORTED}
            yield NewStaticFacts(
                problem=problem,
                backend=backend.name,
                config=config,
                target=done.facts.target if done.facts else target,
                versions=versions,
                status=status.get(done.status, CompileStatus.COMPILE_FAILED),
                facts=done.facts,
                compile_s=done.compile_s,
                error=done.error,
            )
    finally:
        pool.close()


def _draw(space: Space, rng: random.Random, draws: int) -> Iterator[Config]:
    """Legal configs out of so many draws from a space; all of a small one in random order."""
    if space.size <= draws:
        configs = list(space)
        rng.shuffle(configs)
        yield from configs
        return
    for _ in range(draws):
        config = {p.name: rng.choice(p.values) for p in space.parameters}
        if config in space:
            yield config
