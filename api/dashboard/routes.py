"""The routes of the dashboard: pages, the CSV and JSON of their tables, and the files that pages load."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ...kernels.errors import Fp4tuneError, InvalidInputError, NotFoundError, StoreError
from ..http.problems import internal_error, problem, problem_of_error
from ..http.rendering import Rendered, respond
from ..http.service import Service
from .assets import load_assets
from .exports import to_csv, to_json
from .failing import error_view, fault_view, too_long_view, unknown_view
from .formatting import quoted
from .model import Table, View
from .page import CURSOR, ROOT, Asked, Context, Page, UnfittingError, address
from .reading import Reading, read
from .rendering import SAFETY_HEADERS, Frame, content_tag, render_page, respond_with
from .shown import safe_link

CHANGED_FILTER = "x-changed-filter"
"""Header of a request that a changed filter makes: the filter's name."""

logger = logging.getLogger(__name__)


class Form(StrEnum):
    """What is wanted of a page."""

    HTML = "html"
    CSV = "csv"
    JSON = "json"


class Dashboard:
    """The pages of one service. Its handlers are plain functions: they read the database, in the thread pool.

    Args:
        service: whose store is shown.
        pages: what there is.
    """

    def __init__(self, service: Service, pages: Sequence[Page]) -> None:
        self._service = service
        self._pages = pages

    def page(self, page: Page, form: Form) -> Callable[[Request], Response]:
        """The handler of a page in one of its forms."""

        def handle(request: Request) -> Response:
            return respond(request, self._answer(request, page, form))

        handle.__doc__ = page.question
        return handle

    def unknown(self, request: Request) -> Response:
        """What is said of every other address below the root."""
        path = request.url.path
        frame = Frame(self._pages, None, Asked("", {}), version=self._service.version)
        if _wants_html(request, Form.HTML):
            return respond(request, render_page(frame, unknown_view(path), status=404))
        return respond(request, _safe(problem("no-such-route", f"There is no page {quoted(path)} in the dashboard.")))

    def _answer(self, request: Request, page: Page, form: Form) -> Rendered:
        """A page, a table of it, or what went wrong."""
        query: bytes = request.scope["query_string"]
        limit = self._service.settings.max_query_bytes
        html = _wants_html(request, form)
        frame = Frame(self._pages, page, Asked(page.slug, {}), version=self._service.version)
        try:
            if len(query) > limit:
                said = f"The query string has {len(query)} bytes; the limit is {limit}."
                view = too_long_view(len(query), limit)
                return render_page(frame, view, status=414) if html else _safe(problem("query-too-long", said))
            reading = read(page, query, data=form is not Form.HTML)
            frame = Frame(self._pages, page, reading.asked, reading.faults, self._service.version)
            if form is not Form.HTML:
                return self._table(request, page, reading, form)
            return self._page(request, frame, page, reading)
        except Fp4tuneError as error:
            if html:
                return render_page(frame, error_view(error, page, frame.asked), status=error.http_status)
            return _safe(problem_of_error(error))
        except Exception:
            logger.exception("GET %r failed", request.url.path)
            return render_page(frame, fault_view(), status=500) if html else _safe(internal_error())

    def _page(self, request: Request, frame: Frame, page: Page, reading: Reading) -> Rendered:
        """A page. Where its address names what is no value, it is shown without that, and says so."""
        asked, faults = reading.asked, list(reading.faults)
        try:
            shown, view = self._after_a_change(request, page, asked)
        except InvalidInputError as error:
            if not asked.get(CURSOR):
                raise
            faults.append(f"{error} This is the first page of it.")
            shown = _only(asked, [name for name in asked.values if name != CURSOR.name])
            view = self._view(request, page, shown)
        around = Frame(frame.pages, page, shown, tuple(faults), frame.version)
        rendered = render_page(around, view, status=422 if faults else 200)
        return rendered if shown == asked or faults else _at_another_address(rendered, page, shown)

    def _after_a_change(self, request: Request, page: Page, asked: Asked) -> tuple[Asked, View]:
        """What is shown, and the view of it: what is asked; else what the filter that was changed just now goes with.

        Somebody who chooses another environment means to see it, also where what was chosen before (a policy, a model)
        is not there. The script says which filter it was; then what comes after it in the order of the page's
        parameters is left out, and if need be everything else. Without the script the whole form is sent: what does not
        fit the rest of it is left out, and the page says so.

        Raises:
            Fp4tuneError: as of `_view`, of what is asked.
        """
        names = [parameter.name for parameter in page.parameters]
        changed = request.headers.get(CHANGED_FILTER, "")
        try:
            return asked, self._view(request, page, asked)
        except (NotFoundError, InvalidInputError) as error:
            by_script = changed in names and not asked.get(CURSOR)
            if isinstance(error, UnfittingError) and changed not in error.without:
                with contextlib.suppress(NotFoundError, InvalidInputError):
                    fewer, view, said = self._without(request, page, asked, error)
                    # Who changed a filter just now sees what became of the others.
                    return fewer, view if by_script else replace(view, warnings=(*said, *view.warnings))
            if not by_script:
                raise
            for left in (names[: names.index(changed) + 1], [changed]):
                fewer = _only(asked, left)
                with contextlib.suppress(NotFoundError, InvalidInputError):
                    return fewer, self._view(request, page, fewer)
            raise

    def _without(
        self, request: Request, page: Page, asked: Asked, error: UnfittingError
    ) -> tuple[Asked, View, list[str]]:
        """What is shown of an address without what does not fit the rest of it, the view, and sentences that say so.

        Raises:
            Fp4tuneError: as of `_view`, of what is left.
        """
        said: list[str] = []
        while True:
            fewer = _only(asked, [name for name in asked.values if name not in {*error.without, CURSOR.name}])
            said.append(f"{error} This page is shown without the {' and the '.join(error.without)} of its address.")
            try:
                view = self._view(request, page, fewer)
            except UnfittingError as another:
                if len(fewer.values) == len(asked.values):
                    raise
                asked, error = fewer, another
            else:
                return fewer, view, said

    def _table(self, request: Request, page: Page, reading: Reading, form: Form) -> Rendered:
        """A table of a page.

        Raises:
            InvalidInputError: the address names what is no value, or no table where there are several.
            NotFoundError: the page has no such table.
        """
        if reading.faults:
            raise InvalidInputError(reading.faults[0].removesuffix(" It is left out."))
        view = self._view(request, page, reading.asked)
        table = _choose(view, reading.table)
        export = to_csv(table) if form is Form.CSV else to_json(table)
        more = [(b"x-truncated", export.truncated.encode())] if export.truncated else []
        following = _following(table, page, form)
        if following:
            more.append((b"link", f'<{following}>; rel="next"'.encode("ascii", "ignore")))
        if form is Form.CSV:
            name = f"fp4tune-{page.slug or 'index'}-{table.name}.csv"
            more.append((b"content-disposition", f'attachment; filename="{name}"'.encode("ascii", "ignore")))
        body = export.text.encode()
        return respond_with(body, _MEDIA_TYPES[form], tag=content_tag(body), more=more)

    def _view(self, request: Request, page: Page, asked: Asked) -> View:
        """What a page shows.

        Raises:
            StoreError: another fp4tune has changed the database's schema since the service started.
            Fp4tuneError: the view's own.
        """
        service = self._service
        schema = service.store.schema()
        if schema.current != schema.head:
            raise StoreError(
                f"The database has schema {schema.current}, and this service needs {schema.head}: start the service "
                "again with the fp4tune that changed it."
            )
        context = Context(service.store, service.cursors, datetime.now(UTC), _base_url(request))
        return page.view(context, asked)


