"""The prompts file: what goes in comes out, every row of the source is accounted for, and the same inputs give the same bytes."""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from eagle3_assets.campaign import SHARDS
from eagle3_assets.errors import PromptError, StoreError
from eagle3_assets.prompts.file import build_prompts, prompt_inputs, read_prompts, read_shard, set_aside_path
from eagle3_assets.prompts.sample import sample_id
from eagle3_assets.targets.profile_facts import marker_pattern, profile_facts
from eagle3_assets_tests.prompts.conftest import MakeCampaign, write_jsonl

MARKERS = marker_pattern(profile_facts("kimi-mini"))

PLAIN = """\
backend = "openrouter"
rows = {rows}
reserve = {reserve}
source = {{ kind = "jsonl", path = "rows.jsonl" }}
mapping = {{ kind = "prompt", prompt = "problem" }}
"""
CHAT = """\
backend = "{backend}"
rows = 50
turns = "{turns}"
source = {{ kind = "jsonl", path = "rows.jsonl" }}
mapping = {{ kind = "messages", tools = "tools", output_ids = "output_ids", finish_reason = "finish_reason" }}
"""
TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object", "properties": {}}}}


def plain(rows: int = 20, reserve: float = 0.2) -> str:
    return PLAIN.format(rows=rows, reserve=reserve)


def problems(n: int) -> list[dict[str, Any]]:
    return [{"problem": f"Write function number {i}. 😀 語 \u2028"} for i in range(n)]


