"""`eagle3 view --export DIR`: the pages as a folder that opens from the disk, without a server.

Belongs here: which answers are written down and in what files. Does not belong here: answers (`pages.py`), the front end.

A page from the disk may not fetch files, but may load scripts that lie beside it: so each file of `data/` is a script that hands one JSON
text to the page, and nothing else is in it. Rows beyond `most_rows` are in the table, without a page of their own.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_assets.errors import Eagle3Error, StoreError
from eagle3_assets.store import write_bytes
from eagle3_assets.view.catalogue import Catalogue
from eagle3_assets.view.columns import COLUMNS
from eagle3_assets.view.library import Library
from eagle3_assets.view.one_row import BLOCK
from eagle3_assets.view.pages import answer
from eagle3_assets.view.server import STATIC, as_json

MOST_BLOCKS = 12  # pages of chips of one row
MOST_WINDOWS = 2  # of raw bytes of one row
MOST_PROVIDERS = 6  # that are compared with each other
MOST_PAIRS = 25  # of one comparison whose texts are there
MARK = "eagle3-view-export.json"  # says that a folder is an export, so that it may be written anew
# `file:` for browsers that do not count a file's neighbours as its own; nothing else can be loaded either way
POLICY = "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class Written:
    """`rows` of `of` have pages of their own."""

    index: Path
    rows: int
    of: int
    bytes: int


class _Files:
    """The scripts of `data/`, and which of them holds what."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.index: dict[str, int] = {}
        self.bytes = 0

    def put(self, group: str, entries: dict[str, Any]) -> None:
        number = len(self.index)
        self.index[group] = number
        self._write(f"data/{number}.js", entries)

    def finish(self) -> None:
        self._write("data/index.js", {"index": self.index})

    def _write(self, name: str, entries: dict[str, Any]) -> None:
        # JSON inside a JSON string: `__proto__` is a key like any other to JSON.parse, and no text of a row is ever source
        text = json.dumps(as_json(entries).decode(), ensure_ascii=True)
        data = f"eagle3_put({text});\n".encode()
        self.bytes += len(data)
        write_bytes(self._folder / name, data)


def write_export(library: Library, folder: Path, *, most_rows: int, on_progress: Callable[[str], None]) -> Written:
    """Write the folder. Raises StoreError where something else lies there, or the disk is full."""
    _prepare(folder)
    reader = library.reader()
    on_progress("reading journals and texts")
    reader.wait()
    catalogue = reader.catalogue
    files = _Files(folder)
    keys = chosen_rows(catalogue, most_rows)
    on_progress(f"writing {len(keys):,} rows")
    state = answer(library, "state", [])
    state |= {"export": time.strftime("%Y-%m-%d %H:%M"), "pages": len(keys), "roots": [library.first]}
    files.put("state", {"state?": state})
    files.put("table", {"table?": _table(catalogue)})
    files.put("texts", {"texts?": _texts(catalogue, keys)})
    campaign = _without_paths(answer(library, "campaign", []), catalogue)
    files.put("campaign", {"campaign?": campaign})
    page = _without_paths(answer(library, "providers", []), catalogue)
    files.put("providers", {"providers?": page})
    files.put("deciding", dict(_deciding(library, page)))
    files.put("compare", dict(_comparisons(library, page)))
    for key in keys:
        files.put(f"row/{key}", dict(_row(library, key)))
    files.finish()
    for name in ("viewer.js", "viewer.css", "icon.svg"):
        shutil.copyfile(STATIC / name, folder / name)
    write_bytes(folder / "index.html", export_page((STATIC / "index.html").read_text("utf-8")).encode())
    total = catalogue.ask("SELECT count(*) FROM rows")[0][0]
    return Written(folder / "index.html", len(keys), total, files.bytes)


