"""What is known of the datasets before they are answered: from their prompts, or from the campaign file alone.

Belongs here: counting rows, characters and lengths. Does not belong here: what they cost (`plan.py`), the pilot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_assets.campaign import Campaign, Dataset
from eagle3_assets.estimate.assumptions import stated
from eagle3_assets.prompts.prompt import Given, Prompt
from eagle3_assets.prompts.turns import given_turn
from eagle3_assets.store import Store


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What is known of one dataset before it is answered. `rows` are answers: one a turn.

    `known`: tokens of each row that are known: of the prompt, or of the whole row where the answer is there already (`whole`). Empty:
    only sums are known. `conversations`: of imports with turns = "every", tokens of each conversation as one row.
    """

    dataset: Dataset
    rows: int
    prompt_chars: int
    expected_tokens: int
    known: Sequence[float] = ()
    whole: bool = False
    conversations: Sequence[float] = ()

    @property
    def prompt_tokens(self) -> int:
        return round(self.prompt_chars / stated("chars_per_token"))


def facts_of(campaign: Campaign, store: Store) -> list[DatasetFacts]:
    """The facts of every dataset's selected prompts. Raises PromptError while they are missing."""
    from eagle3_assets.prompts.file import read_prompts

    return [facts_of_prompts(dataset, read_prompts(store.prompts(dataset.name))) for dataset in campaign.dataset]


def facts_of_prompts(dataset: Dataset, prompts: Iterable[Prompt]) -> DatasetFacts:
    """Tokens of texts are characters / `chars_per_token`; where a source has ids, they are counted."""
    per_token = stated("chars_per_token")
    rows, chars, expected = 0, 0.0, 0
    known: list[float] = []
    conversations: list[float] = []
    for prompt in prompts:
        expected += prompt.expected_tokens
        for turn in _turns(prompt):
            asked = prompt_chars(turn)
            if turn.given is not None and turn.given.prompt_ids is not None:
                asked = len(turn.given.prompt_ids) * per_token
            answer = given_tokens(turn.given) if turn.given is not None else 0.0
            known.append(asked / per_token + answer)
            rows, chars = rows + 1, chars + asked
        if dataset.turns == "every":
            conversations.append(known[-1])  # the last turn's prompt holds all that was before
    return DatasetFacts(dataset, rows, round(chars), expected, known, dataset.backend == "import", conversations)


def _turns(prompt: Prompt | None) -> Iterator[Prompt]:
    while prompt is not None:
        yield prompt
        prompt = given_turn(prompt)


def prompt_chars(prompt: Prompt) -> float:
    """Characters that a model would read: texts, reasoning and calls of the history, declared tools."""
    return float(sum(map(_chars, prompt.messages)) + (len(str(list(prompt.tools))) if prompt.tools else 0))


def _chars(message: Mapping[str, Any]) -> int:
    calls = sum(
        len(str(c.get("function", {}).get("arguments", ""))) + len(str(c.get("id", ""))) for c in message.get("tool_calls") or ()
    )
    return len(str(message.get("content") or "")) + len(str(message.get("reasoning_content") or "")) + calls


def given_tokens(given: Given) -> float:
    """Tokens of an answer that exists: its ids, or an estimate from its text."""
    return float(len(given.output_ids)) if given.output_ids is not None else _chars(given.message) / stated("chars_per_token")


def outline(campaign: Campaign) -> list[DatasetFacts]:
    """The facts that the campaign file alone gives: rows x mean_tokens, and `prompt_tokens` for each prompt. The mean of a dataset with
    turns = "every" counts whole conversations, so nothing is added to it."""
    found = []
    for dataset in campaign.dataset:
        asked = 0.0 if dataset.turns == "every" else stated("prompt_tokens") * stated("chars_per_token")
        output = round(dataset.n_rows * dataset.mean_tokens)
        found.append(DatasetFacts(dataset, dataset.n_rows, round(dataset.n_rows * asked), output))
    return found
