"""The repository's texts, their links and anchors.

Belongs here: finding and reading them. Does not belong here: claims (`test_citations.py`, `test_links.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from eagle3_assets_tests.conftest import REPOSITORY

FOLDERS = ("eagle3_assets", "eagle3_assets_tests", "benchmarks", "docs", "deploy", "examples", "viewer/src", ".github")
SUFFIXES = {".py", ".toml", ".md", ".yaml", ".yml", ".ts", ".tsx", ".ipynb", ".cff", ".sh"}

ANCHOR = r"[\w-]+(?:\.[\w-]+)*"
# `docs/research/exactness.md#2b`, and what a list adds: `…#1.4, #1.5`, `…#1.1 (name) and #4.3-18`, `…#1 to #5`
CITATION = re.compile(rf"docs/((?:research/)?[\w-]+)\.md#({ANCHOR})((?:(?: \([^()]*\))?(?:,| and|, and| to) #{ANCHOR})*)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def files() -> Iterator[Path]:
    """Every text of the repository that a person wrote."""
    yield from (p for p in REPOSITORY.iterdir() if p.is_file() and (p.suffix in SUFFIXES or p.name == "Makefile"))
    for folder in FOLDERS:
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file() and "node_modules" not in path.parts:
                yield path


def unwrapped(text: str) -> str:
    """Comments and docstrings with their lines joined, so that a citation may run over two."""
    return re.sub(r"[ \t]*\n[ \t]*(?:#(?=\s))?[ \t]*", " ", text)


def citations(text: str) -> Iterator[tuple[str, str]]:
    """(page below docs, anchor) of every citation in a text."""
    for page, first, more in CITATION.findall(unwrapped(text)):
        yield page, first
        for anchor in re.findall(rf"#({ANCHOR})", more):
            yield page, anchor


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a link into a page may name: its `<a id="…">` and its headings, as GitHub spells them."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"(?ms)^```.*?^```", "", text)
    headings = re.findall(r"(?m)^#+ +(.+?) *$", prose)
    slugs = (re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h).lower()).replace(" ", "-") for h in headings)
    return frozenset((*re.findall(r'<a id="([^"]+)"', text), *slugs))