def _prepare(folder: Path) -> None:
    """An empty folder, or an earlier export, whose data goes."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARK).exists())):
        raise StoreError(f"{folder}: holds something that is no export of the viewer; give an empty or a new folder")
    shutil.rmtree(folder / "data", ignore_errors=True)
    write_bytes(folder / MARK, b'{"version": 1}\n')


def export_page(page: str) -> str:
    """The served page with a policy of its own (there is no header), and the word that the data lies beside it."""
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    return page.replace("<title>", f"{policy}<title>", 1).replace("<html ", '<html data-export="1" ', 1)


def _without_paths(page: dict[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """A path of this machine says nothing to a colleague; what lies below the campaign's folder is named from there."""
    root = str(catalogue.root.store.root)
    out: dict[str, Any] = json.loads(
        as_json(page).decode().replace(json.dumps(root + "/")[1:-1], "").replace(json.dumps(root)[1:-1], "")
    )
    return out


def chosen_rows(catalogue: Catalogue, most: int) -> list[str]:
    """Failing rows first; then those with the lowest p_exact of every dataset and provider in turn."""
    found = catalogue.ask(
        "SELECT key FROM (SELECT key, n, failing, p_exact, row_number() OVER (PARTITION BY failing, dataset, provider ORDER BY p_exact, n) AS turn "
        "FROM rows) ORDER BY failing DESC, turn, p_exact, n LIMIT ?",
        [most],
    )
    return [key for (key,) in found]


def _table(catalogue: Catalogue) -> dict[str, Any]:
    """Every row, column by column; values of facets by number."""
    names = ["key", *(column.name for column in COLUMNS)]
    listed = ", ".join(f'"{name}"' for name in names)
    lines = catalogue.ask(f"SELECT {listed} FROM rows ORDER BY n")
    columns: dict[str, Any] = {}
    facets = {column.name for column in COLUMNS if column.kind == "facet"}
    for k, name in enumerate(names):
        values = [line[k] for line in lines]
        if name in facets:
            words = sorted(set(values))
            places = {word: place for place, word in enumerate(words)}
            columns[name] = {"words": words, "at": [places[value] for value in values]}
        else:
            columns[name] = {"at": values}
    return {"rows": len(lines), "columns": columns}


def _texts(catalogue: Catalogue, keys: list[str]) -> dict[str, list[str]]:
    wanted = set(keys)
    found = catalogue.ask("SELECT r.key, t.prompt, t.answer FROM rows r JOIN texts t USING (file, place) ORDER BY r.n")
    return {key: [prompt, text] for key, prompt, text in found if key in wanted}


def _row(library: Library, key: str) -> Iterator[tuple[str, Any]]:
    try:
        page = answer(library, "row", [("key", key)])
    except Eagle3Error as error:  # a damaged record is one page without content
        yield f"row?key={key}", {"error": str(error)}
        return
    yield f"row?key={key}", page
    for start in range(0, min(page["length"], MOST_BLOCKS * BLOCK), BLOCK):
        yield f"tokens?key={key}&start={start}", answer(library, "tokens", [("key", key), ("start", str(start))])
    for which in ("request", "response") if page["raw"] else ():
        start = 0
        for _ in range(MOST_WINDOWS):
            found = answer(library, "raw", [("key", key), ("which", which), ("start", str(start))])
            yield f"raw?key={key}&start={start}&which={which}", found
            start = found["stop"]
            if start >= found["total"]:
                break


def _deciding(library: Library, page: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for provider in page["providers"]:
        for window in range(len(provider["windows"])):
            words = [("provider", provider["name"]), ("window", str(window))]
            try:
                yield f"deciding?provider={provider['name']}&window={window}", answer(library, "deciding", words)
            except Eagle3Error:
                continue


def _comparisons(library: Library, page: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    names = [p["name"] for p in page["providers"] if p["calls"] and p["calls"]["finished"]][:MOST_PROVIDERS]
    for k, left in enumerate(names):
        for right in names[k + 1 :]:
            words = [("left.provider", left), ("right.provider", right)]
            found = answer(library, "compare", words)
            yield f"compare?left.provider={left}&right.provider={right}", found
            for line, _ in found["lines"][:MOST_PAIRS]:
                asked = line["asked"]
                pair = answer(library, "pair", [*words, ("asked", asked)])
                yield f"pair?asked={asked}&left.provider={left}&right.provider={right}", pair
