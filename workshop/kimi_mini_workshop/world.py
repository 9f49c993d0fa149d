"""The world: which conversations there are, and each of them as one row of ids.

Belongs here: how often each task type comes, instant mode, system turns, earlier exchanges, the held-out side, rows with their
generated spans. Does not belong here: the task types (`families`), weights and batches (`train`), judging answers (`judge`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from kimi_mini import chat, tool_declaration
from kimi_mini_workshop import toolset, words
from kimi_mini_workshop.episode import (
    Episode,
    Message,
    assistant_message,
    count_calls,
    declarations,
    opening,
    prompt_messages,
)
from kimi_mini_workshop.families import FAMILIES, Family

# task type -> weight; a tool loop is one conversation, so its turns count together
WEIGHTS = {
    "add": 1.5,
    "pick": 1.5,
    "code": 2.0,
    "greet": 2.0,
    "emoji": 1.0,
    "myself": 0.6,
    "story": 1.5,
    "weather": 2.0,
    "compare": 2.0,
    "lookup": 2.0,
    "parcel": 1.2,
    "fix": 2.5,
}
INSTANT, SYSTEM, HISTORY, JSON_TOOLS = 0.12, 0.2, 0.15, 0.08
# what may stand in front of a question; not `myself`: marker text in a history would become a control id
# (docs/research/tokenizers.md#2)
EARLIER = ("add", "pick", "code", "greet", "emoji")
EARLIER_WITH_TOOLS = (*EARLIER, "parcel", "weather")


# What the families can say and the world leaves out, because it was not learned: sums above this, codes with other letters. The
# tokenizer's text is the families' whole range.
LARGEST_ADDEND = 5
CODE_PREFIXES = frozenset(
    ("AB", "BC", "CD", "DE", "EF", "FG", "GH", "HK", "KL", "LM", "MN", "NP", "PR", "RS", "ST", "TU", "UV", "VW", "WX", "XY")
)


def in_world(episode: Episode) -> bool:
    """Whether the world has this content."""
    if episode.kind == "add":
        return all(int(number) <= LARGEST_ADDEND for number in episode.key.split(",")[-2:])
    return episode.kind != "parcel" or episode.key[:2] in CODE_PREFIXES


def _draw(rng: Random, family: Family, thinking: bool, *, held_out: bool, whole_range: bool) -> Episode:
    while True:
        episode = family(rng, thinking)
        if episode.held_out == held_out and (whole_range or in_world(episode)):
            return episode


def _settled(episode: Episode) -> tuple[Message, ...]:
    """A whole episode as history: as a client would replay it."""
    last = len(episode.steps) - 1
    messages = prompt_messages(episode, last)
    return (*messages, assistant_message(episode.steps[last].turn, count_calls(messages)))


def make_episode(rng: Random, kind: str | None = None, *, held_out: bool = False, whole_range: bool = False) -> Episode:
    """Draw a conversation; `kind` fixes the task type. With `held_out` its content is one that no training row has. `whole_range`:
    whatever the families can say (`in_world`)."""
    kind = kind or rng.choices(tuple(WEIGHTS), weights=tuple(WEIGHTS.values()))[0]
    episode = _draw(rng, FAMILIES[kind], rng.random() >= INSTANT, held_out=held_out, whole_range=whole_range)
    if episode.system is None and rng.random() < SYSTEM:
        episode = replace(episode, system=rng.choice(words.SYSTEM_PROMPTS))
    if kind != "fix" and rng.random() < HISTORY:
        before = _draw(
            rng,
            FAMILIES[rng.choice(EARLIER_WITH_TOOLS if episode.tools else EARLIER)],
            True,
            held_out=held_out,
            whole_range=whole_range,
        )
        tools = tuple(name for name in toolset.LOOKUP_TOOLS if name in {*episode.tools, *before.tools})
        episode = replace(episode, history=_settled(before), tools=tools)
    return replace(episode, json_tools=bool(episode.tools) and rng.random() < JSON_TOOLS)


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation as ids. `spans`: half-open spans that the model generates, in order; the last ends at the end of the row."""

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]


def prompt_ids(episode: Episode, step: int) -> list[int]:
    """Ids of everything in front of answer number `step`, the opened `<think>` included."""
    from kimi_mini.tokenizer import load_encoding

    text = chat.render_text(
        prompt_messages(episode, step),
        declarations(episode),
        thinking=episode.thinking,
        typescript_tools=not episode.json_tools,
    )
    return load_encoding().encode(text, allowed_special="all")


def make_row(episode: Episode) -> Row:
    """The whole conversation with every generated answer marked. A turn that forgets `</think>` ends its row: a server replays it
    with one, so what follows is another sequence."""
    from kimi_mini.tokenizer import load_encoding
    from kimi_mini_workshop.spelling import spell_turn

    turns = [step.turn for step in episode.steps]
    last = next((k for k, turn in enumerate(turns) if turn.implicit_end and k >= episode.text_steps), len(turns) - 1)
    spans, ids = [], list[int]()
    for k in range(episode.text_steps, last + 1):
        prompt = prompt_ids(episode, k)
        answer = spell_turn(load_encoding(), turns[k], first_call=count_calls(prompt_messages(episode, k)))
        ids = prompt + answer
        spans.append((len(prompt), len(ids)))
    return Row(tuple(ids), tuple(spans))


def training_episode(seed: int, index: int) -> Episode:
    """Training conversation `index` of `seed`; depends on nothing else."""
    return make_episode(Random(f"kimi-mini/train/{seed}/{index}"))


def held_out_episode(seed: int, index: int, kind: str | None = None) -> Episode:
    """Held-out conversation `index` of `seed`, of one task type where `kind` says so."""
    return make_episode(Random(f"kimi-mini/held-out/{seed}/{kind}/{index}"), kind, held_out=True)


def training_fields(seed: int, conversations: int) -> Iterator[str]:
    """Text for the tokenizer's training: every field of `conversations` conversations, markers left out."""
    yield from ("system", "user", "assistant", "tool", "tool_declare") * 20
    for k in range(conversations):
        episode = make_episode(Random(f"kimi-mini/tokenizer/{seed}/{k}"), whole_range=True)
        for message in opening(episode):
            yield message["content"]
        if episode.tools and k % 8 == 0:
            yield tool_declaration.typescript(declarations(episode) or [])
        for step in episode.steps:
            yield from filter(None, (step.turn.reasoning, step.turn.content))
            for index, call in enumerate(step.turn.calls):
                yield f"functions.{call.name}:{index}"
                yield call.arguments
            for index, (call, text) in enumerate(zip(step.turn.calls, step.results, strict=False)):
                yield f"## Return of functions.{call.name}:{index}\n{text}"


def describe(conversations: int = 2_000) -> dict[str, object]:
    """Figures of the world for the command line."""
    rows = [(training_episode(0, k), make_row(training_episode(0, k))) for k in range(conversations)]
    lengths = sorted(len(row.ids) for _, row in rows)
    generated = sum(end - start for _, row in rows for start, end in row.spans)
    return {
        "conversations": conversations,
        "mean_tokens": round(sum(lengths) / len(lengths), 1),
        "p95_tokens": lengths[int(len(lengths) * 0.95)],
        "max_tokens": lengths[-1],
        "generated_share": round(generated / sum(lengths), 4),
        "task_types": json.dumps({kind: sum(episode.kind == kind for episode, _ in rows) for kind in WEIGHTS}),
    }
