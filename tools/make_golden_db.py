"""Make the golden database of the current schema: tests/db/golden/<revision>.db.

Run once, when a schema is about to be released, and commit the file:

    python tools/make_golden_db.py

It is never made again: `tests/db/test_golden.py` opens the golden database of every released schema with the code of
today, upgrades a copy and looks for exactly what is written here. A file that exists is therefore not replaced.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fp4tune.db import Store
from fp4tune.db.records import (
    Choice,
    CompileStatus,
    Conditions,
    LatencyModel,
    Miss,
    NewRun,
    NewStaticFacts,
    NewTrial,
    NewWinner,
    Origin,
    ReferenceRow,
    ReferenceSource,
    Roofs,
    RunProblem,
    RunStatus,
    Source,
    Timing,
    TrialStatus,
)
from fp4tune.db.schema import HEAD
from fp4tune.kernels.backend import StaticFacts
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.problem import Format, Op, OutDtype, Problem, Routing

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "db" / "golden"

START = datetime(2026, 11, 1, 8, 30, 0, 125_000, tzinfo=UTC)
CARD = Device("cuda", "Golden Card", "12.0", 188, 96 << 30, 128 << 20, 600.0)
CPU = Device("cpu", "Golden CPU", "", 16, 64 << 30, 32 << 20, 0.0)
ON_CARD = Environment(CARD, {"cuda": "13.0", "driver": "580.95", "torch": "2.11.0"})
ON_CPU = Environment(CPU, {"torch": "2.13.0"})
DENSE = Problem(16, 2048, 4096)
GROUPED = Problem(
    32, 256, 4096, Op.GROUPED, 64, 512, 10, Routing.POWER_LAW, Format.NVFP4_W4A16, OutDtype.FP32
)  # fmt: skip

CONDITIONS = Conditions((1755, 1980), None, 61, 512.25, ("hw_thermal_slowdown", "sw_power_cap"), (0, 2))
FACTS = StaticFacts("sm_120a", 168, 16, 98_304, {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": 64})


def choice(time_us: float, **config: str | float | bool) -> Choice:
    """A choice with an interval of 2% to each side."""
    return Choice("triton.native", config, time_us, time_us * 0.98, time_us * 1.02)


def trial(run_id: str, number: int, status: TrialStatus, error: str = "") -> NewTrial:
    """A trial of every status; those that ran took 10 us and a bit."""
    timing = Timing(10.0 + number, 9.5 + number, 10.5 + number, (10.0, 10.25, 9.75), 300)
    # The second one that ran has what a card adds since schema 0002.
    full = number == 1
    return NewTrial(
        run_id=run_id,
        problem=DENSE,
        environment=ON_CARD,
        number=number,
        backend="triton.native",
        config={"block_m": 64, "split_k": False, "swizzle": "xor", "alpha": 0.1},
        origin=list(Origin)[number % len(Origin)],
        status=status,
        timing=timing if status is TrialStatus.OK else None,
        error=error,
        rel_error=0.0009765625,
        seed=-7,
        optimizer="optuna.tpe",
        optimizer_version="5.0.0",
        started_at=START + timedelta(seconds=number),
        wall_s=0.25,
        policy="cuda.graph",
        source=Source.MEASURED,
        compile_s=2.5 if full else 0.0,
        conditions=CONDITIONS if full else None,
        roof_share=0.625 if full else None,
        facts=FACTS if full else None,
    )


def static_facts(target: str, status: CompileStatus = CompileStatus.OK, error: str = "") -> NewStaticFacts:
    """What a compiler said of a config."""
    facts = FACTS if status is CompileStatus.OK else None
    return NewStaticFacts(
        DENSE, "triton.native", {"block_m": 64}, target, {"triton": "3.9.0"}, status, facts, 1.5, error
    )


PUBLISHED = ReferenceSource(
    "golden-measurements", "0.12.0", "rtx_pro_6000_server", "sglang", "0.5.14", "golden/gemm.parquet", "0f" * 32,
    "Copyright (c) Golden", device="NVIDIA RTX PRO 6000 Blackwell Server Edition",
)  # fmt: skip


def published() -> list[ReferenceRow]:
    """What others measured: a dense GEMM at two M, one of them suspect, and a MoE layer."""
    dense = ("dense", "nvfp4", "golden_kernel")
    return [
        ReferenceRow(*dense, 1, 2048, 4096, 0, 0, 0, 1, 1, "", 18.25, includes_act_quant=True, l2_hot_risk=True),
        ReferenceRow(
            *dense, 16, 2048, 4096, 0, 0, 0, 1, 1, "", 90.5,
            includes_act_quant=True, l2_hot_risk=False, suspect="slow: ü",
        ),
        ReferenceRow(
            "moe", "bfloat16", "golden_moe", 32, 256, 4096, 64, 512, 10, 4, 8, "balanced", 39.0625,
            includes_act_quant=False, l2_hot_risk=False,
        ),
    ]  # fmt: skip


def models() -> list[LatencyModel]:
    """What was fitted: one with every term, one of measurements that say nothing of two of them."""
    key = (CARD.fingerprint, "dense", "nvfp4")
    return [
        LatencyModel(*key, "cuda.eager", 8.5, None, 1.0e15, None, 16, 16, 5, 0.125, 0.5, START),
        LatencyModel(*key, "cuda.graph", 4.25, 1.25e12, 1.125e15, 3.5, 1, 4096, 12, 0.0625, 0.25, START),
    ]


def winner(run_id: str, problem: Problem, time_us: float, policy: str = "cuda.graph") -> NewWinner:
    """A winner with a tie set of two."""
    best = choice(time_us, block_m=64, stages=3)
    return NewWinner(
        run_id=run_id,
        problem=problem,
        environment=ON_CARD,
        choice=best,
        default=choice(20.0, block_m=128, stages=2),
        tie_set=(best, choice(time_us, block_m=32, stages=4)),
        depends_on=("cuda", "torch"),
        trial_number=1,
        n_trials=6,
        policy=policy,
        source=Source.MEASURED,
    )


def fill(path: Path) -> None:
    """Store something of everything."""
    now = START

    with Store.open(path, clock=lambda: now) as store:
        new = NewRun(
            environment=ON_CARD,
            problems=(RunProblem(DENSE, "attn.qkv", ("decode", "verify"), 60), RunProblem(GROUPED)),
            checkpoint="Golden-Model-NVFP4",
            settings={"budget_s": 2.5, "backends": ["triton.native"], "trials": None},
            seed=42,
            host="golden",
            pid=1,
            version="0.1.0",
        )
        run_id = store.create_run(new)
        ended = [TrialStatus.OK, *TrialStatus]
        store.add_trials([trial(run_id, n, s, "" if s == "ok" else f"{s}: ü 🚀") for n, s in enumerate(ended)])
        now += timedelta(minutes=1)
        store.add_winners([winner(run_id, DENSE, 12.0), winner(run_id, GROUPED, 15.0)])
        now += timedelta(minutes=1)
        store.add_winners([winner(run_id, DENSE, 11.0), winner(run_id, DENSE, 13.0, "cuda.eager")])
        store.set_roofs(ON_CARD, Roofs(3.9e12, 7.5e14, START))
        store.add_static_facts(
            [static_facts("sm_120a"), static_facts("sm_90a", CompileStatus.UNSUPPORTED, "no FP4 instruction")]
        )
        store.import_reference(PUBLISHED, published())
        for model in models():
            store.save_latency_model(model)
        store.finish_problem(run_id, 0, "tuned")
        store.finish_run(run_id, RunStatus.FINISHED)
        now += timedelta(minutes=1)
        failed = store.create_run(
            NewRun(ON_CPU, (RunProblem(DENSE),), "", {}, 0, "golden", 2, "0.1.0")
        )  # fmt: skip
        store.finish_run(failed, RunStatus.FAILED, "the disk was full")
        store.add_misses([Miss(GROUPED, CARD.fingerprint, "", 3, START, now), Miss(DENSE, "", "", 1, now, now)])


def main() -> int:
    """Make the file, unless it is there."""
    path = GOLDEN / f"{HEAD}.db"
    if path.exists():
        sys.stderr.write(f"{path} is there already, and a golden database is never replaced.\n")
        return 1
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "made.db"
        fill(made)
        with sqlite3.connect(made) as connection:
            # Nothing of the machine that made it.
            connection.execute("UPDATE runs SET process_scope = '', process_birth = -1")
        connection.close()
        GOLDEN.mkdir(parents=True, exist_ok=True)
        with Store.open(made, mode="read") as store:
            store.backup(path)
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
