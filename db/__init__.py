"""What is remembered: records, models, migrations, and the one store that every reader and writer goes through.

`Store` is imported on first use, so that importing `fp4tune.db.records` (plain types) does not import SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .store import Store

__all__ = ["Store"]


def __getattr__(name: str) -> Any:
    """Import `Store` when it is first asked for."""
    if name == "Store":
        from .store import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
