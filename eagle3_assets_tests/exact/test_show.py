"""Claims about what is shown of a row: nothing from outside acts on a terminal or a page, wherever in the row it stands."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.exact.show import as_html, as_rich, evidence_lines, summary, survivor_lines
from eagle3_assets.targets.tokenizer import Profile, load_profile

EVIL = [
    "<script>alert(1)</script>",
    "\x1b]0;owned\x07",
    "\x1b[2J",
    "\u202e",
    "</pre><img src=x onerror=y>",
    '" onmouseover="z',
    "&lt;",
    "\x9b1m",
]
TEXTS = st.lists(st.sampled_from(EVIL) | st.text(max_size=6), max_size=4).map("".join)


def a_row(profile: Profile, text: str, **more: Any) -> SampleRow:
    ids = profile.encode(text.encode("utf-8", "replace").decode())
    prompt = (profile.special("<|im_user|>"), *profile.encode("q"))
    response = (*ids, profile.special("</think>"), *ids, profile.end_id)
    blank = {field.name: None for field in dataclasses.fields(SampleRow)}
    facts: dict[str, Any] = {
        "sample_id": "ab" * 16, "turn": 0, "attempt": 1, "dataset": text, "shard": "00", "source": "openrouter", "provider": text, "model": text,
        "input_ids": (*prompt, *response), "prompt_len": len(prompt), "loss_spans": ((len(prompt), len(prompt) + len(response)),),
        "grade": "C1", "p_exact": 0.5, "p_basis": "simulated", "survivors": ((*prompt, *response[1:]),), "reasons": (text,),
        "evidence": json.dumps({"spacing": text, text: {"nested": [text]}}), "finish_reason": text, "native_finish_reason": text,
    }  # fmt: skip
    return SampleRow(**{**blank, **facts, **more})


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, tuple[str, ...]]] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add((tag, tuple(sorted(name for name, _ in attrs))))


@given(TEXTS)
@settings(max_examples=60, deadline=None)
def test_no_text_makes_a_tag_or_an_escape(text: str) -> None:
    profile = load_profile("kimi-mini")
    row = a_row(profile, text)
    page = as_html(profile, row)
    tags = _Tags()
    tags.feed(page)
    assert {tag for tag, _ in tags.seen} <= {"html", "meta", "title", "style", "h1", "dl", "dt", "dd", "p", "div", "span", "ul", "li",
                                            "table", "tr", "th", "td"}  # fmt: skip
    assert {names for tag, names in tags.seen if tag == "span"} == {("class", "title")}
    known = "html|meta|title|style|h1|dl|dt|dd|p|div|span|ul|li|table|tr|th|td"
    assert re.findall(rf"<(?!/?(?:{known})\b|!doctype html>).{{0,9}}", page) == [], "every < of the page is the page's own"
    shown = [page, as_rich(profile, row).plain, *survivor_lines(profile, row), *summary(row).values()]
    assert all(char.isprintable() or char == "\n" for piece in shown for char in piece)


def test_the_terminal_says_what_its_colours_mean_and_underlines_the_loss(mini: Profile) -> None:
    row = a_row(mini, " The user")
    text = as_rich(mini, row)
    assert "in the loss" in text.plain and "survivor 1" in text.plain
    underlined = "".join(text.plain[span.start : span.end] for span in text.spans if "underline" in str(span.style))
    assert underlined.startswith(" The user") and "q" not in underlined.removesuffix("in the loss")


@pytest.mark.parametrize("evidence", ["", "{}", "no json \x1b[0m", "[1]", "null"])
def test_evidence_of_any_form_is_shown(mini: Profile, evidence: str) -> None:
    row = a_row(mini, "x", evidence=evidence)
    assert as_html(mini, row) and as_rich(mini, row) and all(text.isprintable() for _, text in evidence_lines(row))


def test_the_page_needs_nothing_from_outside(mini: Profile) -> None:
    page = as_html(mini, a_row(mini, "x"))
    assert "src=" not in page and "href=" not in page and "http" not in page and "<script" not in page
