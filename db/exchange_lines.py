"""Lines of an export: from rows, and back to rows.

`x_line` takes a row (columns by name) and the natural keys of what it refers to; `read_x` takes the fields of a line
and gives what the store's own writers take, checked as they check. What `x_line` writes of what `read_x` has read is
the line again, so lines can be compared to see whether two databases say the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..kernels.backend import StaticFacts
from ..kernels.device import Device, Environment
from ..kernels.errors import InvalidInputError
from ..kernels.problem import Problem, parse_key
from . import details, roofs, runs, samples, static_facts, trials, values, winners
from .fields import Fields, time_text
from .liveness import NO_PROCESS
from .records import (
    Choice,
    CompileStatus,
    Conditions,
    NewRun,
    NewStaticFacts,
    NewTrial,
    NewWinner,
    Origin,
    Roofs,
    RunProblem,
    RunStatus,
    Source,
    Timing,
    TrialStatus,
)

Row = Mapping[str, Any]
Document = dict[str, Any]
Environments = Mapping[str, Environment]
"""Those that were read so far, by fingerprint."""

_DEVICE = ("kind", "name", "compute_capability", "sms", "memory_bytes", "l2_bytes", "power_limit_w")
_TIMES = ("time_us", "time_us_low", "time_us_high")


# Environments


def environment_line(environment: Environment) -> Document:
    """An environment and its device."""
    device = {name: getattr(environment.device, name) for name in _DEVICE}
    return {"fingerprint": environment.fingerprint, "device": device, "versions": dict(environment.versions)}


def read_environment(fields: Fields) -> Environment:
    """An environment whose fingerprint is the one that the line says."""
    fingerprint, device = fields.text("fingerprint"), fields.object("device")
    versions = fields.object("versions")
    found = Environment(
        Device(
            device.text("kind"), device.text("name"), device.text("compute_capability"), device.integer("sms"),
            device.integer("memory_bytes"), device.integer("l2_bytes"), device.number("power_limit_w"),
        ),
        versions.rest(versions.text),
    )  # fmt: skip
    device.end()
    fields.end()
    values.number(found.device.power_limit_w, "power_limit_w")
    if found.fingerprint != fingerprint:
        raise InvalidInputError(f"the environment has the fingerprint {found.fingerprint}, not {fingerprint[:40]!r}")
    return found


def _environment(fields: Fields, known: Environments) -> Environment:
    """The environment that a line refers to."""
    fingerprint = fields.text("environment")
    if fingerprint not in known:
        raise InvalidInputError(
            f"it refers to the environment {fingerprint[:40]!r}, which is not in the file before it"
        )
    return known[fingerprint]


# Runs


def run_line(row: Row, environment: str) -> Document:
    """A run."""
    return {
        "id": row["ulid"],
        "status": row["status"],
        "environment": environment,
        "checkpoint": row["checkpoint"],
        "settings": json.loads(row["settings"]),
        **{name: row[name] for name in ("seed", "host", "pid", "version", "error")},
        "started_at": time_text(row["started_at"]),
        "heartbeat_at": time_text(row["heartbeat_at"]),
        "finished_at": time_text(row["finished_at"]),
    }


def read_run(fields: Fields, known: Environments) -> tuple[Row, Environment]:
    """A run's columns but those that refer to others or count, and where it ran."""
    environment = _environment(fields, known)
    new = NewRun(
        environment, (), fields.text("checkpoint"), fields.mapping("settings"), fields.integer("seed"),
        fields.text("host"), fields.integer("pid"), fields.text("version"),
    )  # fmt: skip
    row = {
        **runs.said_columns(new),
        "ulid": runs.checked_id(fields.text("id")),
        "status": fields.word("status", RunStatus).value,
        # Nobody can tell from here whether its process lives; it has ended anyway.
        "process_scope": "",
        "process_birth": NO_PROCESS,
        "error": values.prose(fields.text("error")),
        "started_at": fields.time("started_at"),
        "heartbeat_at": fields.time("heartbeat_at"),
        "finished_at": fields.time("finished_at"),
    }
    fields.end()
    if row["status"] == RunStatus.RUNNING.value:
        raise InvalidInputError("a run that is still running cannot be imported")
    return row, environment


def run_problem_line(row: Row, problem: str) -> Document:
    """A problem of a run."""
    return {
        "problem": problem,
        "phases": json.loads(row["phases"]),
        **{name: row[name] for name in ("role", "layers", "done", "outcome")},
    }


