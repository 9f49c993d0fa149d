"""The committed bank is its generator's, and every answer in it is what its flags say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from eagle3_assets.errors import ExactError
from eagle3_assets.kimi_mini import bank, tokenizer, toolset

from .reading import CLOSE_THINK, END, N_BASE, read_completion, segments

BANK = bank.load_bank()
ENCODING = tokenizer.load_encoding()
HF = tokenizer.hf_tokenizer(tokenizer.load_ranks())


def hf_canonical(ids: tuple[int, ...]) -> bool:
    """Canonical by the other encoder, field by field."""
    for _, part in segments(ids):
        text = ENCODING.decode_bytes(part).decode("utf-8")
        if HF.encode(text, add_special_tokens=False).ids != part:
            return False
    return True


def test_making_the_bank_again_gives_the_committed_file(tmp_path: Path):
    bank.write_bank(tmp_path / "bank.parquet")
    assert (tmp_path / "bank.parquet").read_bytes() == bank.BANK_FILE.read_bytes()


def test_one_answer_depends_on_nothing_but_seed_and_index():
    assert bank.make_answer(bank.SEED, 1_234) == BANK[1_234]
    assert bank.make_answer(bank.SEED + 1, 1_234) != BANK[1_234]


def test_the_bank_is_small_and_its_lengths_are_lognormal_like():
    assert bank.BANK_FILE.stat().st_size <= 3_000_000
    assert len(BANK) == 1_500
    lengths = sorted(len(answer.ids) for answer in BANK)
    assert 200 <= sum(lengths) / len(lengths) <= 350
    assert lengths[-1] > 800 and lengths[0] < 60
    assert sum(lengths) / len(lengths) > lengths[len(lengths) // 2] * 1.1, "a right tail pulls the mean above the median"


def test_every_answer_obeys_the_grammar_and_its_flags():
    for answer in BANK:
        said = read_completion(ENCODING, answer.ids, thinking=answer.thinking)
        assert said.ended != answer.truncated
        assert (END in answer.ids) != answer.truncated
        assert tuple(name for name, _, _ in said.calls) == answer.tool_names
        assert [index for _, index, _ in said.calls] == list(range(len(said.calls)))
        assert answer.thinking or CLOSE_THINK not in answer.ids
        if not answer.truncated:
            assert said.content or said.calls, "an answer says something"


def test_tool_arguments_are_json_objects_that_fit_their_declaration():
    seen = Counter[str]()
    for answer in BANK:
        for name, _, arguments in read_completion(ENCODING, answer.ids, thinking=answer.thinking).calls:
            parameters = toolset.DECLARATIONS[name]["function"]["parameters"]
            given = json.loads(arguments)
            assert set(parameters["required"]) <= given.keys() <= parameters["properties"].keys()
            seen[name] += 1
    assert seen.keys() == toolset.DECLARATIONS.keys()


def test_tools_of_one_answer_come_from_one_family():
    for answer in BANK:
        assert set(answer.tool_names) <= set(toolset.CODING_TOOLS) or set(answer.tool_names) <= set(toolset.LOOKUP_TOOLS)


def test_the_canonical_flag_is_true_by_the_other_encoder_and_the_share_is_as_stated():
    assert [answer.canonical for answer in BANK] == [hf_canonical(answer.ids) for answer in BANK]
    odd = [answer for answer in BANK if not answer.canonical]
    assert 0.02 <= len(odd) / len(BANK) <= 0.045
    delta = Counter()
    for answer in odd:
        fields = [ENCODING.decode_bytes(part).decode() for _, part in segments(answer.ids)]
        markers = sum(token >= N_BASE for token in answer.ids)
        delta[len(answer.ids) - markers - sum(len(ENCODING.encode_ordinary(field)) for field in fields)] += 1
    assert delta[0] >= 5, "some keep the count, so that a bill cannot see them"
    assert sum(count for change, count in delta.items() if change > 0) >= 5
    assert sum(count for change, count in delta.items() if change < 0) >= 1


def test_truncated_answers_are_cut_in_reasoning_and_in_content():
    cut = [answer for answer in BANK if answer.truncated]
    assert 0.01 <= len(cut) / len(BANK) <= 0.03
    assert any(answer.thinking and CLOSE_THINK not in answer.ids for answer in cut)
    assert any(answer.thinking and CLOSE_THINK in answer.ids for answer in cut)


def test_the_model_has_habits_at_its_edges_and_sometimes_breaks_them():
    said = [read_completion(ENCODING, answer.ids, thinking=answer.thinking) for answer in BANK]
    reasoning = [each.reasoning for each in said if each.reasoning]
    content = [each.content for each in said if each.content]
    one_space = sum(text.startswith(" ") and not text.startswith("  ") for text in reasoning) / len(reasoning)
    bare = sum(not text[0].isspace() for text in content) / len(content)
    assert 0.95 <= one_space <= 0.99 and 0.95 <= bare <= 0.99
    assert any(text.startswith("\n") for text in reasoning) and any(not text[0].isspace() for text in reasoning)
    assert any(text.startswith("\n") for text in content) and any(text.startswith(" ") for text in content)
    assert any(text.endswith("\n") for text in reasoning) and any(text.endswith("\n") for text in content)


def test_the_rare_forms_are_all_there():
    said = [(answer, read_completion(ENCODING, answer.ids, thinking=answer.thinking)) for answer in BANK]
    assert sum(each.implicit_end for _, each in said) >= 5
    assert sum(answer.thinking and each.reasoning == "" for answer, each in said) >= 5
    assert sum(not answer.thinking for answer in BANK) >= 100
    assert sum(not answer.thinking and bool(answer.tool_names) for answer in BANK) >= 10
    assert {len(answer.tool_names) for answer in BANK} == {0, 1, 2, 3, 4}
    texts = [(each.reasoning or "") + (each.content or "") for _, each in said]
    for wanted in ("\u200d", "\r\n", "e\u0301", "```python", "</think>", "<|im_end|>", "🇺🇸"):
        assert any(wanted in text for text in texts), wanted
    arguments = [call[2] for _, each in said for call in each.calls]
    assert any('": ' in text for text in arguments) and any('","' in text or '":"' in text for text in arguments)
    assert {answer.language for answer in BANK} == {"en", "de", "es", "fr", "ru", "zh", "ja", "ko"}


def test_a_file_that_is_no_bank_is_refused_in_one_line(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nonsense")
    pq.write_table(pa.table({"ids": [[1]]}), tmp_path / "other.parquet")
    for name in ("missing", "broken", "other"):
        with pytest.raises(ExactError, match=f"{name}.parquet") as error:
            bank.load_bank(tmp_path / f"{name}.parquet")
        assert "\n" not in str(error.value)
