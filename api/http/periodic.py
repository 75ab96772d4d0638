"""A thread that does one thing again and again, and says once when that begins to fail and when it works again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Periodic:
    """Calls `work` every `interval_s` seconds until stopped. A failure is logged, counted, and tried again.

    Args:
        name: what the work is, for the log: `writing misses`.
        work: what to do.
        interval_s: seconds from the end of one call to the start of the next.
        on_failure: called after each failure.
    """

    def __init__(
        self, name: str, work: Callable[[], object], interval_s: float, on_failure: Callable[[], object]
    ) -> None:
        self._name = name
        self._work = work
        self._interval_s = interval_s
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.error = ""
        """What the last call ended with; empty if it succeeded."""

    def start(self) -> None:
        """Start the thread. It is a daemon, so that a hanging database cannot keep the process alive."""
        self._thread = threading.Thread(target=self._run, name=f"fp4tune {self._name}", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ask the thread to end, and wait for it so long."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def once(self) -> bool:
        """Call `work` now; True if it succeeded."""
        try:
            self._work()
        except Exception as error:
            # Any exception: a thread that died of an unforeseen one would leave a service that never refreshes.
            if not self.error:
                logger.exception("%s fails, and will be tried again every %g s", self._name, self._interval_s)
            self.error = f"{self._name} fails: {error}"
            self._on_failure()
            return False
        if self.error:
            logger.info("%s works again", self._name)
            self.error = ""
        return True

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.once()
