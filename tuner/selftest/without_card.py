"""What can be known of backends for a card that is not here: what they offer for it, and that a kernel compiles for it.

Neither says that a kernel is right or fast there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from itertools import islice
from typing import TYPE_CHECKING

from ...db.records import TrialStatus
from ...kernels.backend import Compiling, compile_need
from ...kernels.errors import UnsupportedError
from ...kernels.patience import OutOfTimeError
from ..executor import Candidate
from ..workers.compile_pool import CompilePool
from ..workers.spec import spec_of
from .numerics import SEED
from .plan import COUNTED, compile_command, plan
from .report import Finding, Outcome

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ...kernels.backend import Backend, Space
    from ...kernels.device import Device
    from ...kernels.problem import Problem
    from ..workers.inside import Compiled

COMPILE_S = 60.0
"""Seconds that one kernel gets, where its backend does not ask for more: Triton takes one or two, CuTe DSL three to
twenty."""

PATIENT_S = 300.0
"""Of a backend that asks for more than this for one kernel (nvcc on CUTLASS takes minutes) a selftest of two minutes
takes what is compiled already, and nothing else."""


def contract(backend: Backend, problem: Problem, card: Device) -> Finding:
    """Whether what a backend offers for a problem on a card is what `fp4tune.kernels.backend` promises.

    Args:
        backend: one that says it can be used on the card, as far as this machine goes.
        problem: what would be computed.
        card: where.
    """
    subject = f"{backend.name} {problem.shape}"
    try:
        space = backend.space(problem, card)
    except OutOfTimeError as error:
        return Finding("contract", subject, Outcome.NOT_RUN, str(error))
    except UnsupportedError as error:
        return Finding("contract", subject, Outcome.REFUSED, str(error))
    except Exception as error:  # noqa: BLE001 - somebody else's package; it is reported, not swallowed
        return Finding("contract", subject, Outcome.WRONG, f"space raised {type(error).__name__}: {error}")
    wrong = _broken_promise(backend, problem, card, space)
    if wrong:
        return Finding("contract", subject, Outcome.WRONG, wrong)
    legal = sum(1 for _ in islice(space, COUNTED)) if space.size <= COUNTED else 0
    n = f"{legal} configs" if legal else f"a space of {space.size} before constraints"
    return Finding("contract", subject, Outcome.OK, f"{n}; the default and all seeds are in the space")


def _broken_promise(backend: Backend, problem: Problem, card: Device, space: Space) -> str:
    """What is not as promised; empty if all is."""
    try:
        default, seeds = backend.default(problem, card), list(backend.seeds(problem, card))
    except Exception as error:  # noqa: BLE001 - as above
        return f"It has a space, and asked for its default and seeds it raised {type(error).__name__}: {error}"
    if default not in space:
        return f"Its default {dict(default)} is not in its space."
    for seed in seeds:
        if seed not in space:
            return f"Its seed {dict(seed)} is not in its space."
    try:
        versions = backend.versions(card)
    except Exception as error:  # noqa: BLE001 - as above
        return f"versions raised {type(error).__name__}: {error}"
    return "" if versions else "It names no versions, so what is found with it could never become stale."


def compile_one_each(
    backends: Mapping[str, Backend],
    problems: list[Problem],
    card: Device,
    *,
    deadline: float,
    now: Callable[[], float] = time.monotonic,
) -> list[Finding]:
    """Compile one config of each backend that compiles, its default for the first problem that it takes.

    Of one whose compiler takes longer than PATIENT_S, find one that is compiled already.

    Args:
        backends: those that say they can be used on the card.
        problems: in order of preference.
        card: what for.
        deadline: by `now`; a kernel that is not done then is reported as not run.
        now: a monotonic clock, seconds.
    """
    found: list[Finding] = []
    work: dict[str, tuple[Problem, Candidate]] = {}
    compiling = {name: one for name, one in backends.items() if isinstance(one, Compiling)}
    slow = [name for name, one in compiling.items() if compile_need(one).seconds > PATIENT_S]
    for name, backend in compiling.items():
        first = _first(backend, problems, card)
        built = _first_built(backend, problems, card) if first and name in slow else first
        if built:
            work[name] = built
        elif first:
            found.append(Finding("compile", name, Outcome.NOT_RUN, _too_slow(backend, first[0], card)))
    if not work:
        return found
    pool = CompilePool(spec_of({name: compiling[name] for name in work}), card, deadline_s=COMPILE_S)
    try:
        futures: dict[str, Future[Compiled]] = {}
        for name, (problem, candidate) in work.items():
            try:
                futures[name] = pool.submit(candidate, problem)
            except UnsupportedError as error:
                found.append(Finding("compile", name, Outcome.NOT_RUN, str(error)))
        wait(futures.values(), timeout=max(0.0, deadline - now()))
        for name, future in futures.items():
            outcome, text = Outcome.NOT_RUN, "Time ran out before it was compiled."
            if future.done():
                outcome, text = _verdict(future.result(), "compiled before, found" if name in slow else "compiled")
            found.append(Finding("compile", f"{name} {work[name][0].shape}", outcome, text))
    finally:
        pool.close()
    return found


def _too_slow(backend: Backend, problem: Problem, card: Device) -> str:
    """Why nothing of a backend is compiled."""
    needed_s = compile_need(backend).seconds
    return f"One kernel may take {needed_s:.0f} s to compile: `{compile_command(backend, problem, card)}` does it."


def _verdict(done: Compiled, how: str) -> tuple[Outcome, str]:
    """What came of one kernel."""
    if done.status is TrialStatus.OK:
        text = f"{how} in {done.compile_s:.1f} s"
        if done.facts is not None:
            opcodes = ", ".join(f"{n}x {opcode}" for opcode, n in done.facts.instructions.items())
            text += f" for {done.facts.target}: {done.facts.registers} registers, {opcodes or 'no FP4 MMA'}"
        return Outcome.OK, text
    cannot = done.status in (TrialStatus.TIMEOUT, TrialStatus.UNSUPPORTED)
    return Outcome.NOT_RUN if cannot else Outcome.WRONG, done.error.split("\n", 1)[0]


def _first_built(backend: Backend, problems: list[Problem], card: Device) -> tuple[Problem, Candidate] | None:
    """The first problem for which a config is compiled already, with that config, its default if it can be."""
    for problem in problems:
        (planned,) = plan({backend.name: backend}, problem, card, seed=SEED, slow={backend.name: ""})
        if planned.configs:
            return problem, Candidate(backend.name, planned.configs[0])
    return None


def _first(backend: Backend, problems: list[Problem], card: Device) -> tuple[Problem, Candidate] | None:
    """The first problem that a backend takes, with its default; None if it takes none."""
    for problem in problems:
        try:
            return problem, Candidate(backend.name, backend.default(problem, card))
        except Exception:  # noqa: BLE001, S112 - the contract check has said what it raises
            continue
    return None
