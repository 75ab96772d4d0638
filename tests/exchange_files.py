"""Exports for tests: a database with something of everything, and files whose lines a test can change."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from fp4tune.db import Store
from fp4tune.db.exchange import KINDS
from fp4tune.db.records import CompileStatus, Run, RunStatus, TrialFilter, WinnerFilter
from store_factory import (
    GROUPED,
    LARGE,
    ON_CARD,
    ON_CPU,
    ROOFS,
    SMALL,
    Clock,
    choice,
    failed_trial,
    measured_on_a_card,
    new_run,
    new_static_facts,
    new_trial,
    new_winner,
    timing,
)

Line = dict[str, Any]


def fill(store: Store, clock: Clock) -> list[str]:
    """Two runs that have ended, with everything that an export carries; their ids."""
    first = store.create_run(new_run())
    store.add_trials([measured_on_a_card(first, n) for n in range(3)])
    store.add_trials([failed_trial(first, 3, error="it crashed: ü 🚀\n\x00"), new_trial(first, 0, problem=GROUPED)])
    clock.advance(5)
    store.add_winners([new_winner(first), new_winner(first, policy="cuda.graph"), new_winner(first, problem=GROUPED)])
    clock.advance(5)
    store.add_winner(new_winner(first, choice=choice(9.0)))
    store.finish_problem(first, 0, "tuned")
    store.finish_run(first, RunStatus.FINISHED)
    clock.advance(60)
    second = store.create_run(new_run(environment=ON_CPU, checkpoint="", settings={}))
    odd = timing(1 / 3, n=300)
    store.add_trials([new_trial(second, 1, environment=ON_CPU, problem=LARGE, policy="cpu.warm", timing=odd)])
    store.add_winner(new_winner(second, environment=ON_CPU, problem=LARGE, policy="cpu.warm", trial_number=1))
    clock.advance(1)
    store.finish_run(second, RunStatus.FAILED, "the disk was full")
    store.set_roofs(ON_CARD, ROOFS)
    failed = new_static_facts(problem=SMALL, target="sm_90a", status=CompileStatus.COMPILE_FAILED, facts=None)
    store.add_static_facts([new_static_facts(), failed, new_static_facts(problem=LARGE)])
    return [first, second]


def said(store: Store) -> dict[str, Any]:
    """All that a database says, without its own ids."""

    def without_id(items: Any) -> list[Any]:
        return [{name: getattr(item, name) for name in item.__slots__ if name != "id"} for item in items]

    runs = sorted(store.runs(), key=lambda run: run.id)
    return {
        "runs": runs,
        "problems": [store.run_problems(run.id) for run in runs],
        "trials": [without_id(store.trials(TrialFilter(run_id=run.id), limit=1000).items) for run in runs],
        "winners": [winners_of(store, run) for run in runs],
        "roofs": {e.environment.fingerprint: store.roofs(e.environment) for e in store.environments()},
        "static_facts": sorted(without_id(store.static_facts().items), key=lambda s: (s["problem"].key, s["target"])),
    }


def winners_of(store: Store, run: Run) -> list[Line]:
    found = store.winners(WinnerFilter(run_id=run.id, current=None), limit=1000).items
    rows = [{name: getattr(winner, name) for name in winner.__slots__ if name != "id"} for winner in found]
    return sorted(
        rows, key=lambda row: (row["created_at"], row["problem"].key, row["policy"], row["superseded_at"] is None)
    )


def read(path: Path) -> list[Line]:
    """The lines of a file."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def rewrite(path: Path, lines: list[Line]) -> None:
    """Make a file of lines, the header's counts corrected."""
    counted = Counter(str(line.get("kind")) for line in lines[1:])
    header = {**lines[0], "counts": {kind: counted[kind] for kind in KINDS}}
    path.write_bytes(gzip.compress(b"\n".join(json.dumps(line).encode() for line in (header, *lines[1:])) + b"\n"))


def of_kind(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line.get("kind") == kind]