_MEDIA_TYPES = {Form.CSV: b"text/csv; charset=utf-8; header=present", Form.JSON: b"application/json"}

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,260}")


def _only(asked: Asked, names: Sequence[str]) -> Asked:
    """The same with these parameters alone."""
    return Asked(asked.page, {name: value for name, value in asked.values.items() if name in names})


def _at_another_address(rendered: Rendered, page: Page, shown: Asked) -> Rendered:
    """A page that shows something else than its address asks for: told to htmx, and kept by no cache."""
    here = address(page.slug, **{f"{name}_": value for name, value in shown.values.items()})
    headers = [pair for pair in rendered.headers if pair[0] not in (b"etag", b"cache-control")]
    headers += [(b"cache-control", b"no-store"), (b"hx-push-url", here.encode())]
    return Rendered(rendered.status, headers, rendered.body)


def _wants_html(request: Request, form: Form) -> bool:
    """Whether what goes wrong is told as a page: where a page was asked for, or a browser asks for a CSV.

    A client that says it takes JSON, and not HTML, gets the problem that the rest of the API gives.
    """
    accept = request.headers.get("accept", "").lower()
    if form is Form.HTML:
        return "json" not in accept or "text/html" in accept
    return form is Form.CSV and "text/html" in accept


def _safe(rendered: Rendered) -> Rendered:
    """With the headers of the dashboard."""
    return Rendered(rendered.status, rendered.headers + SAFETY_HEADERS, rendered.body, rendered.etag)


