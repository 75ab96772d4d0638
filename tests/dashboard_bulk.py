"""A big database, built by bulk SQL: a year of tuning of five models on four cards. Every figure is made up, none measured.

Only the schema is the store's own: a million trials by its API would take minutes. What a run says follows from one seed,
and is as consistent as a real one: a winner is the trial that its number names, and its default was measured in its run.
"""

from __future__ import annotations

import json
import random
import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import reference_rows
from fp4tune.db import Store
from fp4tune.db.ids import UlidSource
from fp4tune.db.records import Miss
from fp4tune.kernels.backend import config_key
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.problem import Format, Op, Problem

END = datetime(2026, 11, 30, tzinfo=UTC)
"""When the newest run ended."""

RUNS = 1400
"""Runs in a database of a million trials; fewer trials have fewer runs."""

DEEP_SHARE = 0.1
"""Share of all trials that one run spent on one problem."""

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
TPS = (1, 2, 4, 8, 16)
BACKENDS = ("triton.native", "triton.dequant", "cutlass", "flashinfer.cutlass", "humming", "torch.bf16")
FAILURES = {
    "unsupported": "N = {n} is no multiple of the tile's {x}.",
    "compile_failed": "ptxas error: entry function uses too much shared data ({x} bytes, 0x18c00 max)\nsecond line",
    "wrong": "A tile at row {x} differs from the oracle by 3.1 %, and 0.8 % is allowed.",
    "crashed": "CUDA error: an illegal memory access was encountered (config {x})",
    "timeout": "The config had not ended after 10 s.",
}
FAILURE_SHARES = (0.05, 0.02, 0.008, 0.004, 0.002)
MODELS: dict[str, tuple[int, int, int, int]] = {
    # hidden size, intermediate size, experts (0: dense), experts a token
    "qwen3.5-397b-a17b-nvfp4": (4096, 1024, 512, 10),
    "glm-5-nvfp4": (6144, 2048, 256, 8),
    "models/minimax-m2.5-nvfp4": (3072, 1536, 256, 8),
    "qwen3-32b-nvfp4": (5120, 25600, 0, 0),
    "gemma-4-31b-it-nvfp4": (5376, 21504, 0, 0),
}
TWIN_NAME = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


@dataclass(frozen=True)
class Big:
    """What is in a big database, to ask for.

    Attributes:
        path: the database.
        n_trials, n_runs, n_problems: how much there is.
        main: the environment in which most runs ran.
        deep_run, deep_problem: the run (its id) and the problem (its key) with a tenth of all trials.
        twins: fingerprints of two devices of the same name.
    """

    path: Path
    n_trials: int
    n_runs: int
    n_problems: int
    main: Environment
    deep_run: str
    deep_problem: str
    twins: tuple[str, str]


@dataclass(frozen=True)
class _Item:
    """A problem of a model, by its id."""

    id: int
    problem: Problem
    role: str
    layers: int


@dataclass
class _Run:
    """A run to write: its rows' columns, and how many trials each of its problems gets."""

    id: int
    ulid: str
    environment: int
    device: int
    started: datetime
    checkpoint: str
    tp: int
    tokens: tuple[int, ...]
    status: str
    items: list[_Item]
    counts: list[int] = field(default_factory=list)


