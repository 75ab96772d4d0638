from __future__ import annotations

from humming_cases import cache, compiler, humming  # noqa: F401 - fixtures
