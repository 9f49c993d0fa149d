"""`eagle3 view`: every row of the campaign in a browser; or the same as a folder that can be sent.

Belongs here: the command. Does not belong here: pages and their server (`view/`).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from eagle3_assets.campaign import load_campaign
from eagle3_assets.viewer_links import DEFAULT_PORT


def command(
    port: Annotated[int, typer.Option(help="on 127.0.0.1; 0 takes a free one", min=0, max=65535)] = DEFAULT_PORT,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page")] = True,
    beside: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="another campaign's folder, to compare with")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write a folder that opens without a server, and end")
    ] = None,
    rows: Annotated[int, typer.Option(help="with --export: how many rows get their own page, failing ones first", min=0)] = 500,
) -> None:
    """Every row in a browser: tokens, wire text beside ids, bills, providers. Read-only, loopback only.

    \b
    eagle3 view                             serve it and open the browser; Ctrl-C ends it
    eagle3 view --port 0 --no-browser       print an address and wait
    eagle3 view --beside /data/other-run    and compare with another campaign
    eagle3 view --export review/            a static folder for a colleague
    """
    from eagle3_assets.view.library import Library
    from eagle3_assets.view.roots import roots_of

    campaign = load_campaign()
    library = Library(roots_of(campaign, beside or ()))
    if export is not None:
        from eagle3_assets.view.export import write_export

        try:
            written = write_export(library, export, most_rows=rows, on_progress=_tell)
        finally:
            library.close()
        size = f"{written.bytes / 1e6:,.1f} MB"
        print(f"{written.index}: {written.rows:,} of {written.of:,} rows with a page of their own, {size}; open it in a browser")
        return
    from eagle3_assets.view.server import bind, serve

    library.catalogue()  # what cannot be looked at is said before anything is bound
    listening = bind(port)

    def on_ready(address: str) -> None:
        total = library.state()["rows"]
        print(f"eagle3 view: {address} shows {total:,} rows of campaign {campaign.name}; Ctrl-C ends it", flush=True)
        if browser:
            webbrowser.open(address)

    async def until_stopped() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stop.set)
        await serve(library, listening, stop, on_ready)

    asyncio.run(until_stopped())


def _tell(words: str) -> None:
    print(f"eagle3 view: {words}", file=sys.stderr)
