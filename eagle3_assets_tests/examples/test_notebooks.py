"""The notebooks show what the product does today."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_assets_tests.examples.notebooks import NOTEBOOKS, code_cells, committed, read, run


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_do(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = read(path)
    shown = run(notebook)
    assert shown == committed(notebook), "after a change that was meant: python -m eagle3_assets_tests.examples.notebooks"
    assert any(shown)


def test_there_are_three_and_each_explains_itself() -> None:
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        cells = read(path)["cells"]
        assert cells[0]["cell_type"] == "markdown" and cells[0]["source"][0].startswith("# ")
        assert sum(cell["cell_type"] == "markdown" for cell in cells) >= len(code_cells(read(path))) / 2


def test_an_error_in_a_cell_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        run({"cells": [{"cell_type": "code", "source": ["1 / 0"]}]})
