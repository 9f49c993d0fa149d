"""The tokenizer's files are what their maker says, and two independent encoders agree on every text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets_tests.conftest import shared_data
from kimi_mini import tokenizer
from kimi_mini.errors import KimiMiniError
from kimi_mini_workshop import train_tokenizer, world

HF = train_tokenizer.hf_tokenizer(tokenizer.load_ranks())


def hf_ids(text: str) -> list[int]:
    return HF.encode(text, add_special_tokens=False).ids


@pytest.mark.slow
def test_training_again_gives_the_committed_bytes():
    assert train_tokenizer.model_bytes(train_tokenizer.train()) == tokenizer.MODEL_FILE.read_bytes()
    assert train_tokenizer.config_bytes() == tokenizer.CONFIG_FILE.read_bytes()


def test_the_file_is_tiktoken_format_and_tiktoken_reads_it(monkeypatch: pytest.MonkeyPatch):
    from tiktoken.load import load_tiktoken_bpe

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # else tiktoken keeps a copy by path and never looks at the file again
    ranks = load_tiktoken_bpe(str(tokenizer.MODEL_FILE))
    assert ranks == tokenizer.load_ranks()
    assert sorted(ranks.values()) == list(range(2_048))
    assert all(bytes([byte]) in ranks for byte in range(256))
    assert tokenizer.load_encoding().n_vocab == 2_304


def test_regex_and_special_tokens_are_kimis_in_kimis_order():
    path = shared_data() / "tokenizers/kimi-k2.5/special_tokens.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there; EAGLE3_SHARED_DATA says where shared data lies")
    kimi = json.loads(path.read_text())
    assert kimi["pat_str"] == tokenizer.PAT_STR
    specials = tokenizer.special_tokens()
    assert sorted(specials.values()) == list(range(2_048, 2_304))
    assert {name: specials[name] - 2_048 for name in kimi["named_tokens"]} == {
        name: token - kimi["n_base"] for name, token in kimi["named_tokens"].items()
    }
    others = {name: token for name, token in specials.items() if name not in kimi["named_tokens"]}
    assert others == {f"<|reserved_token_{token}|>": token for token in others.values()}
    assert len(others) == 256 - len(kimi["named_tokens"])
    shown = json.loads(tokenizer.CONFIG_FILE.read_text())["added_tokens_decoder"]
    unmarked = {int(token) for token, entry in shown.items() if not entry["special"]}
    assert unmarked == {token - kimi["n_base"] + 2_048 for token in kimi["special_flag_false"]}


def test_the_configured_eos_is_the_trap_and_not_the_end_of_turn():
    config = json.loads(tokenizer.CONFIG_FILE.read_text())
    assert config["eos_token"] == "[EOS]"
    assert config["added_tokens_decoder"]["2049"]["content"] == "[EOS]"
    assert config["added_tokens_decoder"]["2050"]["content"] == "<|im_end|>"


@pytest.mark.slow
def test_both_encoders_agree_on_world_text_not_trained_on():
    encoding = tokenizer.load_encoding()
    trained = set(world.training_fields(train_tokenizer.SEED, train_tokenizer.TRAINING_CONVERSATIONS))
    fields = [field for field in world.training_fields(seed=1, conversations=300) if field not in trained]
    wrong = [field for field in fields if hf_ids(field) != encoding.encode_ordinary(field)]
    assert wrong == []
    assert len(fields) > 700


# Pieces where a split regex or a merge order could go wrong: runs, contractions, scripts without spaces, joiners, markers.
PIECES = st.sampled_from(
    (
        *(
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "'s",
            "'LL",
            "data",
            "'",
            '"',
            '"))',
            "[[",
            "]]}",
            "```",
            "123",
            "4567",
            "aaaa",
            "=" * 9,
        ),
        *("The user", "don't", "你好", "日本語かな", "한국어", "Привет", "\u00e9", "e\u0301", "\u200d", "\ufffd", "\u3000"),
        *("\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f1fa\U0001f1f8", "\U0010ffff", "\ufb01", "\u0130"),
        *("</think>", "<|im_end|>", "[EOS]", '{"a": 1}', "x\x00y", "ß"),
    )
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=14).map("".join))


@pytest.mark.slow
@settings(max_examples=600, deadline=None, derandomize=True)
@given(TEXTS)
def test_both_encoders_agree_on_any_text_and_decoding_gives_it_back(text: str):
    encoding = tokenizer.load_encoding()
    ids = encoding.encode_ordinary(text)
    assert hf_ids(text) == ids
    assert encoding.decode_bytes(ids) == text.encode()
    assert all(token < 2_048 for token in ids), "ordinary text never becomes a control id"


def test_special_text_encodes_to_its_id_only_when_specials_are_on():
    encoding = tokenizer.load_encoding()
    assert encoding.encode("</think>", allowed_special="all") == [2_071]
    assert len(encoding.encode_ordinary("</think>")) > 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "found 0 ranks"),
        (b"not a line\n", "line 1"),
        (b"YQ== x\n", "line 1"),
        (b"YQ== 0\n", "found 1 ranks"),
        (None, "cannot be read"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, content: bytes | None, says: str):
    path = tmp_path / "tiktoken.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KimiMiniError, match=says) as error:
        tokenizer.load_ranks(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
