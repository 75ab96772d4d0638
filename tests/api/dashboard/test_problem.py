"""What is served for a problem, its evidence, and that the commands of the page do what they say."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import dashboard_stores
import httpx
import pytest
import reference_rows
import results_store
from dashboard_views import pairs_of, rows_of, section_of, sound, table_of, value, words_of
from fp4tune.api.cli.app import run as cli
from fp4tune.api.dashboard.model import Mark, View
from fp4tune.api.dashboard.near import FAR
from fp4tune.api.dashboard.page import Asked, Context
from fp4tune.api.dashboard.views.problem import view as page
from fp4tune.api.dashboard.views.problem.answers import by_hand
from fp4tune.api.dashboard.views.problem.evidence import BOUNDS
from fp4tune.api.http.cursors import Cursors
from fp4tune.db import Store
from fp4tune.db.records import Origin, RunProblem, TrialStatus, WinnerFilter
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from fp4tune.kernels.problem import Format, OutDtype, Problem, Routing, parse_shape
from http_server import running
from store_factory import (
    CARD,
    GROUPED,
    LARGE,
    ON_CARD,
    ON_CPU,
    SMALL,
    START,
    choice,
    failed_trial,
    new_run,
    new_trial,
    new_winner,
)  # fmt: skip

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
KEY = "grouped:e512k10:4x256x4096:uniform:nvfp4:bf16"


def asked_at(store: Store, base_url: str, **values: str) -> View:
    """The page, as somebody who reached the service at a URL gets it."""
    return sound(page.view(Context(store, Cursors("t"), START, base_url), Asked("problem", values)))


# Bad input


@pytest.mark.parametrize("text", dashboard_stores.HOSTILE.values(), ids=dashboard_stores.HOSTILE)
def test_any_string_may_be_stored(tmp_path: Path, show: Callable[..., View], text: str):
    dashboard_stores.hostile(tmp_path / "h.db", text)
    with Store.open(tmp_path / "h.db", mode="read") as store:
        for item in (results_store.DENSE, results_store.GROUPED, results_store.REFUSED):
            view = sound(show(store, "problem", problem=item.problem.key))
            for command in (command for section in view.sections for command in section.commands):
                assert shlex.split(command.text)[0] in ("curl", "fp4tune")


@pytest.mark.parametrize(
    "number",
    [*dashboard_stores.ODD_NUMBERS.values(), *dashboard_stores.ODD_WHOLE_NUMBERS.values()],
    ids=[*dashboard_stores.ODD_NUMBERS, *dashboard_stores.ODD_WHOLE_NUMBERS],
)
def test_any_number_may_be_stored(tmp_path: Path, show: Callable[..., View], number: float):
    dashboard_stores.odd(tmp_path / "o.db", number)
    with Store.open(tmp_path / "o.db", mode="read") as store:
        view = sound(show(store, "problem", problem=results_store.DENSE.problem.key))
        assert "--seed -" not in str(view.sections)


@pytest.mark.parametrize("missing", ["environments", "problems", "runs"])
def test_rows_that_others_refer_to_may_be_gone(tmp_path: Path, show: Callable[..., View], missing: str):
    dashboard_stores.orphans(tmp_path / "o.db", missing)
    with Store.open(tmp_path / "o.db", mode="read") as store:
        view = sound(show(store, "problem", problem=results_store.DENSE.problem.key))
    if missing == "runs":
        assert "Its run is not stored here" in words_of(view)
        assert "No finals are stored" in table_of(view, "finals").empty
    else:
        assert view.lead.startswith("Nothing is served for it")


@pytest.mark.parametrize("key", ["x", "dense:0x0x0:uniform:nvfp4:bf16", KEY.replace("uniform", "even"), KEY + ":"])
def test_what_is_no_problem_is_refused(h200: Store, show: Callable[..., View], key: str):
    with pytest.raises(InvalidInputError, match=r"is not the key of a problem|M must be between"):
        show(h200, "problem", problem=key)


def test_an_environment_that_is_not_stored_is_refused(h200: Store, show: Callable[..., View]):
    with pytest.raises(NotFoundError, match="There is no environment"):
        show(h200, "problem", problem=KEY, environment="0" * 16)


def test_without_a_problem_it_says_where_to_find_one(h200: Store, show: Callable[..., View]):
    view = sound(show(h200, "problem"))
    assert view.next_steps[0].link == "/dashboard/"


@pytest.mark.parametrize(
    "settings",
    ["[]", "null", '{"backends": "x", "trials": "y", "budget_s": -1}', '{"backends": [1, "a b; rm -rf /", "ok"]}'],
)
def test_settings_that_say_nothing_are_left_out_of_the_command(
    tmp_path: Path, show: Callable[..., View], settings: str
):
    with Store.open(tmp_path / "p.db") as store:
        store.add_winners([new_winner(store.create_run(new_run(seed=0)))])
        with store._writing() as connection:
            connection.exec_driver_sql("UPDATE runs SET settings = ?", (settings,))
        (*_, again) = section_of(sound(show(store, "problem", problem=SMALL.key)), "commands").commands
    backend = " --backend ok" if "ok" in settings else ""
    assert again.text == f"fp4tune tune --shape 16x2048x4096 --policy eager{backend}"


# What is served, against the results page


def test_every_figure_is_that_of_the_results_page(h200: Store, show: Callable[..., View]):
    """Of the run at TP 1, which nothing has superseded: also its defaults, BF16 and the share of the roof."""
    text = (RESULTS / "h200.md").read_text(encoding="utf-8").split("TP 1, EP 1")[1]
    lines = text.split("### What is served")[1].split("###")[0].strip().splitlines()
    heads = [head.strip() for head in lines[0].strip("|").split("|")]
    configs = dict(re.findall(r"^\| (C[0-9]+) \| `[a-z.]+` \| `(.*)` \|$", text, re.MULTILINE))
    assert len(lines) == 12
    for line in lines[2:]:
        row = dict(zip(heads, map(str.strip, line.strip("|").split("|")), strict=True))
        view = sound(show(h200, "problem", problem=parse_shape(row["shape"]).key))
        pairs = pairs_of(view, "served")
        time_us, low, high = re.findall(r"[0-9.]+", row["µs"])
        assert (pairs["time"].text, pairs["time"].note) == (f"{time_us} µs", f"{low} to {high}")
        assert f"`{pairs['backend'].value}`" == row["served"]
        assert pairs["fastest default"].text == f"{row['default µs']} µs"
        assert pairs["speed-up"].text == row["speed-up"]
        assert pairs["share of the roof"].text == row["roof"]
        assert str(pairs["tied"].value) == row["tied"]
        assert pairs["by run"].value == "01M8NQNGH5VTC2FFWJT6222WQW"
        label, *default = row["config"].split()
        said = " ".join(f"{value(name)}={value(it)}" for name, it in table_of(view, "config").rows)
        assert said == configs[label]
        finals = rows_of(view, "finals")
        (served,) = [one for one in finals if value(one["role"]) == "served"]
        assert f"{served['time_us']:.2f}" == time_us
        assert (served["role"].note == "its backend's default") == bool(default)
        baseline = min(one["time_us"] for one in finals if value(one["role"]) == "baseline")
        assert f"{baseline:.2f}" == row["bf16 µs"]
        tied = sum(Mark.TIE in one["role"].marks or value(one["role"]) == "served" for one in finals)
        assert tied == int(row["tied"])


def test_every_default_of_the_results_page_is_among_the_finals(h200: Store, show: Callable[..., View]):
    text = (RESULTS / "h200.md").read_text(encoding="utf-8").split("TP 1, EP 1")[1]
    lines = text.split("### Backends side by side")[1].split("###")[0].strip().splitlines()
    heads = [head.strip() for head in lines[0].strip("|").split("|")]
    n_seen = 0
    for line in lines[2:-1]:
        row = dict(zip(heads, map(str.strip, line.strip("|").split("|")), strict=True))
        view = show(h200, "problem", problem=parse_shape(row["shape"]).key)
        for one in rows_of(view, "finals"):
            if one["role"].note == "its backend's default" or value(one["role"]) == "default":
                assert row[f"{one['backend']} default"].split()[0] == f"{one['time_us']:.2f}"
                n_seen += 1
    assert n_seen == 30


def test_the_bounds_of_the_gate_are_the_oracle_s():
    torch = pytest.importorskip("torch")
    from fp4tune.kernels.oracle import BOUNDS as ORACLE

    assert {
        OutDtype(
            str(dtype).removeprefix("torch.").replace("float", "fp") if dtype is not torch.bfloat16 else "bf16"
        ): bound
        for dtype, bound in ORACLE.items()
    } == BOUNDS


def test_how_the_numerics_were_checked(h200: Store, show: Callable[..., View]):
    words = section_of(show(h200, "problem", problem=KEY), "evidence").text[-1]
    assert words.endswith("The largest error of what is served was 0.0017, and 0.005 is allowed.")


def test_the_figure_is_made_of_the_table(h200: Store, show: Callable[..., View]):
    section = section_of(show(h200, "problem", problem=KEY), "evidence")
    assert section.table
    assert section.figure
    names = [column.name for column in section.table.columns]
    rows = {f"{row[0]} · {row[2]}": dict(zip(names, row, strict=True)) for row in section.table.rows}
    served_us = next(row["time_us"] for row in rows.values() if value(row["role"]) == "served")
    far = {name: row for name, row in rows.items() if row["time_us"] > FAR * served_us}
    assert far  # torch.dequant, which would squeeze all others
    for name, row in far.items():
        assert f"{name} ({row['time_us'] / served_us:.2f}x)" in section.figure.alt
        del rows[name]
    drawn = {
        name: (x, high, low, trace["name"])
        for trace in section.figure.traces
        for name, x, high, low in zip(trace["y"], trace["x"], trace["error_x"]["array"], trace["error_x"]["arrayminus"], strict=True)
    }  # fmt: skip
    assert drawn.keys() == rows.keys()
    for name, (x, high, low, role) in drawn.items():
        row = rows[name]
        assert (x, role) == (row["time_us"], value(row["role"]))
        assert (high, low) == (row["time_us_high"] - x, x - row["time_us_low"])
    assert section.figure.layout["yaxis"]["categoryarray"] == list(rows)[::-1]


def test_a_default_that_did_not_run_says_why(tmp_path: Path, show: Callable[..., View]):
    with Store.open(tmp_path / "p.db") as store:
        run = store.create_run(new_run())
        store.add_trials([
            failed_trial(run, 0, status=TrialStatus.COMPILE_FAILED, origin=Origin.DEFAULT, backend="other", error="ptxas\nmore"),
            new_trial(run, 1, origin=Origin.FINAL, config=choice().config),
            new_trial(run, 2, origin=Origin.FINAL, config=choice().config, policy="cuda.graph"),
        ])  # fmt: skip
        store.add_winners([new_winner(run)])
        rows = rows_of(sound(show(store, "problem", problem=SMALL.key)), "finals")
    assert [(value(row["role"]), row["role"].note, row["backend"], row["time_us"]) for row in rows] == [
        ("served", "", "triton.native", 10.0),
        ("default", "compile_failed: ptxas", "other", None),
    ]


def test_trials_of_another_environment_are_no_evidence(tmp_path: Path, show: Callable[..., View]):
    """A run that was resumed on another driver has finals of both."""
    other = Environment(CARD, {**ON_CARD.versions, "driver": "999"})
    with Store.open(tmp_path / "p.db") as store:
        run = store.create_run(new_run())
        store.add_trials([
            new_trial(run, 1, origin=Origin.FINAL, config=choice().config),
            new_trial(run, 2, origin=Origin.FINAL, config={"x": 1}, environment=other),
        ])  # fmt: skip
        store.add_winners([new_winner(run)])
        rows = rows_of(show(store, "problem", problem=SMALL.key), "finals")
    assert [row["trial"] for row in rows] == [1]


def test_what_depends_on_which_version(h200: Store, show: Callable[..., View]):
    view = show(h200, "problem", problem=KEY)
    rows = rows_of(view, "versions")
    assert [(row["version"], row["here"]) for row in rows if row["matters"] == "yes"] == [("triton", "3.6.0")]
    assert {row["version"] for row in rows if row["matters"] == "no"} >= {"driver", "torch", "cuda"}


def test_pages_about_the_problem_are_linked(h200: Store, show: Callable[..., View]):
    links = [row["page"].link for row in rows_of(show(h200, "problem", problem=KEY), "links")]
    assert [link.partition("?")[0].rpartition("/")[2] for link in links] == [
        "backends", "backends", "trust", "history", "progress"
    ]  # fmt: skip
    assert all("problem=grouped%3Ae512k10%3A4x256x4096" in link for link in links)
    assert "run=01M8NQZWK7Y5XADD17PTDAM07E" in links[-1]


# Commands


VARIANTS = (
    SMALL,
    GROUPED,
    replace(GROUPED, routing=Routing.POWER_LAW),
    replace(GROUPED, routing=Routing.ONE_HOT, out_dtype=OutDtype.FP32),
    replace(SMALL, format=Format.NVFP4_W4A16, out_dtype=OutDtype.FP16),
    replace(SMALL, format=Format.BF16),
    parse_shape("moe:e64of512k10:16x128x4096"),
    parse_shape("e8k2:1x64x64"),
)


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, str]]:
    """A served database with winners of every kind of problem, each in two environments and two policies."""
    path = tmp_path_factory.mktemp("variants") / "v.db"
    elsewhere = Environment(CARD, {**ON_CARD.versions, "torch": "9"})
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(path))
        made = 0
        for at in (ON_CARD, elsewhere):
            run = store.create_run(new_run(environment=at, problems=[RunProblem(one) for one in VARIANTS], seed=7))
            for policy in ("cuda.graph", "cuda.eager"):
                for one in VARIANTS:
                    made += 1
                    store.add_winners(
                        [new_winner(run, problem=one, environment=at, policy=policy, choice=choice(made, made=made))]
                    )
        yield store, stack.enter_context(running(store)).url


@pytest.mark.parametrize("one", VARIANTS, ids=lambda one: one.key)
def test_the_curl_line_answers_this_winner(variants: tuple[Store, str], one: Problem):
    store, url = variants
    for at in store.environments():
        for policy in ("cuda.graph", "cuda.eager"):
            fingerprint = at.environment.fingerprint
            view = asked_at(store, url, problem=one.key, environment=fingerprint, policy=policy)
            words = shlex.split(section_of(view, "commands").commands[0].text)
            assert words[:2] == ["curl", "-sS"]
            answer = httpx.get(words[2]).json()
            (winner,) = store.winners(
                WinnerFilter(problem_key=one.key, environment_fingerprint=fingerprint, policy=policy)
            ).items
            assert answer["match"] == "exact"
            assert (
                answer["config"]
                == dict(winner.choice.config)
                == {**answer["config"], "made": int(winner.choice.time_us)}
            )
            assert (answer["backend"], answer["time_us"]) == (winner.choice.backend, winner.choice.time_us)
            assert answer["problem"]["key"] == one.key
            assert pairs_of(view, "served")["time"].value == answer["time_us"]


@pytest.mark.parametrize("one", VARIANTS, ids=lambda one: one.key)
def test_the_line_of_fp4tune_best_answers_this_winner(
    variants: tuple[Store, str], one: Problem, capsys: pytest.CaptureFixture[str]
):
    store, url = variants
    view = asked_at(store, url, problem=one.key, policy="cuda.eager")
    words = shlex.split(section_of(view, "commands").commands[1].text)
    assert cli([*words[1:], "--json", "--db", store.url.removeprefix("sqlite:///")]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["match"], answer["problem"]["key"]) == ("exact", one.key)
    assert answer["time_us"] == pairs_of(view, "served")["time"].value


@pytest.mark.parametrize("one", VARIANTS, ids=lambda one: one.key)
def test_the_line_that_tunes_again_names_this_problem(variants: tuple[Store, str], one: Problem):
    store, url = variants
    (*_, command) = section_of(asked_at(store, url, problem=one.key, policy="cuda.eager"), "commands").commands
    words = shlex.split(command.text)
    said = {words[i]: words[i + 1] for i in range(2, len(words), 2)}
    routing, format_, out = (
        said.get(f"--{name}", usual)
        for name, usual in (("routing", "uniform"), ("format", "nvfp4"), ("out-dtype", "bf16"))
    )
    assert words[:2] == ["fp4tune", "tune"]
    assert (
        parse_shape(said["--shape"], routing=Routing(routing), format=Format(format_), out_dtype=OutDtype(out)) == one
    )
    assert by_hand(one)
    assert (said["--seed"], said["--policy"], said["--budget-s"]) == ("7", "eager", "3")


def test_the_line_that_tunes_again_really_does(
    tmp_path: Path, show: Callable[..., View], capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("torch")
    database = str(tmp_path / "t.db")
    quick = ["--trials", "4", "--budget-s", "2", "--seed", "5", "--backend", "cpu.dequant", "--device", "cpu"]
    assert cli(["tune", "--shape", "3x64x128", "--out-dtype", "fp32", *quick, "--db", database]) == 0
    key = "dense:3x64x128:uniform:nvfp4:fp32"
    with Store.open(database, mode="read") as store:
        (*_, command) = section_of(sound(show(store, "problem", problem=key)), "commands").commands
    assert command.text == (
        "fp4tune tune --shape 3x64x128 --out-dtype fp32 --seed 5 --trials 4 --budget-s 2 --device cpu --backend cpu.dequant"
    )
    assert cli([*shlex.split(command.text)[1:], "--db", database]) == 0
    with Store.open(database, mode="read") as store:
        first, second = store.runs()
        assert (first.settings, first.seed) == (second.settings, second.seed)
        winners = store.winners(WinnerFilter(problem_key=key, current=None)).items
        assert len({winner.run_id for winner in winners}) == 2


def test_a_policy_that_cannot_be_asked_for_is_not_in_the_line(tmp_path: Path, show: Callable[..., View]):
    with Store.open(tmp_path / "p.db") as store:
        run = store.create_run(new_run())
        store.add_winners([new_winner(run, policy="somebody.elses")])
        view = sound(show(store, "problem", problem=SMALL.key))
    assert "policy=" not in section_of(view, "commands").commands[0].text
    assert "not one that the service can be asked for" in words_of(view)


# The scope


def test_the_newest_place_that_serves_it_is_shown_not_the_newest_of_all(tmp_path: Path, show: Callable[..., View]):
    with Store.open(tmp_path / "p.db") as store:
        first = store.create_run(new_run())
        store.add_winners([new_winner(first)])
        second = store.create_run(new_run(environment=ON_CPU))
        store.add_winners([new_winner(second, problem=LARGE, environment=ON_CPU, policy="cpu.warm")])
        view = sound(show(store, "problem", problem=SMALL.key))
        assert view.lead.startswith("triton.native in 10.00 µs (9.80 to 10.30) on Test Card, 1.50x as fast")
        assert {one.name: one.value for one in view.filters}["environment"] == ON_CARD.fingerprint
        elsewhere = sound(show(store, "problem", problem=SMALL.key, environment=ON_CPU.fingerprint))
        assert elsewhere.lead.startswith("Nothing is served for it in Test CPU")
        (row,) = rows_of(elsewhere, "elsewhere")
        assert row["environment"].link.endswith(f"environment={ON_CARD.fingerprint}&policy=cuda.eager")
        assert elsewhere.next_steps[0].command == "fp4tune tune --shape 16x2048x4096 --device cpu"


def test_an_environment_in_which_nothing_is_served_is_the_one_that_is_chosen(tmp_path: Path, show: Callable[..., View]):
    with Store.open(tmp_path / "p.db") as store:
        store.add_winners([new_winner(store.create_run(new_run()))])
        store.create_run(new_run(environment=ON_CPU))
        view = sound(show(store, "problem", problem=SMALL.key, environment=ON_CPU.fingerprint))
        (chosen,) = [one for one in view.filters if one.name == "environment"]
        assert chosen.value == ON_CPU.fingerprint
        assert [option.value for option in chosen.options] == [ON_CPU.fingerprint, ON_CARD.fingerprint]


# A problem without a winner


def test_a_failed_problem_says_how_its_trials_failed(tmp_path: Path, show: Callable[..., View]):
    dashboard_stores.single_failure(tmp_path / "f.db")
    with Store.open(tmp_path / "f.db", mode="read") as store:
        view = sound(show(store, "problem", problem=SMALL.key, environment=ON_CARD.fingerprint))
        assert view.lead == "Nothing is served for it here; 1 trial of it ended as listed below."
        (row,) = rows_of(view, "attempts")
        assert (row["backend"], value(row["status"]), row["trials"]) == ("triton.native", "crashed", 1)
        assert row["why"] == "illegal memory access"
        assert row["run"].link.startswith("/dashboard/run?run=")
        assert view.next_steps[0].command == "fp4tune tune --shape 16x2048x4096"
        assert show(store, "problem", problem=SMALL.key).lead == view.lead


def test_what_was_refused_beside_others_that_are_served(tmp_path: Path, show: Callable[..., View]):
    dashboard_stores.usual(tmp_path / "u.db")
    with Store.open(tmp_path / "u.db", mode="read") as store:
        view = sound(show(store, "problem", problem=results_store.REFUSED.problem.key))
    assert {row["why"] for row in rows_of(view, "attempts")} == {"N must be a multiple of 32."}
    assert "tune it again on the machine with the NVIDIA H200" in view.next_steps[0].text


@pytest.mark.parametrize(("m", "bucket"), [(8, 16), (3, 4), (2, 4), (128, None), (9, 16), (5, None)])
def test_the_nearest_tuned_m_and_whether_it_stands_in(
    h200: Store, show: Callable[..., View], m: int, bucket: int | None
):
    """As `api.lookup` decides: the next M above, up to 32 and twice the M."""
    from fp4tune.api.index import WinnerIndex, followed
    from fp4tune.api.lookup import Answer, Match, find, locate

    problem = parse_shape(f"e512k10:{m}x256x4096")
    view = sound(show(h200, "problem", problem=problem.key))
    text = section_of(view, "nearest").text[0]
    index = followed(WinnerIndex(), h200)
    found = find(index, problem, locate(index, None, "0d4323886a8821a4"), "cuda.graph")
    if bucket is None:
        assert not isinstance(found, Answer)
        assert text.startswith("No tuned M is near enough")
    else:
        assert isinstance(found, Answer)
        assert (found.match, found.tuned.problem.m) == (Match.BUCKET, bucket)
        assert f"is given the config of M {bucket}, the next tuned M above" in text
    ratios = [max(row["m"], m) / min(row["m"], m) for row in rows_of(view, "nearest")]
    assert ratios == sorted(ratios)
    assert len(ratios) == 5


def test_what_others_published_is_said_as_theirs(tmp_path: Path, show: Callable[..., View]):
    at = Environment(replace(CARD, name=reference_rows.SERVER), ON_CARD.versions)
    with Store.open(tmp_path / "p.db") as store:
        store.import_reference(
            reference_rows.source(),
            [reference_rows.dense(16, n=SMALL.n, k=SMALL.k), reference_rows.dense(16, n=64, k=64)],
        )
        run = store.create_run(new_run(environment=at))
        store.add_winners([new_winner(run, problem=LARGE, environment=at, policy="cuda.graph")])
        view = sound(show(store, "problem", problem=SMALL.key))
        (row,) = rows_of(view, "published")
        assert (value(row["published_us"]), row["precision"], row["attribution"]) == (
            26.0,
            "NVFP4",
            "Copyright (c) Somebody",
        )
        assert Mark.REFERENCE in row["published_us"].marks
        assert "published times bring no config" in words_of(view).lower()
        assert [section.anchor for section in view.sections] == ["nearest", "published"]


def test_a_problem_that_nobody_has_seen_can_be_tuned(h200: Store, empty: Store, show: Callable[..., View]):
    for store in (h200, empty):
        view = sound(show(store, "problem", problem="dense:7x16x16:uniform:nvfp4_w4a16:fp16"))
        assert view.next_steps[0].command == "fp4tune tune --shape 7x16x16 --format nvfp4_w4a16 --out-dtype fp16"
        assert "never tried" in view.lead
