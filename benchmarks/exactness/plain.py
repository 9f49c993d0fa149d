"""Plain re-encoding: what one does without any of this. The formula of the seed, with the right end of turn and with the seed's own.

Belongs here: the baseline and nothing clever. E(reasoning) + </think> + E(content) + tool section as on the wire + end of turn; prompt
by the model's own template. It never looks at the bill; whether its count equals the bill is told beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.exactness.purchase import Truth
from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.render import render_prompt, wants_thinking
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.wire_answer import WireAnswer

SEEDS_END = 163533  # the ordinary token `chas`, which the seed took for the end of turn (docs/design.md#rule-1)


@dataclass
class Tally:
    """Counts over answers. `signed` and `absolute`: sums of rebuilt minus billed completion tokens."""

    answers: int = 0
    exact: int = 0
    completion_exact: int = 0
    equal_bill: int = 0
    equal_bill_exact: int = 0
    signed: int = 0
    absolute: int = 0
    billed: int = 0

    def add(self, other: Tally) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def completion(profile: Profile, fields: Fields, *, thinking: bool, end: int) -> tuple[int, ...]:
    """The formula. Raises ExactError for text that has no ids."""
    ids = list(profile.encode(fields.reasoning or ""))
    if thinking:
        ids.append(profile.special("</think>"))
    ids += profile.encode(fields.content or "")
    if fields.tool_calls:
        tool = profile.tool_ids
        ids.append(tool["section_begin"])
        for call in fields.tool_calls:
            ids += [tool["call_begin"], *profile.encode(call.id), tool["argument_begin"], *profile.encode(call.arguments)]
            ids.append(tool["call_end"])
        ids.append(tool["section_end"])
    return (*ids, end)


def tally(profile: Profile, answers: list[WireAnswer], truths: Mapping[str, Truth], *, end: int) -> Tally:
    """Over one provider's answers."""
    out = Tally()
    for answer in answers:
        fields = parse_fields(answer.body, answer.content_type)
        truth = truths.get(answer.generation_id or "")
        if truth is not None:
            out.add(_one(profile, answer.request, fields, truth, end))
    return out


def _one(profile: Profile, request: Mapping[str, Any], fields: Fields, truth: Truth, end: int) -> Tally:
    thinking = wants_thinking(request)
    try:
        ids = completion(profile, fields, thinking=thinking, end=end)
        prompt = tuple(render_prompt(profile, request["messages"], request.get("tools"), thinking=thinking))
    except ExactError:
        ids, prompt = (), ()
    billed = fields.billed_completion or 0
    right = ids == truth.completion_ids
    return Tally(
        answers=1,
        exact=right and prompt == truth.prompt_ids,
        completion_exact=right,
        equal_bill=len(ids) == billed,
        equal_bill_exact=right and len(ids) == billed,
        signed=len(ids) - billed,
        absolute=abs(len(ids) - billed),
        billed=billed,
    )
