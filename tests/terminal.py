"""What a command prints on a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

FP4TUNE = str(Path(sys.executable).with_name("fp4tune"))


def printed_on_a_terminal(arguments: list[str], *, columns: int) -> list[str]:
    """The lines that `fp4tune ARGUMENTS` prints on a terminal, without colours and trailing blanks."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "NO_COLOR", "FORCE_COLOR"}}
    chunks = []
    with subprocess.Popen([FP4TUNE, *arguments], stdout=follower, env={**environment, "TERM": "xterm"}) as process:
        os.close(follower)
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:  # EIO: nobody holds the other end any more
                break
            if not chunk:
                break
            chunks.append(chunk)
    os.close(leader)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", b"".join(chunks).decode())
    return [line.rstrip() for line in text.splitlines()]
