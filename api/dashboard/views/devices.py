"""Which cards? Devices and what was measured on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from ....db.dashboard.places import DeviceSeen, DevicesSeen
from ....kernels.device import Device
from .. import changes as of
from ..choices import TUNE_FIRST
from ..formatting import format_value
from ..links import link
from ..model import Cell, Column, Kind, Row, Section, Table, Value, View
from ..page import Asked, Context, Page

MAX_DEVICES = 200
"""Most devices on the page, the newest."""

_COLUMNS = (
    Column("device", "device"),
    Column("fingerprint", "fingerprint", Kind.CODE, "Of everything that is said here; equal cards have equal ones."),
    Column("told_apart_by", "told apart by", help="What differs from the other devices of the same name."),
    Column(
        "compute_capability", "CC", Kind.CODE, "Compute capability, which decides what kernels can run; a CPU has none."
    ),
    Column("sms", "SMs", Kind.INTEGER, "Of a CPU its cores."),
    Column("memory_bytes", "memory", Kind.BYTES),
    Column("l2_bytes", "L2", Kind.BYTES),
    Column("power_limit_w", "W", Kind.NUMBER, "Power limit, in watts."),
    Column("since", "first seen", Kind.MOMENT),
    Column(
        "environments",
        "envs",
        Kind.INTEGER,
        "Environments: sets of versions (driver, CUDA, Triton, ...) that ran on it.",
    ),
    Column("trials", "trials", Kind.INTEGER),
    Column("winners", "winners", Kind.INTEGER, "Problems with a config that is served now; of each policy one."),
    Column("latest_run", "latest run", Kind.CODE),
    Column("latest_run_at", "started", Kind.MOMENT),
)

_TELLING: Mapping[str, Callable[[Device], str]] = {
    "kind": lambda device: device.kind,
    "compute capability": lambda device: device.compute_capability or "none",
    "SMs": lambda device: format_value(device.sms, Kind.INTEGER),
    # In whole GiB, as the fingerprint has it.
    "memory": lambda device: f"{round(device.memory_bytes / 2**30):,} GiB",
    "L2": lambda device: format_value(device.l2_bytes, Kind.BYTES),
    "power limit": lambda device: f"{format_value(device.power_limit_w, Kind.NUMBER)} W",
}
"""What two devices of one name may differ in."""


def view(context: Context, asked: Asked) -> View:
    """The page."""
    del asked
    found = context.store.ask(DevicesSeen(MAX_DEVICES + 1))
    if not found:
        return View("Devices", next_steps=(TUNE_FIRST,))
    shown = found[:MAX_DEVICES]
    apart = told_apart(shown)
    note = f"The newest {MAX_DEVICES}; search finds older ones." if len(found) > MAX_DEVICES else ""
    table = Table(
        "devices", "Devices, newest first", _COLUMNS, [_row(one, apart[one.fingerprint]) for one in shown], note=note
    )  # fmt: skip
    same = sum(bool(text) for text in apart.values())
    lead = f"{len(shown):,} {'device' if len(shown) == 1 else 'devices'}."
    if same:
        lead += f" {same} of them share a name with another one, and are different devices all the same."
    return View("Devices", (Section(table=table),), lead=lead)


def told_apart(devices: Sequence[DeviceSeen]) -> dict[str, str]:
    """What tells each device from the others of its name, by fingerprint; empty where the name is enough."""
    by_name: dict[str, list[DeviceSeen]] = defaultdict(list)
    for one in devices:
        by_name[one.device.name].append(one)
    said: dict[str, str] = {}
    for same in by_name.values():
        differing = [
            (name, tell) for name, tell in _TELLING.items() if len({tell(one.device) for one in same}) > 1
        ]  # fmt: skip
        for one in same:
            parts = [f"{name} {tell(one.device)}" for name, tell in differing]
            said[one.fingerprint] = "" if len(same) == 1 else ", ".join(parts) or "its fingerprint alone"
    return said


def _row(one: DeviceSeen, apart: str) -> Row:
    device, measured = one.device, one.measured
    power: Value = device.power_limit_w or None
    return (
        Cell(device.name, link=link("environments", device=one.fingerprint)),
        one.fingerprint,
        apart or None,
        device.compute_capability or None,
        device.sms,
        device.memory_bytes,
        device.l2_bytes or None,
        power,
        one.since,
        Cell(one.n_environments, link=link("environments", device=one.fingerprint)),
        measured.n_trials,
        measured.n_winners,
        of.run_cell(measured.latest_run),
        measured.latest_run_at,
    )


PAGE = Page("devices", "Devices", "Which cards?", (), view)
