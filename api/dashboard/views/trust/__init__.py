"""Can I trust it? Samples, spread, clocks, the tie set, and whether runs agree."""

from __future__ import annotations

from .view import PAGE

__all__ = ["PAGE"]
