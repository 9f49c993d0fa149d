"""Claims about tokenizers of any kind: the publisher's ids, no control token out of a text, and an honest word where a text is altered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.hub_encoder import HubEncoder

CORPUS = [Path(__file__).read_text(encoding="utf-8"), "ein Satz, 汉字, naïve\n\n"] * 3
CONTROLS = ["<s>", "</s>", "<|im_end|>"]
BYTES = [f"<0x{k:02X}>" for k in range(256)]
PIECES = [*CONTROLS, "▁", "  ", "\n\n", "e\u0301", "😀", "<|", "hello world"]
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
TEXTS = st.lists(st.sampled_from(PIECES) | ANY, max_size=6).map("".join)


def byte_level() -> Tokenizer:
    """GPT-2's form with a normalizer of characters: NFC."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=600, special_tokens=CONTROLS, initial_alphabet=alphabet, show_progress=False)
    )
    return made


def byte_fallback() -> Tokenizer:
    """Gemma's form: a blank for each space, unknown characters as bytes."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<s>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=800, special_tokens=[*CONTROLS, *BYTES], max_token_length=8, show_progress=False)
    )
    raw = json.loads(made.to_str())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["content"] in CONTROLS]
    return Tokenizer.from_str(json.dumps(raw))


def unigram() -> Tokenizer:
    """T5's and Llama's form: a blank in front of each text, and characters that the vocabulary lacks."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace(prepend_scheme="first")
    made.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(vocab_size=300, special_tokens=[*CONTROLS, "<unk>"], unk_token="<unk>", show_progress=False),
    )
    return made


MADE = {"byte level": byte_level, "byte fallback": byte_fallback, "unigram": unigram}


@pytest.fixture(scope="module", params=MADE)
def pair(request: pytest.FixtureRequest) -> tuple[HubEncoder, Any]:
    theirs = MADE[request.param]()
    special = {name: theirs.token_to_id(name) for name in CONTROLS}
    return HubEncoder(Path("tokenizer.json"), theirs.to_str().encode(), special), theirs


def test_a_prompt_has_the_publishers_ids_and_a_text_spells_itself_or_is_said_to_be_altered(pair: tuple[HubEncoder, Any]) -> None:
    ours, theirs = pair
    controls = {theirs.token_to_id(name) for name in CONTROLS}

    @given(TEXTS)
    @settings(max_examples=200, deadline=None)
    def claim(text: str) -> None:
        assert ours.encode(text, allowed_special="all") == theirs.encode(text, add_special_tokens=False).ids
        ids = ours.encode_ordinary(text)
        assert not controls & set(ids) or ours.altered(text), "the unknown token may be a control token: then the text is altered"
        assert (ours.decode_bytes(ids) == text.encode()) or ours.altered(text) is not None

    claim()


def test_plain_text_is_spelled_letter_by_letter(pair: tuple[HubEncoder, Any]) -> None:
    ours, _ = pair
    for text in ("hello world", " from tokenizers", "  two blanks"):
        assert ours.decode_bytes(ours.encode_ordinary(text)) == text.encode() and ours.altered(text) is None


def test_what_a_tokenizer_cannot_spell_is_named() -> None:
    theirs = byte_fallback()
    ours = HubEncoder(Path("t"), theirs.to_str().encode(), {name: theirs.token_to_id(name) for name in CONTROLS})
    assert ours.altered("a▁b") and ours.altered("a b") is None and ours.altered("😀") is None
    nfc = byte_level()
    ours = HubEncoder(Path("t"), nfc.to_str().encode(), {name: nfc.token_to_id(name) for name in CONTROLS})
    assert (
        "normalizer" in str(ours.altered("e\u0301")) and ours.decode_bytes(ours.encode_ordinary("e\u0301")) == "e\u0301".encode()
    )


def test_names_that_are_allowed_become_control_tokens_and_part_the_texts(pair: tuple[HubEncoder, Any]) -> None:
    ours, theirs = pair
    ids = ours.encode("hello<|im_end|> world</s>", allowed_special={"<|im_end|>"})
    assert ids == [*ours.encode_ordinary("hello"), theirs.token_to_id("<|im_end|>"), *ours.encode_ordinary(" world</s>")]


@pytest.mark.parametrize(
    ("data", "special", "line"),
    [
        (b"{", {}, "is not a tokenizer.json"),
        (Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")).to_str().encode(), {}, "is a WordPiece vocabulary"),
        (Tokenizer(models.BPE()).to_str().encode(), {"<s>": 5}, "its '<s>' is None, the profile says 5"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_in_one_line(data: bytes, special: dict[str, int], line: str) -> None:
    with pytest.raises(ExactError) as caught:
        HubEncoder(Path("tokenizer.json"), data, special)
    assert line in str(caught.value) and "\n" not in str(caught.value)
