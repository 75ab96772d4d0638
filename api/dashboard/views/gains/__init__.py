"""What do I get? The speed-up of every GEMM at every M of a model, and what it saves a step."""

from __future__ import annotations

from .view import PAGE

__all__ = ["PAGE"]
