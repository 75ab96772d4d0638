"""What became of a problem from one winner to the next: its verdict, what else changed, and how that is shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...db.dashboard.history import Served
from ...kernels.device import Environment
from ...kernels.errors import InvalidInputError
from ...kernels.problem import Problem, parse_key
from ..results.figures import shape_text
from .links import link
from .model import Cell, Column, Kind, Mark
from .tune_commands import tune_shapes
from .verdicts import MARKS, Cause, Judgement, Measurement, Verdict, band, cause, judge

NOT_STORED = "(not stored)"
"""What stands where a row is missing that another one refers to."""

NOTHING_TO_SAY = " "
"""Shown where a table's other columns say it all."""

_MAX_DIFFERENCES = 6


@dataclass(frozen=True, slots=True)
class Change:
    """From one winner of a problem to another.

    Attributes:
        before, after: the two. judgement: of what is served.
        why: what the change is likely to come from; None where nothing changed or nothing can be said.
        same_config: whether both serve the same config of the same backend: the strongest evidence there is.
    """

    before: Served
    after: Served
    judgement: Judgement
    why: Cause | None
    same_config: bool

    @property
    def sentence(self) -> str:
        """All that there is to say."""
        return self.judgement.sentence if self.why is None else f"{self.judgement.sentence} {self.why.sentence}"

    @property
    def remark(self) -> str:
        """What the columns of a table do not say: where a change comes from, or why there is not enough evidence."""
        if self.judgement.verdict is Verdict.NOT_ENOUGH:
            return self.judgement.sentence
        return "" if self.why is None else self.why.sentence

    @property
    def in_short(self) -> str:
        """The same in a few words."""
        if self.judgement.held_back:
            return "held-back clocks, perhaps"
        return "" if self.why is None else self.why.short


def change_between(before: Served, after: Served, policy: str) -> Change:
    """What became of a problem. Both are winners by `policy`."""
    judgement = judge(measurement(before, policy), measurement(after, policy))
    same_config = before.choice == after.choice
    default = None
    if not (before.choice == before.default_choice and after.choice == after.default_choice):
        default = judge(_default(before, policy), _default(after, policy))
    why = cause(
        judgement,
        default,
        same_config=same_config,
        same_default=before.default_choice == after.default_choice,
        environment_changed=before.environment_fingerprint != after.environment_fingerprint,
    )
    return Change(before, after, judgement, why, same_config)


def measurement(served: Served, policy: str) -> Measurement:
    """The time of what is served."""
    return Measurement(
        policy, served.time_us, served.time_us_low, served.time_us_high, served.n_samples, served.throttled_share
    )  # fmt: skip


def _default(served: Served, policy: str) -> Measurement:
    """The time of the default: of the same rounds, so of as many samples; whether they were throttled is not kept."""
    return Measurement(
        policy, served.default_time_us, served.default_time_us_low, served.default_time_us_high, served.n_samples
    )  # fmt: skip


def ordered(changes: Iterable[Change]) -> list[Change]:
    """Regressions first, then what is unclear, improvements, and what is unchanged; of each the slowest first."""
    rank = {verdict: i for i, verdict in enumerate(Verdict)}
    return sorted(changes, key=lambda one: (rank[one.judgement.verdict], -(one.judgement.ratio or 0.0)))


def counts_text(changes: Iterable[Change]) -> str:
    """`2 regressed, 1 not enough evidence, 0 improved, 7 unchanged`."""
    counted = Counter(one.judgement.verdict for one in changes)
    return ", ".join(f"{counted[verdict]:,} {verdict.value}" for verdict in Verdict)


def rule_text(policy: str) -> str:
    """How verdicts come about."""
    counts = f"{band(policy):.0%}".replace("%", " %")
    return (
        f"Slower or faster counts from {counts}: regressed and improved are changes that are all beyond it, unchanged "
        "ones that are all within it, with the intervals of both times and what one config differs by from one process "
        "to the next taken into account. What crosses the edge is not enough evidence: measure again."
    )


# Cells


VERDICT_COLUMNS = (
    Column("verdict", "verdict"),
    Column("change", "change", Kind.DIFFERENCE, "the later time against the earlier one; + is slower"),
    Column("change_low", "from", Kind.DIFFERENCE, "lower end of the change's 95 % interval"),
    Column("change_high", "to", Kind.DIFFERENCE, "upper end of the change's 95 % interval"),
)


def verdict_cells(change: Change | None) -> tuple[Cell, float | None, float | None, float | None]:
    """A verdict in cells of VERDICT_COLUMNS."""
    if change is None:
        return Cell(None, "the first one"), None, None, None
    found = change.judgement
    mark = MARKS.get(found.verdict)
    marks: tuple[Mark, ...] = () if mark is None else (mark,)
    return Cell(found.verdict.value, marks=marks), _less_one(found.ratio), _less_one(found.low), _less_one(found.high)


