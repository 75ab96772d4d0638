"""The results page as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...db.records import Choice, Conditions, Roofs
from ...kernels.device import Environment
from ...kernels.errors import InvalidInputError
from .agreement import Agreement, Verdict
from .command import command_of
from .figures import shape_text
from .gather import RunResult, widest
from .markdown import Labels, cell, config_code, percent, table, time_text, times
from .noise_file import NoiseEntry
from .sections import cost, in_short, side_by_side, winners

WORDS = """\
Every time is a median in microseconds, measured here; in brackets its 95 % interval. *default* is what a backend does
untuned; *speed-up* is over the fastest default of any backend. *bf16* is the fastest kernel on unquantised BF16
operands, cuBLAS among them, and *x bf16* how many times as fast as that. All of these were measured in the same
interleaved rounds, the finals. *roof* is the time that the card's measured roofs allow at least, over the time it took.
*tied* counts configs that cannot be told apart from the fastest. Configs are listed at the end.

*Backends side by side* has every backend's default and its fastest config in microseconds, in brackets how many times
as fast as bf16. A star marks figures of the search, which were not measured in the finals' rounds: of many configs the
fastest of a search looks a little faster than it is. *compile s* adds up compilers that ran side by side; *wall s* is
the time from the end of the problem before to the end of this one."""

AA_WORDS = """\
*A/A* is the median difference of two measurements of one config, by the served backend, in two processes."""


def page(
    results: Sequence[RunResult],
    agreements: Sequence[Agreement] = (),
    *,
    noise: Sequence[NoiseEntry] = (),
    command: str = "",
) -> str:
    """The page of one card.

    Args:
        results: runs of one environment, in the order of their sections.
        agreements: comparisons with further runs.
        noise: what `fp4tune noise` found, if it was asked.
        command: what made this page, to be quoted.

    Raises:
        InvalidInputError: there is no run, or the runs are of several environments.
    """
    if not results:
        raise InvalidInputError("There is no run to make a page of.")
    first = results[0]
    for other in results[1:]:
        if other.environment.fingerprint != first.environment.fingerprint:
            raise InvalidInputError(
                f"Runs {first.run.id} and {other.run.id} belong to two environments; a page is about one."
            )
    lines = [f"# {first.environment.device.name}", ""]
    made = f"`{command}`" if command else "`fp4tune results`"
    lines += [f"Made by {made} from the database; edit nothing here.", ""]
    lines += _environment(first.environment, first.roofs)
    lines += [*WORDS.splitlines(), *(AA_WORDS.splitlines() if noise else []), ""]
    labels = Labels()
    for result in results:
        lines += _run(result, labels, noise)
    for one in agreements:
        lines += _agreement(one, labels)
    lines += _noise(noise)
    lines += ["## Configs", "", *table(("", "backend", "config"), [(a, f"`{b}`", c) for a, b, c in labels.rows()])]
    return "\n".join(lines).rstrip() + "\n"


def _environment(environment: Environment, roofs: Roofs | None) -> Iterator[str]:
    device = environment.device
    rows = [
        ("device", device.name),
        ("compute capability", device.compute_capability or "-"),
        ("cores" if device.kind == "cpu" else "SMs", str(device.sms)),
        ("memory", f"{device.memory_bytes / 2**30:.1f} GiB"),
        ("last-level cache" if device.kind == "cpu" else "L2", f"{device.l2_bytes / 2**20:.0f} MiB"),
        ("power limit", f"{device.power_limit_w:.0f} W" if device.power_limit_w else "-"),
        *sorted(environment.versions.items()),
        ("device fingerprint", f"`{device.fingerprint}`"),
        ("environment fingerprint", f"`{environment.fingerprint}`"),
    ]
    if roofs is not None:
        rows += [
            ("copy bandwidth, measured", f"{roofs.copy_bytes_per_s / 1e12:.3f} TB/s"),
            ("BF16 rate, measured", f"{roofs.bf16_flops_per_s / 1e12:.1f} TFLOP/s"),
        ]
    yield from ("## Environment", "", *table(("", ""), rows), "")


def _run(result: RunResult, labels: Labels, noise: Sequence[NoiseEntry]) -> Iterator[str]:
    run = result.run
    settings = run.settings
    title = run.checkpoint.rstrip("/").rpartition("/")[2] or "bare shapes"
    parallel = f", TP {settings['tp']}, EP {settings['ep']}" if "tp" in settings and "ep" in settings else ""
    seconds = (run.finished_at - run.started_at).total_seconds() if run.finished_at else None
    took = f"{seconds:.0f} s" if seconds is not None else "not ended"
    yield from (f"## {title}{parallel}", "")
    yield from ("```sh", command_of(run, [one.item for one in result.problems]), "```", "")
    served = [one for one in result.problems if one.winner]
    rows = [
        ("run", f"`{run.id}`, {run.status.value}, fp4tune {run.version}"),
        ("started", f"{run.started_at:%Y-%m-%d %H:%M} UTC, took {took}"),
        ("measured by", str(settings.get("policy") or "-")),
        ("backends", ", ".join(map(str, settings.get("backends") or [])) or "-"),
        ("problems", f"{len(result.problems)}, of which {len(served)} got a winner"),
        ("conditions", _conditions(result)),
    ]
    if settings.get("shared_with"):
        rows.append(("shared with", cell("; ".join(map(str, settings["shared_with"])))))
    yield from (*table(("", ""), rows), "")
    yield from in_short(result)
    yield from winners(result, labels, noise)
    yield from side_by_side(result)
    yield from cost(result)


def _agreement(found: Agreement, labels: Labels) -> Iterator[str]:
    n = len(found.verdicts)
    same, tied = found.counts[Verdict.SAME], found.counts[Verdict.TIED]
    yield from (f"## Run again: `{found.first}` and `{found.second}`", "")
    yield (
        f"Of {n} problems both runs serve the same config for {same}, one inside the tie set of the other run "
        f"for {tied}, and another for {n - same - tied}."
    )
    yield ""
    rows = [
        (
            shape_text(problem),
            verdict.value,
            *(text for choice in (mine, theirs) for text in _choice_cells(choice, labels)),
            times(theirs.time_us / mine.time_us) if mine and theirs else "-",
        )
        for problem, verdict, mine, theirs in found.verdicts
    ]
    figures = ("first µs", "second µs", "second over first")
    heads = ("shape", "verdict", "first", "first µs", "second", "second µs", "second over first")
    yield from (*table(heads, rows, right=figures), "")


def _choice_cells(choice: Choice | None, labels: Labels) -> tuple[str, str]:
    return ("-", "-") if choice is None else (f"`{choice.backend}` {labels.of(choice)}", time_text(choice))


def _noise(entries: Sequence[NoiseEntry]) -> Iterator[str]:
    """How far apart two measurements of one config lie."""
    if not entries:
        return
    yield from ("## A/A: one config measured twice", "")
    yield "By how much the slower of two measurements of one config is above the faster (`fp4tune noise`): of two in"
    yield "one process, and of one each in two processes (across)."
    yield ""
    figures = ("µs", *(f"{where}, {what}" for where in ("in a process", "across") for what in ("median", "worst")))
    rows = [
        (
            shape_text(one.problem),
            f"`{one.backend}`",
            config_code(one.config),
            f"{one.time_us:.2f}",
            *(
                percent(share, digits=2)
                for share in (one.within_median, one.within_worst, one.across_median, one.across_worst)
            ),
        )
        for one in entries
    ]
    yield from (*table(("shape", "backend", "config", *figures), rows, right=figures), "")


def _conditions(result: RunResult) -> str:
    """Clocks, temperature, power and throttling over the whole run, in words."""
    seen = widest([one.conditions for one in result.problems if one.conditions])
    if seen is None:
        return "not looked at"
    n_samples = sum(one.n_samples for one in result.problems)
    n_throttled = sum(one.n_throttled for one in result.problems)
    return "; ".join([*_ranges(seen), *_throttling(seen, n_throttled, n_samples)])


def _ranges(seen: Conditions) -> Iterator[str]:
    for name, span in (("SM clock", seen.sm_clock_mhz), ("memory clock", seen.memory_clock_mhz)):
        if span is not None:
            yield f"{name} {span[0]} MHz" if span[0] == span[1] else f"{name} {span[0]} to {span[1]} MHz"
    if seen.temperature_c is not None:
        yield f"at most {seen.temperature_c} °C"
    if seen.power_w is not None:
        yield f"at most {seen.power_w:.0f} W"


def _throttling(seen: Conditions, n_throttled: int, n_samples: int) -> Iterator[str]:
    if n_throttled:
        share = n_throttled / max(1, n_samples)
        yield f"throttled in {n_throttled:,} of {n_samples:,} samples ({share:.1%}): {', '.join(seen.throttle_reasons)}"
    else:
        yield "never throttled"
