"""Agent trajectories that exist already, from the source's messages to rows: every id equals an independent rendering.

The other side: the model's own template run by transformers over the history of each turn, its text and the answer's encoded here. Two
tool loops with parallel calls, with the ids of each answer and without them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.collect.given_answers import import_answer
from eagle3_assets.corpus.joined_turns import join_turns
from eagle3_assets.exact.rows import build_rows
from eagle3_assets.exact.sample_row import SampleRow, to_table
from eagle3_assets.prompts.file import build_prompts, read_prompts
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.prompts.turns import given_turn
from eagle3_assets.targets.profile_facts import marker_pattern, profile_facts
from eagle3_assets.targets.tokenizer import Profile, load_profile
from eagle3_assets.wire.wire_answer import WireAnswer
from eagle3_assets_tests.exact.test_conversations import template_text
from eagle3_assets_tests.prompts.conftest import HEAD, write_jsonl

MARKERS = marker_pattern(profile_facts("kimi-mini"))

DATASET = """\
backend = "import"
rows = 10
turns = "every"
reserve = 0.0
source = { kind = "jsonl", path = "rows.jsonl" }
mapping = { kind = "messages", messages = "history", tools = "tools", output_ids = "output_ids", finish_reason = "finish_reason" }
"""


def calling(reasoning: str, content: str, *calls: tuple[int, str]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "finish_reason": "tool_calls",
        "tool_calls": [
            {"id": f"functions.get_weather:{k}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
            for k, arguments in calls
        ],
    }


def result(k: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"functions.get_weather:{k}", "content": text}


def said(reasoning: str, content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "reasoning_content": reasoning, "finish_reason": "stop"}


TRAJECTORY = [
    {"role": "system", "content": "You answer with the tool."},
    {"role": "user", "content": "Rome and Oslo? ¿Y mañana?"},
    calling(" Two calls at once.", "", (0, '{"location": "Rome"}'), (1, '{"location":"Oslo",  "days": 2}')),
    result(0, "21 C\r\nsunny"),
    result(1, ""),
    calling(" Oslo is empty; once more.", "One moment.", (2, '{"location": "Oslo, NO"}')),
    result(2, "3 C ❄"),
    said(" Both are there.", " Rome 21, Oslo 3."),
    {"role": "user", "content": "And Bergen?"},
    calling("", "", (3, '{"location": "Bergen"}')),
    result(3, "rain"),
    said(" It rains.", "Rain."),
]
PLACES = [k for k, m in enumerate(TRAJECTORY) if m["role"] == "assistant"]


def answer_text(message: dict[str, Any], *, thinking: bool) -> str:
    calls = "".join(
        f"<|tool_call_begin|>{c['id']}<|tool_call_argument_begin|>{c['function']['arguments']}<|tool_call_end|>"
        for c in message.get("tool_calls", ())
    )
    section = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>" if calls else ""
    think = f"{message['reasoning_content']}</think>" if thinking else ""
    return f"{think}{message['content'] or ''}{section}<|im_end|>"


@pytest.fixture(params=["kimi-k2.5", "kimi-mini"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def profile(model: str, tokenizers: Path) -> Profile:
    return load_profile(model, tokenizers) if model == "kimi-k2.5" else load_profile(model)


class Bench:
    """The same trajectory on both sides: ours through the rooms, and the rendering of transformers."""

    def __init__(self, folder: Path, tokenizers: Path, golden: dict[str, Any], profile: Profile, thinking: bool) -> None:
        self.folder, self.tokenizers, self.profile, self.thinking = folder, tokenizers, profile, thinking
        self.loop = next(case for case in golden["chat"] if case["model"] == "kimi-k2.5" and case["name"] == "tool_loop")
        head = HEAD.format(seed=1).replace("kimi-mini", profile.name).replace("2304", str(profile.n_vocab))
        if not thinking:
            head = head.replace("weights =", "thinking = false\nweights =")
        (folder / "c.toml").write_text(head + DATASET)
        self.campaign: Campaign = load_campaign(str(folder / "c.toml"))

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.profile.encoding.encode(text, allowed_special="all"))

    def rendered(self, k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(prompt, answer) of the assistant message at place `k`."""
        switches = {"tools_ts_str": self.loop["tools_ts_str"], "thinking": self.thinking}
        text = template_text(self.tokenizers, "kimi-k2.5", TRAJECTORY[:k], tools=self.loop["tools"], **switches)
        return self.encode(text), self.encode(answer_text(TRAJECTORY[k], thinking=self.thinking))

    def rows(self, trajectory: list[dict[str, Any]]) -> list[SampleRow]:
        write_jsonl(self.folder / "rows.jsonl", [{"history": trajectory, "tools": self.loop["tools"]}])
        out = self.folder / "b3_magicoder.parquet"
        dataset = self.campaign.dataset[0]
        build_prompts(self.campaign, dataset, out, markers=MARKERS)
        answers = [import_answer(self.campaign, turn) for prompt in read_prompts(out) for turn in turns_of(prompt)]
        return build_rows(self.profile, self.campaign, dataset, without_the_key(answers), None)

    def with_ids(self) -> list[dict[str, Any]]:
        return [{**m, "output_ids": list(self.rendered(k)[1])} if k in PLACES else m for k, m in enumerate(TRAJECTORY)]


def turns_of(prompt: Prompt | None) -> Iterator[Prompt]:
    while prompt is not None:
        yield prompt
        prompt = given_turn(prompt)


