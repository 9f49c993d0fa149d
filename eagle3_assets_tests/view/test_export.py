"""Claims about an export: all that its page asks for is there, as data, and nothing of this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.errors import StoreError
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.view.export import write_export
from eagle3_assets.view.library import Library
from eagle3_assets.view.server import STATIC


def quiet(words: str) -> None:
    """Nobody listens."""


def entries(folder: Path, name: str) -> dict[str, Any]:
    text = (folder / "data" / name).read_text("ascii")
    found = re.fullmatch(r"eagle3_put\((\".*\")\);\n", text)
    assert found, text[:80]
    return dict(json.loads(json.loads(found[1])))


@pytest.mark.slow
def test_every_file_is_one_json_text_and_the_index_finds_it(library: Library, tmp_path: Path, rows: list[SampleRow]) -> None:
    folder = tmp_path / "out"
    written = write_export(library, folder, most_rows=500, on_progress=quiet)
    index = entries(folder, "index.js")["index"]
    assert written.rows == written.of == len(rows)
    row = rows[0]
    key = f"{row.dataset}/{row.sample_id}/{row.turn}"
    page = entries(folder, f"{index[f'row/{key}']}.js")
    assert page[f"row?key={key}"]["length"] == len(row.input_ids)
    assert [token[0] for token in page[f"tokens?key={key}&start=0"]["tokens"]] == list(row.input_ids)
    assert page[f"raw?key={key}&start=0&which=response"]["total"] > 0
    table = entries(folder, f"{index['table']}.js")["table?"]
    assert table["rows"] == len(rows) and table["columns"]["grade"]["words"] == sorted({r.grade for r in rows})
    assert len(list((folder / "data").iterdir())) == len(index) + 1


@pytest.mark.slow
def test_no_text_of_a_row_is_source(library: Library, tmp_path: Path) -> None:
    write_export(library, tmp_path / "out", most_rows=500, on_progress=quiet)
    for path in (tmp_path / "out" / "data").iterdir():
        text = path.read_text("ascii")  # the data is ASCII: no direction mark, no U+2028
        assert re.fullmatch(r'eagle3_put\("(?:[^"\\\n]|\\.)*"\);\n', text), path


@pytest.mark.slow
def test_it_says_nothing_of_this_machine(library: Library, tmp_path: Path) -> None:
    write_export(library, tmp_path / "out", most_rows=500, on_progress=quiet)
    root = str(library.catalogue().root.store.root.parent)
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file() and root.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_failing_rows_come_first_and_the_rest_has_no_page(library: Library, tmp_path: Path) -> None:
    failing = library.catalogue().ask("SELECT count(*) FROM rows WHERE failing = 'yes'")[0][0]
    written = write_export(library, tmp_path / "out", most_rows=failing, on_progress=quiet)
    keys = {name.removeprefix("row/") for name in entries(tmp_path / "out", "index.js")["index"] if name.startswith("row/")}
    assert keys == {key for (key,) in library.catalogue().ask("SELECT key FROM rows WHERE failing = 'yes'")}
    assert (written.rows, written.of > failing) == (failing, True)


@pytest.mark.slow
def test_the_page_carries_its_policy_and_is_otherwise_the_served_one(library: Library, tmp_path: Path) -> None:
    written = write_export(library, tmp_path / "out", most_rows=0, on_progress=quiet)
    page = written.index.read_text()
    assert "default-src 'none'" in page and "unsafe" not in page and "connect-src" not in page and 'data-export="1"' in page
    assert (tmp_path / "out" / "viewer.js").read_bytes() == (STATIC / "viewer.js").read_bytes()


@pytest.mark.slow
def test_it_replaces_an_earlier_export_and_nothing_else(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_export(library, folder, most_rows=30, on_progress=quiet)
    many = len(list((folder / "data").iterdir()))
    write_export(library, folder, most_rows=1, on_progress=quiet)
    assert len(list((folder / "data").iterdir())) == many - 29
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "data").write_text("x")
    with pytest.raises(StoreError, match="no export of the viewer"):
        write_export(library, precious, most_rows=1, on_progress=quiet)
    assert (precious / "data").read_text() == "x"
