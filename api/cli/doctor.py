"""`fp4tune doctor`: the device, its environment, and each backend, available or the one reason why not."""

from __future__ import annotations

from importlib import metadata

from .options import DeviceOption, Json
from .output import print_json, print_line, print_table


def doctor(device: DeviceOption = "auto", *, as_json: Json = False) -> None:
    """Show what can be tuned here, and what is missing for the rest."""
    from ...kernels.backend import load_backends
    from ...kernels.device import current_environment, detect

    found = detect(device)
    backends = load_backends()
    states = {name: backend.probe(found) for name, backend in backends.items()}
    ready = [backends[name] for name, state in states.items() if state.available]
    environment = current_environment(found, backends.values())
    if as_json:
        print_json(
            {
                "fp4tune": metadata.version("fp4tune"),
                "device": found,
                "device_fingerprint": found.fingerprint,
                "environment_fingerprint": environment.fingerprint,
                "versions": environment.versions,
                "backends": states,
            }
        )
        return
    print_table(
        "Device",
        ("", ""),
        [
            ("name", found.name),
            ("kind", found.kind),
            *([("compute capability", found.compute_capability)] if found.compute_capability else []),
            ("cores" if found.kind == "cpu" else "SMs", found.sms),
            ("memory", f"{found.memory_bytes / 2**30:.1f} GiB"),
            ("last-level cache" if found.kind == "cpu" else "L2", f"{found.l2_bytes / 2**20:.0f} MiB"),
            *([("power limit", f"{found.power_limit_w:.0f} W")] if found.power_limit_w else []),
            ("device fingerprint", found.fingerprint),
            ("environment fingerprint", environment.fingerprint),
        ],
    )
    print_table(
        "Versions that decide whether a config is still valid", ("name", "version"), list(environment.versions.items())
    )
    print_table(
        "Backends",
        ("backend", "state", "reason"),
        [(name, "available" if s.available else "not available", s.reason or "-") for name, s in states.items()],
    )
    if not ready:
        print_line("No backend can run here: tuning is not possible until one of the reasons above is mended.")
