"""The world: who asks what, and how the model answers, before any token is chosen.

Belongs here: tasks (system, user, declared tools), turns (reasoning, content, tool calls) and their whitespace habits, whole
conversations as training text. Does not belong here: token ids (`spelling.py`, `bank.py`), files on disk (`demo_data.py`).
Text only: seeded, written for this, no third-party text. The grammar is Kimi K2.5's (research note tokenizers 4).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from eagle3_assets.kimi_mini import prose, snippets, toolset

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a careful assistant. Answer in the language of the user.",
    "You are Kimi-mini, a tiny assistant. Keep it short.",
    "You are a coding agent in a sandbox. Use the tools, then submit.",
    "Answer as precisely as you can. If you don't know, say so.",
)
LITERAL_MARKERS = ("</think>", "<|im_end|>", "<|tool_call_begin|>", "[EOS]")


@dataclass(frozen=True, slots=True)
class Habits:
    """How the model begins and ends its fields, as shares of rows; the rest is spread over other forms.

    The defaults mimic what was seen of K2.5: reasoning starts with one space, content with none (research note tokenizers 3).
    """

    reasoning_space: float = 0.97
    content_bare: float = 0.97
    end_bare: float = 0.95


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call; `arguments` is the raw JSON text in the model's hand."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked. `size` is the wanted length of the answer in tokens (a wish, met within about a factor of 1.5)."""

    language: str
    system: str | None
    user: str
    tools: tuple[str, ...]
    thinking: bool
    size: int
    coding: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer, taken apart. `reasoning` is None in instant mode; `implicit_end`: tools start without `</think>`."""

    reasoning: str | None
    content: str
    calls: tuple[Call, ...] = ()
    implicit_end: bool = False


@dataclass(frozen=True, slots=True)
class Mixture:
    """Shares of the kinds of answers."""

    instant: float = 0.12
    tools: float = 0.46
    implicit_end: float = 0.06  # of the thinking answers with tools
    empty_reasoning: float = 0.02
    literal_marker: float = 0.008
    median_tokens: float = 190.0
    sigma: float = 0.70
    max_tokens: int = 1_200
    habits: Habits = field(default_factory=Habits)


def pick_size(rng: Random, mixture: Mixture) -> int:
    """Lognormal length in tokens, cut at `max_tokens`."""
    return min(mixture.max_tokens, max(8, round(mixture.median_tokens * rng.lognormvariate(0.0, mixture.sigma))))


def make_task(rng: Random, mixture: Mixture = Mixture()) -> Task:
    """Draw a task; its tools are those that are *declared* (empty: none), called ones come with the answer."""
    language = prose.pick_language(rng)
    coding = rng.random() < (0.45 if language == "en" else 0.15)
    tools: tuple[str, ...] = ()
    if rng.random() < mixture.tools:
        tools = toolset.CODING_TOOLS if coding else toolset.LOOKUP_TOOLS
    user = prose.sentence(rng, language, "asks")
    if coding:
        subject = snippets.fenced(rng) if rng.random() < 0.6 else f"`{snippets.identifier(rng)}` in {snippets.file_path(rng)}"
        user = f"{user}\n\n{subject}"
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.4 else None
    return Task(language, system, user, tools, rng.random() >= mixture.instant, pick_size(rng, mixture), coding)


def _write(rng: Random, task: Task, kind: prose.Kind, tokens: float) -> str:
    """Blocks of prose (and code, where the task is about code) of about `tokens` tokens."""
    wanted = max(1, int(tokens * prose.lexicon(task.language).chars_per_token))
    deck = prose.templates(rng, task.language, kind)
    blocks: list[str] = []
    while (left := wanted - sum(map(len, blocks))) > 0.2 * wanted or not blocks:
        if task.coding and blocks and rng.random() < (0.25 if kind == "thoughts" else 0.5):
            blocks.append(snippets.fenced(rng) if rng.random() < 0.7 else f"`{snippets.code(rng)[1].splitlines()[0]}`")
        else:
            blocks.append(prose.block(rng, task.language, deck, left, plain=kind == "thoughts"))
    return "\n\n".join(blocks)


def _edge(rng: Random, text: str, habit: str, share: float, others: tuple[str, ...], *, front: bool) -> str:
    space = habit if rng.random() < share else rng.choice(others)
    return space + text if front else text + space


def _calls(rng: Random, task: Task) -> tuple[Call, ...]:
    count = rng.choices((1, 2, 3, 4), weights=(65, 22, 9, 4))[0]
    names = [rng.choice(task.tools) for _ in range(count)]
    names = [name if k == count - 1 or name != "submit" else "bash" for k, name in enumerate(names)]  # nothing follows a submit
    return tuple(Call(name, toolset.write_json(rng, toolset.arguments(rng, name, task.language))) for name in names)


def write_answer(rng: Random, task: Task, mixture: Mixture = Mixture(), *, call: bool | None = None) -> Turn:
    """Answer `task`. `call` forces (True) or forbids (False) tool calls; None: called in 70 % of tasks that declare tools."""
    habits = mixture.habits
    calls = _calls(rng, task) if task.tools and (call if call is not None else rng.random() < 0.7) else ()
    share = 0.8 if calls else 0.6
    reasoning: str | None = None
    if task.thinking:
        reasoning = ""
        if rng.random() >= mixture.empty_reasoning:
            reasoning = _write(rng, task, "thoughts", task.size * share)
            reasoning = _edge(rng, reasoning, " ", habits.reasoning_space, ("", "", "\n", "\n\n"), front=True)
            reasoning = _edge(rng, reasoning, "", habits.end_bare, ("\n", " ", "\n\n"), front=False)
    implicit = bool(calls) and bool(reasoning) and rng.random() < mixture.implicit_end
    content = ""
    if not calls or (not implicit and rng.random() < 0.5):
        content = _write(rng, task, "statements", task.size * (0.2 if calls else (0.4 if task.thinking else 1.0)))
        if not calls and rng.random() < 0.3:
            content += "\n\n" + prose.sentence(rng, task.language, "closers")
        if rng.random() < mixture.literal_marker:
            content += f"\n\nThe marker `{rng.choice(LITERAL_MARKERS)}` is written as ordinary text here."
        content = _edge(rng, content, "", habits.content_bare, (" ", "\n", "\n\n"), front=True)
        content = _edge(rng, content, "", habits.end_bare, ("\n", " "), front=False)
    return Turn(reasoning, content, calls, implicit)


def training_fields(seed: int, conversations: int) -> Iterator[str]:
    """Text for the tokenizer's training: every field of `conversations` conversations, markers left out."""
    yield from ("system", "user", "assistant", "tool", "tool_declare") * 20
    for k in range(conversations):
        rng = Random(f"kimi-mini/world/{seed}/{k}")
        task = make_task(rng)
        if task.system:
            yield task.system
        yield task.user
        if task.tools and rng.random() < 0.3:
            yield json.dumps(toolset.declarations(task.tools), separators=(",", ":"))
        turn = write_answer(rng, task)
        if turn.reasoning:
            yield turn.reasoning
        if turn.content:
            yield turn.content
        for index, call in enumerate(turn.calls):
            yield f"functions.{call.name}:{index}"
            yield call.arguments
            given: dict[str, Any] = json.loads(call.arguments)
            yield f"## Return of functions.{call.name}:{index}\n{toolset.result(rng, call.name, given, task.language)}"
