"""Backends that go wrong in one way each, for tests of the job. All compute for real, on the CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from fp4tune.kernels.backend import Availability, Config, ConfigValue, Parameter, Space, StaticFacts
from fp4tune.kernels.device import Device
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.operands import Operands
from fp4tune.kernels.oracle import reference
from fp4tune.kernels.problem import Op, Problem

GATE_CALLS = 3
"""Calls before the first one that is timed."""

FAULTS = ("none", "zero_tile", "raises", "refuses", "compiler_raises", "unwritten", "slow")


class Unparametrised:
    """A backend with nothing to tune: its space has one config, which is empty."""

    name = "test.fixed"

    def probe(self, device: Device) -> Availability:
        return Availability(True)

    def versions(self, device: Device) -> dict[str, str]:
        return {"torch": torch.__version__, self.name: "1"}

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(())

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        return {}

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        return []

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        expected = reference(operands).to(operands.out.dtype)

        def run() -> None:
            operands.out.copy_(expected)

        return run


class DiesAfterTheGate(Unparametrised):
    """Right as often as the gate looks, then it raises."""

    name = "test.dies"

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        right = super().prepare(problem, operands, config)
        calls = 0

        def run() -> None:
            nonlocal calls
            calls += 1
            if calls > GATE_CALLS:
                raise RuntimeError("an illegal memory access was encountered")
            right()

        return run


class FaultyBackend:
    """One parameter, `fault`, that says how the config goes wrong; the default does what `default_fault` says."""

    def __init__(
        self,
        name: str = "test.faulty",
        *,
        default_fault: str = "none",
        dense_only: bool = False,
        only: tuple[str, ...] = FAULTS,
    ) -> None:
        self.name = name
        self._only = only
        self._default_fault = default_fault
        self._dense_only = dense_only

    def probe(self, device: Device) -> Availability:
        return Availability(device.kind == "cpu", "" if device.kind == "cpu" else "CPU only.")

    def versions(self, device: Device) -> dict[str, str]:
        return {"torch": torch.__version__, self.name: "1"}

    def space(self, problem: Problem, device: Device) -> Space:
        if self._dense_only and problem.op is not Op.DENSE:
            raise UnsupportedError("Only dense problems can be run.")
        return Space((Parameter("fault", self._only),))

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        self.space(problem, device)
        return {"fault": self._default_fault}

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        return []

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        fault = config["fault"]
        if fault == "refuses":
            raise UnsupportedError("This config cannot run here.")
        if fault == "compiler_raises":
            raise RuntimeError("ptxas fatal: something\nwith a second line")
        expected = reference(operands).to(operands.out.dtype)

        def run() -> None:
            if fault == "raises":
                raise RuntimeError("an illegal memory access was encountered")
            if fault == "slow":
                time.sleep(0.02)
            if fault == "unwritten":
                operands.out[:-1].copy_(expected[:-1])
                return
            operands.out.copy_(expected)
            if fault == "zero_tile":
                operands.out[:, -8:] = 0

        return run


class Meddler(Unparametrised):
    """Right, but changes an operand."""

    name = "test.meddler"

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        right = super().prepare(problem, operands, config)
        operands.alpha.mul_(2)
        return right


class CompilingBackend(FaultyBackend):
    """Compiles to a file that says by which process it was made, and which GPUs that one saw."""

    def __init__(self, cache: str) -> None:
        super().__init__("test.compiling", only=("none", "slow", "compiler_raises"))
        self._cache = cache

    def compile(self, problem: Problem, device: Device, config: Config) -> StaticFacts:
        if config["fault"] == "compiler_raises":
            raise RuntimeError("ptxas fatal: something")
        said = f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"
        (Path(self._cache) / str(config["fault"])).write_text(said)
        return StaticFacts("sm_90a", 128, 0, 1024, {})


class Reference(FaultyBackend):
    """Fast, right and only there to compare with."""

    def __init__(self, name: str = "test.reference") -> None:
        super().__init__(name, only=("none", "slow", "raises"))

    def serves(self, problem: Problem) -> bool:
        return False
