"""The winners that are served now: an index in memory that follows the database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...db import Store
from ..index import WinnerIndex, followed
from ..references import References
from .lookups import Places, Reply


class Kept:
    """The last replies, by query string: at most `limit`, and at least half of that once there were as many.

    Two dicts: when the younger one is full it becomes the older one, whose replies are forgotten unless they are
    asked for again. Deleting the oldest entry of one dict each time would be slower: the deleted entries stay in
    front and have to be passed again each time.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._young: dict[bytes, Reply] = {}
        self._old: dict[bytes, Reply] = {}

    def __len__(self) -> int:
        """How many replies are kept; one that is in both dicts counts twice."""
        return len(self._young) + len(self._old)

    def get(self, query: bytes) -> Reply | None:
        """The reply to a question, if it is kept."""
        reply = self._young.get(query)
        if reply is None:
            reply = self._old.get(query)
            if reply is not None:
                self.put(query, reply)
        return reply

    def put(self, query: bytes, reply: Reply) -> None:
        """Keep a reply."""
        if len(self._young) >= self._half:
            self._young, self._old = {}, self._young
        if self._half:
            self._young[query] = reply


@dataclass(frozen=True, slots=True)
class Served:
    """One state of the database: answers made from it are right as long as it is the current one.

    Attributes:
        index: the winners.
        generation: the database's generation, read before the winners were: never newer than the index.
        references: published times for what has no winner.
        places: what questions were found to be about. replies: those given. Only the event loop's thread touches
            these two.
    """

    index: WinnerIndex
    generation: int
    references: References
    places: Places
    replies: Kept


class LiveIndex:
    """Follows the store. Readers take `served` once and work with it; nobody waits for the database.

    Args:
        store: the database.
        on_change: called with the new state after each look, changed or not.
        kept: most replies that are kept for one state.
    """

    def __init__(self, store: Store, on_change: Callable[[Served], None], *, kept: int = 0) -> None:
        self._store = store
        self._on_change = on_change
        self._kept = kept
        self._lock = threading.Lock()
        nothing = WinnerIndex()
        self.served = self._serve(nothing, -1, References(store, nothing))
        self.checked_at = 0.0
        """When the database was last looked at, seconds since the epoch; 0 for never."""

    def refresh(self) -> bool:
        """Look at the database and serve what is new; True if something was.

        Raises:
            StoreError: the database cannot be read; what was served before still is.
        """
        with self._lock:
            before = self.served
            generation = self._store.generation()
            changed = generation != before.generation
            if changed:
                index = followed(before.index, self._store)
                self.served = self._serve(index, generation, before.references.following(index))
            self.checked_at = time.time()
            self._on_change(self.served)
        return changed

    def _serve(self, index: WinnerIndex, generation: int, references: References) -> Served:
        """A state in which nothing has been asked yet."""
        return Served(index, generation, references, Places(index), Kept(self._kept))
