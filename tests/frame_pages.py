"""Pages that use all that a view can say, for tests of what is around views."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from fp4tune.api.dashboard.model import (
    Cell,
    Column,
    Command,
    Figure,
    Filter,
    Kind,
    Layout,
    Mark,
    NextStep,
    Option,
    Section,
    Table,
    View,
    heat,
)
from fp4tune.api.dashboard.page import CURSOR, ENVIRONMENT, POLICY, Asked, Context, Page, Parameter, address
from fp4tune.kernels.errors import BusyError, InvalidInputError, NotFoundError, StoreError

AT = datetime(2026, 11, 2, 12, 0, 0, 250_000, UTC)
EVIL = "<script>alert(1)</script>'\"&\x00\x1b[31m\u202etxt\u2028\ud800" + "x" * 10_000
QUERY = Parameter("q", ".{0,200}", "a text of at most 200 characters")
EDGES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
GEMMS = ("attn.qkv", "attn.o", "mlp.gate_up", "mlp.down", "moe.w13", "moe.w2", "lm_head")

SPEEDUPS = Table(
    "gains",
    "Speed-up over the default, by GEMM and number of tokens",
    (Column("gemm", "GEMM", Kind.CODE), *(Column(f"m{m}", str(m), Kind.FACTOR) for m in TOKENS)),
    [
        (
            Cell(name, note=f"{2048 * (i + 1)} x 7168"),
            *(
                Cell(None, marks=(Mark.UNTUNED,)) if (i + j) % 11 == 7
                else Cell(1.01, marks=(Mark.HEAT_1, Mark.TIE), link=address("plain", anchor="x"))
                if (i * j) % 7 == 3
                else Cell(1.31, marks=(heat(1.31, EDGES), Mark.REFERENCE), note="published")
                if (i, j) == (2, 3)
                else Cell(1.24, marks=(heat(1.24, EDGES), Mark.ESTIMATE))
                if (i, j) == (4, 5)
                else Cell(0.98 + (i * 14 + j) ** 1.3 / 300, marks=(heat(0.98 + (i * 14 + j) ** 1.3 / 300, EDGES),),
                          link=address("plain"), note="\u00b10.02")
                for j in range(len(TOKENS))
            ),
        )
        for i, name in enumerate(GEMMS)
    ],
    Layout.GRID,
    legend=(
        *(((heat(edge, EDGES),), f"from {edge:.2f}x") for edge in EDGES),
        ((Mark.TIE,), "cannot be told apart from the default"),
        ((Mark.UNTUNED,), "never tuned"),
        ((Mark.REFERENCE,), "published by somebody else"),
        ((Mark.ESTIMATE,), "from a latency model"),
    ),
    note="Times are medians of 30 samples.",
)  # fmt: skip

KINDS = Table(
    "kinds",
    "One row with every kind of value",
    tuple(Column(kind.value, kind.value, kind, help=f"A {kind.value}.") for kind in Kind),
    [
        ("a text", "block_m=64", 1234, 0.0123456, 12.345, 1.05, 0.56, 0.0123, 200.0, 96 << 30, AT),
        (None, "", float("nan"), float("inf"), 1e300, -1.0, 0.0, 0.0, 0.0, 0, None),
        (
            Cell("winner", link=address("plain", q="winner"), marks=(Mark.SERVED, Mark.GOOD)), Cell("x", note="y"),
            Cell(1, "one"), Cell(3.0, marks=(Mark.BAD,)), 0.5, 2.0, 1.0, -0.5, 90061.0, 512, AT,
        ),
        ("a text", "block_m=64", 1234, 0.0123456, 12.345, 1.05, 0.56, 0.0123, 200.0, 96 << 30, AT),
    ],
)  # fmt: skip

PAIRS = Table(
    "facts",
    "What is known of the card",
    (Column("what", "what"), Column("value", "value", Kind.NUMBER)),
    [("SMs", 132), ("memory", Cell("141 GB", note="HBM3e")), ("L2 \u00b5s", 1.5)],
    Layout.PAIRS,
)

POINTS = Table(
    "times",
    "Times by backend",
    (Column("backend", "backend"), Column("m", "tokens", Kind.INTEGER), Column("time_us", "\u00b5s", Kind.TIME_US)),
    [
        (backend, m, 3.0 + m**0.9 * (i + 1) / 40)
        for i, backend in enumerate(("cublaslt", "triton.native"))
        for m in TOKENS
    ],
)


def times_figure(name: str = "times") -> Figure:
    """The picture of POINTS."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": backend,
            "x": [row[1] for row in POINTS.rows if row[0] == backend],
            "y": [row[2] for row in POINTS.rows if row[0] == backend],
            "line": {"color": f"@{i + 1}"},
            "customdata": [address("plain", q=str(row[1])) for row in POINTS.rows if row[0] == backend],
            "hovertemplate": "%{x} tokens<br>%{y:.2f} \u00b5s<extra></extra>",
        }
        for i, backend in enumerate(("cublaslt", "triton.native"))
    ]
    axes = {
        "xaxis": {"title": {"text": "tokens"}, "type": "log"},
        "yaxis": {"title": {"text": "\u00b5s"}, "type": "log"},
    }
    return Figure(name, "Time of each backend against tokens; both grow.", traces, axes)


