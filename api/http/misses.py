"""What was asked for and not found: counters in memory, bounded in number and in how fast they grow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from ...db.records import Miss
from ...kernels.problem import Problem

MAX_PLACES = 256
"""Pairs of device and environment that have a rate limit of their own; later ones share one."""

Key = tuple[str, str, str]


class Dropped(StrEnum):
    """Why a miss was not counted."""

    RATE = "rate"
    """Too many new shapes of one device and environment in too short a time."""
    BUFFER = "buffer"
    """As many distinct misses as the cap allows are waiting to be written."""
    CAP = "cap"
    """The database holds as many distinct misses as the cap allows."""
    UNATTRIBUTED = "unattributed"
    """The question named a device or an environment by something that fits none."""
    READ_ONLY = "read_only"
    """The database was opened for reading only."""


@dataclass(slots=True)
class TokenBucket:
    """Lets `burst` events pass at once and `per_s` a second in the long run.

    Attributes:
        per_s: tokens that come back each second.
        burst: most tokens it holds.
        tokens: what it holds at `at`.
        at: monotonic seconds of the last look.
    """

    per_s: float
    burst: float
    tokens: float
    at: float

    def take(self, now: float) -> bool:
        """Take a token if there is one."""
        self.tokens = min(self.burst, self.tokens + max(0.0, now - self.at) * self.per_s)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class MissBuffer:
    """Counts misses until they are written. Thread-safe; no call waits for the database.

    A shape counts as new unless it waits to be written or is among the `cap` shapes that were written last, so
    that what is asked again and again is counted and what is asked once in a million ways is not.

    Args:
        cap: most distinct misses that wait at a time, and most that are remembered as not new.
        per_s: new distinct shapes a second, for each device and environment.
        burst: new distinct shapes at once, for each device and environment.
        monotonic: clock of the rate limit, seconds.
        now: wall clock of the counters, UTC.
    """

    def __init__(
        self, *, cap: int, per_s: float, burst: int, monotonic: Callable[[], float], now: Callable[[], datetime]
    ) -> None:
        self._cap = cap
        self._per_s = per_s
        self._burst = burst
        self._monotonic = monotonic
        self._now = now
        self._lock = threading.Lock()
        self._waiting: dict[Key, Miss] = {}
        self._written: dict[Key, None] = {}
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def __len__(self) -> int:
        """Distinct misses that wait to be written."""
        return len(self._waiting)

    def add(self, problem: Problem, device_fingerprint: str, environment_fingerprint: str) -> Dropped | None:
        """Count one miss; why it was not counted, or None if it was."""
        key = (problem.key, device_fingerprint, environment_fingerprint)
        with self._lock:
            known = self._waiting.get(key)
            if known is not None:
                self._waiting[key] = replace(known, count=known.count + 1, last_at=self._now())
                return None
            if len(self._waiting) >= self._cap:
                return Dropped.BUFFER
            if key not in self._written and not self._bucket(key[1:]).take(self._monotonic()):
                return Dropped.RATE
            now = self._now()
            self._waiting[key] = Miss(problem, device_fingerprint, environment_fingerprint, 1, now, now)
        return None

    def take(self) -> list[Miss]:
        """Everything that waits; it waits no longer. Give it to `put_back` if it could not be written."""
        with self._lock:
            taken = list(self._waiting.values())
            for key in self._waiting:
                self._written.pop(key, None)
                self._written[key] = None
            while len(self._written) > self._cap:
                del self._written[next(iter(self._written))]
            self._waiting = {}
        return taken

    def put_back(self, misses: list[Miss]) -> int:
        """Let misses wait again, added to what came meanwhile; how many found no room."""
        dropped = 0
        with self._lock:
            for miss in misses:
                key = (miss.problem.key, miss.device_fingerprint, miss.environment_fingerprint)
                known = self._waiting.get(key)
                if known is not None:
                    self._waiting[key] = replace(known, count=known.count + miss.count, first_at=miss.first_at)
                elif len(self._waiting) < self._cap:
                    self._waiting[key] = miss
                else:
                    dropped += 1
        return dropped

    def _bucket(self, place: tuple[str, str]) -> TokenBucket:
        """The rate limit of a device and environment. The names come from outside, so their number is bounded."""
        if place not in self._buckets and len(self._buckets) >= MAX_PLACES:
            place = ("", "")
        bucket = self._buckets.get(place)
        if bucket is None:
            bucket = self._buckets[place] = TokenBucket(self._per_s, self._burst, self._burst, self._monotonic())
        return bucket