def read_run_problem(fields: Fields) -> tuple[Row, Problem]:
    """A problem of a run: its columns but where it belongs."""
    problem = parse_key(fields.text("problem"))
    item = RunProblem(problem, fields.text("role"), tuple(fields.texts("phases")), fields.integer("layers"))
    more = {"done": fields.flag("done"), "outcome": values.prose(fields.text("outcome"))}
    fields.end()
    return {**runs.item_columns(item), **more}, problem


# Trials


def trial_line(row: Row, problem: str, environment: str) -> Document:
    """A trial with its samples."""
    same = (
        "number", "backend", "origin", "status", *_TIMES, "n_samples", "error", "rel_error", "seed", "optimizer",
        "optimizer_version", "wall_s", "policy", "source", "compile_s", "roof_share",
    )  # fmt: skip
    return {
        "problem": problem,
        "environment": environment,
        "config": json.loads(row["config"]),
        **{name: row[name] for name in same},
        "samples_us": samples.shortest(row["samples"]),
        "started_at": time_text(row["started_at"]),
        "conditions": row["conditions"] and json.loads(row["conditions"]),
        "facts": row["facts"] and json.loads(row["facts"]),
    }


def read_trial(fields: Fields, run: str, known: Environments) -> tuple[Row, NewTrial]:
    """A trial: its own columns, and the trial."""
    times = [fields.optional(name, fields.number) for name in _TIMES]
    taken, n_samples = tuple(fields.numbers("samples_us")), fields.integer("n_samples")
    low, high = times[1], times[2]
    timing = None
    if times[0] is not None and low is not None and high is not None:
        values.times(times[0], low, high, "The timing of a trial")
        timing = Timing(times[0], low, high, taken, n_samples)
    elif taken or n_samples or times != [None] * 3:
        raise InvalidInputError("a trial has all of its times and samples or none")
    new = NewTrial(
        run_id=run,
        problem=parse_key(fields.text("problem")),
        environment=_environment(fields, known),
        number=fields.integer("number"),
        backend=fields.text("backend"),
        config=fields.mapping("config"),
        origin=fields.word("origin", Origin),
        status=_agreeing(fields.word("status", TrialStatus), timing),
        timing=timing,
        error=fields.text("error"),
        rel_error=fields.optional("rel_error", fields.number),
        seed=fields.integer("seed"),
        optimizer=fields.text("optimizer"),
        optimizer_version=fields.text("optimizer_version"),
        started_at=fields.time("started_at"),
        wall_s=fields.number("wall_s"),
        policy=fields.text("policy"),
        source=fields.word("source", Source),
        compile_s=fields.number("compile_s"),
        conditions=_conditions(fields.optional("conditions", fields.object)),
        roof_share=fields.optional("roof_share", fields.number),
        facts=_facts(fields.optional("facts", fields.object)),
    )
    fields.end()
    if new.rel_error is not None:
        values.number(new.rel_error, "rel_error")
    return trials.measured_columns(new), new


def _agreeing(status: TrialStatus, timing: Timing | None) -> TrialStatus:
    """The status, if it agrees with there being a timing."""
    if (timing is not None) != (status is TrialStatus.OK):
        raise InvalidInputError(f"a trial with the status {status} has {'no' if timing is None else 'a'} timing")
    return status


def _conditions(fields: Fields | None) -> Conditions | None:
    if fields is None:
        return None
    document = {
        "sm_clock_mhz": fields.optional("sm_clock_mhz", fields.integers),
        "memory_clock_mhz": fields.optional("memory_clock_mhz", fields.integers),
        "temperature_c": fields.optional("temperature_c", fields.integer),
        "power_w": fields.optional("power_w", fields.number),
        "throttle_reasons": fields.texts("throttle_reasons"),
        "throttled_samples": fields.integers("throttled_samples"),
    }
    fields.end()
    return details.conditions_from(document)


def _facts(fields: Fields | None) -> StaticFacts | None:
    if fields is None:
        return None
    instructions = fields.object("instructions")
    found = StaticFacts(
        fields.text("target"), fields.integer("registers"), fields.integer("stack_bytes"),
        fields.integer("shared_bytes"), instructions.rest(instructions.integer),
    )  # fmt: skip
    fields.end()
    return found


# Winners


