"""Kimi-mini's figures on held-out prompts: grammar, right answers, non-canonical splits, speed.

Belongs here: what is asked, counted and printed. Does not belong here: judging one answer (`judge`), sampling (`sampler`).
Every turn of a conversation is asked on the given history (the world's, not the model's own earlier turns).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_mini.tokenizer import load_encoding
from kimi_mini_workshop import judge, spelling, world
from kimi_mini_workshop.episode import Episode, count_calls, prompt_messages

if TYPE_CHECKING:
    from transformers import DeepseekV3ForCausalLM

TEMPERATURES = (0.0, 0.6, 1.0, 1.3)
CONVERSATIONS = 600
SEED = 1
MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Question:
    """One turn to answer."""

    episode: Episode
    step: int
    prompt: tuple[int, ...]
    first_call: int


def questions(conversations: int, seed: int = SEED) -> list[Question]:
    """Every turn of that many held-out conversations, in the world's own mixture."""
    made = []
    for k in range(conversations):
        episode = world.held_out_episode(seed, k)
        for step in range(episode.text_steps, len(episode.steps)):
            first_call = count_calls(prompt_messages(episode, step))
            made.append(Question(episode, step, tuple(world.prompt_ids(episode, step)), first_call))
    return made


def tally(asked: Sequence[Question], answers: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Counts over one temperature: {turns, tokens, grammar, right, by_type, by_turn, non_canonical, ...}; answers are ids with the end id."""
    counts, types, turns = Counter[str](), dict[str, Counter[str]](), dict[str, Counter[str]]()
    for question, ids in zip(asked, answers, strict=True):
        episode = question.episode
        turn = judge.read_turn(ids, thinking=episode.thinking, first_call=question.first_call)
        right = judge.is_right(turn, episode.steps[question.step])
        grammar = judge.grammar_accepted(ids, thinking=episode.thinking, declared=episode.tools, first_call=question.first_call)
        counts.update(turns=1, tokens=len(ids), grammar=int(grammar), right=int(right), **_splits(ids))
        types.setdefault(episode.kind, Counter()).update(turns=1, right=int(right))
        turns.setdefault(f"{episode.kind} {question.step + 1}", Counter()).update(turns=1, right=int(right))
    by_type = {kind: {"turns": types[kind]["turns"], "right": types[kind]["right"]} for kind in sorted(types)}
    by_turn = {turn: {"turns": turns[turn]["turns"], "right": turns[turn]["right"]} for turn in sorted(turns)}
    names = ("turns", "tokens", "grammar", "right", "non_canonical", "longer", "equal_length", "shorter", "not_utf8")
    return {name: counts[name] for name in names} | {"by_type": by_type, "by_turn": by_turn}


def _splits(ids: Sequence[int]) -> dict[str, int]:
    """How the ids differ from the encoder's of the same text, in number: none of it for canonical answers."""
    encoding = load_encoding()
    if spelling.is_canonical(encoding, ids):
        return {}
    try:
        again = spelling.canonical(encoding, ids)
    except UnicodeDecodeError:
        return {"non_canonical": 1, "not_utf8": 1}
    kind = "equal_length" if len(ids) == len(again) else "longer" if len(ids) > len(again) else "shorter"
    return {"non_canonical": 1, kind: 1}


def evaluate(
    model: DeepseekV3ForCausalLM,
    conversations: int = CONVERSATIONS,
    temperatures: Sequence[float] = TEMPERATURES,
    *,
    seed: int = SEED,
    slots: int = 32,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """{"conversations", "seed", "temperatures": {"0.0": {counts, tokens_per_s, seconds}, ...}}. Sampled from the whole distribution
    (top_p = 1), so that malformed answers are counted and not cut off."""
    from kimi_mini.sampler import Ask, sample_all

    asked = questions(conversations, seed)
    figures = {}
    for temperature in temperatures:
        asks = [Ask(q.prompt, temperature, 1.0, seed * 1_000_003 + k, MAX_TOKENS) for k, q in enumerate(asked)]
        begin = time.monotonic()
        samples = sample_all(model, asks, slots=slots)
        seconds = time.monotonic() - begin
        counts = tally(asked, [sample.ids for sample in samples])
        figures[f"{temperature:.1f}"] = counts | {
            "seconds": round(seconds, 1),
            "tokens_per_s": round(counts["tokens"] / seconds),
        }
        progress(line(temperature, figures[f"{temperature:.1f}"]))
    return {"conversations": conversations, "seed": seed, "temperatures": figures}


def line(temperature: float, counts: dict[str, Any]) -> str:
    """One readable line."""
    turns = counts["turns"]
    return (
        f"T = {temperature:.1f}: {turns} turns, {counts['tokens']} tokens, grammar {counts['grammar'] / turns:.1%}, "
        f"right {counts['right'] / turns:.1%}, not canonical {counts['non_canonical']} ({counts['non_canonical'] / turns:.1%}; "
        f"{counts['longer']} longer, {counts['equal_length']} of equal length, {counts['shorter']} shorter, "
        f"{counts['not_utf8']} not UTF-8), {counts['tokens_per_s']} tokens/s"
    )


def table(figures: dict[str, Any]) -> str:
    """Right turns by task type, for each temperature."""
    temperatures = figures["temperatures"]
    rows = ["type".ljust(10) + "".join(f"T={t}".rjust(16) for t in temperatures)]
    for kind in sorted(next(iter(temperatures.values()))["by_type"]):
        cells = (counts["by_type"][kind] for counts in temperatures.values())
        rows.append(kind.ljust(10) + "".join(f"{c['right']}/{c['turns']} {c['right'] / c['turns']:.0%}".rjust(16) for c in cells))
    return "\n".join(rows)
