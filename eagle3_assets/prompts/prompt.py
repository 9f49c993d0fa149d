"""`Prompt`: what this room hands on. Only the type lives here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Given:
    """An answer that exists already (datasets with backend = "import").

    `message` is the assistant message (OpenAI shape; `reasoning_content` holds the reasoning). `output_ids` are the ids that the
    server said it sampled, `prompt_ids` those it said it saw; None where the source has none.
    """

    message: dict[str, Any]
    output_ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One assistant turn to be answered.

    `messages` is the history in OpenAI shape, ending in a user or tool message; `tools` the declared tools or None.
    `sample_id` is 32 hex digits, a stable hash of dataset and prompt (never of the row's position); `turn` counts assistant turns
    before this one. `rank` is the place in the seeded sample: ranks >= the dataset's `n_rows` are reserve. `follow_ups`
    (turns = "chain" or "every") are the messages to append after this turn's answer, one list a further turn; `given_next`
    (turns = "every") the answers to those further turns, one each.
    """

    sample_id: str
    dataset: str
    turn: int
    shard: str
    rank: int
    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]] | None
    expected_tokens: int
    reserve: bool = False
    source_row: str = ""
    follow_ups: Sequence[Sequence[dict[str, Any]]] = ()
    given: Given | None = None
    given_next: Sequence[Given] = ()

    @property
    def key(self) -> tuple[str, int]:
        return self.sample_id, self.turn
