"""The main job end to end on the device at hand: inspect, tune, serve, ask. Run by `make demo`.

Everything goes through the command line and HTTP, as a user's own would. The database stays, for looking around.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

PRESET = "qwen3.5-397b-a17b-nvfp4"
FP4TUNE = str(Path(sys.executable).with_name("fp4tune"))
START_TIMEOUT_S = 60


def command(*arguments: str) -> None:
    """Print a command as a user would type it, and run it."""
    print(f"\n$ fp4tune {shlex.join(arguments)}", flush=True)
    done = subprocess.run([FP4TUNE, *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def ask(url: str, shape: str) -> None:
    """Ask a server for a shape and print the question and the answer."""
    question = f"{url}/best-config?{urlencode({'shape': shape})}"
    print(f"\n$ curl '{question}'", flush=True)
    with urllib.request.urlopen(question, timeout=5) as reply:
        print(json.dumps(json.load(reply), indent=2, ensure_ascii=False), flush=True)


def serve_and_ask(database: str, shape: str) -> None:
    """Start the server on a free port, ask it, stop it."""
    print(f"\n$ fp4tune serve --db {database} --port 0", flush=True)
    server = subprocess.Popen(
        [FP4TUNE, "serve", "--db", database, "--port", "0"], stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        ask(_url_of(server), shape)
    finally:
        server.terminate()
        server.wait(timeout=20)


def _url_of(server: subprocess.Popen[str]) -> str:
    """The address that the server prints once it is ready."""
    assert server.stderr is not None
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        line = server.stderr.readline()
        if not line:
            break
        print(line, end="", flush=True)
        for word in line.split():
            if word.startswith("http://"):
                return word
    sys.exit("the server did not start")


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default="demo.db", help="database to write (default: demo.db)")
    parser.add_argument("--tokens", default="1,4", help="token counts to tune (default: 1,4)")
    parser.add_argument("--budget-s", default="12", help="seconds of search per problem (default: 12)")
    options = parser.parse_args()

    command("inspect", PRESET, "--tp", "8", "--tokens", options.tokens)
    command(
        "tune", PRESET, "--tp", "8", "--tokens", options.tokens, "--phase", "decode",
        "--budget-s", options.budget_s, "--db", options.db,
    )  # fmt: skip
    first = options.tokens.split(",")[-1]
    serve_and_ask(options.db, f"e512k10:{first}x256x4096")
    print(
        f"""
That was the whole job: checkpoint in, winners in {options.db}, the best configuration out over HTTP.

How to go on:
  fp4tune best --shape 'e512k10:{first}x256x4096' --db {options.db}   the same answer without a server
  fp4tune runs --db {options.db}                                 what was tuned, and when
  fp4tune serve --db {options.db}                                serve it; the API's pages are at /docs
  fp4tune doctor                                            which backends can run here, and why not the others
  fp4tune tune YOUR_CHECKPOINT --tp N                       tune your own model on the card at hand"""
    )


if __name__ == "__main__":
    main()
