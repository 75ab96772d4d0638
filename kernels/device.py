"""The card (or CPU) at hand, and the versions that decide whether a config found on it is still valid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property


def _fingerprint(fields: object) -> str:
    """First 16 hex digits of the SHA-256 of canonical JSON."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Device:
    """A processor that problems run on.

    Attributes:
        kind: `cpu` or `cuda`.
        name: as the driver or the kernel calls it.
        compute_capability: `9.0`, `12.0`; empty for a CPU.
        sms: streaming multiprocessors; logical cores that this process may use for a CPU.
        memory_bytes: device memory; physical memory (or the cgroup's limit) for a CPU.
        l2_bytes: L2 cache; last-level cache for a CPU; 0 if unknown.
        power_limit_w: enforced board power limit in watts; 0 if unknown or a CPU.
        index: CUDA ordinal; 0 for a CPU. Not part of the fingerprint.
    """

    kind: str
    name: str
    compute_capability: str
    sms: int
    memory_bytes: int
    l2_bytes: int
    power_limit_w: float
    index: int = 0

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits over everything but the index: equal cards have equal fingerprints."""
        fields = asdict(self)
        del fields["index"]
        return _fingerprint(fields)

    @property
    def torch_device(self) -> str:
        """What torch calls it: `cpu`, `cuda:0`."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


@dataclass(frozen=True)
class Environment:
    """A device and the versions of what runs on it.

    Attributes:
        device: the card.
        versions: name -> version (driver, cuda, cublas, torch, triton, flashinfer, ...); what is absent is
            not a key. Backends name the subset that decides about their configs.
    """

    device: Device
    versions: Mapping[str, str]

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits over the device's fingerprint and all versions."""
        return _fingerprint({"device": self.device.fingerprint, "versions": dict(self.versions)})
