"""`fp4tune tune`: the main job."""

from __future__ import annotations

import shlex
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ...kernels.errors import InvalidInputError, NotFoundError, UnsupportedError
from ...kernels.problem import Format, OutDtype, Problem, Routing
from .options import (
    DEFAULT_DATABASE,
    Database,
    DeviceOption,
    Ep,
    FormatOption,
    Json,
    OutDtypeOption,
    RoutingOption,
    Shapes,
    Tokens,
    Tp,
    database_must_exist,
    problems_of,
    token_counts,
)
from .output import Cell, config_text, console, print_json, print_line, print_table

EXIT_INTERRUPTED = 130
"""Stopped by Ctrl-C or SIGTERM (128 + SIGINT); what was found is kept."""

ANY_DEVICE = ""
"""Device fingerprint of the misses of questions that named no device."""

MAX_MISSES = 1000
"""Most shapes that one --from-misses works off."""

if TYPE_CHECKING:
    from ...db.records import Run, RunProblem, Winner
    from ...db.store import Store
    from ...kernels.backend import Backend
    from ...kernels.device import Device
    from ...tuner.context import JobSettings, StopFlag
    from ...tuner.job import JobResult


def tune(
    checkpoint: Annotated[
        str | None, typer.Argument(help="A checkpoint directory, a hub cache directory, or a preset name.")
    ] = None,
    shape: Shapes = None,
    tp: Tp = 1,
    ep: Ep = 1,
    tokens: Tokens = None,
    phase: Annotated[
        list[str] | None,
        typer.Option(
            "--phase", help="decode, verify, draft_extend, draft_decode, draft (both) or prefill. May be repeated."
        ),
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="Only these roles (moe.w13, ...). May be repeated.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", help="Only these backends. May be repeated.")
    ] = None,
    budget_s: Annotated[
        float, typer.Option("--budget-s", min=0.1, max=1e6, help="Seconds of search per problem.")
    ] = 30.0,
    trials: Annotated[int, typer.Option("--trials", min=1, max=100_000, help="Most trials per problem.")] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of every random choice.")] = 0,
    device: DeviceOption = "auto",
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on with this run (its id, or `last`) instead of a new one.")
    ] = None,
    routing: RoutingOption = Routing.UNIFORM,
    format_: FormatOption = Format.NVFP4,
    out_dtype: OutDtypeOption = OutDtype.BF16,
    database: Database = DEFAULT_DATABASE,
    *,
    from_misses: Annotated[
        bool, typer.Option("--from-misses", help="Tune the shapes that servers asked for and did not get.")
    ] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Tune the checkpoint's BF16 GEMMs, too.")] = False,
    as_json: Json = False,
) -> None:
    """Find, check and remember the fastest configuration of every problem. Ctrl-C keeps what was found."""
    if sum([checkpoint is not None, bool(shape), resume is not None, from_misses]) != 1:
        raise InvalidInputError("Name one of: a checkpoint, --shape, --from-misses, or --resume.")
    from ...db.store import Store
    from ...kernels.device import detect
    from ...tuner.context import JobSettings

    if resume is not None or from_misses:
        database_must_exist(database)
    target = detect(device)
    counts = token_counts(tokens)
    items: Sequence[RunProblem] = []
    extra: dict[str, object] = {}
    if checkpoint is not None:
        items = _items_of(checkpoint, tp, ep, counts, phase, role, bf16=bf16)
        extra = {"tp": tp, "ep": ep, "tokens": counts, "phases": phase, "roles": role}
    elif shape:
        items = _bare(problems_of(shape, routing, format_, out_dtype), target)
    settings = JobSettings(trials=trials, budget_s=budget_s, seed=seed)
    with Store.open(database, mode="create") as store:
        if resume is not None:
            stored = _run_to_resume(store, resume)
            result = _execute(store, target, _settings_of(stored), stored.settings["backends"], resume=stored.id)
        else:
            if from_misses:
                items = _missed(store, target)
            result = _execute(store, target, settings, backend, items=items, checkpoint=checkpoint or "", extra=extra)
        # Whatever made this run tune them, they are no longer missing; so a resume need not know about --from-misses.
        done = [state.item.problem.key for state in store.run_problems(result.run_id) if state.done]
        for fingerprint in (target.fingerprint, ANY_DEVICE):
            store.forget_misses(done, device_fingerprint=fingerprint)
        _print_result(store, result, as_json=as_json, database=database)
    if result.status.value == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)
    if not result.n_served and resume is None:
        raise UnsupportedError("Nothing could be tuned: no problem has a configuration that runs and is right here.")


