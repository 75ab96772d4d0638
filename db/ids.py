"""Ids of runs: ULIDs, 26 characters that sort by time of creation (https://github.com/ulid/spec)."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from datetime import datetime

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32: no I, L, O, U."""

LENGTH = 26
_RANDOM_BITS = 80


class UlidSource:
    """Makes ULIDs that grow strictly, also within one millisecond and when the clock steps back.

    A ULID is 48 bits of milliseconds since 1970 and 80 random bits. Within a millisecond, and while the clock is
    behind the last id, the next id is the last one plus one: strictly growing within one source; between
    processes, ordered to the millisecond of their clocks. Safe for threads.
    """

    def __init__(self, randbits: Callable[[int], int] = secrets.randbits) -> None:
        self._randbits = randbits
        self._lock = threading.Lock()
        self._last = -1

    def next(self, now: datetime) -> str:
        """A new id for the moment `now` (with a time zone)."""
        millis = max(0, int(now.timestamp() * 1000))
        with self._lock:
            if millis > self._last >> _RANDOM_BITS:
                self._last = millis << _RANDOM_BITS | self._randbits(_RANDOM_BITS)
            else:
                self._last += 1
            value = self._last
        return "".join(ALPHABET[value >> shift & 31] for shift in range(5 * (LENGTH - 1), -1, -5))
