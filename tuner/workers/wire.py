"""Messages between the tuner and a worker: pickles over a stream socket, each after its length and a number.

A request has a number of its own, and its answer has the same: an answer that nobody waits for any more is told by it.

Both ends are this version of fp4tune, started by the same user on the same machine; nobody else has the socket.
"""

from __future__ import annotations

import pickle
import socket
import struct

_HEADER = struct.Struct("!QQ")

MAX_BYTES = 256 << 20
"""No message is longer: the longest, an evaluation with its samples, has some kilobytes."""

_CHUNK = 1 << 16


class Garbage(Exception):  # noqa: N818 - not an error that leaves this package
    """The other end sent something that is no message."""


def encode(number: int, message: object) -> bytes:
    """A message with its number as bytes.

    Raises whatever pickle raises of an object that it cannot take, and ValueError of one that is too long.
    """
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body):,} bytes, and {MAX_BYTES:,} are allowed")
    return _HEADER.pack(len(body), number) + body


class Inbox:
    """Puts messages together from what has arrived. A read that is interrupted loses nothing.

    Args:
        connection: the socket to read from.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def read(self) -> bool:
        """Read what there is; waits for the first byte if the socket does. False at the end of the stream."""
        try:
            data = self._connection.recv(_CHUNK)
        except ConnectionError:
            return False
        self._buffer += data
        return bool(data)

    def pop(self) -> tuple[int, bytes] | None:
        """Number and pickle of the next whole message; None if it has not arrived yet. Raises Garbage."""
        if len(self._buffer) < _HEADER.size:
            return None
        length, number = _HEADER.unpack_from(self._buffer)
        if length > MAX_BYTES:
            raise Garbage(f"announced a message of {length:,} bytes")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        return number, body