def _execute(
    store: Store,
    device: Device,
    settings: JobSettings,
    backends: list[str] | None,
    *,
    resume: str = "",
    items: Sequence[RunProblem] = (),
    checkpoint: str = "",
    extra: dict[str, object] | None = None,
) -> JobResult:
    """Run the job with a progress display, orderly on signals."""
    from ...kernels.backend import load_backends
    from ...kernels.device import current_environment
    from ...tuner.context import JobContext
    from ...tuner.executor import LocalExecutor
    from ...tuner.job import TuningJob
    from .progress import TuneDisplay

    ready = _ready_backends(device, backends)
    # Of every backend that is available, not of those in this race alone: what is served must not depend on --backend.
    environment = current_environment(device, load_backends().values())
    problem_s = settings.budget_s + settings.finals_s
    with (
        _stop_on_signals() as stop,
        TuneDisplay(console(stderr=True), trials=settings.trials, problem_s=problem_s) as display,
    ):
        context = JobContext(environment, ready, LocalExecutor(device, ready), settings, display, stop)
        job = TuningJob(store, context)
        return job.resume(resume) if resume else job.start(items, checkpoint=checkpoint, extra=extra)


def _settings_of(run: Run) -> JobSettings:
    """The settings that a run was started with."""
    from ...tuner.context import JobSettings

    return JobSettings(trials=run.settings["trials"], budget_s=run.settings["budget_s"], seed=run.seed)


def _missed(store: Store, device: Device) -> Sequence[RunProblem]:
    """What servers asked for on this device, most wanted first.

    Raises:
        InvalidInputError: there is nothing.
    """
    devices = (device.fingerprint, ANY_DEVICE)
    found = [miss for name in devices for miss in store.misses(device_fingerprint=name, limit=MAX_MISSES)]
    if not found:
        raise InvalidInputError("No server has asked for a shape that is missing for this device.")
    from ...db.records import RunProblem

    counts: Counter[Problem] = Counter()
    for miss in found:
        counts[miss.problem] += miss.count
    return [RunProblem(problem) for problem, _ in counts.most_common(MAX_MISSES)]


def _items_of(
    checkpoint: str,
    tp: int,
    ep: int,
    tokens: tuple[int, ...] | None,
    phases: list[str] | None,
    roles: list[str] | None,
    *,
    bf16: bool,
) -> Sequence[RunProblem]:
    """The problems of a checkpoint, as the options narrow them."""
    from ...tuner.checkpoint import open_checkpoint
    from ...tuner.inspector import inspect_checkpoint
    from ...tuner.workload import derive

    inspection = inspect_checkpoint(open_checkpoint(checkpoint))
    workload = derive(inspection, tp=tp, ep=ep, tokens=tokens, phases=phases, include_bf16=bf16)
    err = console(stderr=True)
    for error in workload.errors:
        err.print(f"not tuned: {error.role}: {error.message}", markup=False, soft_wrap=True)
    # A problem that several roles share carries all of their names, joined by "+".
    items = [item for item in workload.items if not roles or set(roles) & set(item.role.split("+"))]
    if not items:
        there_are = ", ".join(sorted({item.role for item in workload.items})) or "none"
        raise InvalidInputError(f"Nothing to tune in {checkpoint}: roles with problems are {there_are}.")
    return [item.to_run_problem() for item in items]


