"""What is served for a problem, and every way to ask for it, to make it again and to look further."""

from __future__ import annotations

import math
import re
import shlex
from urllib.parse import urlencode

from .....db.dashboard.problem import Evidence
from .....db.records import Policy, Run, Winner
from .....kernels.errors import InvalidInputError
from .....kernels.problem import Problem, parse_shape
from ...links import link
from ...measures import share_text
from ...model import Cell, Column, Command, Kind, Layout, Mark, Row, Section, Table
from ...page import BACKEND
from ...tune_commands import backend_options, best, tune_again
from ..gains.cells import State
from ..gains.grid import interval
from .evidence import choice_label

MAX_SETTINGS = 100
"""Most values of a config that are listed."""

_BACKEND = re.compile(BACKEND.pattern)
_SECONDS_A_DAY = 86_400


def served_section(winner: Winner, evidence: Evidence, state: State, speedup: float | None, age_s: float) -> Section:
    """What is served, in pairs of name and value.

    Args:
        winner: what is served.
        evidence: of its run.
        state: whether it is a gain, a tie, or without a default.
        speedup: over the fastest default; None if none ran.
        age_s: seconds since it was stored.
    """
    choice, default = winner.choice, winner.default
    item = evidence.item
    rows: list[Row] = [
        ["backend", Cell(choice.backend, link=_backends(winner), marks=(Mark.SERVED,))],
        ["time", _time(choice.time_us, choice.time_us_low, choice.time_us_high)],
        ["fastest default", _default(winner, state)],
        ["speed-up", Cell(speedup, _factor(speedup), marks=(Mark.TIE,) if state is State.TIE else ())],
        ["share of the roof", _share(winner.roof_share)],
        ["tied", _tied(winner)],
        ["decided", evidence.outcome or None],
        ["since", Cell(winner.created_at, note=_ago(age_s))],
        ["by run", Cell(winner.run_id, link=link("run", run=winner.run_id))],
        ["trials of this problem in it", winner.n_trials],
        ["source of the figures", winner.source.value],
    ]
    if item is not None and item.role:
        words = f"{item.role}, {item.layers} layer{'s' * (item.layers != 1)}, in {', '.join(item.phases) or 'no phase'}"
        rows.insert(0, ["in the model", words])
    if default.backend != choice.backend or dict(default.config) != dict(choice.config):
        rows.insert(4, ["that default is", choice_label(default)])
    table = Table("served", "The winner", (Column("name", ""), Column("value", "")), rows, Layout.PAIRS)
    return Section("What is served", table=table, anchor="served")


def config_section(winner: Winner) -> Section:
    """The config by name."""
    rows: list[Row] = [
        [name, Cell(str(value), marks=())] for name, value in sorted(winner.choice.config.items())[:MAX_SETTINGS]
    ]
    columns = (Column("name", "setting", Kind.CODE), Column("value", "value", Kind.CODE))
    table = Table("config", "The config, decoded", columns, rows, Layout.PAIRS, empty="This backend has no settings.")
    return Section("Config", table=table, anchor="config")


def versions_section(winner: Winner) -> Section:
    """The versions of the environment, and which of them decide whether the config is still valid."""
    versions = winner.environment.versions
    depends = dict.fromkeys(winner.depends_on)
    rows: list[Row] = [[name, versions.get(name), "yes"] for name in depends]
    rows += [[name, version, "no"] for name, version in sorted(versions.items()) if name not in depends]
    columns = (
        Column("version", "version of"),
        Column("here", "in this environment", Kind.CODE),
        Column("matters", "decides", help="Whether the config is stale where this version is another."),
    )
    named = ", ".join(depends) or "none"
    said = (
        f"Valid: in this environment exactly, and on the same card wherever these are the same: {named}. Where one of "
        "them differs the config is stale: it is not served, and the answer says why."
    )
    table = Table("versions", "Versions", columns, rows[:MAX_SETTINGS])
    return Section("Validity", (said,), table=table, folded=True, anchor="versions")


def commands_section(winner: Winner, run: Run | None, base_url: str) -> Section:
    """The lines that ask for this winner, and the one that makes it again."""
    problem, environment = winner.problem, winner.environment.fingerprint
    commands = [
        Command("Ask this service", curl(problem, environment, winner.policy, base_url)),
        Command("Ask the database, without a service", best(problem, environment, winner.policy)),
    ]
    words: list[str] = []
    if by_hand(problem):
        commands.append(Command("Tune this problem again as its run did", _again(winner, run)))
        words.append(
            "Tuning again takes the same backends, seed and budget, on the same card. What is served may differ within "
            "the tie set, and where the clock ended the search."
        )
    else:
        words.append("This problem cannot be given by hand as a shape; tune its checkpoint again to measure it.")
    if run is None:
        words.append("Its run is not stored here, so its seed and backends are not known.")
    if not _is_policy(winner.policy):
        words.append("Its measuring policy is not one that the service can be asked for, so the line names none.")
    return Section("Commands", tuple(words), commands=tuple(commands), anchor="commands")


