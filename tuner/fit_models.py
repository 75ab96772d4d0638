"""Latency models of a store's devices: which measurements belong together, what is fitted on them, and what is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

from ..db.records import LatencyModel, Source, Winner, WinnerFilter
from ..kernels.device import Device
from ..kernels.errors import UnsupportedError
from .latency_fit import Fit, HeldOut, fit, held_out, quantile
from .latency_model import Point, Term, best_points
from .plausible import far

if TYPE_CHECKING:
    from ..db.store import Store


@dataclass(frozen=True, slots=True)
class Kind:
    """What measurements have in common that are fitted together.

    Attributes:
        device: where. op, format: of the problems. policy: how they were measured.
    """

    device: Device
    op: str
    format: str
    policy: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model, and what it says of the problems that it was fitted on.

    Attributes:
        kind: what it is for. model: the model.
        binds: problems that each term binds; only the terms that the measurements decide.
        held_out: every problem with what a fit without its layer says of it.
    """

    kind: Kind
    model: LatencyModel
    binds: Mapping[Term, int]
    held_out: Sequence[HeldOut]

    @property
    def doubtful(self) -> list[HeldOut]:
        """Problems whose measured time is far from what a fit without their layer says, farthest first."""
        limit = far(self.model)
        return [one for one in sorted(self.held_out, key=_distance, reverse=True) if _distance(one) >= limit]


@dataclass(frozen=True, slots=True)
class Unfitted:
    """Measurements that give no model.

    Attributes:
        kind: of which kind. n_points: problems that are measured. reason: one sentence without its full stop.
    """

    kind: Kind
    n_points: int
    reason: str


def fit_models(store: Store, devices: Sequence[Device], *, at: datetime) -> Iterator[Fitted | Unfitted]:
    """Fit one model for each op, format and policy that is measured on each of these devices. Stores nothing.

    Fitted on is the best time of every problem among the winners that are served now, of all environments of a device
    together: a driver changes a constant by less than a fit errs.

    Args:
        store: where the measurements are.
        devices: whose.
        at: UTC, when it is done.
    """

    @cache
    def seed_of(run_id: str) -> int:
        return store.run(run_id).seed

    for device in devices:
        by_kind: dict[tuple[str, str, str], list[Winner]] = {}
        for winner in _winners(store, device):
            kind = winner.problem.op.value, winner.problem.format.value, winner.policy
            by_kind.setdefault(kind, []).append(winner)
        for kind, winners in sorted(by_kind.items()):
            belongs = Kind(device, *kind)
            try:
                points = best_points(winners, seed_of)
            except ModuleNotFoundError as error:
                n_problems = len({winner.problem.key for winner in winners})
                yield Unfitted(
                    belongs, n_problems, f"{error.name} is not installed, which draws the experts that tokens go to"
                )
                continue
            yield _fitted(belongs, points, at)


def _fitted(kind: Kind, points: Sequence[Point], at: datetime) -> Fitted | Unfitted:
    try:
        found, held = fit(points), held_out(points)
    except UnsupportedError as error:
        return Unfitted(kind, len(points), str(error).removesuffix("."))
    return Fitted(kind, _model(kind, points, found, held, at), found.binds, held)


def _model(kind: Kind, points: Sequence[Point], found: Fit, held: Sequence[HeldOut], at: datetime) -> LatencyModel:
    per_s = {term: 1e6 / us for term, us in found.us_per.items()}
    serial = found.us_per.get(Term.SERIAL)
    errors = [one.error for one in held]
    return LatencyModel(
        device_fingerprint=kind.device.fingerprint,
        op=kind.op,
        format=kind.format,
        policy=kind.policy,
        launch_us=found.launch_us,
        bandwidth_bytes_per_s=per_s.get(Term.BANDWIDTH),
        rate_flops_per_s=per_s.get(Term.RATE),
        serial_us_per_1024_k=None if serial is None else 1024 * serial,
        m_low=min(point.problem.m for point in points),
        m_high=max(point.problem.m for point in points),
        n_points=len(points),
        median_error=quantile(errors, 0.5),
        p90_error=quantile(errors, 0.9),
        fitted_at=at,
    )


def _distance(one: HeldOut) -> float:
    """How many times as long or as short as the estimate the measurement is."""
    ratio = one.point.time_us / one.estimate_us
    return max(ratio, 1 / ratio)


def _winners(store: Store, device: Device) -> Iterator[Winner]:
    """What is served now on a device and was measured, of every policy and environment."""
    wanted = WinnerFilter(device_fingerprint=device.fingerprint)
    after: int | None = 0
    while after is not None:
        page = store.winners(wanted, limit=1000, after=after)
        yield from (winner for winner in page.items if winner.source is Source.MEASURED)
        after = page.next_after
