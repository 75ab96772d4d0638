"""Views as HTML: one set of templates for every page, autoescaped, with bounds."""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from ..http.rendering import RawHeaders, Rendered
from .assets import load_assets
from .formatting import clean
from .model import View
from .page import Asked, Page, address
from .shown import Budget, ShownView, show

MAX_PAGE_BYTES = 1_000_000
"""Most bytes of a page."""

_FOR_CONTENT = 900_000
"""Of these, at most, for figures, rows and filters' options."""

_CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

SAFETY_HEADERS: RawHeaders = [
    (b"content-security-policy", _CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
"""On every answer of the dashboard: nothing from elsewhere, nothing inline, in nobody's frame."""

_HTMX_CONFIG = json.dumps(
    {
        "includeIndicatorStyles": False,
        "allowEval": False,
        "selfRequestsOnly": True,
        "historyCacheSize": 0,
        "refreshOnHistoryMiss": True,
        "disableInheritance": True,
        "scrollIntoViewOnBoost": False,
        # An error's page is shown like any other; 304 means that what is shown is current.
        "responseHandling": [
            {"code": "[23]04", "swap": False},
            {"code": "[23]..", "swap": True},
            {"code": "[45]..", "swap": True, "error": True},
        ],
    }
)

PLOTLY = "plotly-cartesian-4.1.1.min.js"

HTML = b"text/html; charset=utf-8"

_VERSION = secrets.token_hex(16)
"""What stands for a page's hash until it is known; no text can contain it but by guessing."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around a view.

    Attributes:
        pages: all of them, for the navigation. page: the one that is shown; None for an error outside of any.
        asked: its address.
        faults: what its address said that was left out, a sentence each.
        version: of fp4tune.
    """

    pages: Sequence[Page]
    page: Page | None
    asked: Asked
    faults: Sequence[str] = ()
    version: str = ""


def render_page(frame: Frame, view: View, *, status: int = 200) -> Rendered:
    """A page, at most MAX_PAGE_BYTES long; with an ETag if the status is 200.

    Args:
        frame: what stands around it.
        view: what it shows.
        status: HTTP status.
    """
    html, budget = b"", _FOR_CONTENT
    while not html or (len(html) > MAX_PAGE_BYTES and budget):  # only a page of ever so many parts needs a second try
        html = _html(frame, show(view, frame.asked, Budget(budget)))
        budget //= 4
    version = content_tag(html.replace(_VERSION.encode(), b""))
    return respond_with(html.replace(_VERSION.encode(), version), HTML, status=status, tag=version)


def content_tag(body: bytes) -> bytes:
    """An ETag, without its quotes, of a body."""
    return hashlib.sha256(body).hexdigest()[:32].encode()


def respond_with(
    body: bytes, media_type: bytes, *, status: int = 200, tag: bytes = b"", more: Sequence[tuple[bytes, bytes]] = ()
) -> Rendered:
    """A response with the headers of the dashboard.

    Args:
        body: the body.
        media_type: what it is.
        status: HTTP status.
        tag: the ETag without quotes; only a response with status 200 gets one, the others are not kept anywhere.
        more: headers.
    """
    etag = b'"' + tag + b'"' if tag and status == 200 else b""
    headers: RawHeaders = [
        (b"content-type", media_type),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-cache" if etag else b"no-store"),
        *([(b"etag", etag)] if etag else []),
        *SAFETY_HEADERS,
        *more,
    ]
    return Rendered(status, headers, body, etag)


def _html(frame: Frame, view: ShownView) -> bytes:
    """The document, with _VERSION where its hash belongs."""
    assets = load_assets()
    slug = frame.page.slug if frame.page else None
    return (
        _templates()
        .get_template("page.html")
        .render(
            view=view,
            page=frame.page,
            faults=frame.faults,
            navigation=[
                (one.label, address(one.slug), one.question, one.slug == slug) for one in frame.pages if one.label
            ],
            search=address("search") if any(one.slug == "search" for one in frame.pages) else "",
            searched=clean(frame.asked.get("q")) if slug == "search" else "",
            action=address(slug) if slug is not None else "",
            here=address(slug, **{f"{name}_": value for name, value in frame.asked.values.items()})
            if slug is not None
            else "",
            root=address(""),
            product_version=frame.version,
            view_version=_VERSION,
            asset=assets.address,
            plotly=PLOTLY,
            htmx_config=_HTMX_CONFIG,
        )
        .encode("utf-8", "replace")
    )


def _said(text: str) -> Markup:
    """A sentence, escaped; what stands between two backticks, as in `fp4tune db upgrade`, as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one of them is no quotation mark
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part) for i, part in enumerate(parts)
    )


@functools.cache
def _templates() -> jinja2.Environment:
    """The templates, read once; a misspelt name in one of them is an error and not an empty text."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters["said"] = _said
    return templates
