"""Truth ids -> what a provider returns: text pieces, tool calls, finish reason. Pure functions.

Belongs here: the answer as a whole. Does not belong here: its fields (`bend_text`), its calls (`bend_calls`), the bill (`bill`), bodies
(`wire`), prompts (`render`).
Everything works on *pieces* (one string per id, empty where an id shows nothing), so that a stream's deltas and a whole body are the same
text by construction, and a delta knows its ids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from openrouter_standin import chance
from openrouter_standin.bending.bend_calls import BentCall, bend_calls, cut_call
from openrouter_standin.bending.bend_deltas import ONE_BY_ONE, Deltas
from openrouter_standin.bending.bend_pieces import Pieces
from openrouter_standin.bending.bend_text import bend_fields
from openrouter_standin.schema.bending import Text, TextRules
from openrouter_standin.vocabulary import CallIds, Ids, Parts, Vocabulary


@dataclass(frozen=True)
class Bent:
    """The answer as returned. `edits` names each change that the profile made (for the truth file). `content_at`: where the first id of
    the content field stands in the completion; `no_content`: what the body says when the content has no text."""

    reasoning: Pieces
    content: Pieces
    calls: tuple[BentCall, ...]
    finish_reason: str
    edits: tuple[str, ...]
    content_at: int = 0
    no_content: str | None = None
    deltas: Deltas = ONE_BY_ONE

    @cached_property
    def reasoning_text(self) -> str | None:
        """None when empty, as on the wire."""
        return "".join(self.reasoning) or None

    @cached_property
    def content_text(self) -> str | None:
        return "".join(self.content) or self.no_content


def finish_reason(parts: Parts) -> str:
    """What the ids say: length without an end token, tool_calls with calls, else stop."""
    if not parts.ended:
        return "length"
    return "tool_calls" if parts.calls else "stop"


def bend_answer(
    ids: Ids,
    parts: Parts,
    text: Text,
    vocabulary: Vocabulary,
    *,
    salt: str,
    thinking: bool = True,
    streamed: bool = False,
    calls_so_far: int = 0,
) -> Bent:
    """The completion `ids` and its parts as this profile returns them. `salt` makes every draw (tool ids, leaks, deltas) reproducible,
    `thinking` says whether `<think>` is open in the prompt, `calls_so_far` are the calls of the history, from which a server that
    renumbers goes on."""
    rules = text.rules(streamed=streamed)
    leaks = parts.section and chance.unit("leak", salt) < rules.leak_rate
    reasoning, content = bend_fields(ids, parts, rules, vocabulary, thinking=thinking, leaks=leaks)
    edits = reasoning.edits + content.edits
    calls: tuple[BentCall, ...] = ()
    cut = None
    if parts.section and not leaks:
        cut = cut_call(ids, parts, vocabulary)
        shown = cut if rules.cut_calls == "partial" else None
        calls, more = bend_calls(parts, shown, rules, vocabulary, salt=salt, calls_so_far=calls_so_far)
        edits += more + ["dropped:stray_tool_text"] * (len(parts.stray) > _size(shown))
    finish = _finish(parts, rules, leaks, cut)
    edits += [f"finish_reason:{finish}"] * (finish != finish_reason(parts))
    low, high = rules.tokens_per_delta
    bent = Bent(
        reasoning.pieces, content.pieces, calls, finish, tuple(edits), content.at, content.instead, Deltas(low, high, salt)
    )
    return _with_losses(bent, rules.drop_delta_rate) if streamed and rules.drop_delta_rate else bent


def _size(call: CallIds | None) -> int:
    """Ids of a cut call, its two markers among them."""
    return 0 if call is None else len(call.header) + len(call.arguments) + 2


def _finish(parts: Parts, rules: TextRules, leaks: bool, cut: CallIds | None) -> str:
    if leaks:
        return "stop" if parts.ended else "length"
    if not parts.ended and (parts.calls or cut):
        return rules.finish_of_cut_calls
    return finish_reason(parts)


def _with_losses(bent: Bent, rate: float) -> Bent:
    """The answer as it reaches a client whose stream loses deltas."""
    reasoning, content = list(bent.reasoning), list(bent.content)
    arguments = [list(call.arguments) for call in bent.calls]
    runs = {"reasoning": reasoning, "content": content, **{f"arguments:{k}": run for k, run in enumerate(arguments)}}
    lost = [name for name, run in runs.items() if bent.deltas.drop(name, run, rate)]
    return replace(
        bent,
        reasoning=tuple(reasoning),
        content=tuple(content),
        calls=tuple(replace(call, arguments=tuple(run)) for call, run in zip(bent.calls, arguments, strict=True)),
        edits=(*bent.edits, *(f"lost_deltas:{name}" for name in lost)),
    )
