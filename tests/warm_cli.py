"""The command line on a machine whose CUDA driver is a stand-in.

Each command runs in a process of its own, forked from one that has imported PyTorch and what backends look at: that takes
six seconds of CPU, and dozens of tests ask one question each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SERVER = """
import atexit, contextlib, importlib, json, os, sys

import torch
torch.version.cuda = "13.0"  # a CUDA build, as far as it is asked
torch.cuda.is_available, torch.cuda.device_count, torch.cuda.get_arch_list = lambda: True, lambda: 8, lambda: ["sm_90"]
from fp4tune.api.cli.app import main
from fp4tune.db import store
from fp4tune.tuner import checkup, job
for slow in ("humming", "triton"):  # where they are installed
    with contextlib.suppress(ImportError):
        importlib.import_module(slow)

for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        for number, path in enumerate((os.devnull, asked["out"], asked["err"])):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
        sys.path[:0] = asked["path"]
        try:
            main(asked["arguments"])
        except SystemExit as done:
            atexit._run_exitfuncs()  # coverage writes its figures there
            os._exit(done.code)  # taking the interpreter apart after a fork copies all of its memory, for seconds
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Done:
    """How a command ended, as subprocess.run says it."""

    returncode: int
    stdout: str
    stderr: str


class WarmCli:
    """Runs commands, one at a time."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path) -> None:
        self._process = process
        self._scratch = scratch
        self._asked = 0

    def __call__(
        self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], path: Sequence[str] = ()
    ) -> Done:
        """Run `fp4tune ARGUMENTS`.

        Args:
            arguments: of the command.
            cwd: working directory.
            env: the whole environment; what the loader reads of it (LD_LIBRARY_PATH) is the server's, though.
            path: in front of sys.path.
        """
        self._asked += 1
        out, err = (self._scratch / f"{self._asked}.{name}" for name in ("out", "err"))
        asked = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "path": list(path)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**asked, "out": str(out), "err": str(err)}) + "\n")
        self._process.stdin.flush()
        code = self._process.stdout.readline()
        assert code, "the server of warm processes ended"
        return Done(int(code), out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


@contextmanager
def started(driver: Path, scratch: Path) -> Iterator[WarmCli]:
    """The server while the body runs.

    Args:
        driver: folder of the driver's library, see fake_driver.
        scratch: a folder for what commands print.
    """
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        yield WarmCli(process, scratch)
        assert process.stdin is not None
        process.stdin.close()
