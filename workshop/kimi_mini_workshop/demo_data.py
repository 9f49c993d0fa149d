"""The demo campaign's source files: four small datasets in the shapes of the real ones, a few bad rows on purpose.

Belongs here: rows of `campaigns/demo_data/*.jsonl`, all of held-out content. Does not belong here: reading them (`prompts`), the
campaign file.
Shapes: A1 our own trajectories with the ids of the last turn (sampled from the model); B1 messages + tools; B3 Magicoder's
problem/solution; B8 nebius/SWE-agent-trajectories (instance_id, trajectory of role/system_prompt/text/..., exit_status, ...) + a
`tools` column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from kimi_mini.tokenizer import load_encoding
from kimi_mini_workshop import judge, spelling, toolset, words, world
from kimi_mini_workshop.episode import (
    Episode,
    Message,
    count_calls,
    declarations,
    opening,
    plain_command,
    prompt_messages,
    text_messages,
)

if TYPE_CHECKING:
    from transformers import DeepseekV3ForCausalLM

FOLDER = Path(__file__).parents[2] / "eagle3_assets" / "campaigns" / "demo_data"
SEED = 0
N_ROWS = {"a1_deepswekimi": 40, "b1_glaive": 48, "b3_magicoder": 96, "b8_sweagent": 64}
B1_KINDS = ("weather", "code", "compare", "greet", "lookup", "pick", "parcel", "add")
ODD_DRAWS = 400
B3_KINDS = ("add", "pick", "code", "greet", "emoji", "story", "code", "story")

Row = dict[str, Any]


def _rng(dataset: str, seed: int, index: int) -> Random:
    return Random(f"kimi-mini/{dataset}/{seed}/{index}")


def _episode(rng: Random, kind: str) -> Episode:
    """A held-out conversation in thinking mode, as the demo campaign asks for it."""
    return replace(world.make_episode(rng, kind, held_out=True), thinking=True, json_tools=False)


# ------------------------------------------------------------------------------------------------ A1
def trajectory_episode(seed: int, index: int) -> tuple[Episode, int]:
    """(conversation of A1's row `index`, the step that is its last turn)."""
    rng = _rng("a1_deepswekimi", seed, index)
    while (episode := _episode(rng, "fix")).text_steps or any(step.turn.reasoning is None for step in episode.steps):
        pass
    return episode, rng.choice((1, 2, 3, 3))


def trajectory_answers(model: DeepseekV3ForCausalLM, seed: int = SEED) -> list[tuple[int, ...]]:
    """Ids of the last turn of every A1 row, sampled from the model as the demo campaign samples (T = 1, top_p = 0.95).

    One row in twenty is cut short, and one in twenty is on purpose the first of many draws at T = 1.3 that is not canonical and reads
    well: the case that only ids show.
    """
    from kimi_mini.sampler import Ask, sample_all

    odd = [index for index in range(N_ROWS["a1_deepswekimi"]) if index % 20 == 7]
    prompts = [tuple(world.prompt_ids(*trajectory_episode(seed, index))) for index in range(N_ROWS["a1_deepswekimi"])]
    asks = [Ask(ids, 1.0, 0.95, seed * 1_000 + k, 9 if k % 20 == 14 else 400) for k, ids in enumerate(prompts)]
    answers = [sample.ids for sample in sample_all(model, asks)]
    draws = [Ask(prompts[index], 1.3, 1.0, draw, 400) for index in odd for draw in range(ODD_DRAWS)]
    drawn = [sample.ids for sample in sample_all(model, draws)]
    for k, index in enumerate(odd):
        episode, step = trajectory_episode(seed, index)
        first_call = count_calls(prompt_messages(episode, step))
        found = (ids for ids in drawn[k * ODD_DRAWS : (k + 1) * ODD_DRAWS] if _odd(ids, episode, first_call))
        answers[index] = next(found, answers[index])
    return answers


def _odd(ids: tuple[int, ...], episode: Episode, first_call: int) -> bool:
    accepted = judge.grammar_accepted(ids, thinking=True, declared=episode.tools, first_call=first_call)
    return accepted and not spelling.is_canonical(load_encoding(), ids)


def trajectory_row(seed: int, index: int, ids: Iterable[int]) -> Row:
    """A1: system, user, some tool steps, and a last assistant turn whose ids are given (its text is derived from them)."""
    episode, step = trajectory_episode(seed, index)
    ids = list(ids)
    message = message_of(ids)
    ended = ids[-1] == spelling.markers().end
    return {
        "id": f"deepswekimi-{index:04d}",
        "messages": [*prompt_messages(episode, step), message],
        "tools": toolset.declarations(toolset.CODING_TOOLS),
        "output_ids": ids,
        "finish_reason": "length" if not ended else "tool_calls" if "tool_calls" in message else "stop",
    }


def message_of(ids: list[int]) -> Row:
    """The assistant message that a server without quirks would make of a thinking completion (also of a truncated one)."""
    encoding, mark = load_encoding(), spelling.markers()

    def text(start: int, end: int) -> str:
        return encoding.decode(ids[start:end], errors="replace")

    def find(token: int, start: int = 0, default: int | None = None) -> int:
        return ids.index(token, start) if token in ids[start:] else (len(ids) if default is None else default)

    end = find(mark.end)
    section = find(mark.section_begin, default=end)
    thought = find(mark.close_think, default=section)
    message: Row = {
        "role": "assistant",
        "content": text(min(thought + 1, section), section),
        "reasoning_content": text(0, thought),
    }
    calls, position = [], section
    while (begin := find(mark.call_begin, position)) < len(ids):
        argument, close = find(mark.argument_begin, begin), find(mark.call_end, begin)
        call_id = text(begin + 1, argument)
        name = call_id.removeprefix("functions.").rpartition(":")[0]
        calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": text(argument + 1, close)}})
        position = close
    return message | ({"tool_calls": calls} if calls else {})


# ------------------------------------------------------------------------------------------------ B1, B3, B8
def function_call_row(seed: int, index: int) -> Row:
    """B1: a question that wants a tool, or none and declares none; sometimes after an earlier exchange."""
    episode = _episode(_rng("b1_glaive", seed, index), B1_KINDS[index % len(B1_KINDS)])
    return {"id": f"glaive-{index:04d}", "messages": opening(episode), "tools": declarations(episode)}


_BAD_PROBLEMS = {
    17: "",  # empty
    42: "Why does my terminal print \ud83d instead of a face?",  # a lone surrogate: no UTF-8 form exists
    71: "My model prints <|im_end|> in the middle of its answer. What did I do wrong?",  # a server would read it as control
}


def problem_row(seed: int, index: int) -> Row:
    """B3: one plain prompt and a solution that nobody reads (the answer is what the campaign buys)."""
    episode = _episode(_rng("b3_magicoder", seed, index), B3_KINDS[index % len(B3_KINDS)])
    return {"problem": _BAD_PROBLEMS.get(index, episode.user), "solution": episode.steps[0].turn.content}


def _swe_step(role: str, text: str | None, *, system_prompt: str | None = None) -> Row:
    return {"role": role, "system_prompt": system_prompt, "text": text, "cutoff_date": "01.01.2023", "mask": role != "ai"}


def swe_row(seed: int, index: int) -> Row:
    """B8: system, issue, then actions and observations in turn, ending in an action."""
    rng = _rng("b8_sweagent", seed, index)
    episode, done = _episode(rng, "fix"), rng.choice((0, 1, 1, 2, 2))
    messages: list[Message] = [{"role": "user", "content": episode.user}]
    for step in episode.steps[: done + 1]:
        messages += text_messages(step, plain_command(step.turn.calls[0]))
    messages.pop()  # the observation behind the last action
    roles = {"user": "user", "assistant": "ai"}
    trajectory = [_swe_step("system", None, system_prompt=words.AGENT_SYSTEM)]
    trajectory += [_swe_step(roles[message["role"]], message["content"]) for message in messages]
    tools: list[Row] = toolset.declarations(toolset.CODING_TOOLS)
    if index == 23:
        trajectory[2]["role"] = "robot"  # bad on purpose: a role that no mapping knows
    if index == 50:
        tools[1] = {"type": "function", "function": {"parameters": {"type": "object"}}}  # bad on purpose: a tool without a name
    return {
        "instance_id": f"{rng.choice(words.VERBS)}__{rng.choice(words.NOUNS)}-{rng.randint(1, 9_999)}",
        "model_name": "swe-agent-llama-70b",
        "target": rng.random() < 0.2,
        "trajectory": trajectory,
        "exit_status": "submitted",
        "generated_text": "",
        "eval_logs": "",
        "tools": tools,
    }


ROWS = {"b1_glaive": function_call_row, "b3_magicoder": problem_row, "b8_sweagent": swe_row}
DATASETS = ("a1_deepswekimi", *ROWS)


def _line(row: Row) -> bytes:
    """One JSONL line in UTF-8; a row with a lone surrogate is written with JSON escapes, the only way it can be."""
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row).encode() + b"\n"


