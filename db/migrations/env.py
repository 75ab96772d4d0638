"""Alembic's entry point. It is only ever run by `fp4tune.db.schema`, with a connection in a transaction."""

from __future__ import annotations

from alembic import context

# Alembic runs this file by its path, outside of any package: only absolute imports work.
from fp4tune.db.models import Base
from fp4tune.db.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    # SQLite cannot ALTER most of a table: Alembic then copies it.
    render_as_batch=True,
)
context.run_migrations()
