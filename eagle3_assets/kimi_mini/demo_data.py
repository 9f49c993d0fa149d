"""The demo campaign's source files: four small datasets in the shapes of the real ones, a few bad rows on purpose.

Belongs here: rows of `campaigns/demo_data/*.jsonl`. Does not belong here: reading them (`prompts`), the campaign file.
Shapes: A1 our own trajectories with the ids of the last turn; B1 messages + tools; B3 Magicoder's problem/solution; B8
nebius/SWE-agent-trajectories (instance_id, trajectory of role/system_prompt/text/..., exit_status, ...) + a `tools` column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from eagle3_assets.kimi_mini import bank, prose, snippets, spelling, toolset, world
from eagle3_assets.kimi_mini.tokenizer import load_encoding

FOLDER = Path(__file__).parent.parent / "campaigns" / "demo_data"
SEED = 0
N_ROWS = {"a1_deepswekimi": 40, "b1_glaive": 48, "b3_magicoder": 96, "b8_sweagent": 64}
A1_NON_CANONICAL_EVERY = 20  # one row in twenty: 5 %
AGENT_SYSTEM = "You are a coding agent in a sandbox. Look, change, test, then submit. Work in /repo."
QUIET = world.Mixture(literal_marker=0.0)  # marker text stands in the bad rows only

Row = dict[str, Any]


def _rng(dataset: str, seed: int, index: int) -> Random:
    return Random(f"kimi-mini/{dataset}/{seed}/{index}")


def _tool_calls(turn: world.Turn, first_call: int) -> list[Row]:
    return [
        {"id": f"functions.{call.name}:{index}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for index, call in enumerate(turn.calls, first_call)
    ]


def _assistant(turn: world.Turn, first_call: int) -> Row:
    message: Row = {"role": "assistant", "content": turn.content}
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = _tool_calls(turn, first_call)
    return message


def _tool_results(rng: Random, turn: world.Turn, first_call: int, language: str) -> list[Row]:
    return [
        {
            "role": "tool",
            "tool_call_id": f"functions.{call.name}:{index}",
            "content": toolset.result(rng, call.name, json.loads(call.arguments), language),
        }
        for index, call in enumerate(turn.calls, first_call)
    ]


def message_of(ids: list[int]) -> Row:
    """The assistant message that a server without quirks would make of a thinking completion (also of a truncated one)."""
    encoding, mark = load_encoding(), spelling.markers()

    def text(start: int, end: int) -> str:
        return encoding.decode(ids[start:end], errors="strict")

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


def trajectory_row(seed: int, index: int) -> Row:
    """A1: system, user, some tool steps, and a last assistant turn whose ids are given (its text is derived from them)."""
    rng = _rng("a1_deepswekimi", seed, index)
    language = "en" if rng.random() < 0.8 else prose.pick_language(rng)
    task = world.Task(language, AGENT_SYSTEM, "", toolset.CODING_TOOLS, thinking=True, size=0, coding=True)
    where = f"The failing code is in {snippets.file_path(rng)}:"
    user = "\n\n".join((prose.sentence(rng, language, "asks"), where, snippets.fenced(rng)))
    messages: list[Row] = [{"role": "system", "content": AGENT_SYSTEM}, {"role": "user", "content": user}]
    made = 0
    steps = replace(task, tools=("bash", "str_replace_editor"))
    for _ in range(rng.randint(1, 4)):
        turn = world.write_answer(rng, replace(steps, size=rng.randint(30, 90)), QUIET, call=True)
        turn = replace(turn, implicit_end=False)
        messages += [_assistant(turn, made), *_tool_results(rng, turn, made, language)]
        made += len(turn.calls)
    last = world.write_answer(rng, replace(task, size=rng.randint(60, 350)), QUIET, call=False)
    if index % 4 == 3:
        arguments = toolset.write_json(rng, toolset.arguments(rng, "submit", language))
        last = replace(last, content="", calls=(world.Call("submit", arguments),))
    ids = bank.sample_ids(rng, last, first_call=made, non_canonical=float(index % A1_NON_CANONICAL_EVERY == 7))
    finish_reason = "tool_calls" if last.calls else "stop"
    if index % 20 == 14:
        ids, finish_reason = bank.cut(rng, ids), "length"
    messages.append(message_of(ids))
    return {
        "id": f"deepswekimi-{index:04d}",
        "messages": messages,
        "tools": toolset.declarations(toolset.CODING_TOOLS),
        "output_ids": ids,
        "finish_reason": finish_reason,
    }


def function_call_row(seed: int, index: int) -> Row:
    """B1: a question that wants a tool, sometimes after an earlier exchange with a tool in it."""
    rng = _rng("b1_glaive", seed, index)
    language = prose.pick_language(rng)
    names = toolset.LOOKUP_TOOLS if index % 3 else tuple(rng.sample(toolset.LOOKUP_TOOLS, 2))
    task = world.Task(language, None, "", names, True, 60, False)
    messages: list[Row] = []
    if rng.random() < 0.6:
        messages.append({"role": "system", "content": rng.choice(world.SYSTEM_PROMPTS)})
    messages.append({"role": "user", "content": prose.sentence(rng, language, "asks")})
    if index % 6 == 5:
        call = replace(world.write_answer(rng, task, QUIET, call=True), implicit_end=False)
        answer = world.write_answer(rng, task, QUIET, call=False)
        messages += [_assistant(call, 0), *_tool_results(rng, call, 0, language), _assistant(answer, 0)]
        messages.append({"role": "user", "content": prose.sentence(rng, language, "asks")})
    return {"id": f"glaive-{index:04d}", "messages": messages, "tools": toolset.declarations(names)}


_BAD_PROBLEMS = {
    17: "",  # empty
    42: "Why does my terminal print \ud83d instead of a face?",  # a lone surrogate: no UTF-8 form exists
    71: "My model prints <|im_end|> in the middle of its answer. What did I do wrong?",  # a server would read it as control
}


def problem_row(seed: int, index: int) -> Row:
    """B3: one plain prompt and a solution that nobody reads (the answer is what the campaign buys)."""
    rng = _rng("b3_magicoder", seed, index)
    task = world.make_task(rng, replace(QUIET, tools=0.0))
    solution = world.write_answer(rng, replace(task, thinking=False, size=min(task.size, 80)), QUIET).content
    return {"problem": _BAD_PROBLEMS.get(index, task.user), "solution": solution}


def _step(role: str, text: str | None, *, system_prompt: str | None = None) -> Row:
    return {"role": role, "system_prompt": system_prompt, "text": text, "cutoff_date": "01.01.2023", "mask": role != "ai"}


def swe_row(seed: int, index: int) -> Row:
    """B8: system, issue, then observations and actions in turn, ending in an action."""
    rng = _rng("b8_sweagent", seed, index)
    issue = f"{prose.sentence(rng, 'en', 'asks')}\n\n{snippets.fenced(rng)}\n\n(Current directory: /repo)"
    trajectory = [_step("system", None, system_prompt=AGENT_SYSTEM), _step("user", issue)]
    for k in range(steps := rng.randint(2, 6)):
        thought = prose.sentence(rng, "en", "thoughts")
        trajectory.append(_step("ai", f"{thought}\n\n```\n{'submit' if k == steps - 1 else snippets.shell_command(rng)}\n```"))
        if k < steps - 1:
            trajectory.append(_step("user", f"{snippets.shell_output(rng)}\n(Current directory: /repo)\nbash-$"))
    tools: list[Row] = toolset.declarations(toolset.CODING_TOOLS)
    if index == 23:
        trajectory[2]["role"] = "robot"  # bad on purpose: a role that no mapping knows
    if index == 50:
        tools[1] = {"type": "function", "function": {"parameters": {"type": "object"}}}  # bad on purpose: a tool without a name
    return {
        "instance_id": f"{prose.invented_word(rng)}__{prose.invented_word(rng)}-{rng.randint(1, 9_999)}",
        "model_name": "swe-agent-llama-70b",
        "target": rng.random() < 0.2,
        "trajectory": trajectory,
        "exit_status": "submitted",
        "generated_text": "",
        "eval_logs": "",
        "tools": tools,
    }


ROWS = {
    "a1_deepswekimi": trajectory_row,
    "b1_glaive": function_call_row,
    "b3_magicoder": problem_row,
    "b8_sweagent": swe_row,
}


def _line(row: Row) -> bytes:
    """One JSONL line in UTF-8; a row with a lone surrogate is written with JSON escapes, the only way it can be."""
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row).encode() + b"\n"


def dataset_bytes(dataset: str, seed: int = SEED) -> bytes:
    """The whole content of one dataset's file."""
    rows: Iterable[Row] = (ROWS[dataset](seed, index) for index in range(N_ROWS[dataset]))
    return b"".join(map(_line, rows))


def write_demo_data(folder: Path = FOLDER, seed: int = SEED) -> dict[str, Any]:
    """Write all four files; returns rows and bytes of each."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {}
    for dataset in ROWS:
        content = dataset_bytes(dataset, seed)
        (folder / f"{dataset}.jsonl").write_bytes(content)
        figures[dataset] = {"rows": content.count(b"\n"), "bytes": len(content)}
    return figures
