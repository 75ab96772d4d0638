"""The results page of a card: everything that a run found, from the database alone, as Markdown.

No clock, no device and no backend is asked: the same database gives the same page everywhere.
"""

from __future__ import annotations

from .agreement import Agreement, Verdict, agreement
from .gather import Measured, ProblemResult, RunResult, gather
from .noise_file import NoiseEntry, read_noise
from .page import page

__all__ = [
    "Agreement",
    "Measured",
    "NoiseEntry",
    "ProblemResult",
    "RunResult",
    "Verdict",
    "agreement",
    "gather",
    "page",
    "read_noise",
]
