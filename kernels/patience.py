"""How long a backend may take to say what it offers, where whoever asks has less time than a tuning run.

Most backends answer at once and need none of this. One that starts a process to find out, or builds something, takes
`seconds_left` for the limit that it gives that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import UnsupportedError

_ends_at: ContextVar[float | None] = ContextVar("ends_at", default=None)
"""By time.monotonic, seconds; None where nobody is in a hurry."""


class OutOfTimeError(UnsupportedError):
    """A backend did not say what it offers in the time that whoever asked had; with more time it may."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Give backends so many seconds, all together, for what they are asked inside, in this thread.

    Inside another one the earlier end holds. Nothing is interrupted: a backend keeps to it by asking `seconds_left`.
    """
    outer, ends_at = _ends_at.get(), time.monotonic() + seconds
    token = _ends_at.set(ends_at if outer is None else min(outer, ends_at))
    try:
        yield
    finally:
        _ends_at.reset(token)


def seconds_left(usual_s: float) -> float:
    """Seconds that a backend may take now: `usual_s`, or what is left of the patience around it, at least 0."""
    ends_at = _ends_at.get()
    return usual_s if ends_at is None else min(usual_s, max(0.0, ends_at - time.monotonic()))