def _bare(problems: Sequence[Problem], device: Device) -> Sequence[RunProblem]:
    """Problems that stand for nothing but themselves, each once.

    Raises:
        OutOfMemoryError: one is too large. Somebody who names shapes wants these; of a checkpoint's problems, one that
            is too large is skipped.
    """
    from ...db.records import RunProblem
    from ...kernels.operands import check_memory

    for problem in problems:
        check_memory(problem, device)
    return [RunProblem(problem) for problem in dict.fromkeys(problems)]


def _run_to_resume(store: Store, name: str) -> Run:
    """The run that --resume names: an id, a unique prefix of one, or `last` for the newest unfinished one."""
    if name != "last":
        return store.run(name)
    for run in store.runs(limit=1000):
        if run.status.value != "finished":
            return run
    raise NotFoundError("There is no unfinished run to resume.")


def _ready_backends(device: Device, names: list[str] | None) -> dict[str, Backend]:
    """The backends to race: those named, which must be available, else all that are.

    Raises:
        NotFoundError: an unknown name. UnsupportedError: a named one, or every one, is not available.
    """
    from ...kernels.backend import get_backend, load_backends

    chosen = {name: get_backend(name) for name in names} if names else load_backends()
    states = {name: backend.probe(device) for name, backend in chosen.items()}
    reasons = [f"{name}: {state.reason}" for name, state in states.items() if not state.available]
    if names and reasons:
        raise UnsupportedError(f"A backend that was asked for cannot be used on {device.name}. {' '.join(reasons)}")
    ready = {name: backend for name, backend in chosen.items() if states[name].available}
    if not ready:
        raise UnsupportedError(f"No backend can be used on {device.name}. {' '.join(reasons)}")
    return ready


@contextmanager
def _stop_on_signals() -> Iterator[StopFlag]:
    """The first Ctrl-C or SIGTERM asks for an orderly end, the second ends at once."""
    from ...tuner.context import StopFlag

    flag = StopFlag()

    def handle(_signal: int, _frame: object) -> None:
        if flag.requested:
            raise KeyboardInterrupt
        flag.requested = True
        # The signal may have met a write to the same stream (RuntimeError), or the terminal may be gone (OSError).
        with suppress(RuntimeError, OSError):
            console(stderr=True).print("stopping after this trial; again to stop at once", markup=False)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_result(store: Store, result: JobResult, *, as_json: bool, database: str) -> None:
    """The winners of a run, and how to go on."""
    from ...db.records import WinnerFilter

    # Also those that another run has superseded since; of several of one problem (a resumed run) the last.
    found = store.winners(WinnerFilter(run_id=result.run_id, current=None), limit=10_000).items
    winners = list({winner.problem: winner for winner in found}.values())
    states = store.run_problems(result.run_id)
    if as_json:
        print_json({"run": store.run(result.run_id), "problems": states, "winners": winners})
        return
    roles = {state.item.problem: state.item.role for state in states}
    print_table(
        f"Winners of run {result.run_id} ({result.status.value})",
        ("role", "shape", "backend", "config", "time µs", "default µs", "speed-up", "tied", "trials"),
        [_winner_row(roles.get(winner.problem, ""), winner) for winner in winners],
        caption="speed-up is over the fastest default of any backend, re-measured in the same interleaved rounds",
        tall=True,
    )
    for state in states:
        if state.done and state.item.problem not in {winner.problem for winner in winners}:
            print_line(f"no winner for {state.item.problem.shape}: {state.outcome}")
    if result.status.value != "finished":
        go_on = shlex.join(["fp4tune", "tune", "--resume", result.run_id, "--db", database])
        print_line(f"The run was interrupted. Go on with: {go_on}")


def _winner_row(role: str, winner: Winner) -> list[Cell]:
    return [
        role or "-",
        winner.problem.shape,
        winner.choice.backend,
        config_text(winner.choice.config),
        winner.choice.time_us,
        winner.default.time_us,
        f"{winner.speedup:.2f}x",
        len(winner.tie_set),
        winner.n_trials,
    ]
