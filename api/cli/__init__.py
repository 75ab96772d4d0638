"""The command line, `fp4tune`."""

from __future__ import annotations

from .app import main

__all__ = ["main"]
