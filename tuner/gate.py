"""The gate: a config is right before it is timed, alone and as it will be timed.

Alone: three launches on the first operand set, each on a freshly poisoned output and waited for. Under a policy that
rotates through sets, three times more on all of them together, exactly as a sample runs them, because what races,
races there: 4 to 19 % of replays were corrupt in flashinfer-ai/flashinfer#4841.

Comparing costs more than most GEMMs, so it is done in as little as it takes. A result that has the very bytes of one
that passed, on equal operands, needs no second comparison. Results that differ from run to run, as with atomic
additions, are compared; on one pass through the sets at most MAX_COMPARED of them, each pass others. A comparison is
one pass of `kernels.tolerance` over the result; the oracle itself looks only at what that does not accept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..db.records import TrialStatus
from ..kernels.device import Device
from .clocks import Loaded, Run

if TYPE_CHECKING:
    import torch

    from ..kernels.moe_tolerance import MoeTolerance
    from ..kernels.operands import Operands
    from ..kernels.tolerance import Tolerance

GATE_RUNS = 3
"""A config must be right this often in a row: races and uninitialised scales are wrong only sometimes
(flashinfer-ai/flashinfer#4841 saw 4 to 19 % of replays corrupt)."""

MAX_COMPARED = 16
"""Sets that are compared with the oracle after one pass, if their bytes are not those of a result that passed."""


@dataclass(frozen=True, slots=True)
class Passed:
    """How a config did.

    Attributes:
        status: ok, wrong, timeout. sentence: what is wrong; empty if ok.
        rel_error: the largest relative Frobenius error that was seen; None after a timeout.
        call_s: seconds of the last call that ran alone, by the host's clock.
    """

    status: TrialStatus
    sentence: str
    rel_error: float | None
    call_s: float


class Gate:
    """The expected results of one problem's operand sets, and the comparison with them.

    Args:
        sets: operand sets; those that have `routed` in common have equal operands.
        device: where they are.
        timeout_s: what one call may take, in seconds.
    """

    def __init__(self, sets: Sequence[Operands], device: Device, *, timeout_s: float) -> None:
        from ..kernels.oracle import reference
        from ..kernels.tolerance import tolerance_for

        self._sets = sets
        self._device = device
        self._timeout_s = timeout_s
        self._keys = [s.routed for s in sets]
        self._expected: dict[tuple[int, ...], tuple[torch.Tensor, Tolerance | MoeTolerance]] = {}
        for key, operands in zip(self._keys, sets, strict=True):
            if key not in self._expected:
                expected = reference(operands)
                self._expected[key] = expected, tolerance_for(operands, expected)
        self._right: dict[tuple[int, ...], torch.Tensor] = {}

    def run_alone(self, run: Run) -> Passed:
        """Launch the first set's call GATE_RUNS times, wait for it and compare each time. Raises what it raises."""
        from ..kernels.oracle import poison

        self._right.clear()
        rel_error = call_s = 0.0
        for _ in range(GATE_RUNS):
            poison(self._sets[0].out)
            self.synchronize()
            start = time.monotonic()
            run()
            self.synchronize()
            call_s = time.monotonic() - start
            if call_s > self._timeout_s:
                sentence = f"One call took {call_s:.1f} s, and {self._timeout_s:.1f} s are allowed."
                return Passed(TrialStatus.TIMEOUT, sentence, None, call_s)
            found, sentence = self._compare(0)
            if sentence:
                return Passed(TrialStatus.WRONG, sentence, found, call_s)
            rel_error = max(rel_error, found)
        return Passed(TrialStatus.OK, "", rel_error, call_s)

    def run_together(self, loaded: Loaded, passed: Passed) -> Passed:
        """Run all sets as a sample does, GATE_RUNS times. Raises what they raise.

        Args:
            loaded: the calls of all sets, or of the first ones.
            passed: how the config did alone.
        """
        from ..kernels.oracle import poison

        for repeat in range(GATE_RUNS):
            sets = self._sets[: loaded.n_sets]
            for operands in sets:
                poison(operands.out)
            self.synchronize()
            loaded.run()
            self.synchronize()
            left = MAX_COMPARED
            # Each pass starts elsewhere, so that with many sets each pass compares others.
            for i in range(len(sets)):
                at = (i + repeat * MAX_COMPARED) % len(sets)
                if self._same_as_right(at):
                    continue
                if not left:
                    break
                left -= 1
                found, sentence = self._compare(at)
                if sentence:
                    where = f"As it is timed, in pass {repeat + 1} over operand set {at + 1} of {len(sets)}: "
                    return replace(passed, status=TrialStatus.WRONG, sentence=where + sentence, rel_error=found)
                passed = replace(passed, rel_error=max(passed.rel_error or 0.0, found))
        return passed

    def synchronize(self) -> None:
        """Wait for the device. Raises what went wrong on it."""
        if self._device.kind == "cuda":
            import torch

            torch.cuda.synchronize(self._device.torch_device)

    def _compare(self, at: int) -> tuple[float, str]:
        """(relative error, what is wrong) of a set's result; remembers the first right one of equal operands."""
        from ..kernels.oracle import compare

        operands, key = self._sets[at], self._keys[at]
        if self._same_as_right(at):
            return 0.0, ""
        expected, tolerance = self._expected[key]
        rel_error, sentence = tolerance.accepts(operands.out), ""
        if rel_error is None:
            verdict = compare(operands.out, operands, expected)
            rel_error, sentence = verdict.rel_error, verdict.sentence
        if not sentence:
            self._right.setdefault(key, operands.out.clone())
        return rel_error, sentence

    def _same_as_right(self, at: int) -> bool:
        """Whether a set's result is the one that passed. It holds no poison then, and no NaN, which equals nothing."""
        import torch

        right = self._right.get(self._keys[at])
        return right is not None and torch.equal(right, self._sets[at].out)
