"""The rules by which a question is answered: what counts as exact, compatible, a bucket, or nothing at all.

What was published by others answers only where these rules find nothing: `references.py`.

Precedence: `exact` (this problem in this environment), `compatible` (this problem, same device, an environment
that differs only in versions that do not matter to the winner), `bucket` in this environment, `bucket` in a
compatible one. A winner whose relevant versions differ is stale: it is not served, and the reason is given.

Among winners that fit equally well, those of a policy are served before those of the next (`db.records.Policy`:
`cuda.graph` before `cuda.eager`), unless the question names one: then the others do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ..db.reference_systems import CARDS
from ..kernels.device import Device, Environment
from ..kernels.errors import InvalidInputError
from ..kernels.problem import Problem
from .index import MIN_PREFIX, Tuned, WinnerIndex, is_fingerprint, is_prefix

MAX_NEAREST = 5
"""How many of the nearest tuned shapes are named when there is no answer."""

MAX_STALE_REASONS = 5
"""How many stale winners are named when there is no answer, as they would be served."""


MAX_DIFFERENCES = 8
"""How many differing versions a reason lists: the asker sends the versions, so an answer must not grow with them."""


class Match(StrEnum):
    """How well an answer fits its question."""

    EXACT = "exact"
    COMPATIBLE = "compatible"
    BUCKET = "bucket"
    REFERENCE = "reference"
    """Somebody else's published measurement: there is no config to serve."""
    NONE = "none"


class AmbiguousDeviceError(InvalidInputError):
    """Several devices fit the question, which must name one.

    Attributes:
        devices: the devices that fit.
    """

    slug = "ambiguous-device"
    http_status = 409

    def __init__(self, message: str, devices: Sequence[Device]) -> None:
        super().__init__(message)
        self.devices = tuple(devices)


@dataclass(frozen=True, slots=True)
class Place:
    """The device and the environment that a question is about, as far as they are known.

    Attributes:
        device: the device; None if the index has no winner for it.
        device_fingerprint: its fingerprint; empty if none is known.
        device_name: its name, or the name in the question if measurements are published for it; else empty.
        environment_fingerprint: of the environment; empty if none is known.
        versions: the environment's versions; None if only a fingerprint is known, and nothing can be compared.
        countable: True if a miss here counts: nothing was named, or only whole fingerprints and names of cards that
            something is published for, and no policy without which there were an answer.
        reasons: sentences about what was assumed or not found.
    """

    device: Device | None
    device_fingerprint: str = ""
    environment_fingerprint: str = ""
    versions: Mapping[str, str] | None = None
    countable: bool = True
    reasons: tuple[str, ...] = ()
    device_name: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What to run.

    Attributes:
        match: exact, compatible or bucket.
        reasons: why this winner, what was assumed, what differs; may be empty for `exact`.
        problem: what was asked for.
        tuned: the winner that is served; the M of its problem differs from `problem` for a bucket.
        environment: where it was measured.
    """

    match: Match
    reasons: tuple[str, ...]
    problem: Problem
    tuned: Tuned
    environment: Environment


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Nothing to serve.

    Attributes:
        problem: what was asked for.
        place: where.
        reasons: why there is nothing; never empty.
        policy: the only one whose winners were looked for; None for all.
        tuned_otherwise: without that policy there were an answer.
    """

    problem: Problem
    place: Place
    reasons: tuple[str, ...]
    policy: str | None = None
    tuned_otherwise: bool = False


def locate(index: WinnerIndex, device: str | None = None, environment: str | Mapping[str, str] | None = None) -> Place:
    """Find the device and the environment that a question is about.

    Args:
        index: the current winners.
        device: a fingerprint, a unique prefix of at least 8 digits, or the exact name. If absent, the device of the
            environment if that is known, else the only device with winners.
        environment: a fingerprint, a unique prefix of at least 8 digits, or versions by name. If absent, the
            environment with the newest winner of the device.

    Raises:
        AmbiguousDeviceError: several devices fit.
        InvalidInputError: a prefix fits several environments, or the environment belongs to another device.
    """
    known = _known_environment(index, environment) if isinstance(environment, str) else None
    reasons: tuple[str, ...] = ()
    found: Device | None
    if known is None:
        found, reasons = _find_device(index, device)
    elif device is None or _names(device, known.device):
        found = known.device
    else:
        raise InvalidInputError(
            f"Environment {known.fingerprint} belongs to device {known.device.fingerprint} ({known.device.name}), "
            f"and the question names device {device!r}: name one of the two, or the right pair."
        )
    fingerprint = found.fingerprint if found else device if device and is_fingerprint(device) else ""
    name = found.name if found else _card_name(index, device or "")
    countable = device is None or bool(fingerprint or name)

    if isinstance(environment, Mapping):
        if found is None:
            return Place(None, fingerprint, "", environment, countable, reasons, name)
        asked = Environment(found, environment)
        return Place(found, fingerprint, asked.fingerprint, environment, countable, reasons, name)
    if isinstance(environment, str):
        if known is not None:
            return Place(found, fingerprint, known.fingerprint, known.versions, countable, reasons, name)
        whole = is_fingerprint(environment)
        reasons = (*reasons, f"environment {environment!r} is not known here: send its versions to be compared")
        return Place(found, fingerprint, environment if whole else "", None, countable and whole, reasons, name)
    shelf = index.shelves.get(fingerprint)
    if shelf is None:
        return Place(found, fingerprint, countable=countable, reasons=reasons, device_name=name)
    newest = index.environments[shelf.newest_environment]
    day = shelf.newest[newest.fingerprint][0].date().isoformat()
    reasons = (
        *reasons,
        f"no environment was named: assumed {newest.fingerprint}, the newest of this device (last winner {day})",
    )
    return Place(found, fingerprint, newest.fingerprint, newest.versions, countable, reasons, name)


