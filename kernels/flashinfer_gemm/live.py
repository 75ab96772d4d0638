"""Tactics that only the card can tell: cuDNN's plans, TensorRT-LLM's cubins.

The tuner's parent must not make a CUDA context, so there a child process is asked, once for a problem; a worker, which
has a context, asks itself. The child is this module: one JSON line in, one out.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from ..patience import OutOfTimeError, seconds_left
from ..problem import OutDtype, Problem
from . import arguments
from .seam import seam
from .tactics import plain

if TYPE_CHECKING:
    from ..device import Device

TIMEOUT_S = 300.0
"""Seconds for a child: FlashInfer's import takes 6 to 24, cuDNN builds every plan of a shape to list them. Whoever asks
may have less: see kernels/patience.py."""

_MARK = "fp4tune-tactics "
"""Begins the line of the answer: libraries write to standard output as well."""


@functools.lru_cache(maxsize=256)
def live_tactics(name: str, problem: Problem, device: Device, rows: tuple[int, ...]) -> Mapping[int, Sequence[Any]]:
    """Rows -> FlashInfer's tactics of a backend for a problem with so many rows, asked on the card.

    Raises:
        UnsupportedError: FlashInfer refuses the problem there, or the child died or took too long.
        OutOfTimeError: the child was not done when the patience of whoever asks ended. Nothing of it is remembered.
    """
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # torch has no type for it
        return here(name, problem, device.index, rows)
    asked = {
        "backend": name, "n": problem.n, "k": problem.k, "out_dtype": problem.out_dtype.value,
        "index": device.index, "rows": rows,
    }  # fmt: skip
    found = _ask([sys.executable, "-m", __spec__.name if __spec__ else __name__], json.dumps(asked), name)
    return {int(m): tuple(plain(tactic) for tactic in tactics) for m, tactics in found.items()}


def here(name: str, problem: Problem, index: int, rows: Sequence[int]) -> dict[int, Sequence[Any]]:
    """The same, in this process, which gets a CUDA context."""
    import torch

    from .backends import Cudnn, Trtllm

    backend = {one.name: one() for one in (Cudnn, Trtllm)}[name].backend
    flashinfer = seam()
    found: dict[int, Sequence[Any]] = {}
    with torch.cuda.device(index):
        for m in rows:
            given = arguments.unwritten(problem, m, f"cuda:{index}")
            with flashinfer.listening():
                call = given.call(flashinfer, backend)
            found[m] = [plain(tactic) for tactic in flashinfer.tactics(call)]
    return found


def _ask(command: Sequence[str], question: str, name: str) -> dict[str, Any]:
    """The answer of a child process."""
    timeout_s = seconds_left(TIMEOUT_S)
    if not timeout_s:
        raise OutOfTimeError(f"{name} was not asked for its tactics: no time was left.")
    try:
        done = subprocess.run(  # noqa: S603 - this very module, by this very Python
            command, input=question, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        if timeout_s < TIMEOUT_S:
            text = f"{name} did not list its tactics within the {timeout_s:.1f} s that it was given."
            raise OutOfTimeError(text) from error
        raise UnsupportedError(
            f"{name} did not list its tactics within {TIMEOUT_S:g} s; it is left out of this race."
        ) from error
    answers = [line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or len(answers) != 1:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300].rstrip(". ")
        raise UnsupportedError(f"{name} cannot list its tactics on the card ({said}).")
    found: dict[str, Any] = json.loads(answers[0])
    return found


def main() -> None:
    """The child: a question on standard input, the answer on standard output."""
    asked = json.loads(sys.stdin.readline())
    problem = Problem(asked["rows"][0], asked["n"], asked["k"], out_dtype=OutDtype(asked["out_dtype"]))
    print(_MARK + json.dumps(here(asked["backend"], problem, asked["index"], asked["rows"])))  # noqa: T201


if __name__ == "__main__":
    main()
