"""`fp4tune compile`: what the compiler says of configs, for a card that need not be there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from ...kernels.errors import InvalidInputError, UnsupportedError
from ...kernels.problem import Format, OutDtype, Routing
from .options import (
    DEFAULT_DATABASE,
    Database,
    FormatOption,
    Json,
    OutDtypeOption,
    RoutingOption,
    Shapes,
    problems_of,
)
from .output import config_text, print_json, print_table
from .session import say

if TYPE_CHECKING:
    from ...db.records import NewStaticFacts

DEFAULT_CONFIGS = 8
"""Configs beside the default: enough to see what a space is like, in a quarter of a minute on two cores."""


def compile_(
    shape: Shapes = None,
    backend: Annotated[
        str, typer.Option("--backend", help="Whose configs; one that compiles its kernels.")
    ] = "triton.native",
    arch: Annotated[
        str, typer.Option("--arch", help="What for: an architecture (sm_120a) or a card (rtx-5090). Need not be here.")
    ] = "sm_120a",
    configs: Annotated[
        int, typer.Option("--configs", min=0, max=10_000, help="Configs of each shape's space beside the default.")
    ] = DEFAULT_CONFIGS,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of the draw.")] = 0,
    compile_workers: Annotated[
        int | None, typer.Option("--compile-workers", min=1, max=1024, help="Most compiling processes; default: cores.")
    ] = None,
    routing: RoutingOption = Routing.UNIFORM,
    format_: FormatOption = Format.NVFP4,
    out_dtype: OutDtypeOption = OutDtype.BF16,
    database: Database = DEFAULT_DATABASE,
    *,
    as_json: Json = False,
) -> None:
    """Compile configs without a GPU: registers, stack, shared memory and matrix instructions, stored as `compiled`."""
    from ...db.store import Store
    from ...kernels.backend import get_backend
    from ...kernels.cards import card_for
    from ...kernels.triton_gemm.compiler import target_name
    from ...tuner.static_compile import compile_without_device, configs_to_compile

    if not shape:
        raise InvalidInputError("Name at least one --shape.")
    problems = list(dict.fromkeys(problems_of(shape, routing, format_, out_dtype)))
    chosen, card = get_backend(backend), card_for(arch)
    state = chosen.probe(card)
    if not state.available:
        raise UnsupportedError(f"{backend} cannot compile for {card.name}. {state.reason}")
    work = [
        (problem, config)
        for problem in problems
        for config in configs_to_compile(chosen, problem, card, n=configs, seed=seed)
    ]
    target = target_name(card.capability)
    with Store.open(database) as store:
        say(f"compiling {len(work)} configs of {backend} for {card.name}, which need not be here")
        found = list(compile_without_device(chosen, card, work, target=target, workers=compile_workers))
        order = {id(config): i for i, (_, config) in enumerate(work)}
        found.sort(key=lambda entry: order[id(entry.config)])
        store.add_static_facts(found)
    if as_json:
        print_json(found)
    else:
        _print(found, f"{backend} for {card.name}, compiled and not run; stored in {database}")
    if not any(entry.facts for entry in found):
        raise UnsupportedError(f"None of {len(found)} configs compiled to something that may be run; the first: "
                               f"{found[0].error}")  # fmt: skip


def _print(found: list[NewStaticFacts], title: str) -> None:
    """The table for people: one line a config, in the order of the problems, the default first."""
    rows = []
    for entry in found:
        facts = entry.facts
        figures = (facts.registers, facts.stack_bytes, facts.shared_bytes) if facts else (None, None, None)
        opcodes = " ".join(f"{n}x {opcode}" for opcode, n in facts.instructions.items()) if facts else ""
        rows.append(
            (
                entry.problem.shape,
                config_text(entry.config),
                entry.status.value,
                *figures,
                opcodes or entry.error or "-",
                entry.compile_s,
            )
        )
    counts = Counter(entry.status.value for entry in found)
    print_table(
        title,
        ("shape", "config", "status", "registers", "stack B", "shared B", "matrix instructions, or what is wrong", "s"),
        rows,
        caption=", ".join(f"{n} {status}" for status, n in counts.most_common())
        + "; the first config of a shape is the default",
        tall=True,
    )
