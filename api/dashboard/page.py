"""The contract of a page: what its address may say, and the view that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from ...kernels.errors import NotFoundError
from .model import View

if TYPE_CHECKING:
    from ...db import Store
    from ..http.cursors import Cursors

ROOT = "/dashboard"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a page's address. An empty value is as good as none.

    Attributes:
        name: as in the address.
        pattern: what a value must match as a whole.
        meaning: what it must be, for the page that refuses another: `a whole fingerprint, 16 hexadecimal digits`.
    """

    name: str
    pattern: str
    meaning: str


ENVIRONMENT = Parameter("environment", "[0-9a-f]{16}", "an environment's fingerprint, 16 hexadecimal digits")
DEVICE = Parameter("device", "[0-9a-f]{16}", "a device's fingerprint, 16 hexadecimal digits")
PROBLEM = Parameter("problem", "[a-z0-9_:]{1,200}", "a problem's key, such as dense:16x4096x7168:uniform:nvfp4:bf16")
RUN = Parameter("run", "[0-9A-Za-z]{6,26}", "a run's id, or its first six characters or more")
BACKEND = Parameter("backend", "[A-Za-z0-9_.-]{1,100}", "a backend's name")
POLICY = Parameter("policy", "[a-z0-9_.]{1,100}", "a measuring policy, such as cuda.graph")
STATUS = Parameter("status", "[a-z_]{1,32}", "how a trial ended")
CURSOR = Parameter("cursor", "[A-Za-z0-9_=.~-]{1,500}", "the address of a next page, unchanged")


@dataclass(frozen=True, slots=True)
class Asked:
    """A page's address, read.

    Attributes:
        page: the page's slug. values: parameters that were given, each of its pattern.
    """

    page: str
    values: Mapping[str, str]

    def get(self, parameter: Parameter | str) -> str:
        """The value of a parameter; empty if it was not given."""
        name = parameter if isinstance(parameter, str) else parameter.name
        return self.values.get(name, "")

    def filters(self) -> dict[str, object]:
        """Everything that decides which rows there are, for a page token."""
        return {name: value for name, value in self.values.items() if name != CURSOR.name}


class UnfittingError(NotFoundError):
    """What an address names is there, but not together: a policy that the environment has no winners of.

    A page is shown without the parameters that do not fit, and says so. A CSV or JSON is refused.

    Args:
        said: what is not there, a sentence.
        without: names of the parameters to leave out.
    """

    def __init__(self, said: str, without: tuple[str, ...]) -> None:
        super().__init__(said)
        self.without = without


def address(page: str, anchor: str = "", **values: str) -> str:
    """The address of a page; values that are empty are left out, `_` at the end of a name is dropped (`from_`)."""
    given = {name.removesuffix("_"): value for name, value in values.items() if value}
    path = f"{ROOT}/{page}" if page else f"{ROOT}/"
    return path + (f"?{urlencode(given)}" if given else "") + (f"#{anchor}" if anchor else "")


@dataclass(frozen=True, slots=True)
class Context:
    """What a view has to answer with.

    Attributes:
        store: read and never written.
        cursors: signed page tokens; `cursors.read` raises what becomes a clear page.
        now: UTC.
        base_url: how the client reached this service, without a slash at the end: for lines of curl.
    """

    store: Store
    cursors: Cursors
    now: datetime
    base_url: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        slug: its address below /dashboard/; empty for the first.
        label: in the navigation; empty if it is not there (it needs a parameter to make sense).
        question: what it answers, as the heading of every view of it.
        parameters: what its address may say.
        view: what makes it. It raises an Fp4tuneError for what cannot be shown: that becomes a page with its sentence.
    """

    slug: str
    label: str
    question: str
    parameters: tuple[Parameter, ...]
    view: Callable[[Context, Asked], View]
