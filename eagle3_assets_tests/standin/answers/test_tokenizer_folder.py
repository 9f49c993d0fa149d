"""A folder of tokenizer files becomes a vocabulary; one that lacks something is told in one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets_tests.conftest import shared_data
from openrouter_standin.answers import tokenizer_folder
from openrouter_standin.answers.replay import make_bank
from openrouter_standin.answers.replay_passages import read_texts
from openrouter_standin.answers.tokenizer_folder import load_tokenizer
from openrouter_standin.errors import StandinError
from openrouter_standin.schema.source import Replay
from openrouter_standin.vocabulary import Vocabulary, take_apart

PROBE = "The user's  code:\n\n\tx = 1234; // </think> 漢字かな 👩🏽‍🚀\r\n e\u0301 <|im_end|>"


def hub(name: str) -> Path:
    folder = shared_data() / "tokenizers" / name
    if not (folder / "tokenizer.json").exists():
        pytest.skip(f"{folder} is absent: set EAGLE3_SHARED_DATA to the shared data folder")
    return folder


def test_kimis_folder_gives_kimis_ids(kimi_files: Path, kimi: Vocabulary) -> None:
    found = load_tokenizer(kimi_files.name, kimi_files.parent)
    assert (found.im_end, found.close_think, found.section_begin) == (163586, 163607, 163595)
    assert found.encode_text(PROBE) == kimi.encode_text(PROBE) and found.encode_prompt(PROBE) == kimi.encode_prompt(PROBE)
    assert found.hidden == kimi.hidden and found.encoding.n_vocab == 163_840


def test_kimis_own_two_files_are_enough(kimi_files: Path, kimi: Vocabulary, tmp_path: Path) -> None:
    for name in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copy(kimi_files / name, tmp_path)
    found = load_tokenizer(str(tmp_path), Path("elsewhere"))
    assert found.encode_prompt(PROBE) == kimi.encode_prompt(PROBE) and found.hidden == kimi.hidden
    assert found.encoding.special_tokens_set == kimi.encoding.special_tokens_set


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kept", "added"), [("qwen3", "<think>", 10), ("deepseek-v4", "</think>", 10)])
def test_another_models_tokenizer_json_gets_the_markers_that_it_lacks(name: str, kept: str, added: int) -> None:
    import tokenizers

    folder = hub(name)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = load_tokenizer(str(folder), Path())
    own = theirs.get_vocab(with_added_tokens=True)
    assert ours.encoding.encode_single_token(kept) == own[kept]
    assert ours.section_begin >= max(own.values()) + 1 and ours.section_end == ours.section_begin + 1
    plain = "The user's code:\n\n\tx = 1234; // 漢字かな 👩🏽‍🚀\r\n é"
    assert list(ours.encode_text(plain)) == theirs.encode(plain, add_special_tokens=False).ids
    assert ours.text(ours.encode_text(plain)) == plain
    marked = f"a{kept}b"
    assert list(ours.encode_prompt(marked)) == theirs.encode(marked, add_special_tokens=False).ids
    assert own[kept] not in ours.encode_text(marked) and ours.text(ours.encode_text(marked)) == marked
    assert ours.encode_prompt("<|tool_call_begin|>x") == (ours.call_begin, *ours.encode_text("x"))


@pytest.mark.slow
def test_a_tokenizer_json_has_every_method_that_the_stand_in_calls() -> None:
    room = Path(tokenizer_folder.__file__).parents[1]
    called = {name for path in room.rglob("*.py") for name in re.findall(r"\bencoding\.(\w+)", path.read_text())}
    called -= {"Encoding"}
    assert {"encode_ordinary", "decode_single_token_bytes", "n_vocab"} <= called
    v = load_tokenizer(str(hub("qwen3")), Path())
    assert {name for name in called if not hasattr(v.encoding, name)} == set()
    assert v.encoding.decode([*v.encode_text("Hi 漢"), v.close_think]) == "Hi 漢</think>"
    assert v.encode_text("a\ud800b") == v.encode_text("a\ufffdb")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "deepseek-v4"])
def test_a_bank_of_another_models_ids_is_canonical(name: str) -> None:
    v = load_tokenizer(str(hub(name)), Path())
    bank = make_bank(Replay(answers=60, mean_tokens=600), v, read_texts((), Path()))
    for answer in bank:
        parts = take_apart(answer.ids, answer.thinking, v)
        texts = [parts.reasoning, parts.content, *(t for c in parts.calls for t in (c.header, c.arguments))]
        torn = [t for t in texts if v.encode_text(v.text(t)) != t]
        assert bool(torn) == ("non_canonical" in answer.habits) or not parts.ended
        assert len(parts.calls) == len(answer.tool_names) or "cut_arguments" in answer.habits


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (None, "is not a folder"),
        ({"chat_template.jinja": ""}, "lacks tiktoken.model (Kimi) and tokenizer.json"),
        ({"tiktoken.model": "AA== 0\n"}, "holds 1 ranks that are not 0, 1, 2"),
        ({"tiktoken.model": "zzz\n"}, "is not a tiktoken file"),
        ({"tokenizer.json": "{"}, "is not JSON"),
        ({"tokenizer.json": "{}"}, "is not a tokenizer.json that can be read"),
    ],
)
def test_what_a_folder_lacks_is_one_line(tmp_path: Path, files: dict[str, str] | None, told: str) -> None:
    for name, content in (files or {}).items():
        (tmp_path / name).write_text(content)
    with pytest.raises(StandinError) as error:
        load_tokenizer("none" if files is None else str(tmp_path), tmp_path)
    assert told in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith("source.replay.tokenizer = ")


def _mini_ranks() -> bytes:
    from kimi_mini.tokenizer import MODEL_FILE

    return MODEL_FILE.read_bytes()


@pytest.mark.parametrize(
    ("name", "facts", "told"),
    [
        (None, None, "lacks special_tokens.json and tokenizer_config.json"),
        ("special_tokens.json", {"n_vocab": 1}, "expected pat_str, named_tokens and n_vocab"),
        ("tokenizer_config.json", {"added_tokens_decoder": []}, "expected added_tokens_decoder"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"2050": {"content": "<|im_end|>"}}}, "names no token <|im_user|>"),
    ],
)
def test_ranks_without_their_markers_are_one_line(tmp_path: Path, name: str | None, facts: Any, told: str) -> None:
    (tmp_path / "tiktoken.model").write_bytes(_mini_ranks())
    if name:
        (tmp_path / name).write_text(json.dumps(facts))
    with pytest.raises(StandinError) as error:
        load_tokenizer(str(tmp_path), tmp_path)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_tokenizer_that_is_no_byte_level_bpe_is_refused(tmp_path: Path) -> None:
    import tokenizers
    from tokenizers import models

    tokenizers.Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(StandinError, match="byte-level BPE only"):
        load_tokenizer(str(tmp_path), tmp_path)
