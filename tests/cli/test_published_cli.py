"""What others published, on the command line: `best` and `doctor`."""

from __future__ import annotations

import json

from fp4tune.db import Store
from fp4tune.kernels.device import Device
from published_rows import CARD, SYSTEM, publish
from winner_factory import environment, new_run, new_winner

SHAPE = "16x2048x7168"


def test_doctor_says_what_is_published_for_the_card(fp4tune, tmp_path):
    with Store.open(tmp_path / "fp4tune.db") as store:
        n_rows = publish(store)
    done = fp4tune("doctor", name=CARD)
    assert done.returncode == 0, done.stderr
    assert f"Published by others for this card: {n_rows} times of {SYSTEM}, by SGLang 0.5.14" in done.stdout
    assert "Yours beside published" not in done.stdout


def test_doctor_puts_yours_beside_published(fp4tune, tmp_path):
    card = Device(**json.loads(fp4tune("doctor", "--json", name=CARD).stdout)["device"])
    with Store.open(tmp_path / "fp4tune.db") as store:
        publish(store)
        for at in (environment(card), environment()):
            run = store.create_run(new_run(at, [SHAPE, "24x2048x7168"]))
            shape = SHAPE if at.device == card else "24x2048x7168"  # of another card: not yours
            store.add_winner(new_winner(run, shape, at, time_us=26.5))
    (pair,) = json.loads(fp4tune("doctor", "--json", name=CARD).stdout)["published"]["beside"]
    assert pair["shape"] == SHAPE
    assert pair["measured"] == {"backend": "triton.native", "policy": "cuda.eager", "time_us": 26.5}
    assert (pair["reference"]["precision"], pair["reference"]["framework"]) == ("nvfp4", "sglang")
    assert pair["reference"]["differs"] == ["quantises activations", "may be L2-hot"]
    printed = fp4tune("doctor", name=CARD).stdout
    assert "Yours beside published, measured in different ways" in printed
    assert "published from: Copyright (c) 2025-2026 NVIDIA" in printed


def test_doctor_goes_on_without_a_database(fp4tune):
    done = fp4tune("doctor", "--db", "none.db", name=CARD)
    assert done.returncode == 0, done.stderr
    assert "Published by others for this card: not known. There is no database at none.db" in done.stdout


def test_doctor_on_a_card_that_nobody_published(fp4tune, tmp_path):
    with Store.open(tmp_path / "fp4tune.db") as store:
        publish(store)
    said = f"Published by others for this card: none; what is imported is of {CARD}"
    assert said in " ".join(fp4tune("doctor").stdout.split())
    assert json.loads(fp4tune("doctor", "--json").stdout)["published"]["systems"] == []


def test_best_keeps_its_exit_codes(fp4tune, tmp_path):
    with Store.open(tmp_path / "fp4tune.db") as store:
        publish(store)
    assert fp4tune("best", "--shape", SHAPE, "--device", CARD).returncode == 0
    none = fp4tune("best", "--shape", SHAPE, "--shape", "16x16x16", "--device", CARD)
    assert none.returncode == 3
    assert "Published by others, nothing to serve" in none.stdout
    assert "no time of N 16 and K 16 is published for the card" in none.stdout.replace("\n", " ")
