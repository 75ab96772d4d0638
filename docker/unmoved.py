"""Sees that installing fp4tune into a serving image moves nothing there.

`python unmoved.py write FILE` notes every installed package with its version, as constraints for pip.
`python unmoved.py check FILE` fails and names them if any has another version now, or is gone.
Unlike `pip freeze` it names versions where that would name places, so that the file can be pip's `-c`.
"""

import re
import sys
from importlib import metadata
from pathlib import Path


def installed() -> dict[str, str]:
    """Versions by normalised name, of what is imported: the first on the path, where one is there twice."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        # A folder that an interrupted installation left behind has no name.
        name = one.metadata["Name"] if one.metadata else None
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), one.version)
    return found


def main(action: str, path: Path) -> int:
    """Write or check; the exit code."""
    now = installed()
    if action == "write":
        path.write_text("".join(f"{name}=={version}\n" for name, version in sorted(now.items())), encoding="utf-8")
        return 0
    before = dict(line.split("==", 1) for line in path.read_text(encoding="utf-8").splitlines())
    moved = [f"{name} {was} -> {now.get(name, 'gone')}" for name, was in before.items() if now.get(name) != was]
    for line in moved:
        print(f"moved: {line}", file=sys.stderr)
    added = sorted(set(now) - set(before))
    print(f"{len(before)} packages of the base are as they were; added: {', '.join(added) or 'none'}")
    return 1 if moved else 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        sys.exit("usage: unmoved.py write|check FILE")
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
