"""What failed? Failed trials by class and backend, with their reasons."""

from __future__ import annotations

from .view import PAGE

__all__ = ["PAGE"]
