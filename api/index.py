"""The winners that are served now, in memory, arranged for the questions that servers ask."""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from ..db.records import Policy, ReferenceSource, WinnerEntry
from ..db.reference_systems import matching
from ..kernels.device import Device, Environment
from ..kernels.problem import Problem
from .nearest import ShapeMap
from .plain import environment_json, winner_json

if TYPE_CHECKING:
    from ..db.store import Store

BUCKET_MAX_M = 32
"""Largest M, asked or tuned, for which a tuned neighbour above is offered: beyond it, times of neighbours mislead."""

MIN_PREFIX = 8
"""Shortest prefix of a fingerprint that is accepted as one."""

_FINGERPRINT = re.compile(r"[0-9a-f]{16}", re.ASCII)
_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},16}}", re.ASCII)

_RANK = {policy.value: rank for rank, policy in enumerate(Policy)}
"""Policies by how soon their winners are served; others come last."""

Family = tuple[object, ...]
Age = tuple[datetime, int]


def is_fingerprint(text: str) -> bool:
    """True for a whole fingerprint: sixteen lower-case hex digits."""
    return _FINGERPRINT.fullmatch(text) is not None


def is_prefix(text: str) -> bool:
    """True for what may be the beginning of a fingerprint: 8 to 16 lower-case hex digits."""
    return _PREFIX.fullmatch(text) is not None


