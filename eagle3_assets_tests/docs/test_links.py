"""What the pages point to is there: pages, anchors, files of code, types, commits."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from eagle3_assets_tests.conftest import REPOSITORY
from eagle3_assets_tests.docs.pages import LINK, anchors, files

PAGES = [path for path in files() if path.suffix == ".md"]
NAME_FILES = [REPOSITORY / "docs" / name for name in ("architecture.md", "extending.md")]


def test_every_link_between_pages_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        prose = re.sub(r"(?ms)^ *```.*?^ *```|`[^`\n]*`", "", page.read_text(encoding="utf-8"))
        for target in LINK.findall(prose):
            where, _, anchor = target.partition("#")
            if re.match(r"\w+:", target):
                continue
            path = (page.parent / where).resolve() if where else page
            if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
                broken.append(f"{page.relative_to(REPOSITORY)}: {target}")
    assert broken == []


@pytest.mark.parametrize("page", NAME_FILES, ids=lambda page: page.stem)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:[\w.-]+/)+(?:[\w.-]+\.\w+)?)`", page.read_text(encoding="utf-8"))
    assert len(named) > 10
    roots = (REPOSITORY, REPOSITORY / "eagle3_assets")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_every_world_of_the_tests_readme_exists() -> None:
    text = (REPOSITORY / "eagle3_assets_tests" / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2] for line in text.split("## Rules")[0].splitlines() if line.startswith("| ") and "---" not in line][
        1:
    ]
    assert len(rows) > 15
    for row in rows:
        spans = re.findall(r"`([^`]+)`", row)
        files_ = [s for s in spans if s.endswith(".py")]
        folder = next((s for s in spans if s.endswith("/")), "")
        sources = [REPOSITORY / "eagle3_assets_tests" / folder / f for f in files_]
        assert sources and all(s.is_file() for s in sources), row
        code = "".join(s.read_text(encoding="utf-8") for s in sources)
        for name in (s for s in spans if re.fullmatch(r"\w+", s)):
            assert re.search(rf"(?:class|def) {name}\b", code), f"{name} is not in {files_}"


def test_the_seven_types_are_where_the_page_says() -> None:
    text = NAME_FILES[0].read_text(encoding="utf-8").split("## The seven types")[1].split("##")[0]
    types = re.findall(r"^\| `(\w+)` .*\| `([\w/.]+)` \|$", text, re.M)
    assert len(types) == 7
    for name, file in types:
        code = (REPOSITORY / file).read_text(encoding="utf-8")
        assert re.search(rf"@dataclass\(frozen=True[^)]*\).*\nclass {name}:", code), f"{name} is no frozen dataclass of {file}"


def test_every_room_is_in_the_picture_or_named_beside_it() -> None:
    text = NAME_FILES[0].read_text(encoding="utf-8")
    rooms = [path.name for path in (REPOSITORY / "eagle3_assets").iterdir() if (path / "__init__.py").is_file()]
    assert [room for room in rooms if not re.search(rf"\b{room}/", text)] == []


def test_the_commits_that_the_page_shows_are_in_the_history() -> None:
    commits = re.findall(r"git show ([0-9a-f]{7,40})", NAME_FILES[1].read_text(encoding="utf-8"))
    assert len(commits) >= 5
    git = ["git", "-C", str(REPOSITORY)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False)
    if shallow.stdout.strip() != "false":
        pytest.skip("no whole history here: a shallow clone, or no repository at all")
    for commit in commits:
        assert subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], check=False).returncode == 0, commit
