"""The Typer application, and the one place where errors become sentences and exit codes.

Nothing here, nor in a command's module, imports torch, fastapi, sqlalchemy, alembic or optuna at module level:
`fp4tune --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ...kernels.errors import Fp4tuneError
from . import best, db, doctor, export, import_, inspect, model, noise, results, runs, selftest, serve, tune
from .compile import compile_

EXIT_UNEXPECTED = 70
"""An error that is a bug of fp4tune (sysexits.h EX_SOFTWARE)."""

app = typer.Typer(
    name="fp4tune",
    help="Finds, proves and remembers the fastest way to run every NVFP4 GEMM of a model on the card at hand.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:  # noqa: FBT001 - the signature that Typer calls
    if value:
        from importlib import metadata

        typer.echo(metadata.version("fp4tune"))
        raise typer.Exit


@app.callback()
def options(
    *,
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=_print_version),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Options before the command."""


# Short enough for a line of `fp4tune --help` on a terminal of 80 columns, which cuts what is longer.
app.command("inspect", short_help="What a checkpoint declares and stores, and its GEMMs.")(inspect.inspect)
app.command("tune", short_help="Find and remember the fastest config of every problem.")(tune.tune)
app.command("best", short_help="The best known config of shapes, as a server gets it.")(best.best)
app.command("serve", short_help="Serve the best configs over HTTP until stopped.")(serve.serve)
app.command("runs", short_help="List tuning runs, newest first.")(runs.runs)
app.command("doctor", short_help="What can be tuned here, and what is missing.")(doctor.doctor)
app.command("noise", short_help="How far apart two measurements of one config lie.")(noise.noise)
app.command("compile", short_help="Compile configs for a card that need not be here.")(compile_)
app.command("export", short_help="Write what is served as an engine's own file.")(export.export)
app.command("selftest", short_help="Check this installation on this card.")(selftest.selftest)
app.command("model", short_help="Fit what a GEMM's time is made of on each device.")(model.model)
app.command("results", short_help="Make the results page of a card from its runs.")(results.results)
app.add_typer(db.app, name="db")
app.add_typer(import_.app, name="import", short_help="Import measurements that others published.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Args:
        arguments: instead of sys.argv[1:].
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _mend_streams()
    code = run(arguments)
    # A reader that went away (`fp4tune runs | head`) must not turn into a traceback at interpreter exit.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _mend_streams() -> None:
    """Output must not fail because a stream is closed (`>&-`) or its encoding lacks a character (µ in ASCII)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def run(arguments: list[str]) -> int:
    """Run the command line; the exit code.

    Errors end in one sentence on standard error, or a traceback with --debug.
    """
    debug = "--debug" in arguments
    # Typer 0.20 and later carry their own click, so the classes are found through what Typer exports.
    click_exception: type[Any] = typer.BadParameter.__bases__[0].__bases__[0]
    try:
        result = app(args=[a for a in arguments if a != "--debug"], prog_name="fp4tune", standalone_mode=False)
    except typer.Exit as done:
        return done.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return tune.EXIT_INTERRUPTED
    except BrokenPipeError:
        return 0
    except click_exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
            typer.echo(error.format_message(), err=True)
            return int(error.exit_code)
        _say(f"{error.format_message()} Try `fp4tune --help`.")
        return int(error.exit_code)
    except Fp4tuneError as error:
        if debug:
            raise
        _say(str(error))
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        _say(f"Unexpected {type(error).__name__}: {error}. This is a bug; run again with --debug to see where.")
        return EXIT_UNEXPECTED
    return result if isinstance(result, int) else 0


def _say(sentence: str) -> None:
    """One line on standard error, whatever the text holds: newlines, control characters, lone surrogates."""
    printable = "".join(c if c.isprintable() else " " for c in sentence)
    typer.echo(f"fp4tune: {printable}", err=True)
