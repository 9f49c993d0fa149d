"""Texts of a replay bank: where they are cut, that their ids may be joined, and what a user is told who gave none."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from openrouter_standin.answers.replay_passages import GAP, MARKER_NAMES, Speller, cut_passages, encode_passages, read_texts
from openrouter_standin.errors import StandinError
from openrouter_standin.vocabulary import Vocabulary

ALPHABET = st.sampled_from(
    [*"aZ7 .'\"/)(\n\t-_=漢字かな한ไ\u0301🙂", "\U0001f468‍\U0001f469", "'s", "  ", "```", "\r\n", "\u00a0", "</"]
)


@cache
def mini() -> Speller:
    from kimi_mini.tokenizer import load_encoding

    return Speller(Vocabulary.of(load_encoding()))


@pytest.mark.slow
@examples(max_examples=300, deadline=None)
@given(st.lists(st.lists(ALPHABET, min_size=1, max_size=40).map("".join), min_size=2, max_size=6))
def test_ids_of_passages_can_be_joined(pieces: list[str]) -> None:
    texts = [passage for piece in pieces for passage in cut_passages(piece)]
    passages = encode_passages(texts, mini())
    for a, b in pairwise(passages):
        assert mini().vocabulary.encode_text(a.text + GAP + b.text) == a.inner + b.last
    whole = GAP.join(p.text for p in passages)
    joined = [i for p in passages[:-1] for i in p.inner] + list(passages[-1].last if passages else ())
    assert list(mini().vocabulary.encode_text(whole)) == joined


@examples(max_examples=200, deadline=None)
@given(st.lists(ALPHABET, min_size=1, max_size=80).map("".join))
def test_a_passage_holds_no_empty_line_and_nothing_but_blanks_is_lost(text: str) -> None:
    passages = cut_passages(text)
    assert all(p.strip() and p == p.rstrip() and p[0] not in "\r\n" for p in passages)
    assert "".join("".join(passages).split()) == "".join(text.split())


def test_blank_lines_cut_and_long_passages_are_cut_at_lines_then_spaces() -> None:
    assert cut_passages("a\nb\n \t\n\n    c\r\n\r\nd  \n") == ["a\nb", "    c", "d"]
    lines = "\n".join("word " * 30 for _ in range(60))
    assert all(len(p) <= 2000 and p.endswith("word") and p.startswith("word") for p in cut_passages(lines))
    assert [len(p) for p in cut_passages("漢" * 4500)] == [2000, 2000, 500]
    assert all(p.split() == ["ab"] * len(p.split()) for p in cut_passages("ab " * 2000))


def test_a_passage_that_the_encoder_would_join_to_its_neighbour_is_left_out() -> None:
    class Greedy(Speller):
        """A slash sticks to the line breaks before it, as in o200k's split regex."""

        def __call__(self, text: str) -> tuple[int, ...]:
            return super().__call__(text.replace("\n\n/", "\n/\n"))

        def learn(self, texts: object) -> None:
            pass

    speller = Greedy(mini().vocabulary)
    assert [p.text for p in encode_passages(["/usr/bin", "word", "a/"], speller)] == ["word", "a/"]


def test_the_built_in_text_is_of_many_kinds_and_sizes_and_all_of_it_is_used() -> None:
    texts = read_texts((), Path())
    whole = GAP.join(texts.passages)
    assert 15_000 < len(whole.encode()) < 40_000
    assert len(encode_passages(texts.passages, mini())) == len(texts.passages) > 100
    for sign in ("def ", "#include", '{"', "set -euo", "\\frac", "的", "です", "습니다", "กาแฟ", "\u200d", "e\u0301"):
        assert sign in whole, sign
    assert not any(name in whole for name in MARKER_NAMES)


def test_with_kimis_tokenizer_all_of_the_built_in_text_is_used(kimi: Vocabulary) -> None:
    texts = read_texts((), Path()).passages
    passages = encode_passages(texts, Speller(kimi))
    assert [p.text for p in passages] == list(texts)
    whole = kimi.encode_text(GAP.join(texts))
    assert list(whole) == [i for p in passages[:-1] for i in p.inner] + list(passages[-1].last)


def test_files_globs_and_order_decide_the_digest_and_marker_text_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("Alpha.\n\nBeta with </think> inside.\n\nAlpha.", encoding="utf-8-sig")
    (tmp_path / "b.md").write_text("Gamma.")
    both = read_texts(("sub/*.txt", "b.md"), tmp_path)
    assert both.passages == ("Alpha.", "Gamma.")
    assert read_texts((str(tmp_path / "**" / "*.txt"), str(tmp_path / "b.md")), Path("elsewhere")) == both
    assert read_texts(("b.md", "sub/a.txt"), tmp_path).digest != both.digest


@pytest.mark.parametrize(
    ("content", "pattern", "told"),
    [
        (b"x", "none/*.txt", "'none/*.txt' is no file in"),
        (b"x", ".", "is no file in"),
        (b"ok \xff", "own.txt", "own.txt is not UTF-8 (byte 3)"),
        (b" \n\n \n", "own.txt", "no text in"),
        (b"only [EOS] here", "own.txt", "no text in"),
    ],
)
def test_a_text_that_cannot_be_used_is_one_line(tmp_path: Path, content: bytes, pattern: str, told: str) -> None:
    (tmp_path / "own.txt").write_bytes(content)
    with pytest.raises(StandinError) as error:
        read_texts((pattern,), tmp_path)
    assert told in str(error.value) and str(error.value).startswith("source.replay.text: ") and "\n" not in str(error.value)
