"""`fp4tune noise`: how far apart two measurements of one config lie."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...kernels.errors import InvalidInputError, UnsupportedError
from ...kernels.problem import Format, OutDtype, Problem, Routing
from .execution import PolicyName, policy_for, ready_backends
from .options import DeviceOption, FormatOption, Json, OutDtypeOption, RoutingOption, Shapes, problems_of
from .output import config_text, print_json, print_table
from .session import LockDirectory, Wait, device_session, say

if TYPE_CHECKING:
    from ...kernels.backend import Backend
    from ...kernels.device import Device
    from ...tuner.executor import Candidate
    from ...tuner.noise import Noise, Spread

DEFAULT_PAIRS = 5


def noise(
    shape: Shapes = None,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", help="Only these backends' defaults. May be repeated.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", help="A config of the one --backend as JSON, instead of its default.")
    ] = None,
    pairs: Annotated[
        int, typer.Option("--pairs", min=1, max=1000, help="Pairs of measurements in two processes each.")
    ] = DEFAULT_PAIRS,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of the operands.")] = 0,
    device: DeviceOption = "auto",
    policy: Annotated[
        PolicyName | None, typer.Option("--policy", help="How a GPU is measured: graph (the default) or eager.")
    ] = None,
    routing: RoutingOption = Routing.UNIFORM,
    format_: FormatOption = Format.NVFP4,
    out_dtype: OutDtypeOption = OutDtype.BF16,
    lock_dir: LockDirectory = None,
    *,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Measure one config again and again (A/A), within a process and across processes: what a difference is worth."""
    from ...kernels.backend import load_backends
    from ...kernels.device import current_environment, detect
    from ...kernels.operands import check_memory

    if not shape:
        raise InvalidInputError("Name at least one --shape.")
    chosen = _config(config, backend)
    problems = list(dict.fromkeys(problems_of(shape, routing, format_, out_dtype)))
    target = detect(device)
    how = policy_for(target, policy, None)
    for problem in problems:
        check_memory(problem, target)
    ready = ready_backends(target, backend)
    candidates = [(p, c) for p in problems for c in _candidates(p, target, ready, chosen, named=bool(backend))]
    words = ["noise", *(word for one in shape for word in ("--shape", one))]
    found: list[Noise] = []
    with device_session(target, words, wait=wait, lock_dir=lock_dir) as (_, seen):
        environment = current_environment(target, load_backends().values())
        for problem, candidate in candidates:
            say(f"{problem.shape}: {candidate.backend} {config_text(candidate.config)}, {pairs + 1} processes")
            try:
                found.append(_measure(target, ready, how, problem, candidate, pairs=pairs, seed=seed))
            except UnsupportedError as error:
                if backend or (candidate is candidates[-1][1] and not found):
                    raise
                say(f"left out: {error}")  # nobody asked for this one, and the others are worth having
    if as_json:
        print_json(
            {
                "device": target,
                "environment_fingerprint": environment.fingerprint,
                "shared_with": seen.sentence if seen is not None else "",
                "noise": [_document(one) for one in found],
            }
        )
        return
    _print(found, pairs)


def _measure(
    device: Device,
    backends: Mapping[str, Backend],
    policy: str,
    problem: Problem,
    candidate: Candidate,
    *,
    pairs: int,
    seed: int,
) -> Noise:
    """Measure one config, in new worker processes each time: on a CPU, too."""
    from ...tuner.measure import Effort
    from ...tuner.noise import run_noise
    from ...tuner.workers.executor import WorkerExecutor

    only = {candidate.backend: backends[candidate.backend]}
    return run_noise(
        lambda: WorkerExecutor(device, only, policy=policy, spare=False),
        problem,
        candidate,
        pairs=pairs,
        effort=Effort(),
        seed=seed,
    )


def _config(text: str | None, backends: Sequence[str] | None) -> dict[str, Any] | None:
    """Read --config.

    Raises:
        InvalidInputError: it is no JSON object, or it is not said of which backend.
    """
    if text is None:
        return None
    if not backends or len(backends) != 1:
        raise InvalidInputError("--config needs one --backend, whose config it is.")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"--config is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidInputError('--config must be a JSON object of parameters, such as {"block_n": 64}.')
    return found


def _candidates(
    problem: Problem, device: Device, backends: Mapping[str, Backend], config: dict[str, Any] | None, *, named: bool
) -> list[Candidate]:
    """What to measure of a problem: the config, or every backend's default.

    Args:
        problem: what is computed.
        device: where.
        backends: whose.
        config: of the only backend.
        named: whether the user named the backends; else those that cannot run the problem are left out.

    Raises:
        InvalidInputError: the config is none of the backend's for this problem.
        UnsupportedError: a backend that was named, or every one, cannot run the problem.
    """
    from ...tuner.executor import Candidate

    found: list[Candidate] = []
    reasons: list[str] = []
    for name, backend in sorted(backends.items()):
        try:
            if config is None:
                found.append(Candidate(name, backend.default(problem, device)))
                continue
            space = backend.space(problem, device)
        except UnsupportedError as error:
            reasons.append(f"{name}: {error}")
            continue
        if config not in space:
            there = "; ".join(f"{p.name}: {', '.join(map(str, p.values))}" for p in space.parameters)
            raise InvalidInputError(
                f"--config is no config of {name} for {problem.shape}, which has {there or 'none'}."
            )
        found.append(Candidate(name, config))
    if reasons and (named or not found):
        raise UnsupportedError(f"{problem.shape} cannot be measured. {' '.join(reasons)}")
    return found


def _document(noise_: Noise) -> dict[str, Any]:
    return {
        "problem": noise_.problem,
        "key": noise_.problem.key,
        "backend": noise_.candidate.backend,
        "config": noise_.candidate.config,
        "policy": noise_.policy,
        "times_us": noise_.times_us,
        "within": _spread(noise_.within),
        "across": _spread(noise_.across),
    }


def _spread(spread: Spread) -> dict[str, Any]:
    return {"median": spread.median, "worst": spread.worst, "ratios": spread.ratios}


def _print(found: Sequence[Noise], pairs: int) -> None:
    print_table(
        "How far apart two measurements of one config lie",
        (
            "shape", "backend", "config", "µs", "within, median", "within, worst", "across, median", "across, worst",
        ),
        [
            (
                one.problem.shape,
                one.candidate.backend,
                config_text(one.candidate.config),
                one.times_us[0][0],
                f"{one.within.median:.2%}",
                f"{one.within.worst:.2%}",
                f"{one.across.median:.2%}",
                f"{one.across.worst:.2%}",
            )
            for one in found
        ],
        caption=f"By how much the slower of two measurements is above the faster: of two in one process ({pairs + 1} "
        f"such pairs), and of one each in two processes ({pairs}).",
        tall=True,
    )  # fmt: skip
