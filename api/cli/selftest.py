"""`fp4tune selftest`: whether what fp4tune relies on holds here, with a report to attach to a bug."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import DeviceOption, Json
from .output import print_json, print_line, print_prose, print_table
from .session import LockDirectory, Wait, device_session, say

if TYPE_CHECKING:
    from ...tuner.selftest import Report

EXIT_WRONG = 1
"""Something was wrong; the report says what."""

OUT_HINT = "a selftest replaces nothing but an older report of its own; name another file"


def selftest(
    device: DeviceOption = "auto",
    out: Annotated[Path | None, typer.Option("--out", help="File for the report (JSON), to attach to a bug.")] = None,
    budget_s: Annotated[
        float, typer.Option("--budget-s", min=1.0, max=3600.0, help="Seconds after which nothing new is begun.")
    ] = 90.0,
    lock_dir: LockDirectory = None,
    *,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Check this installation on this card: numerics of every backend's configs, and an export that is loaded again."""
    from ...kernels.device import detect
    from ...tuner.selftest import Means, document, run_selftest
    from ..formats.files import check_target, write_whole
    from ..formats.trial_export import trial_export

    if out is not None:
        check_target(out, may_replace=_is_report, hint=OUT_HINT)
    target = detect(device)
    with device_session(target, ["selftest"], wait=wait, lock_dir=lock_dir):
        report = run_selftest(Means(target, exporting=trial_export, lock_dir=lock_dir, budget_s=budget_s, tell=say))
    found = document(report)
    if out is not None:
        write_whole(out, json.dumps(found, indent=2) + "\n")
    if as_json:
        print_json(found)
    else:
        _print(report, found, out)
    if not report.ok:
        raise typer.Exit(EXIT_WRONG)


def _is_report(path: Path) -> bool:
    """Whether a file is a selftest's report, which the next one may replace."""
    from ...tuner.selftest.report import KIND

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("kind") == KIND


def _print(report: Report, found: Mapping[str, Any], out: Path | None) -> None:
    """Tables for people, from what the report's file says, so that both say the same."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    print_line(f"fp4tune {found['fp4tune']} on {found['device']['name']}: {versions}")
    print_line()
    attention = [(one["name"], one["text"]) for one in found["checks"] if not one["ok"]]
    if report.ran_on_card and attention:
        print_table("Worth attention", ("check", "found"), attention)
    for step, title in (
        ("environment", "Environment"),
        ("contract", f"What backends offer for {found['card']}"),
        ("compile", f"Kernels compiled for {found['card']}"),
        ("numerics", f"Numerics on {found['device']['name']}"),
        ("export", "Export, reload, hit"),
    ):
        rows = [one for one in found["findings"] if one["step"] == step and one["outcome"] in ("ok", "wrong")]
        if rows:
            print_table(title, ("", "what", "found"), [(one["outcome"], one["subject"], one["text"]) for one in rows])
    _print_left_out(found["left_out"])
    not_run = [one for one in found["findings"] if one["outcome"] == "not run"]
    if not_run:
        print_table("Not run", ("step", "what", "why"), [(o["step"], o["subject"], o["text"]) for o in not_run])
    counts = Counter(one["outcome"] for one in found["findings"])
    summary = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
    verdict = "Nothing was wrong" if report.ok else "Something is wrong"
    print_prose(f"{verdict}: {summary}; {report.wall_s:.0f} s.")
    if counts["refused"]:
        print_prose("Refused are problems that a backend does not take, which is no failure; --json lists them.")
    if not report.ran_on_card:
        print_prose("No kernel ran on a GPU, so this says nothing of one.")
    if out is not None:
        print_prose(f"{out} has the report: no names of hosts, users or folders are in it.")


def _print_left_out(left_out: Sequence[Mapping[str, Any]]) -> None:
    if not left_out:
        return
    print_table(
        "Configs left out of the numerics",
        ("backend", "problem", "configs", "why"),
        [(one["backend"], one["problem"], one["n"] or "many", one["why"]) for one in left_out],
    )