def everything(context: Context, asked: Asked) -> View:
    """All there is."""
    return View(
        "Qwen3.5-397B at TP 8 on an H200",
        lead="A decode step of 64 tokens takes 3.21 ms, 1.14x as fast as with each backend's default.",
        filters=(
            Filter("environment", "Environment", asked.get("environment"),
                   (Option("", "any"), Option("a" * 16, "NVIDIA H200 \u00b7 driver 580"), Option("b" * 16, "Test Card"))),
            Filter("policy", "Measured by", asked.get("policy")),
        ),
        warnings=("The clock was throttled in 3 of 420 trials.",),
        next_steps=(NextStep("Tune more shapes.", command="fp4tune tune qwen --tp 8"), NextStep("See the plain page.", link=address("plain"))),
        sections=(
            Section("What each GEMM gains", table=SPEEDUPS, text=("Each cell compares the winner with the default.",)),
            Section("Times", figure=times_figure(), table=POINTS, folded=True, anchor="times"),
            Section("Kinds", table=KINDS, commands=(Command("The same by curl", f"curl -s '{context.base_url}/v1/winners'"),)),
            Section("Facts", table=PAIRS),
        ),
    )  # fmt: skip


def plain(context: Context, asked: Asked) -> View:
    """Nothing to show."""
    if asked.get(CURSOR):
        context.cursors.read("plain", asked.filters(), asked.get(CURSOR))
    cursor = context.cursors.make("plain", asked.filters(), 7)
    table = replace(POINTS, rows=[], more=address("plain", q=asked.get("q"), cursor=cursor))
    return View("Nothing", sections=(Section(table=table),))


def evil(context: Context, asked: Asked) -> View:
    """Every string is hostile."""
    table = Table(
        "evil", EVIL, (Column("a", EVIL, help=EVIL), Column("b", "b", Kind.NUMBER)),
        [(Cell(EVIL, link="javascript:alert(1)", note=EVIL), EVIL), (Cell("x", link="//elsewhere.invalid/"), 1e308)],
        legend=(((Mark.TIE,), EVIL),), note=EVIL, more="https://elsewhere.invalid/",
    )  # fmt: skip
    figure = Figure(
        "evil", EVIL, [{"type": "scatter", "x": [EVIL], "y": [float("nan")], "name": EVIL, "line": {"color": "@1"}}], {}
    )
    return View(
        EVIL, lead=EVIL, warnings=(EVIL,), next_steps=(NextStep(EVIL, command=EVIL, link=EVIL),),
        filters=(Filter("q", EVIL, EVIL), Filter("r", EVIL, "gone", (Option(EVIL, EVIL),))),
        sections=(Section(EVIL, (EVIL,), figure, table, folded=True, commands=(Command(EVIL, EVIL),), anchor='"x'),),
    )  # fmt: skip


def large(context: Context, asked: Asked) -> View:
    """As many rows as there may be, of texts that are five times as long in HTML."""
    columns = tuple(Column(f"c{i}", f"c{i}") for i in range(12))
    rows = [["&<" * 400 for _ in columns] for _ in range(2000)]
    figures = [replace(times_figure(f"f{i}"), traces=[{"x": ["&" * 100] * 200, "y": [1.0] * 200}]) for i in range(9)]
    tables = [Table(f"t{i}", f"Table {i}", columns, rows) for i in range(3)]
    return View("Large", sections=tuple(
        [Section(f"T{i}", table=one) for i, one in enumerate(tables)]
        + [Section(f"F{i}", figure=one) for i, one in enumerate(figures)]
    ))  # fmt: skip


def live(context: Context, asked: Asked) -> View:
    """Changes by itself as long as `q` says so: it counts the runs of the store."""
    from fp4tune.db.dashboard.scopes import ScopesOf

    n_runs = len(context.store.runs(limit=100))
    assert isinstance(context.store.ask(ScopesOf()), list)
    table = Table("n", "Runs", (Column("n", "runs", Kind.INTEGER),), [(n_runs,)])
    section = Section("Runs", figure=times_figure(), table=table, folded=True)
    return View(f"{n_runs} runs", sections=(section,), refresh_s=1)


FAILURES = {
    "missing": NotFoundError("There is no run '000000'."),
    "invalid": InvalidInputError("Two environments are needed."),
    "store": StoreError("The database x is locked."),
    "busy": BusyError("The device is held."),
    "bug": KeyError("inner detail"),
}


def failing(context: Context, asked: Asked) -> View:
    """Fails as `q` says."""
    raise FAILURES[asked.get("q") or "bug"]


def picky(context: Context, asked: Asked) -> View:
    """Each environment has policies of its own."""
    environment, policy = asked.get(ENVIRONMENT) or "a" * 16, asked.get(POLICY)
    if environment not in ("a" * 16, "b" * 16):
        raise NotFoundError(f"There is no environment {environment}.")
    if policy not in ("", f"policy.{environment[0]}"):
        raise NotFoundError(f"Nothing is served for policy {policy}.")
    if asked.get(QUERY) == "nobody":
        raise NotFoundError("There is no model nobody.")
    options = (Option("a" * 16, "A"), Option("b" * 16, "B"), Option("c" * 16, "C"))
    filters = (
        Filter("environment", "Environment", environment, options),
        Filter("policy", "Policy", policy, (Option("", "any"), Option(f"policy.{environment[0]}", "its own"))),
    )
    return View(f"Environment {environment[0]}, policy {policy or 'any'}", filters=filters)


PAGES = (
    Page("", "Gains", "What do I get?", (ENVIRONMENT, POLICY), everything),
    Page("plain", "Plain", "What if there is nothing?", (QUERY, CURSOR), plain),
    Page("evil", "Evil", "What if strings are hostile?", (QUERY,), evil),
    Page("large", "Large", "What if there is too much?", (), large),
    Page("live", "Live", "What if it changes?", (), live),
    Page("failing", "Failing", "What if it fails?", (QUERY, ENVIRONMENT), failing),
    Page("picky", "", "What goes together?", (QUERY, ENVIRONMENT, POLICY), picky),
    Page("search", "", "Where is it?", (QUERY,), plain),
)