def family(problem: Problem) -> Family:
    """Everything about a problem but its M: problems of one family are buckets of each other."""
    return (
        problem.op, problem.n, problem.k, problem.experts, problem.experts_total, problem.top_k,
        problem.routing, problem.format, problem.out_dtype,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tuned:
    """A current winner as lookups need it: what the rules ask for, and the rest as text that is ready to be sent.

    Attributes:
        id: the winner's id. created_at: UTC.
        problem: what was measured. environment_fingerprint: where.
        backend: what runs it.
        policy: how it was measured.
        depends_on: names of the versions that decide whether it is still valid.
        text: everything that an answer says of it, see `plain.winner_json`.
    """

    id: int
    created_at: datetime
    problem: Problem
    environment_fingerprint: str
    backend: str
    policy: str
    depends_on: tuple[str, ...]
    text: str

    @classmethod
    def from_entry(cls, entry: WinnerEntry) -> Tuned:
        """The same winner; what many have in common is one object, because there may be 100,000."""
        depends_on = tuple(sys.intern(name) for name in json.loads(entry.depends_on_json))
        return cls(
            entry.id, entry.created_at, entry.problem, sys.intern(entry.environment_fingerprint),
            sys.intern(entry.backend), sys.intern(entry.policy), depends_on, winner_json(entry),
        )  # fmt: skip

    @property
    def age(self) -> Age:
        """What winners of one policy are ordered by: when they were stored, then their id."""
        return self.created_at, self.id

    @property
    def rank(self) -> int:
        """What winners are ordered by first: 0 for the policy that is served before all others."""
        return _RANK.get(self.policy, len(_RANK))


@dataclass(frozen=True, slots=True)
class Shelf:
    """What is known about one device.

    Attributes:
        device: the device.
        winners: problem key -> its current winners, one an environment and policy: those of the policy that is served
            first first, newest first within a policy.
        small: family -> tuned M up to BUCKET_MAX_M, ascending.
        shapes: all tuned problems, for the nearest ones.
        newest: environment fingerprint -> (created_at, id) of its newest winner.
    """

    device: Device
    winners: Mapping[str, tuple[Tuned, ...]] = field(default_factory=dict)
    small: Mapping[Family, tuple[int, ...]] = field(default_factory=dict)
    shapes: ShapeMap = field(default_factory=ShapeMap)
    newest: Mapping[str, Age] = field(default_factory=dict)

    @property
    def newest_environment(self) -> str:
        """Fingerprint of the environment that has the newest winner of this device."""
        return max(self.newest, key=self.newest.__getitem__)

    def buckets(self, problem: Problem) -> list[Problem]:
        """Tuned problems that may stand in for `problem`, by M, ascending: same family, M above, at most twice.

        Both the asked and the tuned M are at most BUCKET_MAX_M.
        """
        if problem.m > BUCKET_MAX_M:
            return []
        tuned = self.small.get(family(problem), ())
        start, end = bisect_right(tuned, problem.m), bisect_right(tuned, 2 * problem.m)
        return [replace(problem, m=m) for m in tuned[start:end]]

    def with_entries(self, entries: Iterable[WinnerEntry]) -> Shelf:
        """A shelf that also holds `entries`, which all belong to this device."""
        winners = dict(self.winners)
        newest = dict(self.newest)
        small: dict[Family, list[int]] = {}
        added: list[Problem] = []
        for entry in entries:
            tuned = Tuned.from_entry(entry)
            environment = tuned.environment_fingerprint
            newest[environment] = max(newest.get(environment, tuned.age), tuned.age)
            known = winners.get(entry.problem_key)
            if known is not None:
                winners[entry.problem_key] = _merged(known, tuned)
                continue
            winners[entry.problem_key] = (tuned,)
            added.append(tuned.problem)
            if tuned.problem.m <= BUCKET_MAX_M:
                kin = family(tuned.problem)
                insort(small.setdefault(kin, list(self.small.get(kin, ()))), tuned.problem.m)
        return Shelf(
            device=self.device,
            winners=winners,
            small={**self.small, **{kin: tuple(ms) for kin, ms in small.items()}},
            shapes=self.shapes.with_problems(added),
            newest=newest,
        )


def _merged(known: Sequence[Tuned], tuned: Tuned) -> tuple[Tuned, ...]:
    """The winners of a problem after `tuned` came, as a shelf has them: one an environment and policy, the latest."""
    by_id = sorted([*known, tuned], key=lambda one: one.id)
    latest = {(one.environment_fingerprint, one.policy): one for one in by_id}
    newest_first = sorted(latest.values(), key=lambda one: one.age, reverse=True)
    return tuple(sorted(newest_first, key=lambda one: one.rank))


@dataclass(frozen=True, slots=True)
class WinnerIndex:
    """All current winners. Immutable, so that readers need no lock: a change makes a new index and shares the rest.

    Attributes:
        shelves: device fingerprint -> what is known about the device; only devices with winners.
        environments: environment fingerprint -> environment: those of the winners, and others the store knows.
        environment_json: environment fingerprint -> the environment as answers show it.
        last_id: the largest winner id that was applied; 0 for none.
        size: number of current winners.
        sources: files of published measurements that are stored.
    """

    shelves: Mapping[str, Shelf] = field(default_factory=dict)
    environments: Mapping[str, Environment] = field(default_factory=dict)
    environment_json: Mapping[str, str] = field(default_factory=dict)
    last_id: int = 0
    size: int = 0
    sources: tuple[ReferenceSource, ...] = ()

    def with_entries(self, entries: Iterable[WinnerEntry], environments: Iterable[Environment] = ()) -> WinnerIndex:
        """An index in which `entries` are current, too.

        Args:
            entries: in any order; one with a larger id replaces another of the same problem, environment and policy.
            environments: those that the entries name and the index does not know yet; others may be among them, so
                that a question can name an environment that has no winner.

        Raises:
            KeyError: an entry names an environment that is not known.
        """
        known = {**self.environments, **{environment.fingerprint: environment for environment in environments}}
        texts = {name: self.environment_json.get(name) or environment_json(known[name]) for name in known}
        by_device: defaultdict[str, list[WinnerEntry]] = defaultdict(list)
        last_id = self.last_id
        for entry in entries:
            last_id = max(last_id, entry.id)
            by_device[entry.device_fingerprint].append(entry)
        shelves = dict(self.shelves)
        size = self.size
        for fingerprint, added in by_device.items():
            old = shelves.get(fingerprint) or Shelf(known[added[0].environment_fingerprint].device)
            new = shelves[fingerprint] = old.with_entries(added)
            touched = {entry.problem_key for entry in added}
            size += sum(len(new.winners[key]) - len(old.winners.get(key, ())) for key in touched)
        return WinnerIndex(shelves, known, texts, last_id, size, self.sources)

    @property
    def systems(self) -> tuple[str, ...]:
        """Systems of which something is published, by the publisher's names."""
        return tuple(dict.fromkeys(source.system for source in self.sources))

    def systems_of(self, device_name: str) -> tuple[str, ...]:
        """Systems with published measurements for a card of this name: the very card before another variant of it."""
        return tuple(matching(self.systems, device_name))

    def devices_named(self, text: str) -> list[Device]:
        """Devices with winners whose fingerprint or name is `text`, or else whose fingerprint begins with it."""
        if text in self.shelves:
            return [self.shelves[text].device]
        named = [shelf.device for shelf in self.shelves.values() if shelf.device.name == text]
        if named or not is_prefix(text):
            return named
        return [shelf.device for fingerprint, shelf in self.shelves.items() if fingerprint.startswith(text)]

    def environments_named(self, text: str) -> list[Environment]:
        """Known environments whose fingerprint is `text`, or else begins with it."""
        if text in self.environments:
            return [self.environments[text]]
        if not is_prefix(text):
            return []
        return [env for fingerprint, env in self.environments.items() if fingerprint.startswith(text)]


def followed(index: WinnerIndex, store: Store) -> WinnerIndex:
    """`index` with every winner, environment and file of published times that was stored since.

    Args:
        index: an earlier state of the same store; an empty one reads everything.
        store: the database.

    Raises:
        StoreError: the database cannot be read.
    """
    environments = [] if index.environments else [e.environment for e in store.environments()]
    known = set(index.environments) | {environment.fingerprint for environment in environments}
    for batch in store.winners_for_index(after_id=index.last_id):
        unknown = dict.fromkeys(e.environment_fingerprint for e in batch if e.environment_fingerprint not in known)
        environments += [store.environment(fingerprint) for fingerprint in unknown]
        known |= unknown.keys()
        index = index.with_entries(batch, environments)
        environments = []
    return replace(index.with_entries((), environments), sources=tuple(store.reference_sources()))
