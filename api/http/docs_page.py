"""The API for people, as one static page made from the OpenAPI document."""

from __future__ import annotations

from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}"
    "h2{font:600 1.1rem ui-monospace,monospace;margin-top:2rem}td,th{text-align:left;vertical-align:top;"
    "padding:.2rem .8rem .2rem 0}code{font-family:ui-monospace,monospace}"
    "@media (prefers-color-scheme:dark){body{background:#161616;color:#e6e6e6}a{color:#8ab4f8}}"
)


def docs_page(document: dict[str, Any]) -> str:
    """The page.

    Args:
        document: an OpenAPI document.
    """
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>{escape(document['info']['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(document['info']['title'])}</h1><p>{escape(document['info'].get('summary', ''))}</p>",
        "<p>The same for programs: <a href='/v1/openapi.json'>/v1/openapi.json</a>.</p>",
        "<p>What is stored, to look at: <a href='/dashboard/'>/dashboard/</a>.</p>",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2>")
            parts.append(f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>")
            parts.append(
                _table("parameter", [(p["name"], p.get("description", "")) for p in operation.get("parameters", [])])
            )
            parts.append(_table("status", [(s, r["description"]) for s, r in operation["responses"].items()]))
    return "\n".join(part for part in parts if part)


def _table(head: str, rows: list[tuple[str, str]]) -> str:
    """Two columns, or nothing if there are no rows."""
    if not rows:
        return ""
    body = "".join(f"<tr><td><code>{escape(name)}</code><td>{escape(text)}" for name, text in rows)
    return f"<table><tr><th>{head}<th>meaning{body}</table>"
