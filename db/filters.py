"""What listings take and give: filters and pages. `fp4tune.db.records` has them all; take them from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .words import TrialStatus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Which trials to list; None means any.

    Attributes:
        run_id, problem_key, backend, status, environment_fingerprint, device_fingerprint: exact matches.
    """

    run_id: str | None = None
    problem_key: str | None = None
    backend: str | None = None
    status: TrialStatus | None = None
    environment_fingerprint: str | None = None
    device_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class WinnerFilter:
    """Which winners to list; None means any.

    Attributes:
        problem_key, backend, environment_fingerprint, device_fingerprint, run_id, policy: exact matches.
        current: True for those that are served now, False for history, None for both.
    """

    problem_key: str | None = None
    backend: str | None = None
    environment_fingerprint: str | None = None
    device_fingerprint: str | None = None
    run_id: str | None = None
    current: bool | None = True
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class StaticFactsFilter:
    """Which static facts to list; None means any.

    Attributes:
        problem_key, backend, target: exact matches.
    """

    problem_key: str | None = None
    backend: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing.

    Attributes:
        items: at most the limit that was asked for.
        next_after: pass as `after` for the next page; None on the last.
    """

    items: Sequence[T]
    next_after: int | None = field(default=None)
