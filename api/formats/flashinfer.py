"""FlashInfer's own autotuner cache: configs as entries that SGLang, vLLM and `autotune(False, cache=...)` load.

The v1 JSON of FlashInfer 0.7.2 to 0.7.4 (`AutoTuner.save_configs`): `_metadata`, and for every four-part key
`[runner, tactic, policy]`. Keys and policies are captured from the live call, never written from memory. Exactly one
runner has an entry for a shape, because with several FlashInfer takes the first that its caller lists, not the fastest.

A file takes its name only after FlashInfer has loaded it in a fresh process and given back every tactic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...kernels.backend import Config, load_backends
from ...kernels.errors import Fp4tuneError, InvalidInputError, NotFoundError, UnsupportedError
from ...kernels.flashinfer_gemm.versions import installed_version, unfit_version
from ...kernels.problem import Op, OutDtype, Problem
from ...tuner.workers.process import FailedInsideError, WorkerProcess
from ...tuner.workers.spec import own_sys_path, spec_of
from .files import beside, put_in_place
from .flashinfer_child import CHILD, Entry, Reloaded, Wanted
from .flashinfer_metadata import WILDCARD, MetadataMode, check_measured, check_release, file_metadata
from .selection import LeftOut, Selected

if TYPE_CHECKING:
    from ...kernels.backend import Backend
    from ...kernels.device import Device, Environment
    from ...kernels.flashinfer_gemm.cutlass_moe import CutlassMoe
    from ...kernels.flashinfer_gemm.dense import Dense

    Carried: TypeAlias = Dense | CutlassMoe

START_S = 180.0
"""Seconds for a process to import FlashInfer: 6 on a quiet machine, 24 from a cold disk."""

CALL_S = 1.0
"""Seconds for one call or lookup: they take milliseconds, on a machine whose cores are all busy more."""

METADATA = "_metadata"


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written and verified.

    Attributes:
        selected: what it carries. left_out: what it does not, and why.
        entries: of the file. metadata: of the file.
        as_if: whether FlashInfer's comparison of the metadata was answered for the card, because this process is not in
            the environment that the file is for; everything else is as it is there.
    """

    selected: Sequence[Selected]
    left_out: Sequence[LeftOut]
    entries: Sequence[Entry]
    metadata: Mapping[str, str]
    as_if: bool


def carried(backends: Mapping[str, Backend]) -> dict[str, Carried]:
    """Those backends whose configs are entries of FlashInfer's cache: those whose calls ask its AutoTuner."""
    from ...kernels.flashinfer_gemm.cutlass_moe import CutlassMoe
    from ...kernels.flashinfer_gemm.dense import Dense

    return {name: backend for name, backend in backends.items() if isinstance(backend, Dense | CutlassMoe)}


def backends_called(names: Sequence[str] | None) -> dict[str, Carried]:
    """The backends whose configs a file may carry.

    Args:
        names: only these; None for every one of FlashInfer that has a cache.

    Raises:
        InvalidInputError: a name is none of them; the sentence lists them.
    """
    known = carried(load_backends())
    for name in names or ():
        if name not in known:
            raise InvalidInputError(
                f"A FlashInfer cache has no entries of {name!r}; it may have those of {', '.join(known) or 'none'}."
            )
    return {name: known[name] for name in names} if names else known


def unfit(problem: Problem, config: Config) -> str:
    """Why a config can be no entry, whatever FlashInfer is installed; empty if it can."""
    if problem.op is Op.GROUPED:
        return "the cache has no entries for grouped problems"
    return "it pads M, which an engine does not do" if config.get("pad_m") else ""


def export(
    environment: Environment,
    selected: Sequence[Selected],
    left_out: Sequence[LeftOut],
    out: Path,
    *,
    backends: Mapping[str, Carried],
    mode: MetadataMode,
) -> Exported:
    """Write a cache file, verified by FlashInfer itself; the file that was there stays until it is.

    Args:
        environment: in which everything was measured.
        selected: what it is to carry.
        left_out: what it is already known not to.
        out: the file.
        backends: those of `selected`.
        mode: how exact the metadata is.

    Raises:
        NotFoundError: nothing is left that the file could carry.
        UnsupportedError: FlashInfer cannot be used here, or is of another release than the winners'.
        Fp4tuneError: FlashInfer does not give back what was written.
        InvalidInputError: the file cannot be written.
    """
    check_measured(environment)
    rest, clashing = _one_a_shape(selected)
    gone = [*left_out, *clashing]
    if not rest:
        raise _nothing(gone)
    check_installed()
    check_release(environment, installed_version())
    with process(environment.device, backends) as child:
        wanted = [Wanted(one.problem, one.backend, one.config) for one in rest]
        captured = child.entries(wanted)
        here = child.metadata()
    kept = [(one, found) for one, found in zip(rest, captured, strict=True) if not isinstance(found, str)]
    gone += [
        LeftOut(one.problem, f"{one.backend} has no entry for it. {found}")
        for one, found in zip(rest, captured, strict=True)
        if isinstance(found, str)
    ]
    if not kept:
        raise _nothing(gone)
    entries = [entry for _, found in kept for entry in found]
    metadata = file_metadata(environment, here, {one.backend for one, _ in kept}, mode)
    as_if = not accepts(metadata, here)
    new = beside(out, text_of(metadata, entries))
    try:
        with process(environment.device, backends) as child:
            reloaded = child.reload(str(new), entries, as_if_on(metadata) if as_if else None)
        verify(reloaded, entries)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    put_in_place(new, out)
    return Exported([one for one, _ in kept], sorted(gone, key=lambda o: o.problem.key), entries, metadata, as_if)


