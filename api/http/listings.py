"""What the listings show: stored records as plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ...db.records import Choice, Conditions, Miss, Run, RunProblemState, StoredEnvironment, Trial, Winner
from ...kernels.backend import StaticFacts
from ...kernels.device import Device
from ..plain import Document, device_document, environment_document, problem_document, time_text


def _time(at: datetime | None) -> str | None:
    return None if at is None else time_text(at)


def _finite(value: Any) -> Any:
    """A JSON value in which NaN and infinities, which JSON does not have, are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return value


def _choice(choice: Choice) -> Document:
    return {
        "backend": choice.backend,
        "config": dict(choice.config),
        "time_us": choice.time_us,
        "time_us_low": choice.time_us_low,
        "time_us_high": choice.time_us_high,
    }


def _conditions(conditions: Conditions | None) -> Document | None:
    return None if conditions is None else asdict(conditions)


def _facts(facts: StaticFacts | None) -> Document | None:
    if facts is None:
        return None
    return {
        "target": facts.target,
        "registers": facts.registers,
        "stack_bytes": facts.stack_bytes,
        "shared_bytes": facts.shared_bytes,
        "instructions": dict(facts.instructions),
    }


def run_document(run: Run) -> Document:
    """A run."""
    return {
        "id": run.id,
        "status": run.status.value,
        "checkpoint": run.checkpoint,
        "settings": _finite(run.settings),
        "seed": run.seed,
        "host": run.host,
        "pid": run.pid,
        "version": run.version,
        "device_fingerprint": run.device_fingerprint,
        "device_name": run.device_name,
        "environment_fingerprint": run.environment_fingerprint,
        "started_at": time_text(run.started_at),
        "heartbeat_at": time_text(run.heartbeat_at),
        "finished_at": _time(run.finished_at),
        "n_problems": run.n_problems,
        "n_done": run.n_done,
        "n_trials": run.n_trials,
        "error": run.error,
    }


def run_problem_document(state: RunProblemState) -> Document:
    """A problem of a run."""
    return {
        "position": state.position,
        "problem": problem_document(state.item.problem),
        "role": state.item.role,
        "phases": list(state.item.phases),
        "layers": state.item.layers,
        "done": state.done,
        "outcome": state.outcome,
    }


def winner_document(winner: Winner) -> Document:
    """A winner with its tie set."""
    return {
        "id": winner.id,
        "run_id": winner.run_id,
        "problem": problem_document(winner.problem),
        **_choice(winner.choice),
        "default": _choice(winner.default),
        "speedup": winner.speedup,
        "tie_set": [_choice(choice) for choice in winner.tie_set],
        "depends_on": list(winner.depends_on),
        "device": device_document(winner.environment.device),
        "environment": environment_document(winner.environment),
        "n_trials": winner.n_trials,
        "policy": winner.policy,
        "source": winner.source.value,
        "created_at": time_text(winner.created_at),
        "superseded_at": _time(winner.superseded_at),
        "compile_s": winner.compile_s,
        "conditions": _conditions(winner.conditions),
        "roof_share": winner.roof_share,
        "facts": _facts(winner.facts),
    }


def trial_document(trial: Trial) -> Document:
    """A trial with its samples."""
    return {
        "id": trial.id,
        "run_id": trial.run_id,
        "problem": problem_document(trial.problem),
        "device_fingerprint": trial.device_fingerprint,
        "environment_fingerprint": trial.environment_fingerprint,
        "number": trial.number,
        "backend": trial.backend,
        "config": dict(trial.config),
        "origin": trial.origin.value,
        "status": trial.status.value,
        "time_us": trial.time_us,
        "time_us_low": trial.time_us_low,
        "time_us_high": trial.time_us_high,
        # The store keeps samples as float32: seven digits are all that they have.
        "samples_us": [float(f"{sample:.7g}") for sample in trial.samples_us],
        "n_samples": trial.n_samples,
        "error": trial.error,
        "rel_error": _finite(trial.rel_error),
        "seed": trial.seed,
        "optimizer": trial.optimizer,
        "optimizer_version": trial.optimizer_version,
        "started_at": time_text(trial.started_at),
        "wall_s": trial.wall_s,
        "policy": trial.policy,
        "source": trial.source.value,
        "compile_s": trial.compile_s,
        "conditions": _conditions(trial.conditions),
        "roof_share": trial.roof_share,
        "facts": _facts(trial.facts),
    }


def known_device_document(device: Device, first_seen_at: datetime) -> Document:
    """A device and when it was first seen."""
    return {**device_document(device), "first_seen_at": time_text(first_seen_at)}


def known_environment_document(stored: StoredEnvironment) -> Document:
    """An environment, its device, and how much was measured in it."""
    return {
        **environment_document(stored.environment),
        "device": device_document(stored.environment.device),
        "created_at": time_text(stored.created_at),
        "n_trials": stored.n_trials,
        "n_winners": stored.n_winners,
    }


def miss_document(miss: Miss) -> Document:
    """A miss and its count."""
    return {
        "problem": problem_document(miss.problem),
        "device_fingerprint": miss.device_fingerprint,
        "environment_fingerprint": miss.environment_fingerprint,
        "count": miss.count,
        "first_at": time_text(miss.first_at),
        "last_at": time_text(miss.last_at),
    }
