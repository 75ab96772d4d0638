"""The index follows the database while it is read, by this process and by others."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from fp4tune.api.http.live import LiveIndex
from fp4tune.db import Store
from http_server import Serve, fill, wait_until
from winner_factory import device, environment, new_run, new_winner

WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from fp4tune.db import Store
from winner_factory import environment, new_run, new_winner
with Store.open(sys.argv[1], mode="write") as store:
    run = store.create_run(new_run(environment(), ["16x2048x4096"]))
    for m in range(100, 130):
        store.add_winner(new_winner(run, f"{m}x2048x4096", environment()))
        store.add_winner(new_winner(run, "16x2048x4096", environment(), time_us=float(m)))
"""


def new_environment_winner(store: Store, time_us: float = 10.0) -> None:
    at = environment(device("Later Card"), torch="2.14.0")
    run = store.create_run(new_run(at, ["16x2048x4096"]))
    store.add_winner(new_winner(run, "16x2048x4096", at, time_us=time_us))


def test_refresh_takes_only_what_is_new(any_store: Store):
    fill(any_store)
    shown: list[int] = []
    live = LiveIndex(any_store, lambda served: shown.append(served.index.size))
    assert live.refresh()
    first = live.served
    assert not live.refresh()
    assert live.served is first, "kept answers live on while nothing changes"
    new_environment_winner(any_store)
    assert live.refresh()
    assert live.served is not first
    assert live.served.index.size == first.index.size + 1
    assert len(live.served.index.environments) == len(first.index.environments) + 1
    assert shown == [first.index.size, first.index.size, first.index.size + 1]
    fresh = LiveIndex(any_store, lambda served: None)
    fresh.refresh()
    assert fresh.served.index.shelves == live.served.index.shelves
    assert fresh.served.index.last_id == live.served.index.last_id


def test_environment_without_winners_is_known_after_a_start(store: Store, serve: Serve):
    fill(store)
    store.create_run(new_run(environment(driver="590"), ["16x2048x4096"]))
    server = serve(store)
    answer = server.best("16x2048x4096", environment=environment(driver="590").fingerprint).json()
    assert answer["match"] == "compatible"


def test_winners_of_another_process_become_visible(tmp_path: Path, serve: Serve):
    with Store.open(tmp_path / "fp4tune.db") as store:
        fill(store)
        server = serve(store, poll_s=0.5)
        assert server.best("129x2048x4096").status_code == 404
        tests = str(Path(__file__).resolve().parent.parent)
        subprocess.run([sys.executable, "-c", WRITER, str(tmp_path / "fp4tune.db"), tests], check=True, timeout=60)
        wait_until(lambda: server.best("129x2048x4096").status_code == 200)
        assert server.best("16x2048x4096").json()["time_us"] == 129.0
        assert server.metric("fp4tune_index_winners") == 4 + 30


def test_readers_never_see_a_mixture(store: Store, serve: Serve):
    """While winners change, every answer is whole, and newer answers never give way to older ones."""
    fill(store)
    server = serve(store)
    stop = threading.Event()
    failures: list[str] = []
    seen: set[float] = set()

    def read(path: str, body: dict | None) -> None:
        last = 0.0
        with httpx.Client(base_url=server.url, timeout=30) as client:
            while not stop.is_set():
                response = client.post(path, json=body) if body else client.get(path)
                document = response.json()
                if response.status_code != 200:
                    failures.append(response.text)
                    return
                if response.headers["etag"] != f'"{hashlib.sha256(response.content).hexdigest()[:32]}"':
                    failures.append("the ETag is not the body's")
                times = {answer["time_us"] for answer in document.get("answers", [document])}
                if len(times) != 1 or min(times) < last:
                    failures.append(f"{times} after {last}")
                last = max(times)
                seen.add(last)

    run = store.create_run(new_run(environment(), ["16x2048x4096"]))
    store.add_winners(
        [new_winner(run, shape, environment(), time_us=10.0) for shape in ("16x2048x4096", "32x2048x4096")]
    )
    batch = {"shapes": ["16x2048x4096", "32x2048x4096"] * 20}
    readers = [threading.Thread(target=read, args=("/best-config?shape=16x2048x4096", None)) for _ in range(2)]
    readers += [threading.Thread(target=read, args=("/v1/best-configs", batch)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for step in range(11, 41):
        # Both in one transaction: no reader may see one of them without the other.
        store.add_winners(
            [new_winner(run, shape, environment(), time_us=float(step)) for shape in ("16x2048x4096", "32x2048x4096")]
        )
    wait_until(lambda: failures or 40.0 in seen)
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert len(seen) > 1


def test_a_start_that_fails_leaves_nothing_running(tmp_path: Path):
    from fp4tune.api.http.service import Service
    from fp4tune.kernels.errors import StoreError
    from http_server import settings_for_tests

    path = tmp_path / "fp4tune.db"
    path.write_bytes(b"this is no database" * 1000)
    before = threading.active_count()
    service = Service(settings_for_tests(db=str(path)))
    with pytest.raises(StoreError):
        service.start()
    assert threading.active_count() == before
    with pytest.raises(StoreError, match="not been started"):
        _ = service.store
    assert service.not_ready()
    service.stop()
