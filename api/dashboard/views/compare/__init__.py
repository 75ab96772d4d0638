"""What changed? Two environments side by side: what they are, and what they serve."""

from __future__ import annotations

from .view import PAGE

__all__ = ["PAGE"]
