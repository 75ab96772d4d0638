"""Settings of the service: constructor arguments, or environment variables that begin with `FP4TUNE_`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from ..kernels.errors import InvalidInputError

ENV_PREFIX = "FP4TUNE_"


class Settings(BaseSettings):
    """Everything that can be set about the service. `docs/settings.md` has a line for each."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    db: str = Field(default="fp4tune.db", min_length=1)
    """Database: a path, or a SQLAlchemy URL."""

    read_only: bool = False
    """Open the database for reading only; misses are then not kept."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to bind."""

    port: int = Field(default=8040, ge=0, le=65535)
    """Port to bind; 0 takes a free one."""

    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    """Least severe messages that are logged."""

    access_log: bool = False
    """Log a line per request."""

    shutdown_s: int = Field(default=10, ge=1, le=600)
    """Seconds that requests in progress get to end when the service is stopped."""

    poll_s: float = Field(default=0.5, gt=0, le=3600)
    """Seconds between looks at the database for new winners."""

    cached_answers: int = Field(default=16_384, ge=0, le=10_000_000)
    """Rendered answers of GET /best-config that are kept; about 2 KB each."""

    max_query_bytes: int = Field(default=2048, ge=256, le=65_536)
    """Longest query string accepted, in bytes."""

    max_body_bytes: int = Field(default=8 << 20, ge=1024, le=1 << 30)
    """Longest request body accepted, in bytes."""

    misses_flush_s: float = Field(default=5.0, gt=0, le=3600)
    """Seconds between writes of counted misses to the database."""

    misses_cap: int = Field(default=10_000, ge=0, le=10_000_000)
    """Distinct misses kept in the database, and at most as many in memory between two writes."""

    misses_per_s: float = Field(default=50.0, gt=0, le=1_000_000)
    """New distinct missing shapes that are counted per second, for each device and environment."""

    misses_burst: int = Field(default=2_000, ge=1, le=1_000_000)
    """New distinct missing shapes that may come at once, for each device and environment."""

    cursor_secret: SecretStr = SecretStr("")
    """Key that page cursors are signed with; empty makes one at start, and cursors end with the process."""


def load_settings(**given: Any) -> Settings:
    """Settings from arguments, then environment variables, then defaults.

    Args:
        given: fields of Settings.

    Raises:
        InvalidInputError: a value is not valid; the sentence names the setting and its variable.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(
            f"Setting {name} ({ENV_PREFIX}{name.upper()}) is not valid: {first['msg']}; it was {first['input']!r}."
        ) from error