def _known_environment(index: WinnerIndex, text: str) -> Environment | None:
    """The one known environment that `text` names, or None."""
    found = index.environments_named(text)
    if len(found) > 1:
        listed = ", ".join(sorted(env.fingerprint for env in found))
        raise InvalidInputError(f"{text!r} is the beginning of several environments' fingerprints: {listed}.")
    return found[0] if found else None


def _card_name(index: WinnerIndex, text: str) -> str:
    """The name of a card without winners: that of a device which an environment knows, or one with published times."""
    if is_fingerprint(text):
        devices = (environment.device for environment in index.environments.values())
        return next((device.name for device in devices if device.fingerprint == text), "")
    return text if index.systems_of(text) else ""


def _names(text: str, device: Device) -> bool:
    """True if `text` is the device's name, its fingerprint, or a long enough beginning of that."""
    return text == device.name or (is_prefix(text) and device.fingerprint.startswith(text))


def _find_device(index: WinnerIndex, text: str | None) -> tuple[Device | None, tuple[str, ...]]:
    """The device that `text` names, or the only one there is; with sentences about what was assumed or missing."""
    if text is None:
        devices = [shelf.device for shelf in index.shelves.values()]
        if not devices:
            return None, (f"no winner is stored yet{_published_for(index)}",)
        if len(devices) > 1:
            raise AmbiguousDeviceError(
                f"Winners of {len(devices)} devices are stored, and the question names none: add device=, "
                f"one of {_listed(devices)}.",
                devices,
            )
        return devices[0], (f"no device was named: assumed {_listed(devices)}, the only one with winners",)
    devices = index.devices_named(text)
    if len(devices) > 1:
        raise AmbiguousDeviceError(
            f"{text!r} names {len(devices)} devices: give the whole fingerprint, one of {_listed(devices)}.", devices
        )
    if devices:
        return devices[0], ()
    card = _card_name(index, text)
    if index.systems_of(card):
        return None, (f"nothing that was measured on {card} is stored",)
    others = [shelf.device for shelf in index.shelves.values()]
    hint = f"there are winners of {_listed(others)}" if others else "no winner is stored yet"
    known_as = f"a name, a fingerprint, or at least {MIN_PREFIX} of its first digits"
    return None, (f"no winner is stored for device {text!r} ({known_as}); {hint}{_published_for(index)}",)


def _published_for(index: WinnerIndex) -> str:
    """For which cards others published something, to be appended to what is missing; empty if for none."""
    cards = [name for system in index.systems if system in CARDS for name in CARDS[system].devices]
    if not cards:
        return ""
    return f"; others published measurements of {', '.join(cards)}: ask for a device of this name to be told of them"


def _listed(devices: Sequence[Device]) -> str:
    """Fingerprints and names of devices, at most ten of them."""
    shown = [f"{d.fingerprint} ({d.name})" for d in sorted(devices, key=lambda d: (d.name, d.fingerprint))[:10]]
    more = f" and {len(devices) - 10} more" if len(devices) > 10 else ""
    return ", ".join(shown) + more


