"""`fp4tune serve`: bind, load, say so, serve until told to stop."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from ...db import Store
from ...kernels.errors import BusyError, InvalidInputError
from ..settings import Settings
from .app import create_app

logger = logging.getLogger(__name__)

_BACKLOG = 2048
"""Connections that may wait to be accepted: all workers of a cluster ask at once when it starts."""


class _Server(uvicorn.Server):
    """uvicorn's server, that says when it is ready and takes SIGTERM for a wish, not for an error."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM. Unlike uvicorn's own, does not raise them again after a clean stop."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            # A second signal does not wait for requests in progress.
            self.force_exit = self.should_exit
            self.should_exit = True
            del number, frame

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket's address, taken before anything slow is done.

    Raises:
        InvalidInputError: there is no such address on this machine, or the port needs privileges.
        BusyError: somebody else listens there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InvalidInputError(f"{host!r} is no address of a host: {error}.") from error
    bound = socket.socket(family, kind, protocol)
    try:
        # Lets a restart take the port while old connections linger; not a port that somebody listens on.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise BusyError(
                f"Port {port} on {host} is in use: stop what listens there, or choose another with --port."
            ) from error
        if error.errno == errno.EACCES:
            raise InvalidInputError(f"Port {port} needs privileges: choose one above 1023 with --port.") from error
        raise InvalidInputError(f"{host}:{port} cannot be bound: {error.strerror}.") from error
    bound.set_inheritable(False)
    return bound


def url_of(bound: socket.socket) -> str:
    """The URL of a bound socket: `http://127.0.0.1:8040`."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(settings: Settings, *, on_ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress get `shutdown_s` seconds to end.

    Args:
        settings: see Settings.
        on_ready: called with the URL once requests are answered.

    Raises:
        BusyError: the port is in use.
        InvalidInputError: the host or the port cannot be bound.
        StoreError: the database cannot be opened.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )  # fmt: skip
    bound = bind(settings.host, settings.port)
    with contextlib.closing(bound):
        url = url_of(bound)
        if settings.host not in ("127.0.0.1", "::1", "localhost"):
            logger.warning("%s is reachable from other machines: everybody there can read what is stored", url)
        with Store.open(settings.db, mode="read" if settings.read_only else "create") as store:
            app = create_app(settings, store=store)
            app.state.service.start()
            # The index is as old as the process and holds no garbage: without this, every full collection would
            # walk all of it and stop the server meanwhile.
            gc.collect()
            gc.freeze()
            config = uvicorn.Config(
                app,
                log_config=None,
                log_level=settings.log_level,
                access_log=settings.access_log,
                server_header=False,
                timeout_graceful_shutdown=settings.shutdown_s,
                lifespan="on",
            )
            _Server(config, lambda: on_ready(url) if on_ready else None).run(sockets=[bound])