def _less_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1


def words_cell(change: Change | None) -> Cell:
    """What is to say beside the other columns; in CSV and JSON the whole sentence."""
    return Cell(None) if change is None else Cell(change.sentence, change.remark or NOTHING_TO_SAY)


def cause_cell(change: Change) -> Cell:
    """What a change is likely to come from, in a few words; in CSV and JSON all that there is to say."""
    return Cell(change.sentence, change.in_short or NOTHING_TO_SAY)


def problem_of(key: str) -> Problem | None:
    """The problem of a key; None for what is no key."""
    try:
        return parse_key(key)
    except InvalidInputError:
        return None


def problem_cell(key: str | None, to: str = "") -> Cell:
    """A problem, by its shape and what the shape leaves out; it leads to an address."""
    problem = problem_of(key) if key else None
    return Cell(key or None, shape_text(problem) if problem else (key or NOT_STORED), link=to)


def run_cell(run_id: str | None) -> Cell:
    """A run, by the first characters of its id, which say when it started and name it in commands, too."""
    return Cell(run_id or None, (run_id or "")[:10] or NOT_STORED, link=link("run", run=run_id) if run_id else "")


def environment_cell(fingerprint: str | None) -> Cell:
    """An environment, by the beginning of its fingerprint."""
    to = link("environments", environment=fingerprint) if fingerprint else ""
    return Cell(fingerprint or None, (fingerprint or "")[:8] or NOT_STORED, link=to)


# Configs


def config_text(config_json: str) -> str:
    """A config as `name=value` pairs; what is no config as it is."""
    config = _object(config_json)
    return config_json if config is None else " ".join(f"{name}={_plain(value)}" for name, value in config.items())


def config_change(before: Served, after: Served) -> str:
    """What differs between what two winners serve: `same config`, `split_k 4 -> 2`, `humming -> triton.dequant`."""
    if before.choice == after.choice:
        return "same config"
    if before.backend != after.backend:
        return f"{before.backend} -> {after.backend}"
    mine, other = _object(before.config_json), _object(after.config_json)
    if mine is None or other is None:
        return "another config"
    names = [name for name in sorted({*mine, *other}) if mine.get(name) != other.get(name)]
    return _some(f"{name} {_plain(mine.get(name))} -> {_plain(other.get(name))}" for name in names)


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)


def _some(parts: Iterable[str]) -> str:
    """The first few of many words."""
    every = list(parts)
    more = len(every) - _MAX_DIFFERENCES
    return ", ".join(every[:_MAX_DIFFERENCES]) + (f" and {more} more" if more > 0 else "")


# Environments


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that an environment says of itself, in two of them; None where one does not have it."""

    name: str
    before: str | None
    after: str | None


def facts_of(before: Environment, after: Environment) -> list[Fact]:
    """Everything that two environments say, of the card first."""
    mine, other = _facts(before), _facts(after)
    names = list(dict.fromkeys([*mine, *other]))
    return [Fact(name, mine.get(name), other.get(name)) for name in names]


def environment_change(before: Environment | None, after: Environment | None) -> str:
    """What differs between two environments in words, `driver 580.159 -> 590.12`; empty if nothing does."""
    if before is None or after is None:
        return "" if before is after else "another environment"
    if before.fingerprint == after.fingerprint:
        return ""
    differing = [one for one in facts_of(before, after) if one.before != one.after]
    return _some(_fact_text(one) for one in differing) or "another environment"


def _fact_text(one: Fact) -> str:
    if one.before is None:
        return f"{one.name} {one.after} added"
    return f"{one.name} {one.before} gone" if one.after is None else f"{one.name} {one.before} -> {one.after}"


def _facts(environment: Environment) -> dict[str, str]:
    device = environment.device
    card = {
        "device": device.name,
        "compute capability": device.compute_capability,
        "SMs" if device.kind == "cuda" else "cores": str(device.sms),
        "memory": f"{device.memory_bytes / 2**30:.0f} GiB",
        "L2": f"{device.l2_bytes / 2**20:.0f} MiB",
        "power limit": f"{device.power_limit_w:g} W" if device.power_limit_w else "",
    }
    versions = {str(name): str(version) for name, version in sorted(environment.versions.items())}
    return {name: value for name, value in card.items() if value} | versions


# What to do


def measure_again(keys: Sequence[str], policy: str) -> str:
    """The lines that measure problems by a policy once more; empty if none of them is a problem."""
    return "\n".join(tune_shapes([one for one in map(problem_of, keys) if one is not None], policy))
