"""`fp4tune doctor`: the device, its environment, and each backend, available or the one reason why not."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from ...kernels.errors import NotFoundError
from .options import DeviceOption, Json
from .output import print_json, print_line, print_table
from .session import LockDirectory

if TYPE_CHECKING:
    from ...kernels.device import Device, Environment
    from ...tuner.checkup import Checkup


def doctor(device: DeviceOption = "auto", lock_dir: LockDirectory = None, *, as_json: Json = False) -> None:
    """Show what can be tuned here, and what is missing for the rest."""
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
