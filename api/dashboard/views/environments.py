"""Which versions? Environments and what was measured in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ....db.dashboard.places import EnvironmentSeen, EnvironmentsSeen
from ....kernels.errors import NotFoundError
from .. import changes as of
from ..choices import TUNE_FIRST
from ..links import link
from ..model import Cell, Column, Kind, Layout, NextStep, Row, Section, Table, View
from ..page import DEVICE, ENVIRONMENT, Asked, Context, Page
from ..place_filters import device_filter, environment_filter

MAX_ENVIRONMENTS = 200
"""Most environments on the page, the newest."""

MAX_VERSIONS = 16
"""Most columns of versions; fp4tune's backends name about ten."""

_COLUMNS = (
    Column("environment", "environment", Kind.CODE, "The beginning of the fingerprint of the device and all versions."),
    Column("device", "device"),
    Column("since", "first seen", Kind.MOMENT),
    Column("trials", "trials", Kind.INTEGER),
    Column("winners", "winners", Kind.INTEGER, "Problems with a config that is served now; of each policy one."),
    Column("copy_gb_per_s", "copy, GB/s", Kind.NUMBER, "Bytes read and written a second by a large copy on the card."),
    Column("bf16_tflop_per_s", "BF16, TFLOP/s", Kind.NUMBER, "What a large BF16 matrix product reaches."),
    Column("latest_run", "latest run", Kind.CODE),
    Column("latest_run_at", "started", Kind.MOMENT),
    Column("gains", "gains", help="What its winners give."),
    Column("roof", "roof", help="How near they are to the roof."),
    Column("failures", "failures", help="What failed there."),
    Column(
        "changed", "changed", help="It and the newest one before it on the same device in which anything is served."
    ),
)


def view(context: Context, asked: Asked) -> View:
    """The page."""
    device, environment = asked.get(DEVICE), asked.get(ENVIRONMENT)
    filters = (device_filter(context, device), environment_filter(context, environment))
    found = context.store.ask(EnvironmentsSeen(device, environment, MAX_ENVIRONMENTS + 1))
    if not found and environment:
        raise NotFoundError(f"There is no environment {environment} of the device {device} in the database.")
    if not found:
        return View("Environments", next_steps=(TUNE_FIRST,))
    shown = found[:MAX_ENVIRONMENTS]
    older = shown[1:]
    if environment:  # alone here, and compared all the same
        of_device = context.store.ask(EnvironmentsSeen(shown[0].device_fingerprint, limit=MAX_ENVIRONMENTS))
        places = [place for place, one in enumerate(of_device) if one.fingerprint == environment]
        older = of_device[places[0] + 1 :] if places else []
    befores = [_served_before(one, older[place:]) for place, one in enumerate(shown)]
    note = f"The newest {MAX_ENVIRONMENTS}; search finds older ones." if len(found) > MAX_ENVIRONMENTS else ""
    table = Table(
        "environments",
        "Environments, newest first",
        _COLUMNS,
        [_row(*both) for both in zip(shown, befores, strict=True)],
        note=note,
    )
    sections = (Section("What was measured", (), None, table, anchor="measured"), _versions(shown))
    return View("Environments", sections, filters, _steps(shown, befores), _lead(shown))


def _lead(shown: Sequence[EnvironmentSeen]) -> str:
    """How many there are."""
    devices = len({one.device_fingerprint for one in shown})
    return (
        f"{len(shown):,} {'environment' if len(shown) == 1 else 'environments'} on {devices:,} "
        f"{'device' if devices == 1 else 'devices'}."
    )


def _steps(shown: Sequence[EnvironmentSeen], befores: Sequence[EnvironmentSeen | None]) -> tuple[NextStep, ...]:
    """Two of one device can be compared; a card without roofs gets them when it is tuned next."""
    steps = []
    pair = next((both for both in zip(befores, shown, strict=True) if both[0]), None)
    if pair is not None and pair[0] is not None:
        text = "Something is served in two environments of one device: see what changed from one to the other."
        steps.append(NextStep(text, link=link("compare", a=pair[0].fingerprint, b=pair[1].fingerprint)))
    bare = next((one for one in shown if one.roofs is None and one.environment.device.kind == "cuda"), None)
    if bare is not None:
        steps.append(
            NextStep(
                f"The roofs of {bare.environment.device.name} in environment {bare.fingerprint} are not measured. The "
                "next `fp4tune tune` there measures them first, which takes a few seconds."
            )
        )
    return tuple(steps)


