"""How near is the roof? The roofline of a card and one mark a problem."""

from __future__ import annotations

from .view import PAGE

__all__ = ["PAGE"]
