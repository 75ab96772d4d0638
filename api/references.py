"""What others published, asked where nothing that was measured here fits; the curves of a layer are read once.

Which layers are published for a card is read at its first miss: some 14 ms of CPU for an RTX PRO 6000. A layer that is
among them takes one more query, the first time that it is asked for: 15 ms for 800 times. Both stay in memory until
something else is published, so that a layer's other M, and layers that nobody published, cost no query.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

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
"""Layers whose curves are remembered. Of an RTX PRO 6000 some 1,500 are published (aiconfigurator-core 0.12.0), whose
curves take 44 MB."""

RETRY_S = 5.0
"""Seconds for which a database that could not be read is not asked again: waiting for it takes a thread each time."""

Curves = tuple[Curve, ...]


Systems = tuple[str, ...]

T = TypeVar("T")


class Rows(Protocol):
    """What is asked of a store."""

    def reference_layers(self, systems: Sequence[str]) -> frozenset[tuple[str, int, int, int, int, int]]:
        """Every published layer."""
        ...

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
        self._layers: dict[Systems, frozenset[tuple[str, int, int, int, int, int]]] = {}
        self._read: dict[tuple[Systems, Layer], Curves] = {}
        self._failure = ""
        self._retry_at = 0.0

    def following(self, index: WinnerIndex) -> References:
        """The same for a later index; what was read stays, if nothing was published since."""
        later = References(self._store, index)
        if index.sources == self._index.sources:
            later._lock, later._layers, later._read = self._lock, self._layers, self._read
            later._failure, later._retry_at = self._failure, self._retry_at
        return later

    def is_read(self, missing: NoAnswer) -> bool:
        """True if `answer` needs no query for this: nothing is published for the card or layer, or it is in memory."""
        return all(key in self._read or self._is_unpublished(*key) for key in self._keys(missing))

    def _is_unpublished(self, systems: Systems, layer: Layer) -> bool:
        """True if it is known that nothing is published for a layer."""
        known = self._layers.get(systems)
        return known is not None and layer not in known

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

    def _keys(self, missing: NoAnswer) -> Iterator[tuple[Systems, Layer]]:
        """The layers whose curves say something of a problem. None if it is tuned, under another policy than asked."""
        systems = self._index.systems_of(missing.place.device_name)
        if systems and not missing.tuned_otherwise:
            problem = missing.problem
            for layer in fused_layers(problem) if problem.op is Op.GROUPED else (layer_of(problem),):
                yield systems, layer

    def _curves(self, systems: Systems, layer: Layer) -> Curves:
        """The curves of a layer, read when they are first asked for."""
        known = self._read.get((systems, layer))
        if known is not None:
            return known
        if systems not in self._layers:
            self._layers[systems] = self._asked(lambda: self._store.reference_layers(systems))
        if self._is_unpublished(systems, layer):
            return ()
        known = curves(self._asked(lambda: self._store.reference_rows(systems, *layer)))
        with self._lock:
            if len(self._read) >= MAX_LAYERS:
                self._read.clear()
            self._read[systems, layer] = known
        return known

    def _asked(self, query: Callable[[], T]) -> T:
        """What the database answers; it is left alone for a while after it could not."""
        if time.monotonic() < self._retry_at:
            raise StoreError(self._failure)
        try:
            return query()
        except StoreError as error:
            self._failure, self._retry_at = str(error), time.monotonic() + RETRY_S
            raise


def _with(missing: NoAnswer, *notes: str) -> NoAnswer:
    """The same, with more reasons; those that are empty are none."""
    more = tuple(note for note in notes if note)
    if not more:
        return missing
    return NoAnswer(
        missing.problem, missing.place, (*missing.reasons, *more), missing.policy, missing.tuned_otherwise
    )  # fmt: skip
