"""Alembic migrations, one module a revision under `versions`."""
