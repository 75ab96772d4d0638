"""`fp4tune doctor`: the device, its environment, and each backend, available or the one reason why not."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from ...kernels.errors import Fp4tuneError, NotFoundError
from .options import DEFAULT_DATABASE, Database, DeviceOption, Json
from .output import print_json, print_line, print_table
from .session import LockDirectory

if TYPE_CHECKING:
    from ...kernels.device import Device, Environment
    from ...tuner.checkup import Checkup
    from ...tuner.reference.beside import Beside


def doctor(
    device: DeviceOption = "auto",
    lock_dir: LockDirectory = None,
    database: Database = DEFAULT_DATABASE,
    *,
    as_json: Json = False,
) -> None:
    """Show what can be tuned here, what is missing for the rest, and what others published for this card."""
    from ...kernels.backend import load_backends
    from ...kernels.device import current_environment, detect
    from ...tuner.checkup import check_up

    problem = ""
    try:
        found = detect(device)
    except NotFoundError as error:
        if device != "auto":
            raise
        problem = str(error)  # a card that cannot be used, or several: the rest is what its user needs to know
        found = detect("cpu")
    backends = load_backends()
    states = {name: backend.probe(found) for name, backend in backends.items()}
    environment = current_environment(found, backends.values())
    checkup = check_up(found, backends, lock_dir=lock_dir)
    published, unread = _published(database, found)
    if as_json:
        print_json(
            {
                "fp4tune": metadata.version("fp4tune"),
                "problem": problem,
                "device": found,
                "device_fingerprint": found.fingerprint,
                "environment_fingerprint": environment.fingerprint,
                "versions": environment.versions,
                "backends": states,
                "checks": checkup.checks,
                "published": _published_document(published, unread),
            }
        )
        return
    if problem:
        print_line(problem)
        print_line()
    _print_device(found, environment)
    print_table(
        "Versions that decide whether a config is still valid", ("name", "version"), list(environment.versions.items())
    )
    _print_checks(checkup)
    print_table(
        "Backends",
        ("backend", "state", "reason"),
        [(name, "available" if s.available else "not available", s.reason or "-") for name, s in states.items()],
    )
    _print_published(published, unread)
    if not any(state.available for state in states.values()):
        print_line("No backend can run here: tuning is not possible until one of the reasons above is mended.")


def _print_device(found: Device, environment: Environment) -> None:
    rows: list[tuple[str, str | int]] = [
        ("name", found.name),
        ("kind", "slice of a card (MIG)" if found.is_slice else found.kind),
        *([("compute capability", found.compute_capability)] if found.compute_capability else []),
        ("cores" if found.kind == "cpu" else "SMs", found.sms),
        ("memory", f"{found.memory_bytes / 2**30:.1f} GiB"),
        ("last-level cache" if found.kind == "cpu" else "L2", f"{found.l2_bytes / 2**20:.0f} MiB"),
        *([("power limit", f"{found.power_limit_w:.0f} W")] if found.power_limit_w else []),
        ("device fingerprint", found.fingerprint),
        ("environment fingerprint", environment.fingerprint),
    ]
    print_table("Device", ("", ""), rows)


def _print_checks(checkup: Checkup) -> None:
    rows = [(one.name, "ok" if one.ok else "attention", one.text) for one in checkup.checks]
    print_table("Checks for tuning on a GPU", ("check", "", "found"), rows)


def _published(database: str, found: Device) -> tuple[Beside, str]:
    """What is published for the card, and why it cannot be known: a database need not be there for a check-up."""
    from ...tuner.reference.beside import Beside, beside

    try:
        from ...db import Store

        with Store.open(database, mode="read") as store:
            return beside(store, found), ""
    except Fp4tuneError as error:
        return Beside(), str(error)


def _published_document(published: Beside, unread: str) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "unread": unread,
        "systems": published.systems,
        "notes": published.notes,
        "n_rows": published.n_rows,
        "frameworks": published.frameworks,
        "others": published.others,
        "beside": [
            {
                "shape": pair.problem.shape,
                "key": pair.problem.key,
                "measured": {"backend": pair.backend, "policy": pair.policy, "time_us": pair.time_us},
                "reference": {
                    "precision": pair.published.curve.precision,
                    "framework": pair.published.curve.source.framework,
                    "framework_version": pair.published.curve.source.framework_version,
                    "kernel_source": pair.published.curve.key.kernel_source,
                    "time_us": pair.published.time_us,
                    "time_us_low": pair.published.time_us_low,
                    "time_us_high": pair.published.time_us_high,
                    "differs": pair.caveats,
                    "attribution": pair.published.curve.source.attribution,
                },
            }
            for pair in published.pairs
        ],
    }


def _print_published(published: Beside, unread: str) -> None:
    """One line about what is published for the card; then the two times of some problems, beside each other."""
    from ...tuner.reference.answer import framework_name

    if unread:
        print_line(f"Published by others for this card: not known. {unread}")
        return
    if not published.systems:
        others = ", ".join(published.others)
        imported = f"what is imported is of {others}" if others else "nothing is imported"
        print_line(f"Published by others for this card: none; {imported} (fp4tune import aiconfigurator).")
        return
    by = ", ".join(published.frameworks)
    print_line(
        f"Published by others for this card: {published.n_rows:,} times of {', '.join(published.systems)}, by {by}."
    )
    for note in published.notes:
        print_line(f"note: {note}")
    if not published.pairs:
        return
    print_table(
        "Yours beside published, measured in different ways",
        ("shape", "format", "yours µs", "by", "published µs", "by", "differs"),
        [
            (
                pair.problem.shape,
                pair.problem.format,
                pair.time_us,
                f"{pair.backend}, {pair.policy}",
                pair.published.time_us,
                framework_name(pair.published.curve.source),
                ", ".join(pair.caveats) or "-",
            )
            for pair in published.pairs
        ],
        tall=True,
    )
    for attribution in dict.fromkeys(pair.published.curve.source.attribution for pair in published.pairs):
        print_line(f"published from: {attribution}")
