"""What importing the package, and opening a database, must not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fp4tune.db import Store


def imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_records_import_no_database_library():
    assert not imported_by("import fp4tune.db, fp4tune.db.records") & {"sqlalchemy", "alembic", "psycopg", "torch"}


def test_opening_a_current_database_imports_no_alembic(sqlite_store: Store, tmp_path: Path):
    url = str(tmp_path / "fp4tune.db")
    found = imported_by(f"from fp4tune.db import Store; Store.open({url!r}).runs()")
    assert "sqlalchemy" in found
    assert not found & {"alembic", "psycopg", "torch"}


def test_a_name_that_the_package_does_not_have():
    import fp4tune.db

    with pytest.raises(AttributeError, match="has no attribute 'Stores'"):
        fp4tune.db.Stores  # noqa: B018 - looking it up is the test
