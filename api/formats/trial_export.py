"""The selftest's export step: a cache file a backend, loaded by FlashInfer in a fresh process, nothing kept."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...kernels.errors import Fp4tuneError
from ...kernels.problem import Problem
from ...tuner.executor import Candidate
from ...tuner.selftest.plan import problems
from ...tuner.selftest.report import Finding, Outcome
from .flashinfer import accepts, as_if_on, carried, process, text_of, unfit, verify
from .flashinfer_child import Entry, Wanted
from .flashinfer_metadata import UNKNOWN, WILDCARD

if TYPE_CHECKING:
    from ...kernels.backend import Backend
    from ...kernels.device import Device
    from .flashinfer import Carried

STEP = "export"
FORMAT = "flashinfer"


def trial_export(
    backends: Mapping[str, Backend], device: Device, candidates: Sequence[tuple[Problem, Candidate]]
) -> list[Finding]:
    """Write, reload and look up one config of each backend of FlashInfer. See `tuner.selftest.job.Exporting`.

    Args:
        backends: every registered one.
        device: for which card.
        candidates: configs that passed the gate on it; none where no card is: then some that FlashInfer offers for it.
    """
    from ...kernels.flashinfer_gemm.versions import unfit_version

    reason = unfit_version()
    if reason:
        return [Finding(STEP, FORMAT, Outcome.NOT_RUN, reason)]
    mine = {name: one for name, one in carried(backends).items() if not one.why_not_on(device)}
    if not mine:
        return [Finding(STEP, FORMAT, Outcome.NOT_RUN, f"No backend with a cache is for {device.name}.")]
    try:
        return _try(mine, device, candidates)
    except Fp4tuneError as error:
        return [Finding(STEP, FORMAT, Outcome.WRONG, str(error))]


def _try(mine: Mapping[str, Carried], device: Device, candidates: Sequence[tuple[Problem, Candidate]]) -> list[Finding]:
    """Raises Fp4tuneError if FlashInfer cannot even be asked."""
    with process(device, mine) as child:
        wanted = _wanted(mine, candidates)
        if not candidates:
            wanted = [one for problem in problems() for one in child.offered(problem)]
        captured = child.entries(wanted)
        here = child.metadata()
    metadata = {field: value if value != UNKNOWN else WILDCARD for field, value in here.items()}
    metadata["gpu"] = device.name
    as_if = None if accepts(metadata, here) else as_if_on(metadata)
    why = "No config of it passed the gate." if candidates else "FlashInfer offers none without the card."
    findings = [
        Finding(STEP, name, Outcome.NOT_RUN, why) for name in mine if name not in {one.backend for one in wanted}
    ]
    with tempfile.TemporaryDirectory(prefix="fp4tune-selftest-") as folder, process(device, mine) as child:
        for one, found in zip(wanted, captured, strict=True):
            subject = f"{one.backend} {one.problem.shape}"
            if isinstance(found, str):
                findings.append(Finding(STEP, subject, Outcome.NOT_RUN if as_if else Outcome.WRONG, found))
                continue
            path = Path(folder) / f"{one.backend}.json"
            path.write_text(text_of(metadata, found), encoding="utf-8")
            try:
                verify(child.reload(str(path), found, as_if), found)
            except Fp4tuneError as error:
                findings.append(Finding(STEP, subject, Outcome.WRONG, str(error)))
            else:
                findings.append(Finding(STEP, subject, Outcome.OK, _text(found, here, as_if is not None)))
    return findings


def _wanted(mine: Mapping[str, Carried], candidates: Sequence[tuple[Problem, Candidate]]) -> list[Wanted]:
    """The last config of each backend that passed and that a file can carry: the default came first."""
    last: dict[str, Wanted] = {}
    for problem, one in candidates:
        if one.backend in mine and not unfit(problem, one.config):
            last[one.backend] = Wanted(problem, one.backend, one.config)
    return list(last.values())


def _text(entries: Sequence[Entry], here: Mapping[str, str], as_if: bool) -> str:  # noqa: FBT001 - private
    whose = "with the metadata of such a card put in FlashInfer's place" if as_if else "with its exact metadata"
    tactics = " and ".join(dict.fromkeys(f"{entry.op} {entry.tactic!r}" for entry in entries))
    return (
        f"FlashInfer {here['flashinfer_version']} loaded the file {whose}, found {len(entries)} of {len(entries)} "
        f"entries, serving and tuning, and gave back {tactics}"
    )
