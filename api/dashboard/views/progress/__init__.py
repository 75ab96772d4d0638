"""Is more tuning worth it? Best so far against trials, beside a calculated random search."""

from __future__ import annotations

from .view import PAGE

__all__ = ["PAGE"]
