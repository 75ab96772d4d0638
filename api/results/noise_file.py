"""What `fp4tune noise --json` printed, read back for the results page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...kernels.backend import ConfigValue
from ...kernels.errors import InvalidInputError, NotFoundError
from ...kernels.problem import Problem, parse_key


@dataclass(frozen=True, slots=True)
class NoiseEntry:
    """How far apart two measurements of one config lie; shares, 0.01 for one percent.

    Attributes:
        problem: what was computed.
        backend: whose config. config: decoded. policy: how it was measured.
        time_us: the first median, microseconds.
        within_median, within_worst: between two measurements in one process.
        across_median, across_worst: between measurements in two processes.
    """

    problem: Problem
    backend: str
    config: Mapping[str, ConfigValue]
    policy: str
    time_us: float
    within_median: float
    within_worst: float
    across_median: float
    across_worst: float


def read_noise(path: Path, *, environment: str, policy: str) -> list[NoiseEntry]:
    """Read a file.

    Args:
        path: the file.
        environment: fingerprint of the environment that it must be of.
        policy: the measuring policy that its figures must be of.

    Raises:
        NotFoundError: there is no such file.
        InvalidInputError: it is not of `fp4tune noise`, or of another environment or policy.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        measured_in = str(document["environment_fingerprint"])
        entries = [_entry(one) for one in document["noise"]]
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {path}.") from error
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, LookupError, RecursionError, InvalidInputError) as error:
        raise InvalidInputError(f"{path} is not what `fp4tune noise --json` prints.") from error
    if measured_in != environment:
        raise InvalidInputError(f"{path} was measured in environment {measured_in}, and the runs in {environment}.")
    for one in entries:
        if one.policy != policy:
            raise InvalidInputError(
                f"{path} was measured by policy {one.policy}, and the runs by {policy}; the two are never compared."
            )
    return entries


def noise_of(entries: Sequence[NoiseEntry], problem: Problem, backend: str) -> NoiseEntry | None:
    """The entry of a problem: that of the backend which is served, or else the noisiest; None without any."""
    own = [one for one in entries if one.problem == problem]
    return max(own, key=lambda one: (one.backend == backend, one.across_median), default=None)


def _entry(one: Mapping[str, object]) -> NoiseEntry:
    """One entry of the document. Raises ValueError, TypeError, KeyError, ... if it is none."""
    within, across, times_us, config = one["within"], one["across"], one["times_us"], one["config"]
    if not (isinstance(within, dict) and isinstance(across, dict) and isinstance(times_us, list)):
        raise TypeError("no figures")
    if not isinstance(config, dict):
        raise TypeError("no config")
    return NoiseEntry(
        problem=parse_key(str(one["key"])),
        backend=str(one["backend"]),
        config=config,
        policy=str(one["policy"]),
        time_us=float(times_us[0][0]),
        within_median=float(within["median"]),
        within_worst=float(within["worst"]),
        across_median=float(across["median"]),
        across_worst=float(across["worst"]),
    )
