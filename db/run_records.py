"""Plain, frozen records of runs. `fp4tune.db.records` has them all; take them from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..kernels.device import Environment
from ..kernels.problem import Problem
from .words import RunStatus


@dataclass(frozen=True, slots=True)
class RunProblem:
    """One problem of a run, with what it stands for in the model.

    Attributes:
        problem: the GEMM.
        role: role in the model, `moe.w13`, `attn.qkv`, ...; empty for a bare shape.
        phases: `decode`, `verify`, `draft_extend`, `draft_decode`, `prefill`; empty for a bare shape.
        layers: how many layers share it; 1 for a bare shape.
    """

    problem: Problem
    role: str = ""
    phases: tuple[str, ...] = ()
    layers: int = 1


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is known when a run starts.

    Attributes:
        environment: where it runs.
        problems: what it tunes, in order.
        checkpoint: preset name or path as the user gave it; empty for bare shapes.
        settings: every setting that decides what the run does (backends, budget, trials, seed, ...).
        seed: the seed of every random choice.
        host: host name. pid: process id. version: fp4tune's version.
    """

    environment: Environment
    problems: Sequence[RunProblem]
    checkpoint: str
    settings: Mapping[str, Any]
    seed: int
    host: str
    pid: int
    version: str


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run.

    Attributes:
        id: 26 characters, sortable by start time.
        status: see RunStatus.
        checkpoint, settings, seed, host, pid, version: as in NewRun.
        environment_fingerprint, device_fingerprint, device_name: where it runs.
        started_at, heartbeat_at: UTC. finished_at: UTC or None while it runs.
        n_problems, n_done, n_trials: progress.
        error: why it failed; empty otherwise.
    """

    id: str
    status: RunStatus
    checkpoint: str
    settings: Mapping[str, Any]
    seed: int
    host: str
    pid: int
    version: str
    environment_fingerprint: str
    device_fingerprint: str
    device_name: str
    started_at: datetime
    heartbeat_at: datetime
    finished_at: datetime | None
    n_problems: int
    n_done: int
    n_trials: int
    error: str


@dataclass(frozen=True, slots=True)
class RunProblemState:
    """A problem of a stored run and whether it is done.

    Attributes:
        position: 0-based place in the run.
        item: the problem and what it stands for.
        done: True once its winner was selected (or it was found that no backend can run it).
        outcome: one sentence about the end; empty while it is not done.
    """

    position: int
    item: RunProblem
    done: bool
    outcome: str
