"""`fp4tune results`: the page is what the store holds, byte for byte the same each time."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import results_store
from fp4tune.api.cli.app import run
from fp4tune.api.results import Verdict, agreement, figures, gather
from fp4tune.api.results import page as page_of
from fp4tune.api.results.command import command_of
from fp4tune.db.records import Origin, RunProblem, TrialFilter, TrialStatus, WinnerFilter
from fp4tune.db.store import Store
from fp4tune.kernels.backend import load_backends
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.kernels.problem import Format, OutDtype, Routing, parse_shape

GOLDEN = Path(__file__).with_name("results_golden.md")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """(database, the run, the run again)"""
    path = tmp_path_factory.mktemp("results") / "r.db"
    return (str(path), *results_store.make(path))


def page(stored, *options):
    database, first, second = stored
    out = Path(database).with_name("page.md")
    assert run(["results", first, "--again", second, "--db", database, "--out", str(out), *options]) == 0
    return out.read_text(encoding="utf-8").replace(first, "FIRST").replace(second, "SECOND")


def test_the_page_is_the_golden_one(stored, request):
    text = page(stored)
    if not GOLDEN.exists():
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "if it is meant, delete the golden file and run again"
    assert page(stored) == text


def test_every_time_on_the_page_is_in_the_store(stored):
    database, first, second = stored
    with Store.open(database, mode="read") as store:
        medians = {
            f"{trial.time_us:.2f}"
            for one in (first, second)
            for trial in store.trials(TrialFilter(run_id=one), limit=1000).items
            if trial.time_us is not None
        }
        served = [w for one in (first, second) for w in store.winners(WinnerFilter(run_id=one, current=None)).items]
    text = page(stored)
    shown = set(re.findall(r"\| (\d+\.\d\d) \[", text))
    assert shown
    assert shown <= medians
    for winner in served:
        choice = winner.choice
        assert f"| {choice.time_us:.2f} [{choice.time_us_low:.2f}, {choice.time_us_high:.2f}] |" in text
        if winner.run_id == first:
            assert f"| {winner.default.time_us:.2f} | {winner.speedup:.2f}x |" in text


def test_figures_of_a_run(stored):
    database, first, _ = stored
    with Store.open(database, mode="read") as store:
        found = gather(store, first[:12], load_backends())
        trials = store.trials(TrialFilter(run_id=first), limit=1000).items
    dense, _, refused = found.problems
    own = [t for t in trials if t.problem == dense.problem]
    assert dense.baseline.backend == "torch.bf16"
    assert dense.baseline.final
    assert dense.baseline.time_us == 20.4
    assert [one.backend for one in dense.defaults] == ["triton.dequant"], "a baseline has no default to be served"
    assert dense.defaults[0].time_us == 12.2, "that of the finals, not of the search"
    assert [(one.backend, one.time_us, one.final) for one in dense.bests] == [("triton.dequant", 10.2, True)]
    assert sum(dense.statuses.values()) + dense.n_finals == len(own)
    assert dense.compile_s == sum(t.compile_s for t in own)
    assert dense.wall_s == 9.0
    assert (dense.n_throttled, dense.n_samples) == (2, 8 * 20)
    assert dense.conditions.sm_clock_mhz == (1700, 1980)
    assert dense.roof_share == pytest.approx(5 / 10.2)
    assert refused.winner is None
    assert found.roofs.copy_bytes_per_s == 4.2e12


def test_backends_stand_side_by_side(tmp_path):
    """Whose best did not reach the finals has it from the search, marked; who could not run says why, once."""
    clock = results_store.Clock()
    with Store.open(tmp_path / "r.db", clock=clock) as store:
        writer = results_store.Writer(store, clock)
        for item in (results_store.DENSE, results_store.GROUPED):
            writer.tune(item, results_store.FAST, scale=1.0)
            writer.trial(item.problem, "humming", {"a": 1}, Origin.DEFAULT, 40.8)
            writer.trial(item.problem, "humming", {"a": 2}, Origin.SAMPLER, 25.5)
            writer.trial(
                item.problem, "torch.dequant", {}, Origin.DEFAULT, None,
                status=TrialStatus.UNSUPPORTED, error="no | memory\nat all",
            )  # fmt: skip
        text = page_of([gather(store, writer.id, load_backends())])
    assert (
        "| humming default | humming best | torch.dequant default | torch.dequant best | triton.dequant default |"
        in text
    )
    row = "| 4x4096x7168 | 20.40 | 40.80\\* (0.50x) | 25.50\\* (0.80x) | unsupported | - | 12.20 (1.67x) | 10.20 (2.00x) |"
    assert row in text
    assert text.count("no \\| memory") == 1
    assert "**geometric mean**" not in text, "nobody ran the third problem"
    assert "(4x4096x7168, e64k8:16x256x4096)" in text


def test_the_mean_of_backends_that_ran_every_problem(tmp_path):
    clock = results_store.Clock()
    with Store.open(tmp_path / "r.db", clock=clock) as store:
        writer = results_store.Writer(store, clock)
        for item, scale in ((results_store.DENSE, 1.0), (results_store.GROUPED, 3.0)):
            writer.tune(item, results_store.FAST, scale=scale)
        writer.trial(results_store.DENSE.problem, "humming", {"a": 1}, Origin.DEFAULT, 10.2)
        found = gather(store, writer.id, load_backends())
    text = page_of([replace(found, problems=found.problems[:2])])
    assert "| **geometric mean** |  | - | - | (1.67x) | (2.00x) |" in text


def test_what_a_shape_leaves_out_is_said():
    problem = parse_shape("4x64x128", format=Format.NVFP4_W4A16, out_dtype=OutDtype.FP32)
    assert figures.shape_text(problem) == "4x64x128 nvfp4_w4a16 fp32"
    assert figures.shape_text(parse_shape("e8k2:4x64x128", routing=Routing.ONE_HOT)) == "e8k2:4x64x128 one_hot"
    assert figures.shape_text(parse_shape("4x64x128")) == "4x64x128"
    assert figures.shape_text(parse_shape("4x64x128", format=Format.BF16)) == "4x64x128 bf16"  # as is the usual output


def test_an_interruption_is_no_work(tmp_path):
    clock = results_store.Clock()
    with Store.open(tmp_path / "r.db", clock=clock) as store:
        writer = results_store.Writer(store, clock)
        writer.tune(results_store.DENSE, results_store.FAST, scale=1.0)
        clock.now += results_store.timedelta(hours=5)
        writer.tune(results_store.GROUPED, results_store.FAST, scale=1.0)
        found = gather(store, writer.id, load_backends())
    assert [one.wall_s for one in found.problems] == [9.0, 9.0, 0.0]
    assert not found.problems[2].done


def test_how_often_two_runs_serve_the_same(stored):
    database, first, second = stored
    with Store.open(database, mode="read") as store:
        one, two = (gather(store, name, load_backends()) for name in (first, second))
    found = agreement(one, two)
    assert [verdict for _, verdict, _, _ in found.verdicts] == [Verdict.SAME, Verdict.TIED]
    assert found.counts == {Verdict.SAME: 1, Verdict.TIED: 1, Verdict.DIFFERENT: 0, Verdict.ONE_ONLY: 0}
    assert (
        "Of 2 problems both runs serve the same config for 1, one inside the tie set of the other run for 1, and another for 0"
        in page(stored)
    )


def test_a_served_config_outside_of_both_tie_sets_is_different(tmp_path):
    clock = results_store.Clock()
    with Store.open(tmp_path / "r.db", clock=clock) as store:
        writers = [results_store.Writer(store, clock) for _ in range(2)]
        for writer, served in zip(writers, (results_store.FAST, results_store.SLOW), strict=True):
            writer.tune(results_store.DENSE, served, scale=1.0)
        one, two = (gather(store, writer.id, load_backends()) for writer in writers)
    assert agreement(one, two).counts[Verdict.DIFFERENT] == 1


def test_runs_of_two_policies_are_not_compared(tmp_path):
    clock = results_store.Clock()
    with Store.open(tmp_path / "r.db", clock=clock) as store:
        eager = {**results_store.SETTINGS, "policy": "cuda.eager"}
        writers = [results_store.Writer(store, clock, settings) for settings in (results_store.SETTINGS, eager)]
        one, two = (gather(store, writer.id, load_backends()) for writer in writers)
    with pytest.raises(InvalidInputError, match="two policies"):
        agreement(one, two)


def test_a_run_again_may_lie_in_another_database(stored, tmp_path, capsys):
    database, first, _ = stored
    other = tmp_path / "again.db"
    _, again = results_store.make(other)
    assert run(["results", first, "--again", again, "--again-db", str(other), "--db", database, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["again"][0]["counts"]["same config"] == 1
    assert document["runs"][0]["run"]["id"] == first


def noise_file(folder, *entries, environment=results_store.CARD.fingerprint):
    """What `fp4tune noise --json` prints: (problem, backend, policy, within, across)."""
    document = {
        "environment_fingerprint": environment,
        "noise": [
            {
                "key": key, "backend": backend, "config": {"block_n": 64}, "policy": policy, "times_us": [[10.2, 10.3]],
                "within": {"median": within, "worst": within * 2}, "across": {"median": across, "worst": across * 3},
            }
            for key, backend, policy, within, across in entries
        ],
    }  # fmt: skip
    file = folder / "noise.json"
    file.write_text(json.dumps(document))
    return str(file)


def test_noise_gets_a_column_and_a_table(stored, tmp_path):
    key = results_store.DENSE.problem.key
    file = noise_file(
        tmp_path,
        (key, "torch.bf16", "cuda.graph", 0.5, 0.9),
        (key, "triton.dequant", "cuda.graph", 0.001, 0.0042),
    )
    text = page(stored, "--noise", file)
    served, table = text.split("## A/A")
    assert "| tied | A/A |" in served
    assert "| 49 % | 2 | 0.42 % |" in served, "of the backend that is served"
    assert "90.00 %" not in served
    assert "| 16 % | 2 | - |" in served, "nobody measured it"
    assert "| 4x4096x7168 | `torch.bf16` | `block_n=64` | 10.20 | 50.00 % | 100.00 % | 90.00 % | 270.00 % |" in table
    assert "--noise noise.json" in text, "without the folder it lies in"
    assert str(tmp_path) not in text
    assert "A/A" not in page(stored)


def test_noise_of_several_files(stored, tmp_path):
    files = []
    for i, item in enumerate((results_store.DENSE, results_store.GROUPED)):
        (tmp_path / str(i)).mkdir()
        entry = (item.problem.key, "triton.dequant", "cuda.graph", 0.001, 0.01 * (i + 1))
        files += ["--noise", noise_file(tmp_path / str(i), entry)]
    served = page(stored, *files).split("## A/A")[0]
    assert "| 49 % | 2 | 1.00 % |" in served
    assert "| 16 % | 2 | 2.00 % |" in served


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "is not what"), ("[]", "is not what"), ('{"environment_fingerprint": "x", "noise": [{}]}', "is not what"),
     ('{"environment_fingerprint": "x", "noise": []}', "was measured in environment x")],
)  # fmt: skip
def test_noise_of_somebody_else(stored, tmp_path, capsys, text, says):
    file = tmp_path / "noise.json"
    file.write_text(text)
    database, first, _ = stored
    assert run(["results", first, "--db", database, "--noise", str(file)]) == 2
    assert says in capsys.readouterr().err


def test_noise_of_another_policy(stored, tmp_path, capsys):
    database, first, _ = stored
    file = noise_file(tmp_path, (results_store.DENSE.problem.key, "triton.dequant", "cuda.eager", 0.1, 0.1))
    assert run(["results", first, "--db", database, "--noise", file]) == 2
    assert "measured by policy cuda.eager, and the runs by cuda.graph" in capsys.readouterr().err


def test_the_page_goes_to_standard_output(stored, capsys):
    database, first, second = stored
    assert run(["results", first, second, "--db", database]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# NVIDIA H200\n")
    assert text.count("\n## some-model, TP 8, EP 1\n") == 2


def test_bad_input(stored, tmp_path, capsys):
    database, first, second = stored
    missing = str(tmp_path / "none" / "x.md")
    for arguments, code, says in (
        (["NOSUCHRUN"], 3, "NOSUCHRUN"),
        ([first, "--again", "NOSUCHRUN"], 3, "NOSUCHRUN"),
        ([first, "--out", missing], 2, "cannot be written to"),
        ([first, "--again-db", "x.db"], 2, "no --again is given"),
        ([first, "--noise", missing], 3, "There is no file"),
        ([first, "--again", second, "--again-db", missing], 3, "There is no database"),
    ):
        assert run(["results", *arguments, "--db", database]) == code, arguments
        captured = capsys.readouterr()
        assert says in captured.err
        assert captured.out == ""


def test_runs_of_two_environments_make_no_page(tmp_path, monkeypatch, capsys):
    clock = results_store.Clock()
    with Store.open(tmp_path / "r.db", clock=clock) as store:
        one = results_store.Writer(store, clock)
        one.tune(results_store.DENSE, results_store.FAST, scale=1.0)
        other = results_store.Environment(results_store.CARD.device, {"torch": "2.13.0"})
        monkeypatch.setattr(results_store, "CARD", other)
        two = results_store.Writer(store, clock)
        two.tune(results_store.DENSE, results_store.FAST, scale=1.0)
    for arguments in ([one.id, two.id], [one.id, "--again", two.id]):
        assert run(["results", *arguments, "--db", str(tmp_path / "r.db")]) == 2
        assert "two environments" in capsys.readouterr().err


def test_the_command_of_bare_shapes():
    item = RunProblem(parse_shape("4x64x128", format=Format.NVFP4_W4A16))

    settings = {"trials": 64, "budget_s": 2.5, "policy": "cuda.eager"}
    stored = SimpleNamespace(checkpoint="", seed=3, settings=settings)
    assert command_of(stored, [item]) == (
        "fp4tune tune --shape 4x64x128 --format nvfp4_w4a16 --budget-s 2.5 --seed 3 --policy eager"
    )
