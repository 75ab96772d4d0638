"""Writes trials in batches and keeps the run's heartbeat while it is alive."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from ..db.records import NewTrial
from ..db.store import Store

FLUSH_S = 0.5
"""A trial is in the store at most this long after it ended; a killed tuner loses no more than that."""

HEARTBEAT_S = 15.0
"""A run counts as alive for 60 s after a heartbeat (docs/decisions/0002), so three may be late."""


class TrialWriter:
    """Buffers the trials of one run. A context manager: leaving it writes what is left.

    Args:
        store: where to. run_id: of which run.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._buffer: list[NewTrial] = []
        self._flushed_at = time.monotonic()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._beat, name="fp4tune-heartbeat", daemon=True)

    def __enter__(self) -> TrialWriter:  # noqa: PYI034 - not meant to be subclassed
        """Start the heartbeat."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the heartbeat and write what is left."""
        self._stop.set()
        self._thread.join()
        self.flush()

    def add(self, trial: NewTrial) -> None:
        """Take a trial; write the batch when it is due. Raises StoreError."""
        self._buffer.append(trial)
        if time.monotonic() - self._flushed_at >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the batch now. Raises StoreError; what was not written stays for a later flush."""
        if self._buffer:
            self._store.add_trials(self._buffer)
            self._buffer.clear()
        self._flushed_at = time.monotonic()
        # After the batch: there may be no later flush that could write it.
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                self._store.heartbeat(self._run_id)
            except Exception as error:  # noqa: BLE001 - raised in the job's own thread, at its next flush
                self._error = error
                return
