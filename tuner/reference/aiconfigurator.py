"""GEMM and MoE latencies of the installed package aiconfigurator-core, read as they lie there: nothing of it is run.

Its layout since 0.11, below `aiconfigurator_core/systems/`: a specification of each card in `<system>.yaml`, and tables
in `data/<system>/<family>/<framework>/<version>/<op>_perf.parquet`. Latencies are means in milliseconds, without a
variance. A GEMM is m x n x k. A MoE layer has the intermediate size of the whole layer (a rank has its share by
`moe_tp_size`) and the tokens of the whole layer; measured is rank 0, the most loaded one, without router and
communication.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...db.records import ReferenceImport, ReferenceSource
from ...db.reference_systems import CARDS
from ...db.store import Store
from ...kernels.errors import InvalidInputError, NotFoundError, UnsupportedError
from . import packages
from .tables import TABLES, Table, rows_of
from .traps import Card

DISTRIBUTION = "aiconfigurator-core"
MODULE = "aiconfigurator_core"

BEFORE = "aiconfigurator"
"""The distribution that held the measurements before 0.11, in another layout."""

LAYOUTS = ("0.11", "0.12")
"""Releases whose layout is read. 0.12.0 was; of 0.11 it is taken from the repository that the layout is the same."""

DEFAULT_SYSTEM = "rtx_pro_6000_server"
"""The published SM120 card."""

COPYRIGHT = "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES"
"""As it stands in the package's own files."""

L2_BYTES = {
    "a100_sxm": 40 << 20,
    "b200_sxm": 126 << 20,
    "gb200": 126 << 20,
    "h100_sxm": 50 << 20,
    "h200_sxm": 60 << 20,
    "rtx_pro_6000_server": 128 << 20,
}
"""L2 caches of the systems that can be imported; the package does not say. From NVIDIA's architecture white papers and
tuning guides; H200 as its driver reports it."""


@dataclass(frozen=True, slots=True)
class FileImport:
    """What became of one file.

    Attributes:
        source: the file, as far as it was read.
        result: rows that are new or were known; None if the file was refused.
        left_out: rows that were not imported, by the reason.
        error: why it was refused; empty if it was not.
    """

    source: ReferenceSource
    result: ReferenceImport | None
    left_out: dict[str, int]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """The installed package, whose layout is a known one.

    Attributes:
        installed: its version and licence.
        folder: `systems/` in it.
    """

    installed: packages.Installed
    folder: Path

    @classmethod
    def find(cls) -> Package:
        """The package that is installed.

        Raises:
            UnsupportedError: none is, or its layout is not known.
        """
        try:
            installed = packages.find(DISTRIBUTION, MODULE)
        except UnsupportedError:
            older = packages.installed_version(BEFORE)
            if older:
                _check_layout(BEFORE, older)
            raise
        _check_layout(installed.distribution, installed.version)
        name = f"{installed.distribution} {installed.version}"
        folder = installed.root / "systems"
        if not any(folder.glob(f"data/*/{TABLES[0].family}/*/*/{TABLES[0].file}")):
            wanted = f"systems/data/<system>/{TABLES[0].family}/<framework>/<version>/{TABLES[0].file}"
            raise UnsupportedError(f"{name} has no {wanted}, as releases of this layout have: install it anew.")
        return cls(installed, folder)

    def systems(self) -> list[str]:
        """Systems that have data here and can be imported."""
        there = (path.name for path in (self.folder / "data").iterdir() if path.name in CARDS and path.name in L2_BYTES)
        return sorted(there)

    def card(self, system: str) -> Card:
        """What is known of a system.

        Raises:
            InvalidInputError: its specification cannot be read.
            NotFoundError: it is not there. UnsupportedError: it is, and cannot be imported.
        """
        if system not in (known := self.systems()):
            package, these = f"{self.installed.distribution} {self.installed.version}", ", ".join(known)
            if system in (path.name for path in (self.folder / "data").iterdir()):
                raise UnsupportedError(
                    f"The system {system!r} of {package} cannot be imported: the L2 cache of its card, by which times "
                    f"are judged, is not known here; those of {these} are."
                )
            raise NotFoundError(f"There is no system {system[:60]!r} to import from {package}; there are {these}.")
        path = self.folder / f"{system}.yaml"
        yaml = packages.library("yaml")
        try:
            bandwidth = float(yaml.safe_load(path.read_text(encoding="utf-8"))["gpu"]["mem_bw"])
        except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
            raise InvalidInputError(f"{self.shown(path)} does not say gpu.mem_bw, the memory bandwidth.") from None
        if not 0 < bandwidth < float("inf"):
            raise InvalidInputError(f"{self.shown(path)} has a memory bandwidth of {bandwidth}.")
        return Card(system, bandwidth, L2_BYTES[system])

    def files(self, system: str) -> list[tuple[Table, Path]]:
        """The tables of a system, every framework and version of it."""
        folder = self.folder / "data" / system
        return [(table, path) for table in TABLES for path in sorted(folder.glob(f"{table.family}/*/*/{table.file}"))]

    def shown(self, path: Path) -> str:
        """A file for a sentence: the package, its version, and the path inside it."""
        return f"{self.installed.distribution} {self.installed.version}: {self.inside(path)}"

    def inside(self, path: Path) -> str:
        """A path inside the package."""
        return path.relative_to(self.installed.root.parent).as_posix()


