"""Reading JSON that others wrote: fields by name and type, none missing, none left over."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from ..kernels.errors import InvalidInputError

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")


def time_text(at: datetime) -> str:
    """A time as `Fields.time` reads it: ISO 8601 in UTC, to the microsecond."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


class Fields:
    """The fields of a JSON object. Each is taken once, by name; `end` refuses what nobody took.

    Args:
        document: the object.
        what: what it is, for sentences.

    Every method may raise:
        InvalidInputError: the field is not there, or is of another type.
    """

    def __init__(self, document: dict[str, Any], what: str) -> None:
        self._rest = dict(document)
        self._what = what

    def end(self) -> None:
        """Refuse fields that were not taken: what a reader does not know may change what the others mean."""
        for name in self._rest:
            raise InvalidInputError(f"{self._what} has a field {name[:60]!r}, which this fp4tune does not know")

    def _take(self, name: str, types: tuple[type, ...], kind: str) -> Any:
        try:
            value = self._rest.pop(name)
        except KeyError:
            raise InvalidInputError(f"{self._what} has no {name}") from None
        if type(value) not in types:  # not isinstance: true is no integer
            raise InvalidInputError(f"{name} must be {kind}, and is {ascii(value)[:60]}")
        return value

    def text(self, name: str) -> str:
        """A string."""
        value: str = self._take(name, (str,), "a text")
        return value

    def integer(self, name: str) -> int:
        """An integer."""
        value: int = self._take(name, (int,), "a whole number")
        return value

    def number(self, name: str) -> float:
        """A number."""
        return _float(self._take(name, (int, float), "a number"), name)

    def flag(self, name: str) -> bool:
        """True or false."""
        value: bool = self._take(name, (bool,), "true or false")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """An object."""
        value: dict[str, Any] = self._take(name, (dict,), "an object")
        return value

    def items(self, name: str, read: Callable[[Any], T]) -> list[T]:
        """A list, each item read by `read`."""
        return [read(item) for item in self._take(name, (list,), "a list")]

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        return self.items(name, lambda item: Fields({name: item}, self._what).text(name))

    def integers(self, name: str) -> list[int]:
        """A list of integers."""
        return self.items(name, lambda item: Fields({name: item}, self._what).integer(name))

    def numbers(self, name: str) -> list[float]:
        """A list of numbers."""
        items: list[Any] = self._take(name, (list,), "a list")
        if not {type(item) for item in items} <= {int, float}:
            raise InvalidInputError(f"{name} must be a list of numbers")
        return [_float(item, name) for item in items]

    def time(self, name: str) -> datetime:
        """A time with its zone, ISO 8601."""
        text = self.text(name)
        try:
            at = datetime.fromisoformat(text)
            if at.tzinfo is not None:
                return at.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
        raise InvalidInputError(f"{name} must be a time with its zone in ISO 8601, and is {ascii(text)[:60]}")

    def word(self, name: str, words: type[E]) -> E:
        """One of an enumeration's values."""
        text = self.text(name)
        try:
            return words(text)
        except ValueError:
            raise InvalidInputError(f"{name} must be one of {', '.join(words)}, and is {ascii(text)[:60]}") from None

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """A field that may be null; else what `read`, one of these methods, makes of it."""
        if name in self._rest and self._rest[name] is None:
            del self._rest[name]
            return None
        return read(name)

    def object(self, name: str) -> Fields:
        """An object, to be read like this one."""
        return Fields(self.mapping(name), name)

    def objects(self, name: str, read: Callable[[Fields], T]) -> list[T]:
        """A list of objects, each made by `read` of its fields."""
        items: list[Any] = self._take(name, (list,), "a list")
        return [read(Fields({name: item}, self._what).object(name)) for item in items]

    def rest(self, read: Callable[[str], T]) -> dict[str, T]:
        """All fields that were not taken yet, each read by `read`, one of these methods."""
        return {name: read(name) for name in list(self._rest)}


def _float(value: float, name: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InvalidInputError(f"{name} is too large for a number") from None
