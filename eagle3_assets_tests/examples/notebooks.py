"""Runs the cells of a notebook as a kernel would: one namespace, what is printed and the value of a last expression.

Belongs here: running, comparing, writing outputs (`python -m eagle3_assets_tests.examples.notebooks` writes them all). Does not belong here:
claims (`test_notebooks.py`). A kernel of its own would bring five packages and sockets for what thirty lines do.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle3_assets_tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@contextlib.contextmanager
def _in_folder() -> Iterator[None]:
    """As Jupyter starts a notebook: its folder is the working directory and the first place of imports."""
    before, path = Path.cwd(), list(sys.path)
    os.chdir(FOLDER)
    sys.path.insert(0, str(FOLDER))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path


def run(notebook: dict[str, Any]) -> list[str]:
    """The text that each code cell shows, in order. Whatever a cell raises goes through."""
    shown: list[str] = []
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with _in_folder():
        for number, cell in enumerate(code_cells(notebook), 1):
            out = io.StringIO()
            tree = ast.parse("".join(cell["source"]), f"cell {number}")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                exec(compile(tree, f"cell {number}", "exec"), namespace)
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
                    if value is not None:
                        print(repr(value))
            shown.append(out.getvalue())
    return shown


def committed(notebook: dict[str, Any]) -> list[str]:
    """The text that each code cell shows in the file."""
    return ["".join("".join(output["text"]) for output in cell["outputs"]) for cell in code_cells(notebook)]


def write(path: Path) -> None:
    """Run a notebook and keep what it shows."""
    notebook = read(path)
    for number, (cell, text) in enumerate(zip(code_cells(notebook), run(notebook), strict=True), 1):
        cell["execution_count"] = number
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in NOTEBOOKS:
        write(each)
