"""Claims about tokenizer profiles: golden encodings, pins, the chunk rule, hard boundaries."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.profile_facts import profile_for_model
from eagle3_assets.targets.tokenizer import Profile, cut_in_chunks, load_profile

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def test_all_42_golden_encodings_are_reproduced_with_specials_off_and_on(k25: Profile, golden: dict[str, Any]) -> None:
    assert len(golden["encode"]) == 42
    for case in golden["encode"]:
        assert k25.encode(case["text"]) == case["ordinary"], case["text"]
        assert k25.encode_prompt(case["text"]) == case["all_special"], case["text"]


def test_the_end_of_a_turn_is_163586_and_163533_is_an_ordinary_word(k25: Profile) -> None:
    assert k25.end_id == k25.special("<|im_end|>") == 163586
    assert k25.token_name(163533) == "chas" and k25.n_base > 163533
    assert k25.special("[EOS]") == 163585
    assert (k25.think_open, k25.think_close, k25.n_vocab) == (163606, 163607, 163840)


def test_kimi_mini_has_kimis_specials_in_kimis_order(mini: Profile, k25: Profile) -> None:
    assert mini.n_vocab == 2304
    assert {n: i - mini.n_base for n, i in mini.specials.items()} == {n: i - k25.n_base for n, i in k25.specials.items()}


def test_k2_instruct_has_no_reasoning_markers(tokenizers: Path) -> None:
    profile = load_profile("kimi-k2-instruct", tokenizers)
    assert profile.think_close is None and profile.opened_by == "never"
    assert profile.token_name(163607) == "<|reserved_token_163607|>"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("moonshotai/kimi-k2.5-0127", "kimi-k2.5"),
        ("moonshotai/kimi-k2-thinking", "kimi-k2-thinking"),
        ("moonshotai/Kimi-K2-Instruct-0905:groq", "kimi-k2-instruct"),
        ("moonshotai/kimi-k2", "kimi-k2-instruct"),
        ("eagle3/kimi-mini-0101", "kimi-mini"),
        ("openai/gpt-4o", None),
        (None, None),
    ],
)
def test_a_models_slug_names_its_profile(model: str | None, name: str | None) -> None:
    assert profile_for_model(model) == name


def test_a_missing_file_is_one_line_that_says_where_to_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path))
    with pytest.raises(ExactError, match=r"kimi-k2.5/tiktoken.model is missing; .*--tokenizer DIR") as caught:
        load_profile("kimi-k2.5")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_data_root_is_where_tokenizer_files_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizers: Path
) -> None:
    folder = tmp_path / "tokenizers" / "kimi-k2.5"
    folder.mkdir(parents=True)
    shutil.copy(tokenizers / "kimi-k2.5" / "tiktoken.model", folder)
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path))
    assert load_profile("kimi-k2.5").ranks_path == folder / "tiktoken.model"
    assert load_profile("kimi-k2.5").template_path is None


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path, mini: Profile) -> None:
    shutil.copy(mini.ranks_path, tmp_path / "tiktoken.model")
    with pytest.raises(ExactError, match=r"sha256 is .* expected b6c497a7469b33ce"):
        load_profile("kimi-k2.5", tmp_path)


def test_a_damaged_rank_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_bytes(b"YQ== 0\nnonsense\n")
    with pytest.raises(ExactError, match="line 2"):
        load_profile("kimi-mini", tmp_path)


def test_an_unknown_profile_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ExactError, match=r"kimi-k2\.5, kimi-mini"):
        load_profile("kimi-k9")


def test_a_lone_surrogate_is_refused_and_never_becomes_a_replacement_character(mini: Profile) -> None:
    for encode in (mini.encode, mini.encode_prompt):
        with pytest.raises(ExactError, match=r"U\+D83D at character 3"):
            encode("abc\ud83d")


@pytest.mark.parametrize(
    ("text", "extra"),
    [("1" * 60_000, 2), (" " * 30_000, 2), ("#" * 30_000, 1), ("a</think>b", 0)],
    ids=["digits", "spaces", "hashes", "short"],
)
def test_prompts_are_cut_by_kimis_chunk_rule(k25: Profile, text: str, extra: int) -> None:
    """docs/research/tokenizers.md#2: 60,000 digits +2 tokens, 30,000 spaces +2, 30,000 # +1."""
    assert len(k25.encode_prompt(text)) == len(k25.encoding.encode(text, allowed_special="all")) + extra


def test_a_marker_that_lies_across_a_cut_is_lost_as_on_the_server(k25: Profile) -> None:
    assert k25.encode_prompt("a" * 24_996 + "</think>").count(163607) == 0
    assert k25.encode_prompt("a" * 24_992 + "</think>").count(163607) == 1


@given(st.text("ab \n", max_size=200), st.integers(1, 7), st.integers(1, 40))
def test_chunks_join_to_the_text_and_no_run_in_them_is_too_long(text: str, run: int, chars: int) -> None:
    chunks = list(cut_in_chunks(text, chars, run))
    assert "".join(chunks) == text
    for chunk in chunks:
        assert len(chunk) <= chars
        longest = here = 0
        for k, char in enumerate(chunk):
            here = here + 1 if k and chunk[k - 1].isspace() == char.isspace() else 1
            longest = max(longest, here)
        assert longest <= run


@given(TEXT, TEXT, st.sampled_from(["</think>", "<|tool_call_argument_begin|>", "<|im_end|>"]))
@settings(max_examples=300, deadline=None)
def test_a_marker_is_a_hard_boundary(a: str, b: str, name: str) -> None:
    assume(name not in a + b and (a + name + b).count(name) == 1)  # text that spells the marker is another claim's business
    mini = load_profile("kimi-mini")
    joined = mini.encoding.encode(a + name + b, allowed_special={name}, disallowed_special=())
    assert [*mini.encode(a), mini.special(name), *mini.encode(b)] == joined


@given(TEXT)
@settings(max_examples=300, deadline=None)
def test_text_survives_encode_and_decode(text: str) -> None:
    mini = load_profile("kimi-mini")
    assert mini.decode(mini.encode(text)) == text
    assert all(token < mini.n_base for token in mini.encode(text))
