"""Which backend? Every backend's best of every problem, and who wins how often."""

from __future__ import annotations

from .view import PAGE

__all__ = ["PAGE"]
