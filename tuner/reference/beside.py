"""Published times beside those measured here, for the eye: what a card took here, and what others say it takes.

The two were measured in different ways (`docs/measuring.md`, and the flags of each published time), so they stand
beside each other, and no ratio is made of them here. The dashboard makes one, with `caveats` beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...db.records import Policy, WinnerFilter
from ...db.reference_systems import variant_note
from ...kernels.problem import Format, Op, Problem
from .answer import BF16_WORDS, NVFP4, Layer, comparable, framework_name, layer_of
from .curves import Curve, Estimate, curves, estimate

if TYPE_CHECKING:
    from ...db.records import Winner
    from ...db.store import Store
    from ...kernels.device import Device

MAX_BESIDE = 8
"""Problems that are shown: a handful says whether the two agree."""

MAX_LOOKED_AT = 1000
"""Winners that are looked at for those: a page of a listing."""

_PRECISIONS = {Format.NVFP4: (NVFP4,), Format.BF16: BF16_WORDS}
"""Format -> the published precisions that compute the same. For W4A16 none does."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One problem, measured here and published.

    Attributes:
        problem: what both are of.
        backend, policy, time_us: of the winner that is served here; microseconds.
        published: the fastest published time in the same precision.
    """

    problem: Problem
    backend: str
    policy: str
    time_us: float
    published: Estimate

    @property
    def caveats(self) -> tuple[str, ...]:
        """How the published time differs from the one here, a word for each."""
        return caveats(self.published)


@dataclass(frozen=True, slots=True)
class Beside:
    """What is published for a card.

    Attributes:
        systems: the published systems of the card.
        notes: a clause for each of them that is another variant of the card.
        n_rows: published times of these systems.
        frameworks: whose they are, `SGLang 0.5.14`.
        pairs: some of what was measured here, with what is published.
        others: cards of the published systems that are none of this card, as their driver calls them.
    """

    systems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    n_rows: int = 0
    frameworks: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    others: tuple[str, ...] = ()


def caveats(one: Estimate) -> tuple[str, ...]:
    """How a published time differs from one that is measured here, a word for each."""
    flags = {
        "interpolated": one.interpolated,
        "quantises activations": one.curve.includes_act_quant,
        "may be L2-hot": one.l2_hot_risk,
    }
    return tuple(word for word, is_so in flags.items() if is_so)


def beside(store: Store, device: Device) -> Beside:
    """What is published for a card, beside its winners.

    Raises:
        StoreError: the database cannot be read.
    """
    systems = store.reference_systems(device.name)
    imported = store.reference_sources()
    sources = [source for source in imported if source.system in systems]
    return Beside(
        tuple(systems),
        tuple(note for system in systems if (note := variant_note(system, device.name))),
        sum(source.n_rows for source in sources),
        tuple(dict.fromkeys(framework_name(source) for source in sources)),
        tuple(_handful(_pairs(store, device, systems))) if systems else (),
        tuple(dict.fromkeys(source.device or source.system for source in imported if source.system not in systems)),
    )


def _pairs(store: Store, device: Device, systems: Sequence[str]) -> list[Pair]:
    """Winners of a card of which something is published, by shape; one a problem, that of the policy served first."""
    served = store.winners(WinnerFilter(device_fingerprint=device.fingerprint), limit=MAX_LOOKED_AT).items
    by_problem: dict[Problem, Winner] = {}
    for winner in sorted(served, key=lambda one: (one.policy != Policy.CUDA_GRAPH, -one.id)):
        by_problem.setdefault(winner.problem, winner)
    read: dict[Layer, tuple[Curve, ...]] = {}
    pairs = []
    for problem, winner in by_problem.items():
        if problem.op is Op.GROUPED or problem.format not in _PRECISIONS:
            continue
        layer = layer_of(problem)
        if layer not in read:
            read[layer] = curves(store.reference_rows(systems, *layer))
        published = published_alike(problem, read[layer], systems)
        if published is not None:
            choice = winner.choice
            pairs.append(Pair(problem, choice.backend, winner.policy, choice.time_us, published))
    return sorted(pairs, key=lambda pair: (pair.problem.op, pair.problem.n, pair.problem.k, pair.problem.m))


def computes_the_same(curve: Curve, problem: Problem) -> bool:
    """True if a curve of the problem's layer has times of its routing, in its own precision."""
    return curve.precision in _PRECISIONS.get(problem.format, ()) and comparable(curve, problem)


def published_alike(problem: Problem, known: Sequence[Curve], systems: Sequence[str]) -> Estimate | None:
    """The fastest published time of a problem in its own precision, of the first system that has one."""
    same = [curve for curve in known if computes_the_same(curve, problem)]
    found = [one for curve in same if (one := estimate(curve, problem.m)) is not None]
    for system in systems:
        here = [one for one in found if one.curve.source.system == system]
        if here:
            return min(here, key=lambda one: one.time_us)
    return None


def _handful(pairs: Sequence[Pair]) -> list[Pair]:
    """At most MAX_BESIDE of them, spread evenly."""
    step = max(1, -(-len(pairs) // MAX_BESIDE))
    return list(pairs[::step])
