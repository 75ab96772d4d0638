"""`fp4tune compile`: facts about configs for cards that are not here."""

from __future__ import annotations

import json

import pytest
from fp4tune.api.cli.app import run
from fp4tune.db.records import CompileStatus
from fp4tune.db.store import Store
from fp4tune.kernels.backend import config_key
from fp4tune.kernels.cards import CARDS, card_for
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.problem import parse_shape
from fp4tune.kernels.triton_gemm.native import TritonNative
from fp4tune.tuner.static_compile import compile_without_device, configs_to_compile

pytest.importorskip("triton")

SMALL = parse_shape("16x64x256")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def test_facts_are_printed_and_stored_as_compiled(tmp_path, capsys):
    database = str(tmp_path / "t.db")
    assert run(["compile", "--shape", SMALL.shape, "--configs", "1", "--db", database, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    with Store.open(database, mode="read") as store:
        stored = store.static_facts().items
    assert len(printed) == len(stored) == 2
    default = next(s for s in stored if config_key(s.config) == config_key(printed[0]["config"]))
    assert config_key(default.config) == config_key(TritonNative().default(SMALL, card_for("sm_120a")))
    assert (default.status, default.target, default.problem) == (CompileStatus.OK, "sm_120a", SMALL)
    assert set(default.versions) == {"triton"}
    assert default.compile_s > 0
    assert default.facts.stack_bytes == 0
    assert list(default.facts.instructions) == ["OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"]
    assert printed[0]["facts"]["registers"] == default.facts.registers


def test_what_must_not_run_is_stored_with_the_reason():
    """A config outside the space stands for one whose compiler says no."""
    backend, card = TritonNative(), card_for("sm_120a")
    wrong = {**backend.default(SMALL, card), "block_k": 48}
    (entry,) = compile_without_device(backend, card, [(SMALL, wrong)], target="sm_120a", workers=1)
    assert entry.status is CompileStatus.UNSUPPORTED
    assert entry.facts is None
    assert "block_k" in entry.error


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "--shape"),
        (["--shape", "16x64x256", "--arch", "sm_75"], 3, "sm_120, sm_121"),
        (["--shape", "16x64x256", "--arch", "h200"], 4, "no FP4 matrix units"),
        (["--shape", "16x64x256", "--backend", "no.such"], 3, "triton.native"),
        (["--shape", "16x64x256", "--backend", "cpu.dequant"], 4, "cpu.dequant cannot compile for"),
        (["--shape", "16x64x256", "--format", "bf16"], 4, "bf16"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_no_database(tmp_path, capsys, arguments, code, says):
    database = tmp_path / "t.db"
    assert run(["compile", *arguments, "--db", str(database)]) == code
    assert says in capsys.readouterr().err
    assert not database.exists()


def test_a_draw_has_the_default_first_no_repeats_and_a_seed():
    backend, card = TritonNative(), CARDS["rtx-5090"]
    problem = parse_shape("16x4096x7168")
    configs = configs_to_compile(backend, problem, card, n=20, seed=1)
    assert configs[0] == backend.default(problem, card)
    assert len({config_key(c) for c in configs}) == len(configs) == 21
    assert all(c in backend.space(problem, card) for c in configs)
    assert configs == configs_to_compile(backend, problem, card, n=20, seed=1)
    assert configs != configs_to_compile(backend, problem, card, n=20, seed=2)


def test_a_small_space_is_drawn_to_its_end():
    backend, card = TritonNative(), card_for("sm_100a")
    problem = parse_shape("1x16x16")
    configs = configs_to_compile(backend, problem, card, n=1000, seed=0)
    assert len(configs) == len(list(backend.space(problem, card)))


def test_a_backend_that_compiles_nothing_says_so():
    with pytest.raises(UnsupportedError, match="cpu.dequant has nothing"):
        list(compile_without_device(CpuDequant(), card_for("sm_120a"), [], target="sm_120a"))


def test_every_card_is_found_by_its_name_and_one_by_its_architecture():
    for name, card in CARDS.items():
        assert card_for(name) is card
        digits = card.compute_capability.replace(".", "")
        for text in (digits, f"sm_{digits}", f"sm_{digits}a"):
            assert card_for(text).compute_capability == card.compute_capability
