"""The selftest: whether this installation, on this card, does what fp4tune relies on. docs/selftest.md.

`plan` says what is looked at, `numerics` runs configs through an executor, `without_card` does what needs no card,
`job` puts them together, `report` is what comes of it: plain data without names of hosts, users or folders.
"""

from .job import Means, run_selftest
from .report import Finding, Outcome, Report, document

__all__ = ["Finding", "Means", "Outcome", "Report", "document", "run_selftest"]
