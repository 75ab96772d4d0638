"""`fp4tune tune`: the main job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...kernels.errors import InvalidInputError, UnsupportedError
from ...kernels.problem import Format, OutDtype, Problem, Routing
from .execution import Means, PolicyName, execute, left_out, policy_for, ready_backends
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
from .output import console
from .resume import refuse_contradictions, refuse_idle_options, run_to_resume, settings_of
from .session import LockDirectory, Wait
from .winners import print_nothing_missed, print_result

EXIT_INTERRUPTED = 130
"""Stopped by Ctrl-C or SIGTERM (128 + SIGINT); what was found is kept."""

ANY_DEVICE = ""
"""Device fingerprint of the misses of questions that named no device."""

MAX_MISSES = 1000
"""Most shapes that one --from-misses works off."""

if TYPE_CHECKING:
    from ...db.records import RunProblem
    from ...db.store import Store
    from ...kernels.device import Device
    from ...tuner.job import JobResult


def tune(
    context: typer.Context,
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
    policy: Annotated[
        PolicyName | None,
        typer.Option(
            "--policy",
            help="How a GPU is measured: graph (CUDA graphs over cold weights, as served; the default) or eager.",
        ),
    ] = None,
    compile_workers: Annotated[
        int | None,
        typer.Option(
            "--compile-workers", min=1, max=1024, help="Most compiling processes; default: what the machine allows."
        ),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on with this run (its id, or `last`) instead of a new one.")
    ] = None,
    routing: RoutingOption = Routing.UNIFORM,
    format_: FormatOption = Format.NVFP4,
    out_dtype: OutDtypeOption = OutDtype.BF16,
    database: Database = DEFAULT_DATABASE,
    lock_dir: LockDirectory = None,
    *,
    wait: Wait = False,
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

    given = _given(context)
    if resume is not None or from_misses:
        database_must_exist(database)
    target = detect(device)
    counts = token_counts(tokens)
    how = policy_for(target, policy, compile_workers)
    items: Sequence[RunProblem] = []
    extra: dict[str, object] = {}
    words = ["tune"]
    if checkpoint is not None:
        refuse_idle_options(given, "a checkpoint")
        items = _items_of(checkpoint, tp, ep, counts, phase, role, bf16=bf16)
        extra = {"tp": tp, "ep": ep, "tokens": counts, "phases": phase, "roles": role, "bf16": bf16}
        words.append(checkpoint)
    elif shape:
        refuse_idle_options(given, "--shape")
        items = _bare(problems_of(shape, routing, format_, out_dtype), target)
        words += [word for one in shape for word in ("--shape", one)]
    else:
        words += ["--from-misses"] if resume is None else ["--resume", resume]
    ready = ready_backends(target, backend) if resume is None else {}  # before there is a database
    missing = left_out(target, ready) if resume is None and not backend else {}
    means = Means(target, ready, how, compile_workers, wait, lock_dir, words, missing)
    with Store.open(database, mode="create") as store:
        if resume is not None:
            result = _resume(store, resume, means, {**given, **_as_remembered(given, counts, how)})
        else:
            if from_misses:
                refuse_idle_options(given, "--from-misses")
                items = _missed(store, target)
                if not items:  # what a nightly run hopes for, and no error
                    print_nothing_missed(as_json=as_json)
                    return
            settings = JobSettings(trials=trials, budget_s=budget_s, seed=seed)
            result = execute(store, means, settings, items=items, checkpoint=checkpoint or "", extra=extra)
        _forget_misses(store, target, result)
        print_result(store, result, as_json=as_json, database=database)
    if result.status.value == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)
    if not result.n_served and resume is None:
        raise UnsupportedError("Nothing could be tuned: no problem has a configuration that runs and is right here.")


def _resume(store: Store, name: str, means: Means, given: Mapping[str, Any]) -> JobResult:
    """Go on with a run as it was started."""
    run = run_to_resume(store, name)
    refuse_contradictions(run, given)
    policy = run.settings.get("policy") or means.policy
    backends = ready_backends(means.device, run.settings["backends"])
    return execute(store, replace(means, backends=backends, policy=policy), settings_of(run), resume=run.id)


def _forget_misses(store: Store, device: Device, result: JobResult) -> None:
    """Whatever made a run tune problems, they are no longer missing; so a resume need not know about --from-misses."""
    done = [state.item.problem.key for state in store.run_problems(result.run_id) if state.done]
    for fingerprint in (device.fingerprint, ANY_DEVICE):
        store.forget_misses(done, device_fingerprint=fingerprint)


def _given(context: typer.Context) -> dict[str, Any]:
    """The parameters that stand on the command line, and their values."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name: context.params[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def _as_remembered(given: dict[str, Any], counts: tuple[int, ...] | None, policy: str) -> dict[str, Any]:
    """Options that a run remembers in another form than they are typed in."""
    forms: dict[str, Any] = {"tokens": counts, "policy": policy}
    return {name: forms[name] for name in forms if name in given}


def _missed(store: Store, device: Device) -> Sequence[RunProblem]:
    """What servers asked for on this device, most wanted first."""
    devices = (device.fingerprint, ANY_DEVICE)
    found = [miss for name in devices for miss in store.misses(device_fingerprint=name, limit=MAX_MISSES)]
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
