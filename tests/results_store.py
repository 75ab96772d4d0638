"""A database with two runs of a card, for the results page: every figure made up, nothing measured."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fp4tune.db.records import (
    Choice,
    Conditions,
    NewRun,
    NewTrial,
    NewWinner,
    Origin,
    Roofs,
    RunProblem,
    RunStatus,
    Timing,
    TrialStatus,
)
from fp4tune.db.store import Store
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.problem import Problem, parse_shape

START = datetime(2026, 11, 2, 12, tzinfo=UTC)
CARD = Environment(
    Device("cuda", "NVIDIA H200", "9.0", 132, 141 << 30, 50 << 20, 700.0),
    {"driver": "580.95", "torch": "2.11.0", "triton": "3.6.0"},
)
DENSE = RunProblem(parse_shape("4x4096x7168"), "attn.qkv", ("decode",), 60)
GROUPED = RunProblem(parse_shape("e64k8:16x256x4096"), "moe.w13", ("decode",), 60)
REFUSED = RunProblem(parse_shape("1x48x64"), "mlp.down", ("decode",), 1)
SETTINGS = {
    "tp": 8, "ep": 1, "tokens": [4, 16], "phases": None, "roles": None, "trials": 64, "budget_s": 3.0,
    "policy": "cuda.graph", "backends": ["torch.bf16", "triton.dequant"],
}  # fmt: skip

FAST = {"block_n": 64, "split_k": 4}
NEXT = {"block_n": 64, "split_k": 2}
SLOW = {"block_n": 128, "split_k": 1}
BF16 = {"library": "cublas"}


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


class Writer:
    """Writes one run, trial after trial, a second each."""

    def __init__(self, store: Store, clock: Clock, settings: Mapping[str, object] = SETTINGS) -> None:
        self.store, self.clock = store, clock
        self.items = [DENSE, GROUPED, REFUSED]
        self.id = store.create_run(
            NewRun(CARD, self.items, "models/some-model", settings, 0, "host", 1, "0.2.0")
        )  # fmt: skip
        self.numbers = {item.problem: 0 for item in self.items}

    def trial(
        self,
        problem: Problem,
        backend: str,
        config: Mapping[str, object],
        origin: Origin,
        time_us: float | None,
        *,
        status: TrialStatus = TrialStatus.OK,
        throttled: tuple[int, ...] = (),
        error: str = "",
    ) -> int:
        number = self.numbers[problem]
        self.numbers[problem] += 1
        timing = None
        if time_us is not None:
            timing = Timing(time_us, time_us * 0.99, time_us * 1.02, [time_us] * 20, 20)
        seen = Conditions(
            (1700 + number, 1980), (3201, 3201), 50 + number, 600.0, ("sw_power_cap",) if throttled else (), throttled
        )
        self.store.add_trials(
            [
                NewTrial(
                    run_id=self.id, problem=problem, environment=CARD, number=number, backend=backend, config=config,
                    origin=origin, status=status, timing=timing, error=error, rel_error=0.001 if timing else None,
                    seed=0, optimizer="enumeration", optimizer_version="1", started_at=self.clock.now, wall_s=1.0,
                    policy="cuda.graph", compile_s=0.0 if origin is Origin.FINAL else 2.5,
                    conditions=seen if timing else None,
                    roof_share=5.0 / time_us if time_us else None,
                )
            ]
        )  # fmt: skip
        self.clock.now += timedelta(seconds=1)
        return number

    def tune(self, item: RunProblem, served: Mapping[str, object], *, scale: float) -> None:
        """A search and its finals, at the end of which `served` is served."""
        problem = item.problem
        for config, origin, us in (
            (SLOW, Origin.DEFAULT, 12.0), (FAST, Origin.SEED, 10.0), (NEXT, Origin.SAMPLER, 10.1)
        ):  # fmt: skip
            self.trial(problem, "triton.dequant", config, origin, us * scale)
        self.trial(problem, "torch.bf16", BF16, Origin.DEFAULT, 20.0 * scale)
        self.trial(
            problem, "triton.dequant", {"block_n": 256, "split_k": 1}, Origin.SAMPLER, None,
            status=TrialStatus.WRONG, error="a tile differs | by 3 %",
        )  # fmt: skip
        finals = {}
        for config, us in ((SLOW, 12.2), (FAST, 10.2), (NEXT, 10.3)):
            us_here = us * scale
            throttled = (0, 3) if config is FAST else ()
            number = self.trial(problem, "triton.dequant", config, Origin.FINAL, us_here, throttled=throttled)
            finals[str(config)] = (Choice("triton.dequant", config, us_here, us_here * 0.99, us_here * 1.02), number)
        self.trial(problem, "torch.bf16", BF16, Origin.FINAL, 20.4 * scale)
        choice, number = finals[str(served)]
        self.store.add_winner(
            NewWinner(
                run_id=self.id, problem=problem, environment=CARD, choice=choice, default=finals[str(SLOW)][0],
                tie_set=[choice] if served is SLOW else [finals[str(FAST)][0], finals[str(NEXT)][0]], depends_on=["torch", "triton"],
                trial_number=number, n_trials=self.numbers[problem], policy="cuda.graph",
            )
        )  # fmt: skip
        self.store.finish_problem(self.id, self.items.index(item), "1.20x as fast as the default")

    def refuse(self) -> None:
        self.trial(
            REFUSED.problem, "triton.dequant", {}, Origin.DEFAULT, None,
            status=TrialStatus.UNSUPPORTED, error="N must be a multiple of 32.",
        )  # fmt: skip
        self.store.finish_problem(self.id, 2, "no backend can run it")

    def end(self) -> None:
        self.store.finish_run(self.id, RunStatus.FINISHED)


def make(path: Path) -> tuple[str, str]:
    """Write the database. Returns the ids of the run and of the run again."""
    clock = Clock()
    with Store.open(path, clock=clock) as store:
        first = Writer(store, clock)
        store.set_roofs(CARD, Roofs(4.2e12, 7.5e14, START))
        first.tune(DENSE, FAST, scale=1.0)
        first.tune(GROUPED, FAST, scale=3.0)
        first.refuse()
        first.end()
        clock.now += timedelta(hours=1)
        second = Writer(store, clock)
        second.tune(DENSE, FAST, scale=1.0)
        second.tune(GROUPED, NEXT, scale=3.0)
        second.refuse()
        second.end()
        return first.id, second.id
