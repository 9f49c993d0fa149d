"""`eagle3 ui`: Dagster's UI over the state of this folder.

Belongs here: where its state lies, the port, the start of `dagster dev`. Does not belong here: what it shows (`definitions.py`).
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from eagle3_assets.campaign import load_campaign
from eagle3_assets.errors import StoreError
from eagle3_assets.store import Store

HOME = Path(
    "data/dagster/home"
)  # a copy of ./dagster.yaml: with DAGSTER_HOME unset Dagster makes a folder and warns that it will remove it


def command(
    port: Annotated[int, typer.Option(help="port on loopback", min=1, max=65535)] = 3000,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
) -> None:
    """Dagster's UI: runs, checks, history, and buttons that materialize. Ctrl-C ends it.

    \b
    eagle3 ui                 http://127.0.0.1:3000
    eagle3 ui --port 3100     another port
    """
    campaign = load_campaign()  # a mistake in the file is said here, in one line
    _require_free(host, port)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}  # "superseded" and "preview", a line a definition
    if "DAGSTER_HOME" not in environment:
        environment["DAGSTER_HOME"] = str(own_home(Path.cwd()))
    print(f"eagle3 ui: http://{host}:{port} shows campaign {campaign.name} in {Store.of(campaign).root}, ready in half a minute; "
          "Ctrl-C ends it", flush=True)  # fmt: skip
    command = [sys.executable, "-m", "dagster", "dev", "-m", "eagle3_assets.definitions", "--host", host, "--port", str(port),
               "--log-level", "error"]  # fmt: skip
    os.execve(sys.executable, command, environment)


def own_home(folder: Path) -> Path:
    """Dagster's home for a folder without one configured: its `dagster.yaml`, whose own paths stay relative to the folder. Raises StoreError
    where there is none."""
    source = folder / "dagster.yaml"
    if not source.exists():
        raise StoreError(
            f"{folder}: there is no dagster.yaml here; `eagle3 init .` writes one, or start from the folder of the campaign"
        )
    home = folder / HOME
    try:
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, home / "dagster.yaml")
    except OSError as error:
        raise StoreError(f"{home}: cannot be written ({error.strerror}); check its permissions") from None
    return home


def _require_free(host: str, port: int) -> None:
    """Raises StoreError for a port that is taken: `dagster dev` would start its daemon, complain and hang."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StoreError(f"port {port} of {host} is in use; give another: eagle3 ui --port {port + 100}") from None
            raise StoreError(f"{host}:{port}: cannot listen there ({error.strerror}); give another --host or --port") from None