@dataclass(frozen=True, slots=True)
class WinnerLine:
    """A winner that was read.

    Attributes:
        row: its own columns.
        new: the winner.
        created_at, superseded_at: as in Winner.
    """

    row: Row
    new: NewWinner
    created_at: datetime
    superseded_at: datetime | None


def winner_line(row: Row, problem: str, environment: str) -> Document:
    """A winner with its tie set."""
    superseded_at = row["superseded_at"]
    return {
        "problem": problem,
        "environment": environment,
        "choice": _choice_line(row, ""),
        "default": _choice_line(row, "default_"),
        "tie_set": json.loads(row["tie_set"]),
        "depends_on": json.loads(row["depends_on"]),
        **{name: row[name] for name in ("trial_number", "n_trials", "policy", "source")},
        "created_at": time_text(row["created_at"]),
        "superseded_at": superseded_at and time_text(superseded_at),
    }


def _choice_line(row: Row, prefix: str) -> Document:
    times = {name: row[prefix + name] for name in _TIMES}
    return {"backend": row[f"{prefix}backend"], "config": json.loads(row[f"{prefix}config"]), **times}


def read_winner(fields: Fields, run: str, known: Environments) -> WinnerLine:
    """A winner."""
    new = NewWinner(
        run_id=run,
        problem=parse_key(fields.text("problem")),
        environment=_environment(fields, known),
        choice=_choice(fields.object("choice")),
        default=_choice(fields.object("default")),
        tie_set=fields.objects("tie_set", _choice),
        depends_on=fields.texts("depends_on"),
        trial_number=fields.integer("trial_number"),
        n_trials=fields.integer("n_trials"),
        policy=fields.text("policy"),
        source=fields.word("source", Source),
    )
    created_at, superseded_at = fields.time("created_at"), fields.optional("superseded_at", fields.time)
    fields.end()
    return WinnerLine(winners.measured_columns(new), new, created_at, superseded_at)


def _choice(fields: Fields) -> Choice:
    found = Choice(fields.text("backend"), fields.mapping("config"), *map(fields.number, _TIMES))
    fields.end()
    return found


# Roofs, static facts


def roofs_line(row: Row, environment: str) -> Document:
    """The roofs of an environment."""
    figures = {name: row[name] for name in ("copy_bytes_per_s", "bf16_flops_per_s")}
    return {"environment": environment, **figures, "measured_at": time_text(row["measured_at"])}


def read_roofs(fields: Fields, known: Environments) -> tuple[dict[str, Any], Environment]:
    """The columns of roofs, and where they were measured."""
    environment = _environment(fields, known)
    found = Roofs(fields.number("copy_bytes_per_s"), fields.number("bf16_flops_per_s"), fields.time("measured_at"))
    fields.end()
    return roofs.measured_columns(found), environment


def static_facts_line(row: Row, problem: str) -> Document:
    """What a compiler said; its source is `compiled`, as that of all such entries."""
    names = ("target", "registers", "stack_bytes", "shared_bytes")
    facts = None
    if row["registers"] is not None:
        facts = {**{name: row[name] for name in names}, "instructions": json.loads(row["instructions"])}
    return {
        "problem": problem,
        "config": json.loads(row["config"]),
        "versions": json.loads(row["versions"]),
        "facts": facts,
        **{name: row[name] for name in ("backend", "target", "compile_s", "status", "error")},
        "created_at": time_text(row["created_at"]),
    }


def read_static_facts(fields: Fields) -> tuple[Row, NewStaticFacts, datetime]:
    """What a compiler said: its columns, the entry, and when it was stored."""
    status, facts = fields.word("status", CompileStatus), _facts(fields.optional("facts", fields.object))
    target, versions = fields.text("target"), fields.object("versions")
    if status is not CompileStatus.UNSUPPORTED and (facts is None) == (status is CompileStatus.OK):
        raise InvalidInputError(f"static facts with the status {status} have {'none' if facts is None else 'some'}")
    if facts is not None and facts.target != target:
        raise InvalidInputError("the static facts are of another target")
    new = NewStaticFacts(
        problem=parse_key(fields.text("problem")),
        backend=fields.text("backend"),
        config=fields.mapping("config"),
        target=target,
        versions=versions.rest(versions.text),
        status=status,
        facts=facts,
        compile_s=fields.number("compile_s"),
        error=fields.text("error"),
    )
    created_at = fields.time("created_at")
    fields.end()
    return static_facts.compiled_columns(new), new, created_at
