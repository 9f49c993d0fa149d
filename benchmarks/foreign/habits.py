"""Nine habits of providers that were met in recorded traffic: what they do to text and bill.

Belongs here: habits that a learner should be able to learn. Does not belong here: mechanisms that no reading has (`bills`, `rewriting`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from benchmarks.foreign.model import Template, unwrapped
from benchmarks.foreign.sent import Scene, Sent, verbatim

Mechanism = Callable[[Scene], Sent]


def strips_leading_break(scene: Scene) -> Sent:
    """Line breaks in front of a text are taken away (reasoning parsers)."""
    sent = verbatim(scene)
    return replace(sent, reasoning=sent.reasoning.lstrip("\n"), content=sent.content.lstrip("\n"))


def injects_spaces(scene: Scene) -> Sent:
    """A decoder with spaces between control tokens: one space behind <think>'s and in front of </think>, tool markers and the rest."""
    sent = verbatim(scene)
    content = f" {sent.content}{' ' if sent.calls else ''}" if sent.content else ""
    return replace(sent, reasoning=f" {sent.reasoning} " if sent.reasoning else "", content=content)


def end_not_billed_for_calls(scene: Scene) -> Sent:
    sent = verbatim(scene)
    return replace(sent, billed_completion=sent.billed_completion - int(bool(sent.calls)))


def spaces_arguments(scene: Scene) -> Sent:
    """Arguments are parsed and written again with spaces; other whitespace and escapes are lost."""
    sent = verbatim(scene)
    calls = tuple(replace(call, arguments=json.dumps(json.loads(call.arguments), ensure_ascii=False)) for call in sent.calls)
    return replace(sent, calls=calls)


def reasoning_billed_apart(scene: Scene) -> Sent:
    sent, thought = verbatim(scene), len(scene.case.reasoning_ids)
    return replace(sent, billed_completion=sent.billed_completion - thought, billed_reasoning=thought)


def rewrites_call_ids(scene: Scene) -> Sent:
    sent = verbatim(scene)
    return replace(sent, calls=tuple(replace(call, id=f"call_{scene.rng.getrandbits(96):024x}") for call in sent.calls))


def bills_prefilled_think(scene: Scene) -> Sent:
    """The <think> of the generation prompt counts as output."""
    sent = verbatim(scene)
    if not scene.case.thinking:
        return sent
    return replace(sent, billed_prompt=sent.billed_prompt - 1, billed_completion=sent.billed_completion + 1)


def unwraps_tools(scene: Scene) -> Sent:
    """Tools reach the template as `function` objects alone: the declaration is their compact JSON."""
    sent, tools = verbatim(scene), scene.case.request.get("tools")
    if not tools:
        return sent
    prompt = scene.case.prompt_ids(scene.model, Template(declared=unwrapped(tools)))
    return replace(sent, prompt_ids=prompt, billed_prompt=len(prompt))


def end_not_billed(scene: Scene) -> Sent:
    sent = verbatim(scene)
    return replace(sent, billed_completion=sent.billed_completion - int(not scene.case.cut))


def strips_both(scene: Scene) -> Sent:
    sent = verbatim(scene)
    return replace(sent, reasoning=sent.reasoning.strip(), content=sent.content.strip())


HABITS: dict[str, Mechanism] = {
    "verbatim": verbatim,
    "strips leading break": strips_leading_break,
    "injects spaces": injects_spaces,
    "end not billed for calls": end_not_billed_for_calls,
    "spaces arguments": spaces_arguments,
    "reasoning billed apart": reasoning_billed_apart,
    "rewrites call ids": rewrites_call_ids,
    "bills prefilled think": bills_prefilled_think,
    "unwraps tools": unwraps_tools,
}
# what surrounds a world: the habits that most providers have
ORDINARY: dict[str, Mechanism] = {
    "Verbatim": verbatim,
    "Injects": injects_spaces,
    "EndUnbilled": end_not_billed,
    "Strips": strips_both,
    "CallIds": rewrites_call_ids,
}
