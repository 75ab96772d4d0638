"""Filters by device and environment, for pages that show all of them if none is chosen."""

from __future__ import annotations

from ...db.dashboard.places import DeviceNames, EnvironmentNames
from ...kernels.device import Device
from .choices import MAX_OPTIONS, environment_label
from .model import Filter, Option
from .page import DEVICE, ENVIRONMENT, Context


def environment_filter(context: Context, chosen: str) -> Filter:
    """The filter by environment.

    Raises:
        NotFoundError: the chosen one is not stored.
    """
    found = context.store.ask(EnvironmentNames(chosen, MAX_OPTIONS - 2))
    options = (Option(fingerprint, environment_label(environment)) for fingerprint, environment in found)
    return Filter(ENVIRONMENT.name, "Environment", chosen, (Option("", "all"), *options))


def device_filter(context: Context, chosen: str) -> Filter:
    """The filter by device.

    Raises:
        NotFoundError: the chosen one is not stored.
    """
    found = context.store.ask(DeviceNames(chosen, MAX_OPTIONS - 2))
    options = (Option(fingerprint, device_label(device, fingerprint)) for fingerprint, device in found)
    return Filter(DEVICE.name, "Device", chosen, (Option("", "all"), *options))


def device_label(device: Device, fingerprint: str) -> str:
    """A device for people, told apart from others of its name by its fingerprint: `NVIDIA H200 · 4aff...`."""
    return f"{device.name} · {fingerprint}"