def _choose(view: View, name: str) -> Table:
    """The table of a view that is named, or its only one.

    Raises:
        InvalidInputError: none is named, and there are several.
        NotFoundError: the view has none of that name.
    """
    tables = {section.table.name: section.table for section in view.sections if section.table is not None}
    if name in tables:
        return tables[name]
    if not tables:
        raise NotFoundError("The page has nothing to show now, so it has no table.")
    there = ", ".join(tables)
    if name:
        raise NotFoundError(f"The page has no table {quoted(name)}; it has {there}.")
    if len(tables) > 1:
        raise InvalidInputError(f"Say which table of the page: table={there.replace(', ', ' or table=')}.")
    return next(iter(tables.values()))


def _following(table: Table, page: Page, form: Form) -> str:
    """The address of the next rows of a table in the same form; empty if these are the last."""
    query = urlsplit(safe_link(table.more)).query
    if not query:
        return ""
    values = {"table": table.name, **dict(parse_qsl(query))}
    return f"{ROOT}/{page.slug or 'index'}.{form}?{urlencode(values)}"


def _base_url(request: Request) -> str:
    """How the client reached this service; without what a Host header may hold that is no host."""
    url = request.url
    host = url.netloc if _HOST.fullmatch(url.netloc) else "localhost"
    return f"{url.scheme}://{host}"


def add_dashboard_routes(app: FastAPI, service: Service, pages: Sequence[Page]) -> None:
    """Add a route a page and form, the files that pages load, and a page for every other address below the root."""
    dashboard = Dashboard(service, pages)

    def to_root(request: Request) -> Response:
        """The first page, where links are relative to."""
        query = request.url.query
        return RedirectResponse(f"{ROOT}/" + (f"?{query}" if query else ""), 308)

    async def static(request: Request) -> Response:
        """A file that pages load."""
        asset = load_assets().by_served_name.get(request.path_params["name"])
        return dashboard.unknown(request) if asset is None else respond(request, asset.answer(request.headers.raw))

    app.add_api_route(ROOT, to_root, include_in_schema=False)
    app.add_api_route(f"{ROOT}/static/{{name}}", static, include_in_schema=False)
    for page in pages:
        app.add_api_route(f"{ROOT}/{page.slug}", dashboard.page(page, Form.HTML), include_in_schema=False)
        for form in (Form.CSV, Form.JSON):
            path = f"{ROOT}/{page.slug or 'index'}.{form}"
            app.add_api_route(path, dashboard.page(page, form), include_in_schema=False)
    app.add_api_route(f"{ROOT}/{{rest:path}}", dashboard.unknown, include_in_schema=False)
