"""Addresses of the viewer's pages, for whoever wants to point at one: Dagster's metadata, reports, the terminal.

Belongs here: addresses. Does not belong here: serving them (`server.py`).

A browser refuses `file:` links from a page that came by http, so a link to a report on the disk is dead in Dagster's UI; these are served.
"""

from __future__ import annotations

import os
from urllib.parse import quote

DEFAULT_PORT = 8337
VARIABLE = "EAGLE3_VIEW_URL"


def base_url() -> str:
    """Where `eagle3 view` is reached: EAGLE3_VIEW_URL (behind a tunnel or a proxy), else its default port on loopback."""
    return (os.environ.get(VARIABLE) or f"http://127.0.0.1:{DEFAULT_PORT}").rstrip("/")


def report_url(dataset: str) -> str:
    """The dataset's report page ("campaign": the page over all of them)."""
    return f"{base_url()}/reports/{quote(dataset)}.html"


def rows_url(**chosen: str) -> str:
    """The table, with these values chosen: `rows_url(dataset="b3", failing="yes")`."""
    return (
        f"{base_url()}/#/rows"
        + ("?" if chosen else "")
        + "&".join(f"{name}={quote(value, safe='')}" for name, value in chosen.items())
    )


def row_url(dataset: str, sample_id: str, turn: int) -> str:
    """One row."""
    return f"{base_url()}/#/row/{quote(dataset)}/{quote(sample_id, safe='')}/{turn}"