def curl(problem: Problem, environment: str, policy: str, base_url: str) -> str:
    """The line that asks for exactly this problem, environment and policy."""
    return shlex.join(["curl", "-sS", f"{base_url}/best-config?{best_query(problem, environment, policy)}"])


def best_query(problem: Problem, environment: str, policy: str) -> str:
    """The query of GET /best-config for a problem; what is usual is left out, as everywhere."""
    asked = {"shape": problem.shape}
    usual = {"routing": "uniform", "format": "nvfp4", "out_dtype": "bf16"}
    asked |= {name: value for name, default in usual.items() if (value := getattr(problem, name).value) != default}
    asked |= {"environment": environment} | ({"policy": policy} if _is_policy(policy) else {})
    return urlencode(asked)


def links_section(problem: Problem, environment: str, policy: str, run_id: str, device: str) -> Section:
    """The other pages about this problem."""
    here = {"problem": problem.key, "environment": environment, "policy": policy}
    pages = (
        ("Which backend?", "every backend's best", link("backends", **here)),
        (
            "What do others publish?",
            "published times of the same card, beside these",
            link("backends", "published", **here),
        ),
        ("Can I trust it?", "samples, spread, clocks, agreement between runs", link("trust", **here)),
        (
            "Did it get worse?",
            "what was served before",
            link("history", device=device, policy=policy, problem=problem.key),
        ),
        ("Is more tuning worth it?", "best so far against trials", link("progress", run=run_id, problem=problem.key)),
    )
    rows: list[Row] = [
        [Cell(name, link=where), what] for name, what, where in pages if where and (run_id or name[:2] != "Is")
    ]
    table = Table("links", "More about this problem", (Column("page", "page"), Column("what", "what it shows")), rows)
    return Section("More", table=table, anchor="more")


def by_hand(problem: Problem) -> bool:
    """Whether `--shape` with its options names this very problem."""
    try:
        read = parse_shape(
            problem.shape, routing=problem.routing, format=problem.format, out_dtype=problem.out_dtype
        )  # fmt: skip
    except InvalidInputError:
        return False
    return read == problem


def _again(winner: Winner, run: Run | None) -> str:
    if run is None:
        return tune_again(winner.problem, winner.policy)
    stored: object = run.settings
    settings: dict[str, object] = stored if isinstance(stored, dict) else {}
    line = tune_again(
        winner.problem,
        winner.policy,
        seed=run.seed,
        trials=_whole(settings.get("trials")),
        budget_s=_number(settings.get("budget_s")),
    )
    named = settings.get("backends")
    backends = (
        [one for one in named if isinstance(one, str) and _BACKEND.fullmatch(one)] if isinstance(named, list) else []
    )
    return shlex.join([*shlex.split(line), *backend_options(backends)])


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 100_000 else None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0.1 <= value <= 1e6 else None


def _is_policy(policy: str) -> bool:
    return policy in {one.value for one in Policy}


def _backends(winner: Winner) -> str:
    return link(
        "backends", problem=winner.problem.key, environment=winner.environment.fingerprint, policy=winner.policy
    )  # fmt: skip


def _default(winner: Winner, state: State) -> Cell:
    if state is State.NO_DEFAULT:
        return Cell(None, "no default runs")
    default = winner.default
    return _time(default.time_us, default.time_us_low, default.time_us_high)


def _time(time_us: float | None, low: float | None, high: float | None) -> Cell:
    text = "" if time_us is None or not math.isfinite(time_us) else f"{time_us:.2f} µs"
    return Cell(time_us, text, note=interval(low, high))


def _factor(speedup: float | None) -> str:
    return "" if speedup is None else f"{speedup:.2f}x"


def _share(share: float | None) -> Cell:
    return Cell(share, "not known: the roofs of this card were not measured" if share is None else share_text(share))


def _tied(winner: Winner) -> Cell:
    n = len(winner.tie_set)
    return Cell(n, note="configs that cannot be told apart from the fastest, with it" if n > 1 else "nothing else")


def _ago(seconds: float) -> str:
    days = seconds / _SECONDS_A_DAY
    if days >= 1:
        return f"{days:.0f} day{'s' * (round(days) != 1)} ago"
    return "less than a day ago" if seconds >= 0 else ""
