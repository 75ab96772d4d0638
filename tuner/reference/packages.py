"""Packages of published measurements that are installed, found without running anything of theirs."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

from ...kernels.errors import UnsupportedError

INSTALL = "pip install 'fp4tune[reference]'"
"""What brings a package of published measurements and what reads it."""


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed package of measurements.

    Attributes:
        distribution: its name, `aiconfigurator-core`.
        version: as its metadata has it.
        licence: as its metadata has it; empty if that says nothing.
        root: the folder of its import package.
    """

    distribution: str
    version: str
    licence: str
    root: Path


def find(distribution: str, module: str) -> Installed:
    """The installed distribution, and where its files are. The module is not imported, nor a library of it loaded.

    Raises:
        UnsupportedError: it is not installed, or its files are not where an installed package has them.
    """
    missing = UnsupportedError(f"The package {distribution} is not installed here: {INSTALL}.")
    try:
        spec = importlib.util.find_spec(module)
        about = metadata.metadata(distribution)
    except (metadata.PackageNotFoundError, ImportError, ValueError):
        raise missing from None
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    root = next((folder for folder in folders if folder.is_dir()), None)
    if root is None:
        raise missing
    stated = [str(about[name]) for name in ("License-Expression", "License") if name in about]
    licence = stated[0].splitlines()[0] if stated and stated[0] else ""
    return Installed(distribution, metadata.version(distribution), licence, root)


def installed_version(distribution: str) -> str:
    """Version of a distribution as its metadata has it; empty if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def library(name: str) -> ModuleType:
    """A library that reads a package's files, imported when it is first needed.

    Raises:
        UnsupportedError: it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(f"Published measurements are read with {name} ({error}): {INSTALL}.") from None
