"""The contract of a question."""

from __future__ import annotations

from typing import Protocol, TypeVar

import sqlalchemy as sa

T_co = TypeVar("T_co", covariant=True)


class Question(Protocol[T_co]):
    """Something to ask of the store: a frozen dataclass of parameters that can answer itself."""

    def answer(self, connection: sa.Connection) -> T_co:
        """The answer.

        Args:
            connection: in a transaction for reading.

        Raises:
            NotFoundError: something that the question names is not stored.
        """
        ...