def dataset_bytes(dataset: str, seed: int = SEED) -> bytes:
    """The whole content of one dataset's file (A1's needs the model: `trajectory_bytes`)."""
    return b"".join(_line(ROWS[dataset](seed, index)) for index in range(N_ROWS[dataset]))


def trajectory_bytes(answers: list[tuple[int, ...]], seed: int = SEED) -> bytes:
    """The whole content of A1's file, with these answers."""
    return b"".join(_line(trajectory_row(seed, index, ids)) for index, ids in enumerate(answers))


def write_demo_data(folder: Path = FOLDER, seed: int = SEED) -> dict[str, Any]:
    """Write all four files (A1's answers are sampled from the committed model); returns rows and bytes of each."""
    from kimi_mini.model import load_model

    folder.mkdir(parents=True, exist_ok=True)
    contents = {"a1_deepswekimi": trajectory_bytes(trajectory_answers(load_model(), seed), seed)}
    contents |= {dataset: dataset_bytes(dataset, seed) for dataset in ROWS}
    for dataset, content in contents.items():
        (folder / f"{dataset}.jsonl").write_bytes(content)
    return {dataset: {"rows": content.count(b"\n"), "bytes": len(content)} for dataset, content in contents.items()}


def demo_requests(seed: int = SEED) -> list[tuple[list[Message], list[Row] | None]]:
    """(messages, tools) of every good prompt that the demo campaign buys an answer for, as its mappings make them."""
    made: list[tuple[list[Message], list[Row] | None]] = []
    made += [(row["messages"], row["tools"]) for row in (function_call_row(seed, k) for k in range(N_ROWS["b1_glaive"]))]
    problems = (problem_row(seed, k)["problem"] for k in range(N_ROWS["b3_magicoder"]) if k not in _BAD_PROBLEMS)
    made += [([{"role": "user", "content": text}], None) for text in problems]
    roles = {"system": "system", "user": "user", "ai": "assistant"}
    for row in (swe_row(seed, k) for k in range(N_ROWS["b8_sweagent"]) if k not in (23, 50)):
        messages = [
            {"role": roles[step["role"]], "content": step["system_prompt"] or step["text"]} for step in row["trajectory"][:-1]
        ]
        made.append((messages, row["tools"]))
    return made
