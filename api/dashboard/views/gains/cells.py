"""What there is for each GEMM at each M of a model: a gain, a tie, a published time, or nothing yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .....db import Store
from .....db.dashboard.gains import Served
from .....db.records import Policy
from .....kernels.problem import Op, Problem
from .....tuner.plausible import doubt_in
from .....tuner.reference.answer import Reference, layer_of, published
from .....tuner.reference.curves import curves
from ...workloads import ModelWorkload, Use, gemm_of

MAX_LAYERS = 24
"""Layers whose published times are read for a page: one takes a query, of some milliseconds."""

_NO_DEFAULT = "no default runs"
"""How the sentence of a run about a problem begins where no default ran; what is served then stands for it."""


class State(StrEnum):
    """What there is for a problem."""

    GAIN = "faster"
    TIE = "tie"
    NO_DEFAULT = "no default"
    PUBLISHED = "published"
    UNTUNED = "not tuned"


@dataclass(frozen=True, slots=True)
class Place:
    """A problem of the model, and what there is for it.

    Attributes:
        use: the problem. served: what is served; None if nothing is.
        speedup: the fastest default's time over the served one's; None where nothing is served, where no default ran,
            and of figures that cannot be.
        published: what others published, where nothing is served; None if nothing.
        doubt: why the served time is doubted; empty if it is not.
    """

    use: Use
    served: Served | None = None
    speedup: float | None = None
    published: Reference | None = None
    doubt: str = ""

    @property
    def state(self) -> State:
        """What there is."""
        if self.served is None:
            return State.UNTUNED if self.published is None else State.PUBLISHED
        if self.speedup is None:
            return State.NO_DEFAULT
        return State.TIE if self.served.is_tied else State.GAIN


@dataclass(frozen=True, slots=True)
class GemmRow:
    """A GEMM of the model over M.

    Attributes:
        gemm: at M 1. role: its roles at any M, joined by `+`. places: by M.
    """

    gemm: Problem
    role: str
    places: Mapping[int, Place]


@dataclass(frozen=True, slots=True)
class PublishedTimes:
    """What others published for problems without a winner.

    Attributes:
        references: by the problem's key. n_unread: GEMMs that were not looked up, beyond MAX_LAYERS.
    """

    references: Mapping[str, Reference]
    n_unread: int = 0


def place_of(use: Use, served: Served | None, reference: Reference | None = None) -> Place:
    """What there is for a problem."""
    if served is None:
        return Place(use, published=reference)
    compared = not (served.is_default and served.outcome.startswith(_NO_DEFAULT))
    factor = ratio(served.default_us, served.time_us) if compared else None
    return Place(use, served, factor, doubt=doubt_in(served.outcome))


def rows_of(
    workload: ModelWorkload, served: Mapping[str, Served], references: Mapping[str, Reference]
) -> list[GemmRow]:
    """Every GEMM of a workload, in its order, with what there is at each M."""
    places: dict[Problem, dict[int, Place]] = {}
    roles: dict[Problem, dict[str, None]] = {}
    for use in workload.uses:
        key, gemm = use.problem.key, gemm_of(use.problem)
        places.setdefault(gemm, {})[use.problem.m] = place_of(use, served.get(key), references.get(key))
        roles.setdefault(gemm, {}).update(dict.fromkeys(filter(None, use.role.split("+"))))
    return [GemmRow(gemm, "+".join(roles[gemm]), found) for gemm, found in places.items()]


def published_for(store: Store, device_name: str, policy: str, problems: Sequence[Problem]) -> PublishedTimes:
    """What others published for problems on a card. Published times are of CUDA graph replays, and of no other policy.

    Raises:
        StoreError: the database cannot be read.
    """
    if policy != Policy.CUDA_GRAPH or not problems:
        return PublishedTimes({})
    systems = store.reference_systems(device_name)
    if not systems:
        return PublishedTimes({})
    known = store.reference_layers(systems)
    wanted: dict[tuple[str, int, int, int, int, int], list[Problem]] = {}
    for problem in problems:
        if problem.op is not Op.GROUPED and (layer := tuple(layer_of(problem))) in known:
            wanted.setdefault(layer, []).append(problem)
    found: dict[str, Reference] = {}
    for layer in list(wanted)[:MAX_LAYERS]:
        read = curves(store.reference_rows(systems, *layer))
        for problem in wanted[layer]:
            reference = published(problem, read, systems)
            if reference is not None:
                found[problem.key] = reference
    return PublishedTimes(found, max(0, len(wanted) - MAX_LAYERS))


def ratio(time_us: float | None, other_us: float | None) -> float | None:
    """A time over another; None if one of them is no time."""
    if time_us is None or other_us is None:
        return None
    if not (0 < time_us < math.inf and 0 < other_us < math.inf):
        return None
    found = time_us / other_us
    return found if 0 < found < math.inf else None