def million(path: Path, n_trials: int = 1_000_000, *, seed: int = 0) -> Big:
    """Make a database with exactly so many trials (at least 2,000)."""
    with Store.open(path, mode="create"):
        pass
    rng = random.Random(seed)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-200000")
        connection.execute("BEGIN")
        indexes = _drop_indexes(connection)
        environments = _environments(connection)
        items = _problems(connection)
        (n_problems,) = connection.execute("SELECT count(*) FROM problems").fetchone()
        runs = _plan(rng, environments, items, n_trials)
        _write(connection, rng, runs)
        for statement in indexes:
            connection.execute(statement)
        fill_trial_counts(connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode=WAL")
    _add_what_is_not_measured(path, environments[0], items)
    deep = runs[len(runs) // 2]
    twins = [one.device.fingerprint for one in environments if one.device.name == TWIN_NAME]
    return Big(
        path, n_trials, len(runs), n_problems, environments[0], deep.ulid, deep.items[0].problem.key,
        (twins[0], twins[-1]),
    )  # fmt: skip


def analyze(path: Path) -> None:
    """Let SQLite's planner know how much there is."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ANALYZE")


def fill_trial_counts(connection: sqlite3.Connection) -> None:
    """Count the trials anew, as the store would have kept counts."""
    key = "run_id, problem_id, backend, status, environment_id"
    connection.execute("DELETE FROM trial_counts")
    connection.execute(
        f"INSERT INTO trial_counts ({key}, n, last_trial_id) SELECT {key}, count(*), max(id) FROM trials GROUP BY {key}"
    )


def moment(when: datetime) -> str:
    """A time as SQLAlchemy stores it in SQLite."""
    return when.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def insert(connection: sqlite3.Connection, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows that all have the same columns."""
    names = list(rows[0])
    marks = ", ".join("?" * len(names))
    connection.executemany(
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", [[row[n] for n in names] for row in rows]
    )


def _drop_indexes(connection: sqlite3.Connection) -> list[str]:
    """Drop what can be made faster in the end; the statements that make it again."""
    made = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name IN ('trials', 'winners') AND sql IS NOT NULL"
    ).fetchall()
    for name, _ in made:
        connection.execute(f"DROP INDEX {name}")
    return [statement for _, statement in made]


def _environments(connection: sqlite3.Connection) -> list[Environment]:
    """Nine environments of four devices; two devices have the same name, and one environment has no roofs."""
    one = Device("cuda", TWIN_NAME, "12.0", 188, 96 << 30, 128 << 20, 600.0)
    two = Device("cuda", TWIN_NAME, "12.0", 188, 96 << 30, 128 << 20, 300.0)
    h200 = Device("cuda", "NVIDIA H200", "9.0", 132, 141 << 30, 60 << 20, 700.0)
    cpu = Device("cpu", "Some CPU @ 2.70GHz", "", 16, 64 << 30, 32 << 20, 0.0)
    devices = [one, two, h200, cpu]
    versions = [
        {"driver": f"58{i}.65", "cuda": "13.0", "torch": f"2.{11 + i}.0", "triton": f"3.{6 + i}.0"} for i in range(3)
    ]
    made = [Environment(one, v) for v in versions] + [Environment(two, v) for v in versions[:2]]
    made += [Environment(h200, v) for v in versions] + [Environment(cpu, {"torch": "2.13.0"})]
    since = moment(END - timedelta(days=365))
    columns = ("kind", "name", "compute_capability", "sms", "memory_bytes", "l2_bytes", "power_limit_w", "fingerprint")
    insert(connection, "devices", [{n: getattr(d, n) for n in columns} | {"created_at": since} for d in devices])
    rows = [
        {
            "fingerprint": e.fingerprint, "device_id": devices.index(e.device) + 1,
            "versions": config_key(dict(e.versions)), "created_at": since,
        }
        for e in made
    ]  # fmt: skip
    insert(connection, "environments", rows)
    roofs = {"copy_bytes_per_s": 1.5e12, "bf16_flops_per_s": 4.0e14, "measured_at": since}
    insert(connection, "roofs", [{"environment_id": i, **roofs} for i in range(1, len(made))])
    return made


def _problems(connection: sqlite3.Connection) -> dict[tuple[str, int], list[_Item]]:
    """The problems of every model at every TP, in the order of their roles, then M."""
    found: dict[tuple[str, int], list[_Item]] = {}
    ids: dict[str, int] = {}
    rows = []
    for model, (hidden, inner, experts, top_k) in MODELS.items():
        for tp in TPS:
            for role, layers, n, k, grouped in (
                ("attn.qkv", 60, 2 * hidden // tp, hidden, False),
                ("attn.o", 60, hidden, hidden // tp, False),
                ("moe.w13" if experts else "mlp.gate_up", 60, 2 * inner // tp, hidden, bool(experts)),
                ("moe.w2" if experts else "mlp.down", 60, hidden, inner // tp, bool(experts)),
                ("lm_head", 1, 151_936 // tp, hidden, False),
            ):
                for m in TOKENS:
                    k16 = k // 16 * 16
                    problem = Problem(m, n, k16, Op.GROUPED, experts, experts, top_k) if grouped else Problem(
                        m, n, k16, format=Format.BF16 if role == "lm_head" else Format.NVFP4
                    )  # fmt: skip
                    if problem.key not in ids:
                        ids[problem.key] = len(ids) + 1
                        names = ("key", "m", "n", "k", "experts", "experts_total", "top_k")
                        rows.append({name: getattr(problem, name) for name in names} | {
                            "op": problem.op.value, "routing": problem.routing.value, "format": problem.format.value,
                            "out_dtype": problem.out_dtype.value,
                        })  # fmt: skip
                    found.setdefault((model, tp), []).append(_Item(ids[problem.key], problem, role, layers))
    insert(connection, "problems", rows)
    return found


def _plan(
    rng: random.Random, environments: Sequence[Environment], items: dict[tuple[str, int], list[_Item]], n_trials: int
) -> list[_Run]:
    """Which runs there were. The one in the middle spent DEEP_SHARE on one problem; the last one still runs."""
    n_runs = max(24, RUNS * n_trials // 1_000_000)
    ids = UlidSource(rng.getrandbits)
    places = list(items)
    step = timedelta(days=364) / n_runs
    runs = []
    for i in range(n_runs):
        # Most runs are on the first card, whose versions change twice in the year, so that winners have a history.
        shifts = min(2, 3 * i // n_runs)
        elsewhere = {1: 3 + shifts // 2, 4: 5 + shifts, 5: 8 if i % 90 == 5 else shifts}
        environment = elsewhere.get(i % 6, shifts)
        model, tp = places[0] if i % 3 == 0 else places[i * 7 % len(places)]
        all_ = items[model, tp]
        whole = i % 40 == 0
        # Every sixth run is a nightly one, which tunes the same again and again.
        first = TOKENS.index(16) if i % 6 == 0 else rng.randrange(len(TOKENS) - 2)
        tokens = TOKENS if whole else TOKENS[first : first + 3]
        started = END - timedelta(days=364) + i * step
        status = (
            ("failed" if i % 41 == 7 else "interrupted" if i % 29 == 3 else "finished") if i < n_runs - 1 else "running"
        )
        device = (1, 1, 1, 2, 2, 3, 3, 3, 4)[environment]
        run = _Run(
            i + 1, ids.next(started), environment + 1, device, started, model, tp, tokens, status,
            [item for item in all_ if item.problem.m in tokens],
        )  # fmt: skip
        runs.append(run)
    deep = runs[n_runs // 2]
    deep.environment, deep.device, deep.status = 1, 1, "finished"
    deep.items, deep.counts = deep.items[:1], [int(n_trials * DEEP_SHARE)]
    rest = n_trials - deep.counts[0]
    each, more = divmod(rest, sum(len(run.items) for run in runs if run is not deep))
    for run in runs:
        if run is not deep:
            run.counts = [each + (i < more) for i in range(len(run.items))]
            more = max(0, more - len(run.items))
    return runs


_SETTINGS = {
    "backends": list(BACKENDS),
    "budget_s": 30.0,
    "ep": 1,
    "phases": None,
    "roles": None,
    "seed": 0,
    "trials": 64,
}

_TRIAL = (
    "id", "run_id", "problem_id", "environment_id", "device_id", "number", "backend", "config", "origin", "status",
    "time_us", "time_us_low", "time_us_high", "samples", "n_samples", "error", "rel_error", "seed", "optimizer",
    "optimizer_version", "started_at", "wall_s", "policy", "source", "compile_s", "conditions", "roof_share", "facts",
)  # fmt: skip


def _write(connection: sqlite3.Connection, rng: random.Random, runs: Sequence[_Run]) -> None:
    """Every run with its problems, its trials, and its winners."""
    winners: list[dict[str, Any]] = []
    run_rows: list[dict[str, Any]] = []
    item_rows: list[dict[str, Any]] = []
    trials = _trials(rng, runs, winners)
    for run in runs:
        done = [run.status in {"finished", "failed"} or i < len(run.items) // 2 for i in range(len(run.items))]
        ended = run.started + timedelta(seconds=sum(run.counts))
        policy = _policy(run)
        run_rows.append({
            "id": run.id, "ulid": run.ulid, "status": run.status, "environment_id": run.environment,
            "checkpoint": run.checkpoint,
            "settings": json.dumps(_SETTINGS | {"tp": run.tp, "tokens": list(run.tokens), "policy": policy},
                                   sort_keys=True, separators=(",", ":")),
            "seed": 0, "host": f"tuner-{run.device}", "pid": 4000 + run.id, "process_scope": "", "process_birth": -1,
            "version": "0.1.0", "started_at": moment(run.started), "heartbeat_at": moment(ended),
            "finished_at": None if run.status == "running" else moment(ended), "n_problems": len(run.items),
            "n_done": sum(done), "n_trials": sum(run.counts),
            "error": "The worker died three times in a row.\nIts last words: out of memory" if run.status == "failed" else "",
        })  # fmt: skip
        item_rows.extend({
            "run_id": run.id, "position": i, "problem_id": item.id, "role": item.role,
            "phases": '["decode"]' if item.problem.m < 4 else '["decode","verify"]' if item.problem.m <= 512 else '["prefill"]',
            "layers": item.layers, "done": done[i], "outcome": "1.12x as fast as the default" if done[i] else "",
        } for i, item in enumerate(run.items))  # fmt: skip
    insert(connection, "runs", run_rows)
    insert(connection, "run_problems", item_rows)
    marks = ", ".join("?" * len(_TRIAL))
    connection.executemany(f"INSERT INTO trials ({', '.join(_TRIAL)}) VALUES ({marks})", trials)
    current: dict[tuple[int, int, str], dict[str, Any]] = {}
    for winner in winners:
        place = (winner["problem_id"], winner["environment_id"], winner["policy"])
        if place in current:
            current[place]["superseded_at"] = winner["created_at"]
        current[place] = winner
    insert(connection, "winners", winners)
    connection.execute("UPDATE meta SET value = value + ? WHERE key = 'generation'", (len(winners),))


def _add_what_is_not_measured(path: Path, main: Environment, items: dict[tuple[str, int], list[_Item]]) -> None:
    """Published times of every dense layer, and questions that nobody could answer."""
    dense = list({one.problem: None for some in items.values() for one in some if one.problem.op is Op.DENSE})
    rows = [
        reference_rows.dense(p.m, n=p.n, k=p.k, kernel_source=kernel, time_us=3.0 + p.operand_bytes / 1.0e6)
        for p in dense if p.format is Format.NVFP4
        for kernel in ("cutlass", "cudnn")
    ]  # fmt: skip
    asked = [Problem(m, 2048 + 512 * i, 4096) for i in range(20) for m in (3, 5, 7)]
    with Store.open(path) as store:
        store.import_reference(reference_rows.source(device=TWIN_NAME), rows)
        store.add_misses(
            [Miss(p, main.device.fingerprint, main.fingerprint, 1 + i, END, END) for i, p in enumerate(asked)]
        )


def _policy(run: _Run) -> str:
    return "cpu.warm" if run.device == 4 else "cuda.eager" if run.id % 17 == 0 else "cuda.graph"


def _configs() -> dict[str, list[str]]:
    """Two hundred configs a backend, as canonical text; the first is its default."""
    return {
        backend: [
            config_key({"block_m": 8 << i % 5, "block_n": 32 << i // 5 % 4, "split_k": 1 << i // 20 % 4,
                        "stages": 2 + i // 80, "unroll": i % 2 == 0, "warps": 4})
            for i in range(200)
        ]
        for backend in BACKENDS
    }  # fmt: skip


def _conditions(rng: random.Random) -> list[str]:
    """What a card was like, a hundred times; in some it was throttled."""
    made = []
    for i in range(100):
        throttled = i % 12 == 0
        made.append(config_key({  # type: ignore[arg-type]
            "memory_clock_mhz": [3201, 3201], "power_w": round(rng.uniform(200, 600), 1),
            "sm_clock_mhz": [1400 if throttled else 1900, 1980], "temperature_c": rng.randrange(40, 84),
            "throttle_reasons": ["sw_power_cap"] if throttled else [], "throttled_samples": [0, 3] if throttled else [],
        }))  # fmt: skip
    return made


def _trials(rng: random.Random, runs: Sequence[_Run], winners: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Every trial's row, in the order of ids; winners are noted as their problems end."""
    configs, conditions = _configs(), _conditions(rng)
    statuses, weights = ["ok", *FAILURES], [1 - sum(FAILURE_SHARES), *FAILURE_SHARES]
    id_ = 0
    for run in runs:
        policy, second = _policy(run), 0
        for position, (item, count) in enumerate(zip(run.items, run.counts, strict=True)):
            roof_us = 2.0 + max(item.problem.operand_bytes / 1.5e6, item.problem.flops / 4.0e8)
            # What a better compiler or driver brings, or takes.
            base = (
                roof_us
                * (1.9, 1.7, 1.8, 2.6, 2.4, 1.5, 1.4, 1.45, 90.0)[run.environment - 1]
                * rng.lognormvariate(0, 0.01)
            )
            n_finals = min(8, count // 3)
            factors: dict[tuple[str, int], float] = {}
            finals: list[tuple[float, str, int, int]] = []
            drawn = rng.choices(statuses, weights, k=count)
            for number in range(count):
                id_ += 1
                second += 1
                final = number >= count - n_finals
                if number < len(BACKENDS):
                    backend, which, origin = BACKENDS[number], 0, "default"
                elif final:
                    place = number - (count - n_finals)
                    ranked = sorted(factors, key=factors.__getitem__)[: n_finals - 1]
                    backend, which = ranked[place % len(ranked)] if place and ranked else (BACKENDS[0], 0)
                    origin = "final"
                else:
                    backend, which = rng.choice(BACKENDS), rng.randrange(200)
                    origin = "seed" if number < 12 else "enumerated" if run.id % 5 == 0 else "sampler"
                status = "ok" if final or origin == "default" else drawn[number]
                factor = factors.get((backend, which)) or (3.0 if backend == "torch.bf16" else 1.25 if which == 0 else
                                                           1 + rng.expovariate(3.0))  # fmt: skip
                time_us = low = high = rel_error = share = seen = None
                samples, n_samples, error = b"", 0, ""
                if status == "ok":
                    factors[backend, which] = factor
                    time_us = base * factor * (1 + rng.gauss(0, 0.004))
                    low, high, rel_error, share = time_us * 0.995, time_us * 1.006, 0.0024, roof_us / time_us
                    seen = conditions[id_ % 100]
                    samples, n_samples = (
                        array("f", (time_us * 0.99, time_us, low, high, time_us, time_us * 1.02)).tobytes(),
                        6,
                    )
                    if final:
                        finals.append((time_us, backend, which, number))
                else:
                    error = FAILURES[status].format(n=item.problem.n, x=which)
                yield (
                    id_, run.id, item.id, run.environment, run.device, number, backend, configs[backend][which], origin, status,
                    time_us, low, high, samples, n_samples, error, rel_error, 0, "optuna.tpe", "5.0.0",
                    moment(run.started + timedelta(seconds=second)), 0.8, policy, "measured", 1.5, seen, share, None,
                )  # fmt: skip
            unfinished = run.status in {"running", "interrupted"} and position >= len(run.items) // 2
            if finals and not unfinished:
                ended = run.started + timedelta(seconds=second)
                winners.append(_winner(len(winners) + 1, run, item, finals, configs, policy, ended, count))


def _winner(
    id_: int, run: _Run, item: _Item, finals: list[tuple[float, str, int, int]], configs: dict[str, list[str]],
    policy: str, ended: datetime, count: int,
) -> dict[str, Any]:  # fmt: skip
    """The fastest of the finals; the first of them is the default."""
    default, best = finals[0], min(finals)

    def times(time_us: float, prefix: str = "") -> dict[str, float]:
        return {
            f"{prefix}time_us": time_us,
            f"{prefix}time_us_low": time_us * 0.995,
            f"{prefix}time_us_high": time_us * 1.006,
        }

    ties = [one for one in sorted(finals) if one[0] <= best[0] * 1.011]
    tie_set = [{"backend": b, "config": json.loads(configs[b][w]), **times(us)} for us, b, w, _ in ties]
    return {
        "id": id_, "run_id": run.id, "problem_id": item.id, "environment_id": run.environment, "device_id": run.device,
        "backend": best[1], "config": configs[best[1]][best[2]], **times(best[0]),
        "default_backend": default[1], "default_config": configs[default[1]][default[2]], **times(default[0], "default_"),
        "tie_set": json.dumps(tie_set, sort_keys=True, separators=(",", ":")), "n_ties": len(ties),
        "depends_on": '["torch","triton"]', "trial_number": best[3], "n_trials": count, "policy": policy,
        "source": "measured", "created_at": moment(ended), "superseded_at": None,
    }  # fmt: skip
