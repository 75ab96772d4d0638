"""Whether a process is the one that it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fp4tune.db import liveness


def test_this_process_is_there_and_keeps_its_birth():
    assert liveness.process_birth(os.getpid()) == liveness.process_birth(os.getpid()) > 0
    assert liveness.process_birth(1) >= 0


@pytest.mark.parametrize("pid", [0, -1, -(1 << 40), 1 << 30, 1 << 70])
def test_what_is_no_pid_is_no_process(pid: int):
    assert liveness.process_birth(pid) == liveness.NO_PROCESS


def test_a_zombie_is_no_process():
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.read()  # until it ended
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert liveness.process_birth(process.pid) == liveness.NO_PROCESS
        process.wait()


def test_a_process_with_a_name_that_looks_like_fields_is_read_right(tmp_path: Path):
    script = tmp_path / "a) Z 1 ("
    script.symlink_to(sys.executable)
    with subprocess.Popen([script, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert liveness.process_birth(process.pid) >= liveness.process_birth(os.getpid())
        process.communicate(b"\n")