def find(index: WinnerIndex, problem: Problem, place: Place, policy: str | None = None) -> Answer | NoAnswer:
    """Answer one question.

    Args:
        index: the current winners.
        problem: what is to be computed.
        place: where, from `locate` with the same index.
        policy: only winners that were measured under it; None for all, the policy that is served first.
    """
    shelf = index.shelves.get(place.device_fingerprint)
    if shelf is None:
        reasons = place.reasons or (f"no winner is stored for device {place.device_fingerprint}",)
        return NoAnswer(problem, place, reasons, policy)
    every = shelf.winners.get(problem.key, ())
    winners = _of(policy, every)
    if (tuned := exact(winners, place)) is not None:
        return Answer(Match.EXACT, place.reasons, problem, tuned, index.environments[place.environment_fingerprint])
    for tuned, environment, sentence in _compatible(index, winners, place):
        return Answer(Match.COMPATIBLE, (*place.reasons, sentence), problem, tuned, environment)
    buckets = [_of(policy, shelf.winners[bucket.key]) for bucket in shelf.buckets(problem)]
    for candidates in buckets:
        if (tuned := exact(candidates, place)) is not None:
            reasons = (*place.reasons, _bucket_sentence(problem, tuned))
            return Answer(Match.BUCKET, reasons, problem, tuned, index.environments[place.environment_fingerprint])
    for candidates in buckets:
        for tuned, environment, sentence in _compatible(index, candidates, place):
            reasons = (*place.reasons, _bucket_sentence(problem, tuned), sentence)
            return Answer(Match.BUCKET, reasons, problem, tuned, environment)
    why = _why_none(index, problem, shelf.device, every, place, policy)
    tuned_otherwise = policy is not None and isinstance(find(index, problem, place), Answer)
    if tuned_otherwise:  # `tune --from-misses` would tune it again and again
        place = replace(place, countable=False)
    return NoAnswer(problem, place, (*place.reasons, *why), policy, tuned_otherwise)


def _of(policy: str | None, winners: tuple[Tuned, ...]) -> tuple[Tuned, ...]:
    """Those that were measured under a policy; all if it is None."""
    return winners if policy is None else tuple(tuned for tuned in winners if tuned.policy == policy)


def exact(winners: Iterable[Tuned], place: Place) -> Tuned | None:
    """The first of a problem's winners that was measured in the environment of `place`, if there is one."""
    for tuned in winners:
        if tuned.environment_fingerprint == place.environment_fingerprint:
            return tuned
    return None


def nearest(index: WinnerIndex, missing: NoAnswer) -> tuple[Problem, ...]:
    """Up to five tuned problems of the same device and op, by log distance over M, N and K, nearest first."""
    shelf = index.shelves.get(missing.place.device_fingerprint)
    if shelf is None:
        return ()
    if missing.policy is None:
        return shelf.shapes.nearest(missing.problem, MAX_NEAREST)
    return shelf.shapes.nearest(
        missing.problem, MAX_NEAREST, lambda problem: bool(_of(missing.policy, shelf.winners[problem.key]))
    )


def _compatible(index: WinnerIndex, winners: Sequence[Tuned], place: Place) -> Iterator[tuple[Tuned, Environment, str]]:
    """Winners that are valid at `place` though their environment is another, newest first, and what differs."""
    if place.versions is None:
        return
    for tuned in winners:
        environment = index.environments[tuned.environment_fingerprint]
        if not _relevant(tuned, environment.versions, place.versions):
            names = sorted(environment.versions.keys() | place.versions.keys())
            differences = _differences(names, environment.versions, place.versions)
            yield tuned, environment, f"versions differ that do not matter to {tuned.backend}: {differences}"


def _relevant(tuned: Tuned, own: Mapping[str, str], asked: Mapping[str, str]) -> list[str]:
    """Names the winner depends on whose versions differ; one that is missing on one side counts as different."""
    return [name for name in tuned.depends_on if own.get(name) != asked.get(name)]


def _differences(names: Iterable[str], old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """What differs between two sets of versions: `driver 580.95 -> 590.10; torch 2.11.0 -> 2.13.0`."""
    changes = [
        f"{name} {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
        for name in names
        if old.get(name) != new.get(name)
    ]
    more = [f"and {len(changes) - MAX_DIFFERENCES} more"] if len(changes) > MAX_DIFFERENCES else []
    return "; ".join(changes[:MAX_DIFFERENCES] + more)


def _bucket_sentence(problem: Problem, tuned: Tuned) -> str:
    return f"M {problem.m} is not tuned: {tuned.problem.m} is the next tuned M above"


def _why_none(
    index: WinnerIndex,
    problem: Problem,
    device: Device,
    every: tuple[Tuned, ...],
    place: Place,
    policy: str | None,
) -> Iterator[str]:
    """Why there is nothing to serve: the stale winners, or those of other policies, or that there is none at all."""
    winners = _of(policy, every)
    if not winners and every:
        others = ", ".join(dict.fromkeys(tuned.policy for tuned in every))
        yield f"{problem.key} is tuned on {device.name} ({device.fingerprint}) under {others}, not under {policy}"
    elif not winners:
        yield f"{problem.key} is not tuned on {device.name} ({device.fingerprint})"
    for tuned in winners[:MAX_STALE_REASONS]:
        day = tuned.created_at.date().isoformat()
        if place.versions is None:
            yield f"a winner of {day} is of environment {tuned.environment_fingerprint}, which cannot be compared"
            continue
        own = index.environments[tuned.environment_fingerprint].versions
        names = _relevant(tuned, own, place.versions)
        yield f"a winner of {day} is stale: {_differences(names, own, place.versions)}"
