"""A reason that the code cites can be read: it stands in the repository, under the anchor that is named."""

from __future__ import annotations

import re

import pytest

from eagle3_assets_tests.conftest import REPOSITORY
from eagle3_assets_tests.docs.pages import anchors, citations, files, unwrapped

RESEARCH = sorted((REPOSITORY / "docs" / "research").glob("*.md"))
ALSO_ELSEWHERE = ("README", "dagster", "kimi-mini", "exactness", "tokenizers")  # names of pages or models, too
NEVER_PAGES = (
    "public-reports",
    "newcomer",
    "second-target",
    "architecture-review",
)  # working notes: what matters of them is in pages
NOTES = "|".join((*(page.stem for page in RESEARCH if page.stem not in ALSO_ELSEWHERE), *NEVER_PAGES))
ELSEWHERE = [
    re.compile(
        rf"(?<![\w/-])(?:{NOTES})(?:\.md)?(?:,? (?:research )?(?:section|row|cause|item)s?)?,? \(?\d"
    ),  # prompt-side.md, row 3
    re.compile(r"(?<![\w/(.-])(?:exactness|tokenizers|kimi-mini|dagster)(?:\.md)?,? (?:section|invariant|row)s? \d"),
    re.compile(r"(?<![\w/(.-])(?:exactness|tokenizers|kimi-mini|dagster)\.md,? \d"),
    re.compile(r"\b[Cc]ontract \d+\.\d"),
    re.compile(r"\b[Dd]esign (?:rule|section)s? \d"),
    re.compile(r"\bresearch note [a-z]"),
    re.compile(rf"(?<![\w/-])(?:{NOTES})\.md(?!#)"),
]


def test_every_cited_section_exists() -> None:
    missing = [
        f"{path.relative_to(REPOSITORY)}: docs/{page}.md#{anchor}"
        for path in files()
        if path.name != "test_citations.py"
        for page, anchor in citations(path.read_text(encoding="utf-8"))
        if not (REPOSITORY / "docs" / f"{page}.md").is_file() or anchor not in anchors(REPOSITORY / "docs" / f"{page}.md")
    ]
    assert missing == []


@pytest.mark.slow
def test_no_reason_is_cited_that_stands_outside_of_the_repository() -> None:
    own = REPOSITORY / "docs" / "research"
    left = [
        f"{path.relative_to(REPOSITORY)}: {text[max(0, m.start() - 30) : m.end() + 20]!r}"
        for path in files()
        if own not in path.parents and path.name != "test_citations.py"
        for text in [unwrapped(path.read_text(encoding="utf-8"))]
        for pattern in ELSEWHERE
        for m in pattern.finditer(text)
        if not _is_link(text, m.start())
    ]
    assert left == []


def _is_link(text: str, at: int) -> bool:
    """A markdown link's own text or address is no citation of a note."""
    return text[max(0, at - 12) : at].endswith(("](", "](research/", "](../research/", "docs/research/", "["))


@pytest.mark.parametrize(
    "text",
    ["(openrouter-contract 4.3 #6)", "contract 2.4", "design rule 7", "exactness.md 2b", "tokenizers.md, section 5", "prompt-side.md",
     "research note kimi-mini 5", "hidden-states.md section 4", "recorded-traffic.md,\n    # cause 4",
     "real-campaign.md (a) 5", "public-reports.md 3"],
)  # fmt: skip
def test_an_old_way_of_citing_would_be_found(text: str) -> None:
    assert any(pattern.search(unwrapped(text)) for pattern in ELSEWHERE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(docs/research/exactness.md#2b)", [("research/exactness", "2b")]),
        ("docs/research/a-b.md#1.4, #1.5, #2.4.", [("research/a-b", "1.4"), ("research/a-b", "1.5"), ("research/a-b", "2.4")]),
        ("docs/research/a.md#1.1 (name) and #4.3-18", [("research/a", "1.1"), ("research/a", "4.3-18")]),
        ("# docs/design.md#rule-7,\n    # and more", [("design", "rule-7")]),
        ("docs/research/a.md#1 to\n#5", [("research/a", "1"), ("research/a", "5")]),
    ],
)
def test_a_citation_may_name_several_sections(text: str, expected: list[tuple[str, str]]) -> None:
    assert list(citations(text)) == expected


def test_every_page_of_research_is_cited_and_says_what_it_holds() -> None:
    cited = {page for path in files() for page, _ in citations(path.read_text(encoding="utf-8"))}
    index = (REPOSITORY / "docs" / "research" / "README.md").read_text(encoding="utf-8")
    for page in RESEARCH:
        if page.name != "README.md":
            assert f"research/{page.stem}" in cited, f"nobody cites {page.name}: is it needed?"
            assert f"]({page.name})" in index
