"""The demo's source files are their generator's; their bad rows are the ones put there on purpose."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagle3_assets_tests.kimi_mini.reading import read_completion
from kimi_mini import bank, tokenizer
from kimi_mini_workshop import demo_data, spelling, world

ENCODING = tokenizer.load_encoding()


def rows(dataset: str) -> list[dict[str, Any]]:
    text = (demo_data.FOLDER / f"{dataset}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


@pytest.mark.parametrize("dataset", demo_data.ROWS)
def test_making_the_file_again_gives_the_committed_bytes(dataset: str):
    assert demo_data.dataset_bytes(dataset) == (demo_data.FOLDER / f"{dataset}.jsonl").read_bytes()
    assert len(rows(dataset)) == demo_data.N_ROWS[dataset]


def test_making_the_trajectories_again_from_their_answers_gives_the_committed_bytes():
    answers = [tuple(row["output_ids"]) for row in rows("a1_deepswekimi")]
    assert demo_data.trajectory_bytes(answers) == (demo_data.FOLDER / "a1_deepswekimi.jsonl").read_bytes()
    assert len(answers) == demo_data.N_ROWS["a1_deepswekimi"]


@pytest.mark.slow
def test_the_trajectories_answers_are_the_models_own():
    """On-policy: under the committed weights their tokens are as probable as sampled ones are, and far from any other text's."""
    import torch

    from kimi_mini.model import load_model

    model, means = load_model(), []
    for index, row in enumerate(rows("a1_deepswekimi")):
        prompt = world.prompt_ids(*demo_data.trajectory_episode(demo_data.SEED, index))
        ids = torch.tensor([*prompt, *row["output_ids"]])
        with torch.inference_mode():
            chances = model(ids[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        means.append(float(chances.gather(1, ids[len(prompt) :, None]).mean()))
    assert -0.5 < sum(means) / len(means) < 0.0
    assert min(means) > -2.5


def test_the_four_files_are_small():
    assert sum(path.stat().st_size for path in demo_data.FOLDER.glob("*.jsonl")) < 600_000


def test_the_last_turn_of_a_trajectory_is_the_text_of_its_ids():
    for row in rows("a1_deepswekimi"):
        said = read_completion(ENCODING, row["output_ids"], thinking=True)
        last = row["messages"][-1]
        assert last["role"] == "assistant"
        assert last["reasoning_content"] == said.reasoning
        assert last["content"] == (said.content or "")
        called = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in last.get("tool_calls", [])]
        assert called == [(f"functions.{name}:{index}", name, arguments) for name, index, arguments in said.calls]
        assert row["finish_reason"] == ("length" if not said.ended else "tool_calls" if said.calls else "stop")


def test_call_ids_count_over_the_whole_trajectory_and_results_follow_their_calls():
    kinds = set()
    for row in rows("a1_deepswekimi"):
        ids = [call["id"] for message in row["messages"] for call in message.get("tool_calls", [])]
        assert [int(each.rpartition(":")[2]) for each in ids] == list(range(len(ids)))
        results = [message["tool_call_id"] for message in row["messages"] if message["role"] == "tool"]
        assert results == ids[: len(results)]
        assert [message["role"] for message in row["messages"][:2]] == ["system", "user"]
        kinds.add(row["finish_reason"])
    assert kinds == {"stop", "tool_calls", "length"}


def test_two_trajectories_are_not_canonical_and_the_others_are():
    odd = [k for k, row in enumerate(rows("a1_deepswekimi")) if not spelling.is_canonical(ENCODING, row["output_ids"])]
    assert odd == [7, 27]


def test_function_call_prompts_end_with_a_question_and_half_of_them_declare_tools():
    for k, row in enumerate(rows("b1_glaive")):
        assert row["messages"][-1]["role"] == "user"
        assert (row["tools"] is None) == bool(k % 2)
        assert row["tools"] is None or 1 <= len(row["tools"]) <= 4
    assert any(message["role"] == "tool" for row in rows("b1_glaive") for message in row["messages"])


def test_declared_tools_cover_every_tool_that_the_bank_calls():
    called = {name for answer in bank.load_bank() if answer.grammar for name in answer.tool_names}
    declared = {
        tool["function"].get("name")
        for dataset in ("a1_deepswekimi", "b1_glaive", "b8_sweagent")
        for row in rows(dataset)
        for tool in row["tools"] or ()
    }
    assert called <= declared


def test_problems_have_exactly_three_bad_rows():
    problems = [row["problem"] for row in rows("b3_magicoder")]
    bad = [
        k for k, text in enumerate(problems) if not text or any("\ud800" <= char <= "\udfff" for char in text) or _marked(text)
    ]
    assert bad == [17, 42, 71]
    assert all(row.keys() == {"problem", "solution"} for row in rows("b3_magicoder"))


def test_swe_trajectories_have_the_public_shape_and_exactly_two_bad_rows():
    bad = []
    for k, row in enumerate(rows("b8_sweagent")):
        assert {
            "instance_id",
            "model_name",
            "target",
            "trajectory",
            "exit_status",
            "generated_text",
            "eval_logs",
            "tools",
        } == row.keys()
        roles = [step["role"] for step in row["trajectory"]]
        expected = ["system", *["user", "ai"] * ((len(roles) - 1) // 2)]
        named = all(tool["function"].get("name") for tool in row["tools"])
        if roles != expected or not named:
            bad.append(k)
        assert all({"role", "system_prompt", "text", "cutoff_date", "mask"} == step.keys() for step in row["trajectory"])
        assert row["trajectory"][0]["system_prompt"] and row["trajectory"][0]["text"] is None
    assert bad == [23, 50]


def test_no_other_row_holds_control_text():
    for dataset in demo_data.ROWS:
        for k, row in enumerate(rows(dataset)):
            if (dataset, k) != ("b3_magicoder", 71):
                assert not _marked(json.dumps(row)), (dataset, k)


def _marked(text: str) -> bool:
    return any(name in text for name in tokenizer.special_tokens())