def import_systems(store: Store, package: Package, systems: Sequence[str]) -> Iterator[FileImport]:
    """Store the tables of systems, one file and one transaction after the other.

    A file that is there is not read again. One that is refused is told, and the others are imported all the same.

    Raises:
        NotFoundError: a system is not there; then nothing was imported.
        UnsupportedError: a system is there and cannot be imported, or what reads the files is not installed; the same.
    """
    cards = [package.card(system) for system in dict.fromkeys(systems)]
    known = {(s.package, s.package_version, s.file, s.sha256): s for s in store.reference_sources()}
    for card in cards:
        for table, path in package.files(card.system):
            source = _source(package, card.system, path)
            try:
                content = path.read_bytes()  # what is hashed is what is read
                source = replace(source, sha256=hashlib.sha256(content).hexdigest())
                there = known.get((source.package, source.package_version, source.file, source.sha256))
                if there is not None:
                    yield FileImport(there, ReferenceImport(n_added=0, n_known=there.n_rows), {})
                    continue
                read = rows_of(table, content, card, source.framework)
                source = _with_device(source, read.device)
                yield FileImport(source, store.import_reference(source, read.rows), read.left_out)
            except OSError as error:
                yield FileImport(source, None, {}, f"{package.shown(path)}: it cannot be read ({error.strerror}).")
            except InvalidInputError as error:
                yield FileImport(source, None, {}, f"{package.shown(path)}: {error}")


def _source(package: Package, system: str, path: Path) -> ReferenceSource:
    """What is known of a file by its place, before it is read."""
    framework, version = path.parts[-3:-1]
    installed = package.installed
    licence = f", {installed.licence}" if installed.licence else ""
    return ReferenceSource(
        package=installed.distribution,
        package_version=installed.version,
        system=system,
        framework=framework,
        framework_version=version,
        file=package.inside(path),
        sha256="",
        attribution=f"{COPYRIGHT}; {installed.distribution} {installed.version}{licence}",
    )


def _with_device(source: ReferenceSource, device: str) -> ReferenceSource:
    """The source with its card's name, which must be the one that the system stands for."""
    if device not in (names := CARDS[source.system].devices):
        raise InvalidInputError(f"it was measured on {device[:80]!r}, and {source.system} is {' or '.join(names)}.")
    return replace(source, device=device)


def _check_layout(distribution: str, version: str) -> None:
    """Raise UnsupportedError, with name and version, for a release whose layout is not known."""
    if ".".join(version.split(".")[:2]) not in LAYOUTS:
        known = f"those of {DISTRIBUTION} {' and '.join(LAYOUTS)} are"
        raise UnsupportedError(
            f"The layout of {distribution} {version} is not known; {known}: install one of these, "
            f"pip install '{DISTRIBUTION}~={LAYOUTS[-1]}.0'."
        )
