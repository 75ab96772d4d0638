from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import fake_driver
import pytest
import warm_cli
from warm_cli import Done, WarmCli

FAKE_NVML = str(Path(__file__).parent.parent / "fake_nvml")


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCli]:
    """Runs commands where the CUDA driver is a stand-in."""
    driver = fake_driver.build(tmp_path_factory.mktemp("driver")).parent
    with warm_cli.started(driver, tmp_path_factory.mktemp("said")) as cli:
        yield cli


@pytest.fixture
def fp4tune(warm: WarmCli, tmp_path: Path) -> Callable[..., Done]:
    """Runs the command line in `tmp_path`, on a machine whose driver says what the keywords say: `count=2`.

    `nvml` are the keywords of the stand-in for NVML, which is not there without it; `env` is more environment.
    """

    def call(
        *arguments: str, nvml: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None, **says: object
    ) -> Done:
        machine = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        machine |= {"FP4TUNE_LOCK_DIR": str(tmp_path), **(env or {})}
        machine |= {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in says.items()}
        machine |= {f"FAKE_NVML_{name.upper()}": str(value) for name, value in (nvml or {}).items()}
        return warm(arguments, cwd=tmp_path, env=machine, path=[FAKE_NVML] if nvml is not None else [])

    return call
