"""What OpenRouter charges for an answer: token counts by the provider's convention, money in picodollars.

Belongs here: `[provider.billing]`. Does not belong here: the account (`ledger`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from openrouter_standin import chance
from openrouter_standin.bending.bend import Bent
from openrouter_standin.schema.bending import Billing
from openrouter_standin.schema.provider import Provider
from openrouter_standin.vocabulary import Ids, Parts, Vocabulary


@dataclass(frozen=True)
class Bill:
    """Token counts by the provider's convention (`reasoning_tokens` None where it tells none); money in picodollars."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None
    prompt_pico: int
    completion_pico: int

    @property
    def total_pico(self) -> int:
        return self.prompt_pico + self.completion_pico


def _kimi_mini(text: str) -> int:
    from kimi_mini.tokenizer import load_encoding

    return len(load_encoding().encode_ordinary(text))


# tokenizers that are not the model's (docs/research/exactness.md#2b, last row)
_FOREIGN: dict[str, Callable[[str], int]] = {
    "kimi-mini": _kimi_mini,
    "bytes/4": lambda text: math.ceil(len(text.encode("utf-8", "replace")) / 4),
}


def count_prompt(prompt: Ids, billing: Billing, vocabulary: Vocabulary) -> int:
    """prompt_tokens by the provider's convention."""
    foreign = _FOREIGN.get(billing.counts_by)
    return max((foreign(vocabulary.encoding.decode(list(prompt))) if foreign else len(prompt)) + billing.prompt_offset, 0)


def count_completion(completion: Ids, parts: Parts, bent: Bent, billing: Billing, *, salt: str) -> int:
    """completion_tokens by the provider's convention. Noise is drawn from the salt."""
    if foreign := _FOREIGN.get(billing.counts_by):
        texts = [bent.reasoning_text or "", bent.content_text or ""]
        texts += [text for call in bent.calls for text in (call.name, "".join(call.arguments))]
        count = sum(map(foreign, texts)) + parts.ended
    else:
        count = len(completion)
    count -= parts.ended and not billing.counts_end
    if billing.count_noise:
        count = round(count * (1 + billing.count_noise * (2 * chance.unit("count noise", salt) - 1)))
    return max(count + billing.completion_offset, 0)


def count_reasoning(parts: Parts, bent: Bent, billing: Billing) -> int | None:
    """reasoning_tokens by the provider's convention."""
    match billing.reasoning_tokens:
        case "with_close":
            return len(parts.reasoning) + parts.closed
        case "text":
            return len(parts.reasoning)
        case "plus_one":
            return len(parts.reasoning) + parts.closed + 1
        case "estimate":
            return math.ceil(len(bent.reasoning_text or "") / 4)
        case "zero":
            return 0
        case "null":
            return None


def make_bill(
    prompt: Ids, completion: Ids, parts: Parts, bent: Bent, provider: Provider, vocabulary: Vocabulary, *, salt: str
) -> Bill:
    """What OpenRouter charges for this answer of this provider."""
    billing = provider.billing
    prompt_tokens = count_prompt(prompt, billing, vocabulary)
    completion_tokens = count_completion(completion, parts, bent, billing, salt=salt)
    return Bill(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        reasoning_tokens=count_reasoning(parts, bent, billing),
        prompt_pico=prompt_tokens * provider.prompt_pico,
        completion_pico=completion_tokens * provider.completion_pico,
    )
