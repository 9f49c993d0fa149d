"""`eagle3 fetch-tokenizer`: a profile's tokenizer files from the hub. Data only, never code; pinned where a hash is known.

Belongs here: the download of single files, resumable and atomic. Does not belong here: what the files mean (`targets/tokenizer.py`),
credentials (none is read or sent: every profile's repository is public).
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import Message
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from eagle3_assets.errors import ExactError
from eagle3_assets.store import data_root
from eagle3_assets.targets.facts import HubFile

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

HUB = "https://huggingface.co"
ENDPOINT_VARIABLE = "HF_ENDPOINT"  # the hub's own variable for mirrors
TIMEOUT_S = 60.0
MOST_BYTES = 256 << 20  # the largest tokenizer.json in use has 33 MB
_BLOCK = 1 << 18


def command(
    profile: Annotated[str, typer.Argument(help="A tokenizer profile, like kimi-k2.5 or qwen3.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder for the files (default: <data root>/tokenizers/PROFILE).")
    ] = None,
    revision: Annotated[str, typer.Option("--revision", help="Branch, tag or commit of the hub's repository.")] = "main",
) -> None:
    """Fetch a profile's tokenizer files from the hub (HF_ENDPOINT names a mirror). What is there already and right is kept; what was cut
    off goes on where it stopped; a file that is not the pinned one is refused.

    Examples: `eagle3 fetch-tokenizer kimi-k2.5` · `eagle3 fetch-tokenizer qwen3 --to ./qwen3`
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from eagle3_assets.targets.profile_facts import profile_facts
    from eagle3_assets.targets.tokenizer import load_profile
    from eagle3_assets.targets.vocabulary_files import CONFIG_FILE, config_difference

    facts = profile_facts(profile)
    if not facts.files:
        typer.echo(f"{profile}: its tokenizer ships with this package, nothing is to be fetched")
        return
    folder = to or data_root() / "tokenizers" / facts.tokenizer.folders[0]
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for file in facts.files:
            bar = progress.add_task(file.name, total=None)
            done = fetch_file(
                file_url(str(facts.hub), revision, file.name),
                folder / file.name,
                file,
                partial(_show, progress, bar),
            )
            typer.echo(f"{folder / file.name}: {done}")
    config = folder / CONFIG_FILE
    difference = config_difference(config, facts.tokenizer.special) if config.is_file() else None
    if difference:
        raise ExactError(f"{difference}; the repository holds another tokenizer than the profile {profile}, do not use it")
    found = load_profile(profile, folder)
    end = found.special_names[found.end_id]
    typer.echo(f"{profile}: {found.n_vocab} ids, end of turn {end} = {found.end_id}, sha256 {found.tokenizer_sha256}")


def _show(progress: Progress, bar: TaskID, got: int, total: int | None) -> None:
    progress.update(bar, completed=got, total=total)


def file_url(repository: str, revision: str, name: str) -> str:
    """Where the hub, or the mirror that HF_ENDPOINT names, serves a file. Raises ExactError for an endpoint that is neither https nor
    on this machine."""
    endpoint = (os.environ.get(ENDPOINT_VARIABLE) or HUB).rstrip("/")
    if not _is_safe(endpoint):
        raise ExactError(f"{ENDPOINT_VARIABLE} = {endpoint}: expected https://… (or http on this machine); correct or unset it")
    return f"{endpoint}/{repository}/resolve/{urllib.parse.quote(revision, safe='')}/{urllib.parse.quote(name)}"


def _is_safe(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return bool(parts.hostname) and (
            parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1"))
        )
    except ValueError:
        return False


def fetch_file(url: str, path: Path, file: HubFile, on_bytes: Callable[[int, int | None], None]) -> str:
    """Make `path` the file at `url`; returns what happened. `file`: `sha256` pins it, `optional` allows the hub not to have it.

    The bytes collect in `.<name>.part` beside it; only a whole and right file gets its name. Raises ExactError, one line, that says
    whether running again goes on or something must change.
    """
    pin = file.sha256
    if path.is_file() and (pin is None or _sha256(path) == pin):
        return "already there"
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if pin is None:
            part.unlink(missing_ok=True)  # nothing says that the rest belongs to the same version
        _download(url, part, on_bytes)
        found = _sha256(part)
        if pin is not None and found != pin:
            part.unlink()
            raise ExactError(f"{url}: sha256 is {found[:16]}…, expected {pin[:16]}…; nothing was kept; it is not the pinned file")
        part.replace(path)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404 and file.optional:
            return "the hub has none, not needed"
        raise ExactError(f"{url}: {_advice(error.code)}") from None
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        why = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise ExactError(f"{url}: not reached ({why}); run again to go on, or set {ENDPOINT_VARIABLE} to a mirror") from None
    except OSError as error:
        raise ExactError(
            f"{path}: cannot be written ({error.strerror}); free space or check permissions, then run again"
        ) from None
    return f"{path.stat().st_size:,} bytes, sha256 {found[:16]}… {'as pinned' if pin else '(no pin is known)'}"


def _download(url: str, part: Path, on_bytes: Callable[[int, int | None], None]) -> None:
    """Append what `part` lacks of the file. A server that ignores the range, or refuses it, gives the whole again."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "eagle3-assets", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = _OPENER.open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        part.unlink()
        return _download(url, part, on_bytes)
    with answer:
        have = have if answer.status == 206 else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdecimal() else None
        with part.open("ab" if have else "wb") as handle:
            while block := answer.read(_BLOCK):
                have += len(block)
                if have > MOST_BYTES:
                    raise ExactError(f"{url}: is larger than {MOST_BYTES >> 20} MiB: that is no tokenizer file")
                handle.write(block)
                on_bytes(have, total)
            handle.flush()
            os.fsync(handle.fileno())
    if total is not None and have < total:
        raise http.client.IncompleteRead(b"", total - have)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """The hub redirects to its storage: followed to https alone (or from this machine to this machine)."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if not _is_safe(newurl):
            raise ExactError(f"{req.full_url}: redirects to {newurl[:80]!r}, which is not https; nothing was fetched")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


_OPENER = urllib.request.build_opener(_SafeRedirects)


def _advice(status: int) -> str:
    if status in (401, 403):
        return f"HTTP {status}: the repository asks for a login; download the file by hand and put it there"
    if status == 404:
        return "HTTP 404: no such file; check --revision, or the repository has moved"
    return f"HTTP {status}: run again later to go on"


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
