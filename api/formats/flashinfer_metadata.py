"""The `_metadata` of a FlashInfer cache file: which environment it is for, and what may be left open.

FlashInfer compares all of it with the process that loads the file, and ignores the whole file if one field differs. A
field may be a wildcard, and must not be where it decides what a tactic means: a CUTLASS tactic is an index into a list
that the release builds, a CuTe DSL tactic a tile that its compiler compiles, a cuDNN tactic an engine of one cuDNN.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from ...kernels.errors import UnsupportedError

if TYPE_CHECKING:
    from ...kernels.device import Environment

WILDCARD = "*"
UNKNOWN = "unknown"
"""What FlashInfer writes for what it could not find out. A file with it is loaded nowhere but where that is unknown."""

RECORDED: Mapping[str, str] = {
    "flashinfer_version": "flashinfer",
    "cuda_version": "cuda",
    "cublas_version": "cublas",
    "cudnn_version": "cudnn",
    "cudnn_frontend_version": "cudnn_frontend",
    "cutlass_dsl_version": "cutlass_dsl",
}
"""Field of the metadata -> what an environment calls it. `gpu` is the device's name."""

FIELDS = (*RECORDED, "gpu")
"""Every field that FlashInfer 0.7.2 to 0.7.4 compares."""

OPEN: Mapping[str, frozenset[str]] = {
    "flashinfer.b12x": frozenset({"cublas_version", "cudnn_version", "cudnn_frontend_version"}),
    "flashinfer.cute_dsl": frozenset({"cublas_version", "cudnn_version", "cudnn_frontend_version"}),
    "flashinfer.cutlass": frozenset(FIELDS) - {"flashinfer_version", "gpu"},
    "flashinfer.cutlass_moe": frozenset(FIELDS) - {"flashinfer_version", "gpu"},
}
"""Backend -> fields that say nothing about its tactics, so that a wildcard is safe; none for those not listed."""


class MetadataMode(StrEnum):
    """How exact a file is about its environment."""

    EXACT = "exact"
    WILDCARD = "wildcard"


def file_metadata(
    environment: Environment, here: Mapping[str, str], backends: Collection[str], mode: MetadataMode
) -> dict[str, str]:
    """The metadata of a file with tactics that were measured in `environment`.

    Args:
        environment: where; what it records is what counts.
        here: what FlashInfer says of this process; it fills in what the environment does not record.
        backends: whose tactics the file has.
        mode: exact, or with a wildcard for every field that says nothing about tactics of any of these backends.

    Raises:
        UnsupportedError: FlashInfer is of another release here, a version contradicts what was recorded, or a field
            that must be exact is not known.
    """
    recorded = {field: environment.versions.get(name, "") for field, name in RECORDED.items()}
    check_release(environment, here.get("flashinfer_version", ""))
    may_be_open = frozenset.intersection(*(OPEN.get(one, frozenset()) for one in backends)) if backends else frozenset()
    found, missing = {}, []
    for field in FIELDS:
        if mode is MetadataMode.WILDCARD and field in may_be_open:
            found[field] = WILDCARD
            continue
        value, own = (environment.device.name if field == "gpu" else recorded[field]), here.get(field, UNKNOWN)
        if value and own != UNKNOWN and not _agree(field, value, own, environment.versions.get("torch", "")):
            raise UnsupportedError(
                f"{field} was {value} where these winners were measured and is {own} in this process: export in the "
                f"environment of the winners{_or_open(field, mode, may_be_open)}."
            )
        found[field] = own if own != UNKNOWN and field != "gpu" else _as_flashinfer_writes(field, value)
        if not found[field]:
            missing.append(field)
    if missing:
        openable = [field for field in missing if field in may_be_open]
        hint = " or use --metadata wildcard" if openable == missing else ""
        raise UnsupportedError(
            f"FlashInfer would ignore a file without {', '.join(missing)}, which neither the winners' environment nor "
            f"this process knows: export on the machine with {environment.device.name}{hint}."
        )
    return found


def check_measured(environment: Environment) -> str:
    """The release of FlashInfer that winners were measured with.

    Raises:
        UnsupportedError: they were measured without it.
    """
    measured = environment.versions.get(RECORDED["flashinfer_version"], "")
    if not measured:
        raise UnsupportedError(
            f"The winners of {environment.device.name} were measured without FlashInfer, so its cache can hold none of "
            "them: tune where `fp4tune doctor` lists a backend of FlashInfer as available."
        )
    return measured


def check_release(environment: Environment, installed: str) -> None:
    """Refuse a FlashInfer of another release than the winners'.

    Raises:
        UnsupportedError: it is.
    """
    measured = check_measured(environment)
    if measured != installed:
        raise UnsupportedError(
            f"These winners were measured with FlashInfer {measured}, and {installed} is installed here: tactics and "
            "keys are of one release, so export where that release is installed."
        )


def _agree(field: str, recorded: str, own: str, torch: str) -> bool:
    """Whether two ways to write a version may mean the same one.

    FlashInfer writes the compiler stack of the CuTe DSL as one long text, `nvidia-cutlass-dsl==4.8.1:<hash>;...`, since
    0.7.4 with `torch==...` in it, and has ways of its own to write others' numbers. A GPU is told by its name alone,
    and the process may see another card of the machine.

    Args:
        field: of the metadata.
        recorded: with the winners.
        own: in this process.
        torch: recorded with the winners; empty if it was not.
    """
    if field == "gpu":
        return True
    if field == "cutlass_dsl_version":
        same_torch = not torch or "torch==" not in own or f"torch=={torch}:" in f"{own}:"
        return same_torch and f"=={recorded}" in own
    shorter, longer = sorted((recorded, own), key=len)
    return longer == shorter or longer.startswith(f"{shorter}.") or _digits(recorded) == _digits(own)


def _as_flashinfer_writes(field: str, recorded: str) -> str:
    """A recorded version in FlashInfer's own text, which is what it compares; empty if that cannot be known."""
    if field == "cutlass_dsl_version":  # a list of packages with their hashes
        return ""
    return _digits(recorded) if field == "cudnn_version" else recorded


def _digits(version: str) -> str:
    """`9.15.0` and cuDNN's own `91500` as one text."""
    parts = version.split("+", 1)[0].split(".")
    if len(parts) >= 3 and all(part.isdigit() for part in parts[:3]):
        major, minor, patch = (int(part) for part in parts[:3])
        return str(major * 10000 + minor * 100 + patch)
    return version


def _or_open(field: str, mode: MetadataMode, may_be_open: Collection[str]) -> str:
    if mode is MetadataMode.EXACT and field in may_be_open:
        return ", or use --metadata wildcard, which leaves that field open"
    return ""
