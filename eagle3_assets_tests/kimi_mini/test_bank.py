"""The committed bank holds what the model sampled, every answer is what its flags say, and it answers the demo's own prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3_assets_tests.kimi_mini.reading import CLOSE_THINK, END, read_completion, segments
from kimi_mini import bank, tokenizer
from kimi_mini import model as kimi_mini_model
from kimi_mini.errors import KimiMiniError
from kimi_mini_workshop import demo_data, judge, make_bank, toolset, train_tokenizer

BANK = bank.load_bank()
WHOLE = [answer for answer in BANK if answer.grammar]
ENCODING = tokenizer.load_encoding()
HF = train_tokenizer.hf_tokenizer(tokenizer.load_ranks())


def hf_canonical(ids: tuple[int, ...]) -> bool:
    """Canonical by the other encoder, field by field."""
    for _, part in segments(ids):
        try:
            text = ENCODING.decode_bytes(part).decode("utf-8")
        except UnicodeDecodeError:
            return False
        if HF.encode(text, add_special_tokens=False).ids != part:
            return False
    return True


@pytest.mark.slow
def test_sampling_an_answer_again_gives_the_committed_ids():
    """Another machine may round otherwise in about one answer of a thousand (`sampler`): at most one of these."""
    again = make_bank.make_bank(kimi_mini_model.load_model(), only=range(0, len(BANK), 40))
    committed = BANK[::40]
    assert len(again) == len(committed)
    assert sum(a != b for a, b in zip(again, committed, strict=True)) <= 1


def test_the_bank_is_small_and_has_three_temperatures():
    assert bank.BANK_FILE.stat().st_size <= 3_000_000
    assert {answer.temperature for answer in BANK} == set(make_bank.TEMPERATURES)
    lengths = sorted(len(answer.ids) for answer in BANK)
    assert len(BANK) > 1_500 and lengths[-1] > 120 and lengths[0] < 20


def test_every_prompt_of_the_demo_has_its_own_answers_at_every_temperature():
    for messages, tools in demo_data.demo_requests():
        key = bank.prompt_key(messages, tools, thinking=True)
        found = [answer.temperature for answer in BANK if answer.prompt == key and answer.thinking]
        assert len(found) >= make_bank.SAMPLES * len(make_bank.TEMPERATURES)


def test_every_answer_obeys_its_flags():
    for answer in BANK:
        assert (END in answer.ids) != answer.truncated
        assert answer.ids.count(END) <= 1 and (answer.truncated or answer.ids[-1] == END)
        assert answer.thinking or not answer.grammar or CLOSE_THINK not in answer.ids


def test_the_automaton_reads_every_answer_whose_grammar_flag_is_set():
    for answer in WHOLE:
        said = read_completion(ENCODING, answer.ids, thinking=answer.thinking)
        assert said.ended and (said.content or said.calls)
        assert tuple(name for name, _, _ in said.calls) == answer.tool_names
        for name, _, arguments in said.calls:
            parameters = toolset.DECLARATIONS[name]["function"]["parameters"]
            assert json.loads(arguments).keys() == parameters["properties"].keys()


def test_nearly_every_answer_keeps_the_grammar_and_more_heat_breaks_more():
    def broken(temperature: float) -> float:
        rows = [answer for answer in BANK if answer.temperature == temperature and not answer.truncated]
        return sum(not answer.grammar for answer in rows) / len(rows)

    assert broken(0.6) <= broken(1.0) <= broken(1.3)
    assert broken(1.0) < 0.03


def test_the_canonical_flag_is_true_by_the_other_encoder_and_more_heat_splits_more():
    assert [answer.canonical for answer in BANK] == [hf_canonical(answer.ids) for answer in BANK]
    shares = [
        sum(not a.canonical for a in BANK if a.temperature == t) / sum(a.temperature == t for a in BANK)
        for t in make_bank.TEMPERATURES
    ]
    assert shares == sorted(shares) and shares[1] > 0


def test_truncated_answers_are_cut_in_reasoning_and_behind_it():
    cut = [answer for answer in BANK if answer.truncated]
    assert 0.01 <= len(cut) / len(BANK) <= 0.06
    assert any(answer.thinking and CLOSE_THINK not in answer.ids for answer in cut)
    assert any(answer.thinking and CLOSE_THINK in answer.ids for answer in cut)


def test_the_model_has_habits_at_its_edges_and_sometimes_breaks_them():
    said = [read_completion(ENCODING, answer.ids, thinking=answer.thinking) for answer in WHOLE]
    reasoning = [each.reasoning for each in said if each.reasoning]
    content = [each.content for each in said if each.content]
    one_space = sum(text.startswith(" ") and not text.startswith("  ") for text in reasoning) / len(reasoning)
    bare = sum(not text[0].isspace() for text in content) / len(content)
    assert 0.93 <= one_space < 1.0 and 0.93 <= bare < 1.0
    assert any(text.endswith("\n") for text in reasoning) and any(text.endswith("\n") for text in content)


def test_the_rare_forms_are_all_there():
    said = [(answer, read_completion(ENCODING, answer.ids, thinking=answer.thinking)) for answer in WHOLE]
    assert any(each.implicit_end for _, each in said)
    assert any(answer.thinking and each.reasoning == "" for answer, each in said)
    assert any(not answer.thinking for answer in BANK) and any(not a.thinking and a.tool_names for a in BANK)
    assert {0, 1, 2} <= {len(answer.tool_names) for answer in BANK}
    texts = [(each.reasoning or "") + (each.content or "") for _, each in said]
    for wanted in ("\u200d", "```python", "</think>", "ö", "д", "ん"):
        assert any(wanted in text for text in texts), wanted
    arguments = [call[2] for _, each in said for call in each.calls]
    assert any('": ' in text for text in arguments) and any('":"' in text for text in arguments)


def test_reading_with_the_judge_and_the_automaton_agrees():
    for answer in WHOLE[::7]:
        first = read_completion(ENCODING, answer.ids, thinking=answer.thinking).calls
        turn = judge.read_turn(answer.ids, thinking=answer.thinking, first_call=first[0][1] if first else 0)
        assert turn is not None and tuple(call.name for call in turn.calls) == answer.tool_names


def test_a_file_that_is_no_bank_is_refused_in_one_line(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nonsense")
    pq.write_table(pa.table({"ids": [[1]]}), tmp_path / "other.parquet")
    for name in ("missing", "broken", "other"):
        with pytest.raises(KimiMiniError, match=f"{name}.parquet") as error:
            bank.load_bank(tmp_path / f"{name}.parquet")
        assert "\n" not in str(error.value)
