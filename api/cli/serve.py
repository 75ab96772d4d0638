"""`fp4tune serve`: the HTTP service."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import DEFAULT_DATABASE, Database
from .output import console


def serve(
    database: Database = DEFAULT_DATABASE,
    host: Annotated[
        str, typer.Option("--host", envvar="FP4TUNE_HOST", help="Address to bind; loopback unless told otherwise.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", envvar="FP4TUNE_PORT", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8040,
) -> None:
    """Serve the best configurations over HTTP until stopped."""
    from ..http.server import run_server
    from ..settings import load_settings

    settings = load_settings(db=database, host=host, port=port)
    err = console(stderr=True)
    run_server(
        settings,
        on_ready=lambda url: err.print(
            f"fp4tune serves {database} at {url} (dashboard at {url}/dashboard/, API at {url}/docs)", markup=False
        ),
    )
