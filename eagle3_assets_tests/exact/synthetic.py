"""A synthetic provider for these tests: truth ids first, then text as it would bend it, then a bill from the ids.

It shares nothing with the stand-in, and bends by its own few lines (never by the code under test).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3_assets.exact.prompt_side.render import PromptForm, render_prompt
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.wire_answer import WireAnswer

WORDS = ["alpha", "user", "wants", "river", "of", "to", "seven", "market", "stone", "a", "list", "and", "blue", "word", "time"]


@dataclass(frozen=True)
class Truth:
    """What the model wrote."""

    reasoning: str = " thinking"
    content: str = "Answer."
    calls: tuple[tuple[str, str], ...] = ()  # name, arguments
    finish: str = "stop"
    closed: bool = True


def truth_ids(profile: Profile, truth: Truth, first_call: int = 0) -> tuple[int, ...]:
    tool = profile.tool_ids
    ids = [*profile.encode(truth.reasoning)]
    if truth.closed:
        ids += [profile.special("</think>"), *profile.encode(truth.content)]
    if truth.calls:
        ids.append(tool["section_begin"])
        for k, (name, arguments) in enumerate(truth.calls):
            ids += [tool["call_begin"], *profile.encode(f"functions.{name}:{first_call + k}")]
            ids += [tool["argument_begin"], *profile.encode(arguments), tool["call_end"]]
        ids.append(tool["section_end"])
    return tuple(ids if truth.finish == "length" else [*ids, profile.special("<|im_end|>")])


@dataclass
class Provider:
    """`bends`: verbatim, injects or strips. Answers remember their truth."""

    profile: Profile
    name: str = "P"
    bends: str = "verbatim"
    counts_end: bool = True
    form: PromptForm | None = None
    foreign_ids: bool = False
    answers: list[WireAnswer] = field(default_factory=list)
    truths: list[tuple[int, ...]] = field(default_factory=list)

    def bend(self, text: str, *, behind: bool) -> str:
        if self.bends == "injects" and text:
            return " " + text + (" " if behind else "")
        return text.strip() if self.bends == "strips" else text

    def answer(
        self,
        truth: Truth,
        *,
        messages: Sequence[dict[str, Any]] | None = None,
        tools: list[dict[str, Any]] | None = None,
        **changes: Any,
    ) -> WireAnswer:
        profile, k = self.profile, len(self.answers)
        request: dict[str, Any] = {"messages": list(messages or [{"role": "user", "content": f"question {k}"}])}
        if tools:
            request["tools"] = tools
        prior = sum(len(m.get("tool_calls") or ()) for m in request["messages"])
        ids = truth_ids(profile, truth, prior)
        prompt = render_prompt(profile, request["messages"], tools, form=self.form)
        message: dict[str, Any] = {
            "role": "assistant",
            "reasoning": self.bend(truth.reasoning, behind=True) or None,
            "content": (self.bend(truth.content, behind=bool(truth.calls)) or None) if truth.closed else None,
        }
        if truth.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{k:020x}{j}" if self.foreign_ids else f"functions.{name}:{prior + j}",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for j, (name, arguments) in enumerate(truth.calls)
            ]
        billed = len(ids) - (0 if self.counts_end or truth.finish == "length" else 1)
        body: dict[str, Any] = {
            "provider": self.name,
            "choices": [{"index": 0, "finish_reason": truth.finish, "message": message}],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": billed + changes.pop("bill_shift", 0)},
        }
        if changes.pop("with_ids", False):
            body["prompt_token_ids"] = list(prompt)
            body["choices"][0]["token_ids"] = list(ids)
        if changes.pop("no_usage", False):
            del body["usage"]
        made = WireAnswer(
            **{
                "request_id": f"r{k}",
                "sample_id": f"{k:032x}",
                "turn": 0,
                "attempt": 1,
                "dataset": "b3_magicoder",
                "shard": "00",
                "source": "openrouter",
                "request": request,
                "status": 200,
                "body": json.dumps(body).encode(),
                "outcome": "finished",
                "provider": self.name,
                **changes,
            }
        )
        self.answers.append(made)
        self.truths.append((*prompt, *ids))
        return made


def sentences(profile: Profile, n: int, *, neutral: bool | None) -> list[str]:
    """`n` texts without edge whitespace. neutral=True: a space in front changes no count; False: it does; None: half of each."""
    if neutral is None:
        pairs = zip(sentences(profile, n, neutral=True), sentences(profile, n, neutral=False), strict=True)
        return [pair[k // 2 % 2] for k, pair in enumerate(pairs)]
    out: list[str] = []
    k = 0
    while len(out) < n:
        k += 1
        first = str(k) if k % 3 == 0 else chr(ord("A") + k % 26) + (chr(ord("a") + k // 26 % 26) if k % 3 == 1 else "")
        text = f"{first} {' '.join(WORDS[(k * j) % len(WORDS)] for j in range(1, 6))} {k}."
        if (len(profile.encode(" " + text)) == len(profile.encode(text))) == neutral:
            out.append(text)
    return out
