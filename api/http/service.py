"""The service behind the routes: what is served, the answers that are kept, and the misses that are counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata

from starlette.concurrency import run_in_threadpool

from ...db import Store
from ...kernels.errors import Fp4tuneError, StoreError
from ..lookup import NoAnswer
from ..settings import Settings
from .cursors import Cursors
from .live import LiveIndex, Served
from .lookups import Reply, answer_batch, answer_missing, answer_query
from .metrics import Metrics
from .misses import Dropped, MissBuffer
from .periodic import Periodic
from .problems import problem_of_error
from .rendering import Rendered

logger = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Service:
    """One service over one store.

    `start` loads the winners and starts two threads, one that follows the database and one that writes misses;
    `stop` ends them and writes what misses are left. Lookups never wait for the database: they read an immutable
    index. The kept answers belong to the event loop's thread, everything else may be called from any.

    Args:
        settings: see Settings.
        store: the database; None opens the one that the settings name when the service starts, and closes it in
            the end.
        monotonic: seconds for rate limits. now: the time, UTC.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.settings = settings
        self.version = metadata.version("fp4tune")
        self.metrics = Metrics(self.version)
        self.cursors = Cursors(settings.cursor_secret.get_secret_value())
        self.misses = MissBuffer(
            cap=settings.misses_cap,
            per_s=settings.misses_per_s,
            burst=settings.misses_burst,
            monotonic=monotonic,
            now=now,
        )
        self._store = store
        self._owns_store = store is None
        self._live: LiveIndex | None = None
        self._follow: Periodic | None = None
        self._flush: Periodic | None = None
        self._flushing = threading.Lock()

    @property
    def store(self) -> Store:
        """The database.

        Raises:
            StoreError: the service has not been started.
        """
        if self._store is None:
            raise StoreError("The service has not been started, and no database is open.")
        return self._store

    @property
    def live(self) -> LiveIndex:
        """What is served.

        Raises:
            StoreError: the service has not been started.
        """
        if self._live is None:
            raise StoreError("The service has not been started, and no winners are loaded.")
        return self._live

    @property
    def writes_misses(self) -> bool:
        """False if the database was opened for reading only."""
        return self.store.mode != "read"

    def start(self) -> None:
        """Open the store if need be, load the winners, start the threads. A second call does nothing.

        Raises:
            StoreError: the database cannot be opened or read. Nothing is left running.
        """
        if self._live is not None:
            return
        if self._store is None:
            self._store = Store.open(self.settings.db, mode="read" if self.settings.read_only else "create")
        live = LiveIndex(self._store, self._show, kept=self.settings.cached_answers)
        try:
            live.refresh()
        except BaseException:
            self._close_store()
            raise
        self._live = live
        logger.info("serving %d winners of %s", live.served.index.size, self._store.url)
        self._follow = Periodic(
            "following the database", live.refresh, self.settings.poll_s, self.metrics.refresh_failures.inc
        )
        self._flush = Periodic(
            "writing misses", self.flush_misses, self.settings.misses_flush_s, self.metrics.flush_failures.inc
        )
        self._follow.start()
        if self.writes_misses:
            self._flush.start()

    def stop(self) -> None:
        """End the threads, write the misses that are left, close the store if this service opened it."""
        for thread in (self._follow, self._flush):
            if thread is not None:
                thread.stop(self.settings.shutdown_s)
        if self._flush is not None and self.writes_misses and not self._flush.once():
            logger.warning("%d misses are lost: they could not be written at the end", len(self.misses))
        self._live = self._follow = self._flush = None
        self._close_store()

    def _close_store(self) -> None:
        if self._owns_store and self._store is not None:
            self._store.close()
            self._store = None

    def _show(self, served: Served) -> None:
        """Tell the metrics what is served."""
        self.metrics.index_winners.set(served.index.size)
        self.metrics.index_generation.set(served.generation)
        self.metrics.index_refreshed.set_to_current_time()

    # Lookups. On the event loop's thread: what is in memory takes microseconds.

    async def answer(self, query: bytes) -> Rendered:
        """The answer to GET /best-config with this query string; kept, and taken again when it is asked again.

        It comes from memory, except for the first miss of a layer on a card for which something is published: that
        reads the database, in another thread. A question that is wrong or ambiguous is answered with its problem.
        """
        try:
            served = self.live.served
            reply = served.replies.get(query)
            if reply is not None:
                self.metrics.cache_hits.inc()
            else:
                reply = answer_query(served.index, served.places, served.references, query)
                if reply.unread and reply.missing is not None:
                    reply = await self._read_published(served, reply, reply.missing)
                if not reply.unread:
                    served.replies.put(query, reply)
        except Fp4tuneError as error:
            return problem_of_error(error)
        self.metrics.lookup(reply.match)
        if reply.missing is not None:
            self.count_miss(reply.missing)
        return reply.rendered

    async def _read_published(self, served: Served, reply: Reply, missing: NoAnswer) -> Reply:
        """The reply with what is published; as it was if the database cannot be read."""
        try:
            return await run_in_threadpool(answer_missing, served.index, served.references, missing)
        except StoreError as error:
            logger.warning("published times cannot be read: %s", error)
            return reply

    def answer_batch(self, body: bytes) -> Rendered:
        """The answer to POST /best-configs. Not on the event loop's thread: 10,000 shapes take a fraction of a second.

        Raises:
            BodyError: the body is not what it should be.
            InvalidInputError: the question is ambiguous.
        """
        served = self.live.served
        rendered, matches = answer_batch(served.index, served.references, body, self.count_miss)
        for match, count in matches.items():
            self.metrics.lookup(match, count)
        return rendered

    # Misses

    def count_miss(self, missing: NoAnswer) -> None:
        """Count something that was asked for and not found; what others published about it changes nothing in that."""
        place = missing.place
        if not self.writes_misses:
            dropped: Dropped | None = Dropped.READ_ONLY
        elif not place.countable:
            dropped = Dropped.UNATTRIBUTED
        else:
            dropped = self.misses.add(missing.problem, place.device_fingerprint, place.environment_fingerprint)
        if dropped is not None:
            self.metrics.misses_dropped.labels(dropped).inc()

    def flush_misses(self) -> None:
        """Write the counted misses.

        Raises:
            StoreError: the database cannot be written; the misses wait for the next attempt.
        """
        with self._flushing:
            taken = self.misses.take()
            if not taken:
                return
            try:
                over_cap = self.store.add_misses(taken, cap=self.settings.misses_cap)
            except BaseException:
                self.metrics.misses_dropped.labels(Dropped.BUFFER).inc(self.misses.put_back(taken))
                raise
            self.metrics.misses_written.inc(len(taken) - over_cap)
            self.metrics.misses_dropped.labels(Dropped.CAP).inc(over_cap)

    # Health

    def not_ready(self) -> list[str]:
        """Why the service cannot answer well now; empty if it can. Reads the database."""
        if self._live is None or self._follow is None:
            return ["the service has not been started"]
        reasons = [self._follow.error] if self._follow.error else []
        try:
            self.store.check()
            schema = self.store.schema()
        except StoreError as error:
            return [*reasons, str(error)]
        if schema.current != schema.head:
            reasons.append(f"the database has schema {schema.current}, and this fp4tune needs {schema.head}")
        return reasons