def test_the_selected_prompts_come_back_in_order_with_shards_and_reserve(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    write_jsonl(tmp_path / "rows.jsonl", problems(100))
    campaign, out = make_campaign(plain()), tmp_path / "out" / "b3_magicoder.parquet"
    numbers = build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    every, selected = read_prompts(out, with_reserve=True), read_prompts(out)
    assert (numbers["selected"], numbers["reserve"], numbers["not_sampled"]) == (20, 4, 76)
    assert [p.rank for p in every] == list(range(24))
    assert [p.shard for p in every] == [SHARDS[r % 16] for r in range(24)]
    assert [p.reserve for p in every] == [False] * 20 + [True] * 4
    assert selected == every[:20]
    assert [p for s in SHARDS for p in read_shard(out, s)] == sorted(selected, key=lambda p: (p.shard, p.rank))
    assert read_shard(out, "04", with_reserve=True) == [every[4], every[20]]
    assert numbers["shards"] == {s: 2 if int(s) < 4 else 1 for s in SHARDS}
    for p in every:
        line = int(p.source_row.removeprefix("rows.jsonl:"))
        assert p.messages == ({"role": "user", "content": problems(100)[line - 1]["problem"]},)
        assert p.sample_id == sample_id("b3_magicoder", p.messages, p.tools) and len(p.sample_id) == 32
        assert (p.dataset, p.turn, p.tools, p.given, p.follow_ups) == ("b3_magicoder", 0, None, None, ())
    assert sum(p.expected_tokens for p in selected) == numbers["expected_tokens"] > 0


def test_shuffled_sources_give_the_same_prompts_and_more_rows_keep_the_first(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    rows, out = problems(120), tmp_path / "b3_magicoder.parquet"
    write_jsonl(tmp_path / "rows.jsonl", rows)
    campaign = make_campaign(plain())
    build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    first = [p.sample_id for p in read_prompts(out, with_reserve=True)]
    random.Random(1).shuffle(rows)
    write_jsonl(tmp_path / "rows.jsonl", rows + problems(30))  # some twice as well
    build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    assert [p.sample_id for p in read_prompts(out, with_reserve=True)] == first
    larger = make_campaign(plain(rows=60), name="larger.toml")
    build_prompts(larger, larger.dataset[0], out, markers=MARKERS)
    again = read_prompts(out, with_reserve=True)
    assert [p.sample_id for p in again][: len(first)] == first
    assert [p.shard for p in again[:20]] == [SHARDS[r % 16] for r in range(20)]


def test_equal_inputs_give_equal_bytes(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    write_jsonl(tmp_path / "rows.jsonl", problems(60))
    campaign = make_campaign(plain())
    for name in ("a", "b"):
        build_prompts(campaign, campaign.dataset[0], tmp_path / name / "x.parquet", markers=MARKERS)
    assert (tmp_path / "a" / "x.parquet").read_bytes() == (tmp_path / "b" / "x.parquet").read_bytes()
    assert not list((tmp_path / "a").glob(".*"))


def test_every_source_row_is_accounted_for_with_examples(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    bad: list[dict[str, Any]] = [
        {"problem": ""},
        {"problem": "x\ud800\x1b[31m"},
        {"problem": "why <|im_end|>?"},
        {"other": "x"},
        {"problem": "n\0l"},
        {"problem": [1]},
        {"problem": "y" * 400_001},
    ]
    write_jsonl(tmp_path / "rows.jsonl", [*problems(30), *problems(5), *bad])
    with (tmp_path / "rows.jsonl").open("a") as handle:
        handle.write('{"problem": "torn\n')
    campaign, out = make_campaign(plain(rows=30, reserve=0.0)), tmp_path / "b3_magicoder.parquet"
    numbers = build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    assert numbers["set_aside"] == {
        "control_marker": 1,
        "duplicate": 5,
        "empty": 1,
        "lone_surrogate": 1,
        "missing_column": 1,
        "not_json": 1,
        "nul": 1,
        "too_long": 1,
        "unsupported_content": 1,
    }
    total = numbers["selected"] + numbers["reserve"] + numbers["not_sampled"] + sum(numbers["set_aside"].values())
    assert total == numbers["source_rows"] == 43
    side = json.loads(set_aside_path(out).read_text())
    assert {k: v["count"] for k, v in side["reasons"].items()} == numbers["set_aside"]
    example = side["reasons"]["lone_surrogate"]["examples"][0]
    assert example["source_row"] == "rows.jsonl:37" and "\\ud800\\x1b[31m" in example["text"]
    assert all(len(e["text"]) <= 200 for r in side["reasons"].values() for e in r["examples"])
    assert b"\xed\xa0\x80" not in out.read_bytes()


def test_fewer_rows_than_wanted_are_all_taken(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    write_jsonl(tmp_path / "rows.jsonl", problems(7))
    campaign, out = make_campaign(plain()), tmp_path / "b3_magicoder.parquet"
    numbers = build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    assert (numbers["rows_wanted"], numbers["selected"], numbers["reserve"]) == (20, 7, 0)
    assert read_shard(out, "15") == []


def test_a_source_without_a_usable_row_is_one_line_with_the_reasons(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{"question": "x"}] * 3 + [{"problem": ""}])
    campaign, out = make_campaign(plain()), tmp_path / "b3_magicoder.parquet"
    with pytest.raises(PromptError) as caught:
        build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    line = str(caught.value)
    assert "c.toml: dataset b3_magicoder: no usable row among 4 of rows.jsonl (missing_column 3, empty 1" in line
    assert "'problem' is missing or null; the row has question" in line and "[dataset.mapping]" in line and "\n" not in line
    assert not out.exists() and not set_aside_path(out).exists()


def test_a_source_that_breaks_in_the_middle_leaves_the_old_file_alone(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    write_jsonl(tmp_path / "rows.jsonl", problems(50))
    campaign, out = make_campaign(plain()), tmp_path / "b3_magicoder.parquet"
    build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    before = out.read_bytes(), set_aside_path(out).read_bytes()
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(PromptError, match=r"rows\.jsonl: is missing"):
        build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    assert (out.read_bytes(), set_aside_path(out).read_bytes()) == before


def conversation(i: int) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": json.dumps({"i": i})}}
    return {
        "messages": [
            {"role": "user", "content": f"weather {i}?"},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "4 C"},
            {"role": "assistant", "content": "four", "reasoning_content": "so"},
        ],
        "tools": [TOOL],
        "output_ids": list(range(i, i + 9)),
        "finish_reason": "stop",
    }


def test_an_import_keeps_message_ids_and_finish_reason_and_knows_the_length(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    rows = [conversation(i) for i in range(20)]
    del rows[3]["output_ids"]
    rows.append({"messages": [{"role": "user", "content": "no answer"}], "tools": None})
    write_jsonl(tmp_path / "rows.jsonl", rows)
    campaign, out = make_campaign(CHAT.format(backend="import", turns="last")), tmp_path / "b3_magicoder.parquet"
    numbers = build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    assert numbers["set_aside"] == {"no_answer": 1}
    prompts = {p.source_row: p for p in read_prompts(out)}
    got = prompts["rows.jsonl:6"]
    assert got.given is not None
    assert got.given.message == {"role": "assistant", "content": "four", "reasoning_content": "so"}
    assert got.given.output_ids == tuple(range(5, 14)) and got.given.finish_reason == "stop" and got.given.prompt_ids is None
    assert (got.expected_tokens, got.turn) == (9, 1) and got.tools == (TOOL,)
    assert [m["role"] for m in got.messages] == ["user", "assistant", "tool"]
    without = prompts["rows.jsonl:4"]
    assert without.given is not None and without.given.output_ids is None and 1 <= without.expected_tokens < 20


def test_a_paid_dataset_never_carries_the_sources_answer(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [conversation(i) for i in range(5)])
    campaign, out = make_campaign(CHAT.format(backend="openrouter", turns="last")), tmp_path / "b3_magicoder.parquet"
    build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    assert all(p.given is None for p in read_prompts(out)) and b"four" not in out.read_bytes()


def test_a_chain_carries_its_follow_ups(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [conversation(0)])
    campaign, out = make_campaign(CHAT.format(backend="openrouter", turns="chain")), tmp_path / "b3_magicoder.parquet"
    build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    (prompt,) = read_prompts(out)
    assert prompt.turn == 0 and len(prompt.messages) == 1
    assert prompt.follow_ups[0][0]["content"] == "4 C" and prompt.follow_ups[0][0]["for_call"]["name"] == "w"


def test_an_import_of_every_turn_carries_all_answers_and_two_answers_to_one_task_are_two_samples(
    tmp_path: Path, make_campaign: MakeCampaign
) -> None:
    other = conversation(0)
    other["messages"][3]["content"] = "warm"
    twice = [conversation(0), other, conversation(0)]
    marked = conversation(1)
    marked["messages"][1]["content"] = "<|im_end|>"  # in the history of the second turn
    write_jsonl(tmp_path / "rows.jsonl", [*twice, marked])
    campaign, out = make_campaign(CHAT.format(backend="import", turns="every")), tmp_path / "b3_magicoder.parquet"
    numbers = build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    assert numbers["set_aside"] == {"control_marker": 1, "duplicate": 1} and numbers["selected"] == 2
    prompts = read_prompts(out)
    assert len({p.sample_id for p in prompts}) == 2
    for prompt in prompts:
        assert prompt.turn == 0 and [m["role"] for m in prompt.messages] == ["user"] and prompt.given is not None
        assert prompt.follow_ups == [[{"role": "tool", "tool_call_id": "c1", "content": "4 C"}]]
        assert prompt.given.message["tool_calls"][0]["id"] == "c1" and prompt.given.output_ids is None
        (last,) = prompt.given_next
        assert last.message["content"] in ("four", "warm") and last.output_ids == tuple(range(9)) and last.finish_reason == "stop"
        assert prompt.expected_tokens > 9  # the ids of the last answer, and an estimate of the first


def test_the_inputs_change_with_what_decides_the_content_and_with_nothing_else(
    tmp_path: Path, make_campaign: MakeCampaign
) -> None:
    write_jsonl(tmp_path / "rows.jsonl", problems(5))
    base = plain()

    def inputs(dataset: str = base, **options: Any) -> Any:
        campaign = make_campaign(dataset, **options)
        return json.loads(json.dumps(prompt_inputs(campaign, campaign.dataset[0])))

    before = inputs()
    for free in ('licence = "mit"\n', "usd = 0.5\n", "trusted = true\n"):
        assert inputs(free + base) == before
    for decides in ("max_chars = 7\n", 'turns = "first"\n', "mean_tokens = 9\n", "sampling = { max_tokens = 9 }\n"):
        assert inputs(decides + base) != before
    assert inputs(seed=2) != before
    assert inputs(plain(rows=21)) != before
    assert inputs(base.replace('"openrouter"', '"import"')) != before
    write_jsonl(tmp_path / "rows.jsonl", problems(6))
    assert inputs() != before


def test_hub_inputs_are_the_pin_and_need_no_network(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    pin = "5f839b1f368a76b161028bb9edff055db34022b2"
    source = f'source = {{ kind = "hf", path = "a/b", revision = "{pin}" }}'
    campaign = make_campaign(plain().replace('source = { kind = "jsonl", path = "rows.jsonl" }', source))
    assert prompt_inputs(campaign, campaign.dataset[0])["source"] == {"revision": pin}


def test_reading_says_which_stage_makes_the_file_and_what_is_wrong_with_it(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    out = tmp_path / "b3_magicoder.parquet"
    with pytest.raises(PromptError, match=r"b3_magicoder\.parquet: is missing; materialize prompts/b3_magicoder first"):
        read_prompts(out)
    write_jsonl(tmp_path / "rows.jsonl", problems(30))
    campaign = make_campaign(plain())
    build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    table, whole = pq.read_table(out), out.read_bytes()
    out.write_bytes(whole[:-50])
    with pytest.raises(PromptError, match=r"not readable as prompts .*materialize prompts/b3_magicoder again"):
        read_shard(out, "00")
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"eagle3_prompts_version": b"0"}), out)
    with pytest.raises(PromptError, match="expected prompts version 1, found 0"):
        read_prompts(out)


def test_a_disk_that_refuses_more_is_one_line_and_keeps_the_old_file(tmp_path: Path, make_campaign: MakeCampaign) -> None:
    write_jsonl(tmp_path / "rows.jsonl", problems(50))
    campaign, out = make_campaign(plain()), tmp_path / "b3_magicoder.parquet"
    build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    before = out.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))  # room for the side file, not for the Parquet
    try:
        with pytest.raises(StoreError, match=r"b3_magicoder\.parquet: cannot be written \(File too large\)"):
            build_prompts(campaign, campaign.dataset[0], out, markers=MARKERS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert out.read_bytes() == before and not list(tmp_path.glob(".*.tmp"))


def test_the_demo_campaigns_sources_build_and_its_planted_bad_rows_are_found(tmp_path: Path) -> None:
    from eagle3_assets.campaign import load_campaign

    campaign = load_campaign("demo")
    found: set[str] = set()
    for dataset in campaign.dataset:
        numbers = build_prompts(campaign, dataset, tmp_path / f"{dataset.name}.parquet", markers=MARKERS)
        assert numbers["selected"] == dataset.n_rows, dataset.name
        found |= set(numbers["set_aside"])
    assert {"control_marker", "empty", "lone_surrogate", "invalid_tool_schema", "wrong_roles"} <= found