def _served_before(one: EnvironmentSeen, older: Sequence[EnvironmentSeen]) -> EnvironmentSeen | None:
    """What an environment can be compared with; None where nothing is served in it, or was before it."""
    return _before(one, [other for other in older if other.measured.n_winners]) if one.measured.n_winners else None


def _row(one: EnvironmentSeen, before: EnvironmentSeen | None) -> Row:
    roofs, measured, fingerprint = one.roofs, one.measured, one.fingerprint
    served = bool(measured.n_winners)
    return (
        of.environment_cell(fingerprint),
        Cell(one.environment.device.name, link=link("environments", device=one.device_fingerprint)),
        one.since,
        measured.n_trials,
        measured.n_winners,
        roofs.copy_bytes_per_s / 1e9 if roofs else None,
        roofs.bf16_flops_per_s / 1e12 if roofs else None,
        of.run_cell(measured.latest_run),
        measured.latest_run_at,
        Cell("gains", link=link("", environment=fingerprint)) if served else None,
        Cell("roof", link=link("roof", environment=fingerprint)) if served and roofs else None,
        Cell("failures", link=link("failures", environment=fingerprint)) if measured.n_trials else None,
        Cell("compare", link=link("compare", a=before.fingerprint, b=fingerprint)) if before else None,
    )


def _versions(shown: Sequence[EnvironmentSeen]) -> Section:
    """What runs where, with what each version was in the environment before it on the same device."""
    names = Counter(name for one in shown for name in one.environment.versions)
    columns = sorted(name for name, _ in names.most_common(MAX_VERSIONS))
    if len(shown) == 1:
        rows: list[Row] = [(name, value) for name, value in sorted(shown[0].environment.versions.items())]
        table = Table(
            "versions", "Versions", (Column("name", "what", Kind.CODE), Column("version", "version", Kind.CODE)),
            rows[:MAX_ENVIRONMENTS], Layout.PAIRS, empty="No version of anything is known here.",
        )  # fmt: skip
        return Section("Versions", (), None, table, anchor="versions")
    rows = [_version_row(one, _before(one, shown[place + 1 :]), columns) for place, one in enumerate(shown)]
    left_out = len(names) - len(columns)
    table = Table(
        "versions", "Versions, newest environment first",
        (
            Column("environment", "environment", Kind.CODE),
            Column("device", "device"),
            *(Column(f"version_{name}", name, Kind.CODE) for name in columns),
        ),
        rows,
        note=f"{left_out:,} more names are left out; choose an environment to see all of its own." if left_out else "",
    )  # fmt: skip
    text = "Below a version stands what it was in the environment before, on the same device, where it differs."
    return Section("Versions", (text,), None, table, anchor="versions")


def _before(one: EnvironmentSeen, older: Sequence[EnvironmentSeen]) -> EnvironmentSeen | None:
    """The newest older environment of the same device."""
    return next((other for other in older if other.device_fingerprint == one.device_fingerprint), None)


def _version_row(one: EnvironmentSeen, before: EnvironmentSeen | None, columns: Sequence[str]) -> Row:
    cells: list[Cell | str | None] = []
    for name in columns:
        version = one.environment.versions.get(name)
        was = before.environment.versions.get(name) if before else version
        cells.append(Cell(version, note="" if was == version else f"was {was}" if was else "was not there"))
    return (
        Cell(one.fingerprint, link=link("environments", environment=one.fingerprint)),
        one.environment.device.name,
        *cells,
    )


PAGE = Page("environments", "Environments", "Which versions?", (DEVICE, ENVIRONMENT), view)