def without_the_key(answers: list[WireAnswer]) -> list[WireAnswer]:
    for answer in answers:  # requests hold messages in normal form: nothing of the source's own keys
        assert not any("output_ids" in m or "finish_reason" in m for m in answer.request["messages"])
    return answers


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("ids", [True, False])
def test_every_turn_of_a_trajectory_has_the_ids_of_an_independent_rendering(
    tmp_path: Path, tokenizers: Path, golden: dict[str, Any], profile: Profile, thinking: bool, ids: bool
) -> None:
    bench = Bench(tmp_path, tokenizers, golden, profile, thinking)
    source = bench.with_ids() if ids else TRAJECTORY
    if not thinking:
        source = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in source]
    rows = bench.rows(source)
    assert [(r.turn, r.grade, r.reasons) for r in rows] == [(t, "I", ()) for t in range(len(PLACES))]
    assert len({r.sample_id for r in rows}) == 1
    for row, place in zip(rows, PLACES, strict=True):
        prompt, answer = bench.rendered(place)
        assert row.input_ids == (*prompt, *answer) and row.prompt_len == len(prompt)
        assert row.loss_spans == ((len(prompt), len(prompt) + len(answer)),)
    found = join_turns(to_table(rows), np.ones(len(rows), dtype=bool))
    kept = found.kept.to_pylist()
    if thinking:  # the answer that closes the first loop takes the reasoning of that loop out of every later prompt
        assert [row["turns"] for row in kept] == [[0, 1, 2], [3, 4]] and found.apart[3] == "history_rewritten"
    else:  # without reasoning nothing is dropped, and the whole conversation is one row
        assert [row["turns"] for row in kept] == [[0, 1, 2, 3, 4]] and not any(found.apart)
    for row in kept:
        last = PLACES[row["turns"][-1]]
        assert tuple(row["input_ids"]) == sum(bench.rendered(last), ())
        spans = [profile.decode(row["input_ids"][s["start"] : s["end"]]) for s in row["loss_spans"]]
        assert spans == [answer_text(TRAJECTORY[PLACES[t]], thinking=thinking) for t in row["turns"]]


def test_an_answer_spelled_otherwise_than_its_text_is_no_prefix_of_the_next_prompt_and_is_not_joined(
    tmp_path: Path, tokenizers: Path, golden: dict[str, Any], profile: Profile
) -> None:
    """The ids that the server sampled are kept; the next prompt, made from their text, holds other ids for the same words."""
    bench = Bench(tmp_path, tokenizers, golden, profile, True)
    source = bench.with_ids()
    at = PLACES[1]
    letters = [i for char in TRAJECTORY[at]["reasoning_content"] for i in bench.encode(char)]
    usual = source[at]["output_ids"]
    source[at]["output_ids"] = [*letters, *usual[usual.index(profile.special("</think>")) :]]
    rows = bench.rows(source)
    assert [r.grade for r in rows] == ["I"] * 5 and json.loads(rows[1].evidence)["canonical"] is False
    found = join_turns(to_table(rows), np.ones(len(rows), dtype=bool))
    assert found.apart == [None, None, "history_rewritten", "history_rewritten", None]
    assert [row["turns"] for row in found.kept.to_pylist()] == [[0, 1], [2], [3, 4]]
    assert tuple(found.kept.to_pylist()[0]["input_ids"]) == rows[1].input_ids


def test_one_bad_answer_of_a_trajectory_is_put_out_and_the_others_stay(
    tmp_path: Path, tokenizers: Path, golden: dict[str, Any], profile: Profile
) -> None:
    bench = Bench(tmp_path, tokenizers, golden, profile, True)
    source = bench.with_ids()
    source[PLACES[1]]["output_ids"] = source[PLACES[0]]["output_ids"]
    rows = bench.rows(source)
    assert [r.grade for r in rows] == ["I", "Q", "I", "I", "I"] and "wire_text" in rows[1].reasons[0]
    found = join_turns(to_table(rows), np.array([r.grade != "Q" for r in rows]))
    assert [row["turns"] for row in found.kept.to_pylist()] == [[1], [0, 2], [3, 4]]


def test_the_corpus_reads_a_trajectory_as_one_row_a_loop_with_every_answer_supervised(
    tmp_path: Path, tokenizers: Path, golden: dict[str, Any]
) -> None:
    from eagle3_assets import corpus as corpora
    from eagle3_assets.corpus.merge import build_corpus
    from eagle3_assets.store import Store
    from eagle3_assets_tests.review.made_rows import write_tokens

    profile = load_profile("kimi-mini")
    bench = Bench(tmp_path, tokenizers, golden, profile, True)
    rows, store = bench.rows(bench.with_ids()), Store(tmp_path / "data")
    for join, spans_of in ((False, [[0], [1], [2], [3], [4]]), (True, [[0, 1, 2], [3, 4]])):
        policy = bench.campaign.corpus.model_copy(update={"join_turns": join, "near_duplicates": 0.0})
        campaign = bench.campaign.model_copy(update={"corpus": policy})
        build_corpus(campaign, store, [write_tokens(store, "b3_magicoder", "00", rows)])
        corpus = corpora.open(store.corpus)
        assert sorted(pack.turn for pack in corpus) == [turns[-1] for turns in spans_of]
        assert sum(corpus.manifest["rows"]["dropped"].values()) == 5 - len(spans_of)
        for pack in corpus:
            turns = next(t for t in spans_of if t[-1] == pack.turn)
            assert tuple(pack.input_ids.tolist()) == rows[pack.turn].input_ids
            learned = pack.input_ids[pack.loss_mask.astype(bool)].tolist()
            assert learned == [i for t in turns for i in rows[t].input_ids[rows[t].prompt_len :]]
