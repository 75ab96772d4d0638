"""What the dashboard asks of the store: one small class a question, plain records out, no question over all trials.

A question holds its own parameters and knows its own SQL; `Store.ask` answers it in one transaction for reading. Each
has bounds that do not grow with the store: an index that covers it, sums that are kept up (`trial_counts`), or a limit.
"""

from __future__ import annotations

from .question import Question

__all__ = ["Question"]
