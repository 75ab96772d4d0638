"""Did it get worse? Winners over runs and environments, with a verdict a change."""

from __future__ import annotations

from .view import PAGE

__all__ = ["PAGE"]