def _nothing(gone: Sequence[LeftOut]) -> NotFoundError:
    more = f" ({len(gone) - 1} more problems were left out)" if len(gone) > 1 else ""
    return NotFoundError(f"There is nothing to export. {gone[0].problem.shape}: {gone[0].why}{more}")


def check_installed() -> None:
    """Raise UnsupportedError with one sentence if no FlashInfer of a known release is installed. Imports nothing."""
    reason = unfit_version()
    if reason:
        raise UnsupportedError(f"Nothing can be exported for FlashInfer here. {reason}")


def text_of(metadata: Mapping[str, str], entries: Iterable[Entry]) -> str:
    """The file: an entry a line, the same bytes for the same entries."""
    document: dict[str, Any] = {METADATA: dict(metadata)}
    for entry in sorted(entries, key=lambda one: one.key):
        document[entry.key] = [entry.runner, entry.tactic, entry.policy]
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    return f"{{\n{lines}\n}}\n"


def accepts(metadata: Mapping[str, str], here: Mapping[str, str]) -> bool:
    """Whether a process with metadata `here` loads a file with `metadata`."""
    return all(metadata.get(field) in (own, WILDCARD) for field, own in here.items())


def as_if_on(metadata: Mapping[str, str]) -> dict[str, str]:
    """What a process in the environment of a file says of itself; for an open field something that is no wildcard."""
    return {field: "any" if value == WILDCARD else value for field, value in metadata.items()}


def verify(reloaded: Reloaded, entries: Sequence[Entry]) -> None:
    """Check that FlashInfer loaded a file and gives back each of its entries.

    Raises:
        Fp4tuneError: it does not; the sentence says what it did instead.
    """
    from ...kernels.flashinfer_gemm.tactics import plain

    if not reloaded.loaded:
        raise Fp4tuneError(
            f"FlashInfer ignored the exported file, comparing it with {dict(reloaded.metadata)}; nothing was replaced."
        )
    for entry, looked in zip(entries, reloaded.looked, strict=True):
        found = "no entry" if not looked.hit else f"the tactic {looked.tactic!r}"
        if not looked.hit or plain(looked.tactic) != entry.tactic:
            raise Fp4tuneError(
                f"FlashInfer loaded the exported file and found {found} for {_call_of(entry)}, "
                f"where {entry.tactic!r} was written; nothing was replaced."
            )
        if not looked.hit_while_tuning:
            raise Fp4tuneError(
                f"FlashInfer would tune {_call_of(entry)} again instead of taking the exported entry; nothing was "
                "replaced."
            )


def _call_of(entry: Entry) -> str:
    return f"{entry.wanted.problem.shape} on {entry.runner} ({entry.op})"


class Process:
    """The methods of `Child`, in a process of its own."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker

    def metadata(self) -> dict[str, str]:
        """See Child."""
        found: dict[str, str] = self._ask("metadata", 1)
        return found

    def offered(self, problem: Problem) -> list[Wanted]:
        """See Child."""
        found: list[Wanted] = self._ask("offered", 1, problem)
        return found

    def entries(self, wanted: Sequence[Wanted]) -> list[list[Entry] | str]:
        """See Child."""
        found: list[list[Entry] | str] = self._ask("entries", len(wanted), list(wanted))
        return found

    def reload(self, path: str, entries: Sequence[Entry], as_if: Mapping[str, str] | None = None) -> Reloaded:
        """See Child."""
        found: Reloaded = self._ask("reload", len(entries), path, list(entries), as_if)
        return found

    def _ask(self, method: str, n: int, *arguments: Any) -> Any:
        """Raises UnsupportedError if it said so, else what `WorkerProcess.request` raises."""
        try:
            return self._worker.request(method, *arguments, deadline_s=START_S + CALL_S * n)
        except FailedInsideError as error:
            raise _told(error) from error


@contextmanager
def process(device: Device, backends: Mapping[str, Carried]) -> Iterator[Process]:
    """A fresh process with FlashInfer in it while the body runs.

    Raises:
        UnsupportedError: FlashInfer cannot be used. WorkerError: the process died or did not answer.
    """
    worker = WorkerProcess("FlashInfer's process")
    try:
        try:
            worker.start(CHILD, [device, spec_of(backends)], sys_path=own_sys_path(), deadline_s=START_S)
        except FailedInsideError as error:
            raise _told(error) from error
        yield Process(worker)
    finally:
        worker.kill()


def _told(error: FailedInsideError) -> Fp4tuneError:
    """What was raised inside, as it would have been raised here."""
    return UnsupportedError(error.text) if error.type_name == "UnsupportedError" else error


def _one_a_shape(selected: Sequence[Selected]) -> tuple[list[Selected], list[LeftOut]]:
    """One config a shape: BF16 output before others, because keys of b12x and CUTLASS do not say the output's dtype.

    Those of a fused layer do.
    """
    kept: dict[str, Selected] = {}
    clashing = []
    for one in sorted(selected, key=lambda o: (o.problem.out_dtype is not OutDtype.BF16, o.problem.key)):
        first = kept.setdefault(one.problem.shape if one.problem.op is Op.DENSE else one.problem.key, one)
        if first is not one:
            why = f"Its key is that of output {first.problem.out_dtype.value}, which the file carries."
            clashing.append(LeftOut(one.problem, why))
    return list(kept.values()), clashing
