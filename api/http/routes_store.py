"""The routes that list what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from ...db.records import Policy, TrialFilter, TrialStatus, WinnerFilter
from ...kernels.errors import InvalidInputError
from ..plain import Document
from . import listings
from .cursors import Position
from .openapi import NOT_MODIFIED, problems
from .questions import read_query
from .rendering import Rendered, render, respond
from .schemas import (
    DeviceList,
    EnvironmentList,
    MissList,
    RunDetailModel,
    RunPage,
    TrialPage,
    WinnerPage,
)
from .service import Service

MAX_LIMIT = 1000
"""Most items on one page."""

_STATES = {"current": True, "superseded": False, "any": None}

Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{16}$", description="a whole fingerprint")]
Key = Annotated[str, Field(pattern="^[a-z0-9_:]{1,200}$", description="a problem's `key`")]
RunId = Annotated[str, Field(pattern="^[0-9A-Za-z]{26}$", description="a whole run id")]
Backend = Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,100}$", description="a backend's name")]


class Listing(BaseModel):
    """Parameters of every listing."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=100, ge=1, le=MAX_LIMIT, description="most items")


class Paged(Listing):
    """Parameters of every listing in pages."""

    cursor: str | None = Field(
        default=None, max_length=500, description="`next_cursor` of the page before, same filters"
    )

    def filters(self) -> dict[str, object]:
        """Everything that decides which items there are, for the cursor."""
        return self.model_dump(exclude={"limit", "cursor"}, exclude_none=True)


class RunsQuery(Paged):
    """GET /v1/runs."""


class WinnersQuery(Paged):
    """GET /v1/winners."""

    state: Literal["current", "superseded", "any"] = Field(
        default="current", description="served now, history, or both"
    )
    problem: Key | None = None
    backend: Backend | None = None
    device: Fingerprint | None = None
    environment: Fingerprint | None = None
    run: RunId | None = None
    policy: Policy | None = Field(default=None, description="how it was measured")


class TrialsQuery(Paged):
    """GET /v1/trials."""

    run: RunId | None = None
    problem: Key | None = None
    backend: Backend | None = None
    status: TrialStatus | None = Field(default=None, description="how it ended")
    device: Fingerprint | None = None
    environment: Fingerprint | None = None


class MissesQuery(Listing):
    """GET /v1/misses."""

    device: Annotated[str, Field(pattern="^([0-9a-f]{16})?$", description="a whole fingerprint, or empty")] | None = (
        None
    )
    environment: (
        Annotated[str, Field(pattern="^([0-9a-f]{16})?$", description="a whole fingerprint, or empty")] | None
    ) = None


def _no_parameter_twice(request: Request) -> None:
    """Refuse a parameter that is given twice: FastAPI would take the last one."""
    read_query(request.scope["query_string"])


def _no_parameters(request: Request) -> None:
    """Refuse every parameter."""
    for name in read_query(request.scope["query_string"]):
        raise InvalidInputError(f"There is no parameter {name[:50]!r}; this route takes none.")


def _items(items: Iterable[Document]) -> Rendered:
    return render({"items": list(items)})


class StoreRoutes:
    """The listings of one service. Plain `def`: they read the database, so they run in the thread pool."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cursors = service.cursors

    def _page(self, name: str, query: Paged, items: Sequence[Document], last: Position | None) -> Rendered:
        """A page of a listing; `last` is where it ends, None if nothing follows."""
        cursor = None if last is None else self._cursors.make(name, query.filters(), last)
        return render({"items": items, "next_cursor": cursor})

    def _after(self, name: str, query: Paged) -> int:
        """The id that a page begins after."""
        return 0 if query.cursor is None else int(self._cursors.read(name, query.filters(), query.cursor))

    def runs(self, request: Request, query: Annotated[RunsQuery, Query()]) -> Response:
        """Runs, newest first."""
        before = None if query.cursor is None else str(self._cursors.read("runs", query.filters(), query.cursor))
        found = self._service.store.runs(limit=query.limit + 1, before=before)
        last = found[query.limit - 1].id if len(found) > query.limit else None
        items = [listings.run_document(run) for run in found[: query.limit]]
        return respond(request, self._page("runs", query, items, last))

    def run(
        self,
        request: Request,
        run_id: Annotated[
            str, Path(pattern="^[0-9A-Za-z]{6,26}$", description="the id, or its first 6 or more digits")
        ],
    ) -> Response:
        """One run with its problems."""
        found = self._service.store.run(run_id)
        states = [listings.run_problem_document(state) for state in self._service.store.run_problems(found.id)]
        return respond(request, render({**listings.run_document(found), "problems": states}))

    def winners(self, request: Request, query: Annotated[WinnersQuery, Query()]) -> Response:
        """Winners by id: those served now, or the history."""
        wanted = WinnerFilter(
            problem_key=query.problem, backend=query.backend, environment_fingerprint=query.environment,
            device_fingerprint=query.device, run_id=query.run, current=_STATES[query.state], policy=query.policy,
        )  # fmt: skip
        page = self._service.store.winners(wanted, limit=query.limit, after=self._after("winners", query))
        items = [listings.winner_document(winner) for winner in page.items]
        return respond(request, self._page("winners", query, items, page.next_after))

    def trials(self, request: Request, query: Annotated[TrialsQuery, Query()]) -> Response:
        """Trials by id, with their samples."""
        wanted = TrialFilter(
            run_id=query.run, problem_key=query.problem, backend=query.backend, status=query.status,
            environment_fingerprint=query.environment, device_fingerprint=query.device,
        )  # fmt: skip
        page = self._service.store.trials(wanted, limit=query.limit, after=self._after("trials", query))
        items = [listings.trial_document(trial) for trial in page.items]
        return respond(request, self._page("trials", query, items, page.next_after))

    def devices(self, request: Request) -> Response:
        """Every device that anything was measured on."""
        return respond(request, _items(listings.known_device_document(*d) for d in self._service.store.devices()))

    def environments(self, request: Request) -> Response:
        """Every environment that anything was measured in."""
        return respond(request, _items(map(listings.known_environment_document, self._service.store.environments())))

    def misses(self, request: Request, query: Annotated[MissesQuery, Query()]) -> Response:
        """Shapes that were asked for and not found, most wanted first; up to `misses_flush_s` seconds late."""
        found = self._service.store.misses(
            device_fingerprint=query.device, environment_fingerprint=query.environment, limit=query.limit
        )
        return respond(request, _items(map(listings.miss_document, found)))


def add_store_routes(app: FastAPI, service: Service) -> None:
    """Add the listings."""
    routes = StoreRoutes(service)
    for path, endpoint, model, check, more in (
        ("/v1/runs", routes.runs, RunPage, _no_parameter_twice, ()),
        ("/v1/runs/{run_id}", routes.run, RunDetailModel, _no_parameters, ("not-found",)),
        ("/v1/winners", routes.winners, WinnerPage, _no_parameter_twice, ()),
        ("/v1/trials", routes.trials, TrialPage, _no_parameter_twice, ()),
        ("/v1/devices", routes.devices, DeviceList, _no_parameters, ()),
        ("/v1/environments", routes.environments, EnvironmentList, _no_parameters, ()),
        ("/v1/misses", routes.misses, MissList, _no_parameter_twice, ()),
    ):
        app.add_api_route(
            path, endpoint, methods=["GET"], operation_id=endpoint.__name__, tags=["stored"], response_model=model,
            response_description="what is stored", dependencies=[Depends(check)],
            responses={**NOT_MODIFIED, **problems("query-too-long", "invalid-input", "store", *more)},
        )  # fmt: skip
