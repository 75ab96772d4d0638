"""What is served for one problem in one environment, the evidence for it, and the commands that ask for it."""

from __future__ import annotations

from .view import PAGE

__all__ = ["PAGE"]
