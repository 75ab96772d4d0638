"""What a selftest found, as plain data that may be shown to anybody: no name of a host, a user or a folder in it."""

from __future__ import annotations

import getpass
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any

from ...db.records import TrialStatus
from ...kernels.backend import Config
from ...kernels.device import Environment
from ..checkup import Check

KIND = "fp4tune-selftest"
"""Value of `kind` in a report, by which one is recognised."""

VERSION = 1
"""Version of the report's layout. Fields are added under the same number; one that changes its meaning moves it."""

PRIVATE_CHECK = "other processes"
"""A check of `doctor` whose text names other people's processes: only whether it is as it should be is kept."""

NOT_TOLD = {True: "not told", False: "not as it should be; `fp4tune doctor` says why"}

_PATH = re.compile(r"(?<![\w./-])(?:~|file://)?/(?:[\w.+@%=,-]+/)+(?P<name>[\w.+@%=,-]*)")
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]{8,}")
_SHORTEST_NAME = 3
"""Letters of a user's or a host's name that is looked for in texts: a shorter one is part of too many words."""


class Outcome(StrEnum):
    """How one thing ended. Only `wrong` makes a selftest fail."""

    OK = "ok"
    WRONG = "wrong"
    REFUSED = "refused"
    """It says itself that it cannot do this, as it may: a shape that a backend does not take."""
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, or was not.

    Attributes:
        step: `environment`, `backends`, `contract`, `numerics`, `compile` or `export`.
        subject: what was looked at: a backend, a backend and a shape.
        outcome: how it ended.
        text: what was found, one sentence or a few words.
    """

    step: str
    subject: str
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class Checked:
    """One config that went through the correctness gate.

    Attributes:
        problem: key of the problem. backend: whose. config: decoded. is_default: whether it is the backend's default.
        status: how it ended. rel_error: relative Frobenius error; None if there was no result to compare.
        error: why not; empty if ok.
    """

    problem: str
    backend: str
    config: Config
    is_default: bool
    status: TrialStatus
    rel_error: float | None
    error: str

    @property
    def is_wrong(self) -> bool:
        """True unless it was right, or refused as only a config that is not the default may be."""
        refused = self.status is TrialStatus.UNSUPPORTED and not self.is_default
        return self.status is not TrialStatus.OK and not refused


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Configs that were not run.

    Attributes:
        problem: key of the problem. backend: whose. n: how many. why: in a few words.
        configs: which, if they are few enough to be listed; else empty.
    """

    problem: str
    backend: str
    n: int
    why: str
    configs: Sequence[Config] = ()


@dataclass(slots=True)
class Report:
    """Everything that a selftest found.

    Attributes:
        fp4tune: version. started_at: UTC. wall_s: seconds that it took.
        environment: device and versions. card: name of the card that contracts were checked and kernels compiled for;
            the device's own if it is one.
        ran_on_card: whether kernels ran on a CUDA device.
        checks: what `doctor` looks at. findings: one for each thing. checked: one for each config that ran.
        left_out: configs that did not.
    """

    fp4tune: str
    started_at: datetime
    environment: Environment
    card: str
    ran_on_card: bool
    wall_s: float = 0.0
    checks: Sequence[Check] = ()
    findings: list[Finding] = field(default_factory=list)
    checked: list[Checked] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong. It does not say that everything ran: see `not_run`."""
        return not any(one.outcome is Outcome.WRONG for one in self.findings)

    @property
    def not_run(self) -> list[Finding]:
        """What was not run, each with why."""
        return [one for one in self.findings if one.outcome is Outcome.NOT_RUN]


def document(report: Report) -> dict[str, Any]:
    """The report as JSON, layout VERSION, without anything that is private (see `scrub`)."""
    private = [Check(c.name, c.ok, NOT_TOLD[c.ok] if c.name == PRIVATE_CHECK else c.text) for c in report.checks]
    found = {
        "kind": KIND,
        "version": VERSION,
        "ok": report.ok,
        "fp4tune": report.fp4tune,
        "started_at": report.started_at,
        "wall_s": round(report.wall_s, 1),
        "ran_on_card": report.ran_on_card,
        "card": report.card,
        "device": report.environment.device,
        "device_fingerprint": report.environment.device.fingerprint,
        "environment_fingerprint": report.environment.fingerprint,
        "versions": report.environment.versions,
        "checks": private,
        "findings": report.findings,
        "checked": report.checked,
        "left_out": report.left_out,
    }
    scrubbed: dict[str, Any] = _plain(found)
    return scrubbed


def scrub(text: str) -> str:
    """A text without folders (`…/nvcc`), UUIDs of devices, and the names of this host and this user."""
    text = _UUID.sub("<uuid>", _PATH.sub(lambda match: f"…/{match['name']}", text))
    for name, instead in _own_names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", instead, text)
    return text


@cache
def _own_names() -> tuple[tuple[str, str], ...]:
    """Names that are looked for, with what stands for them. `root` is everybody's."""
    host, user = platform.node(), ""
    with suppress(OSError, KeyError, ImportError):  # no entry for this uid in the password database
        user = getpass.getuser()
    found = [(host, "<host>"), (host.split(".", 1)[0], "<host>"), (user, "<user>")]
    return tuple((name, instead) for name, instead in found if len(name) >= _SHORTEST_NAME and name != "root")


def _plain(value: object) -> Any:
    """A value as JSON can hold it, every text scrubbed."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return scrub(str(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return value
