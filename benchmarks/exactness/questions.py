"""What is asked: the same mixture of conversations at every provider, so that prompts, tools and cuts are met everywhere.

Belongs here: requests in OpenAI shape, seeded. Does not belong here: sending them (`purchase`).

Shares: 45 % plain questions (a third with a system message), 30 % with tools and no history, 15 % in the middle of a tool loop
(history with reasoning, arguments and tool ids), 10 % instant. 4 % are cut by a small max_tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]},
        },
    }
    for name, description, properties in (
        ("get_weather", "The weather in a city.", {"city": {"type": "string"}, "days": {"type": "integer"}}),
        ("search_web", "Search the web.", {"query": {"type": "string", "description": "words to look for"}}),
        ("read_file", "Read a file of the workspace.", {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}}),
        ("run_command", "Run a shell command.", {"command": {"type": "string"}, "timeout": {"type": "number"}}),
    )
)  # fmt: skip
_TOPICS = ("rivers", "sorting", "tea", "eclipses", "bridges", "grammar", "proofs", "maps", "yeast", "knots", "tides", "clocks")
_SYSTEMS = ("You are a careful assistant.", "Answer in the language of the question.", "你是一个乐于助人的助手。")
SHORT = 0.04


@dataclass(frozen=True)
class Question:
    """One request, apart from routing. `messages` in OpenAI shape; histories carry `reasoning_content`."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    thinking: bool
    max_tokens: int
    temperature: float = 1.0
    stream: bool = False

    @property
    def turn(self) -> int:
        return sum(message["role"] == "assistant" for message in self.messages)


def make_questions(n: int, seed: int, *, longest: int = 16_384) -> list[Question]:
    """The first `n` questions of a seed; a larger n begins with the same ones."""
    return [_question(k, Random(f"exactness:{seed}:{k}"), longest) for k in range(n)]


def _question(k: int, rng: Random, longest: int) -> Question:
    kind, topic = rng.random(), rng.choice(_TOPICS)
    most = rng.randint(16, 200) if rng.random() < SHORT else longest
    user = {"role": "user", "content": f"Question {k}: what should I know about {topic}?\nSay why, step by step."}
    tools = tuple(rng.sample(TOOLS, rng.randint(1, len(TOOLS))))
    if kind < 0.45:
        system = ({"role": "system", "content": rng.choice(_SYSTEMS)},) if rng.random() < 1 / 3 else ()
        return Question((*system, user), (), True, most)
    if kind < 0.75:
        return Question((user,), tools, True, most)
    if kind < 0.90:
        return Question(_loop(user, tools, topic, rng), tools, True, most)
    return Question((user,), tools if rng.random() < 0.3 else (), False, most)


def _loop(user: dict[str, Any], tools: tuple[dict[str, Any], ...], topic: str, rng: Random) -> tuple[dict[str, Any], ...]:
    """A history in which the model has called once or twice, the second time two tools at once."""
    messages, calls_so_far = [user], 0
    for step in range(rng.randint(1, 2)):
        calls = []
        for _ in range(step + 1):
            name = rng.choice(tools)["function"]["name"]
            arguments = rng.choice(('{"city":"Oslo","days":2}', '{"query": "' + topic + ' ü"}', '{"path": "a/b.py"}', "{}"))
            function = {"name": name, "arguments": arguments}
            calls.append({"id": f"functions.{name}:{calls_so_far}", "type": "function", "function": function})
            calls_so_far += 1
        thought = f" I look {topic} up, step {step}."
        messages.append({"role": "assistant", "content": None, "reasoning_content": thought, "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": f'{{"about": "{topic}", "n": {step}}}'} for call in calls
        ]
    return tuple(messages)


def mini_questions(n: int, seed: int) -> list[Question]:
    """The prompts that kimi-mini's committed answers were really sampled on, at the three temperatures, in a seeded order."""
    from kimi_mini_workshop import demo_data, evaluate, make_bank
    from kimi_mini_workshop.episode import declarations, prompt_messages

    asked = [(messages, tools, True) for messages, tools in demo_data.demo_requests()]
    for question in evaluate.questions(make_bank.WORLD_CONVERSATIONS, seed=2):
        episode = question.episode
        asked.append((prompt_messages(episode, question.step), declarations(episode), episode.thinking))
    made = [
        Question(tuple(map(dict, messages)), tuple(map(dict, tools or ())), thinking, 4_096, temperature)
        for messages, tools, thinking in asked
        for temperature in make_bank.TEMPERATURES
    ]
    Random(f"exactness:mini:{seed}").shuffle(made)
    return [made[k % len(made)] for k in range(n)]
