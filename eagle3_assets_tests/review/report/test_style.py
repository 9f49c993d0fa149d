"""Claims about the look of the reports: one look with the viewer, readable in the dark, on a phone and on paper."""

from __future__ import annotations

import re

from eagle3_assets.review.report.style import DARK, LIGHT, STYLE
from eagle3_assets_tests.conftest import REPOSITORY


def test_the_colours_are_the_viewers_own() -> None:
    sheet = (REPOSITORY / "viewer" / "src" / "style.css").read_text()
    light, dark = (
        sheet.split("prefers-color-scheme: dark")[0].split("--bg: #121518")[0],
        sheet.split("prefers-color-scheme: dark")[1],
    )
    for named, part in ((LIGHT, light), (DARK, dark)):
        theirs = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))
        assert {name: theirs[name] for name in named} == named


def test_there_is_a_dark_a_narrow_and_a_printed_form() -> None:
    assert all(f"@media {kind}" in STYLE for kind in ("(prefers-color-scheme: dark)", "(max-width: 50rem)", "print"))
