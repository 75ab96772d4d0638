"""What others published, asked where nothing that was measured here fits; the curves of a layer are read once.

A layer's curves take one indexed query: some 15 ms of CPU for a published layer of 800 times, 1 ms for others. They
stay in memory until something else is published, so that a layer's other M, and later misses of layers that nobody
published, cost no query.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..db.records import Policy
from ..kernels.errors import StoreError
from ..kernels.problem import Op
from ..tuner.reference.answer import (
    Layer,
    Reference,
    fused_layers,
    fused_note,
    layer_of,
    published,
    sentences,
    why_not,
)
from ..tuner.reference.curves import Curve, Published, curves
from .index import WinnerIndex
from .lookup import NoAnswer

MAX_LAYERS = 4096
"""Layers that are remembered, those that nobody published included. Of an RTX PRO 6000 some 1,400 are published
(aiconfigurator-core 0.12.0), whose curves take 44 MB; the rest are empty."""

RETRY_S = 5.0
"""Seconds for which a database that could not be read is not asked again: waiting for it takes a thread each time."""

Curves = tuple[Curve, ...]


class Rows(Protocol):
    """What is asked of a store."""

    def reference_rows(
        self, systems: Sequence[str], op: str, n: int, k: int, experts: int = 0, experts_total: int = 0, top_k: int = 0
    ) -> list[Published]:
        """Every published row of one layer."""
        ...


@dataclass(frozen=True, slots=True)
class ReferenceAnswer:
    """What others measured; there is nothing to serve.

    Attributes:
        missing: why nothing that was measured here is served; it is demand all the same.
        reference: the published times.
        reasons: those of `missing`, then what the published times say.
    """

    missing: NoAnswer
    reference: Reference
    reasons: tuple[str, ...]


class References:
    """Published times for what is not tuned. Threads may share it.

    Args:
        store: where the rows are.
        index: the winners; it names the published systems.
    """

    def __init__(self, store: Rows, index: WinnerIndex) -> None:
        self._store = store
        self._index = index
        self._lock = threading.Lock()
        self._read: dict[tuple[tuple[str, ...], Layer], Curves] = {}
        self._failure = ""
        self._retry_at = 0.0

    def following(self, index: WinnerIndex) -> References:
        """The same for a later index; what was read stays, if nothing was published since."""
        later = References(self._store, index)
        if index.sources == self._index.sources:
            later._lock, later._read = self._lock, self._read
            later._failure, later._retry_at = self._failure, self._retry_at
        return later

    def is_read(self, missing: NoAnswer) -> bool:
        """True if `answer` needs no query for this: nothing is published for the card, or its layers are in memory."""
        return not any(key not in self._read for key in self._keys(missing))

    def answer(self, missing: NoAnswer) -> NoAnswer | ReferenceAnswer:
        """What is published for a problem without an answer; else the same with what can be said of it.

        Raises:
            StoreError: a layer is not in memory and the database cannot be read, or could not less than RETRY_S ago.
        """
        found = {layer: self._curves(systems, layer) for systems, layer in self._keys(missing)}
        if not found:
            return missing
        problem, place = missing.problem, missing.place
        if problem.op is Op.GROUPED:
            notes = [note for layer, known in found.items() if (note := fused_note(problem, layer, known))]
            return _with(missing, *notes)
        known = found[layer_of(problem)]
        reference = published(problem, known, self._index.systems_of(place.device_name))
        if reference is None:
            return _with(missing, why_not(problem, known))
        if missing.policy not in (None, Policy.CUDA_GRAPH):
            return _with(missing, f"published times are of CUDA graph replays, and not of {missing.policy}")
        return ReferenceAnswer(missing, reference, (*missing.reasons, *sentences(reference, place.device_name)))

    def _keys(self, missing: NoAnswer) -> Iterator[tuple[tuple[str, ...], Layer]]:
        """The layers whose curves say something of a problem. None if it is tuned, under another policy than asked."""
        systems = self._index.systems_of(missing.place.device_name)
        if systems and not missing.tuned_otherwise:
            problem = missing.problem
            for layer in fused_layers(problem) if problem.op is Op.GROUPED else (layer_of(problem),):
                yield systems, layer

    def _curves(self, systems: tuple[str, ...], layer: Layer) -> Curves:
        """The curves of a layer, read when they are first asked for."""
        known = self._read.get((systems, layer))
        if known is None:
            if time.monotonic() < self._retry_at:
                raise StoreError(self._failure)
            try:
                rows = self._store.reference_rows(systems, *layer)
            except StoreError as error:
                self._failure, self._retry_at = str(error), time.monotonic() + RETRY_S
                raise
            known = curves(rows)
            with self._lock:
                if len(self._read) >= MAX_LAYERS:  # layers come from outside
                    self._read.clear()
                self._read[systems, layer] = known
        return known


def _with(missing: NoAnswer, *notes: str) -> NoAnswer:
    """The same, with more reasons; those that are empty are none."""
    more = tuple(note for note in notes if note)
    if not more:
        return missing
    return NoAnswer(
        missing.problem, missing.place, (*missing.reasons, *more), missing.policy, missing.tuned_otherwise
    )  # fmt: skip
