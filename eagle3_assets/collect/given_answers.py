"""Imports: answers that exist already, written into the same journal as paid ones.

Belongs here: `Prompt.given` -> `WireAnswer` with a body in the shape of an engine's. Does not belong here: reading source rows
(`prompts`).
"""

from __future__ import annotations

import time
from typing import Any

from eagle3_assets.campaign import Campaign
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.wire.journal import dump_json
from eagle3_assets.wire.wire_answer import WireAnswer


def import_answer(campaign: Campaign, prompt: Prompt) -> WireAnswer:
    """The given answer as a finished attempt 1; a prompt without one becomes a permanent failure (`no_given_answer`).

    The body has no `usage` (nothing was billed); `token_ids` and `prompt_token_ids` are there where the source has them.
    """
    now = time.time()
    given = prompt.given
    choice: dict[str, Any] = {}
    body: dict[str, Any] = {}
    if given is not None:
        choice = {"index": 0, "finish_reason": given.finish_reason, "message": given.message}
        body = {"object": "chat.completion", "model": campaign.target.model, "choices": [choice]}
        if given.output_ids is not None:
            choice["token_ids"] = list(given.output_ids)
        if given.prompt_ids is not None:
            body["prompt_token_ids"] = list(given.prompt_ids)
    request: dict[str, Any] = {"model": campaign.target.model, "messages": list(prompt.messages)}
    if prompt.tools:
        request["tools"] = list(prompt.tools)
    return WireAnswer(
        request_id=f"{prompt.sample_id}-{prompt.turn}-1-import",
        sample_id=prompt.sample_id,
        turn=prompt.turn,
        attempt=1,
        dataset=prompt.dataset,
        shard=prompt.shard,
        source="import",
        request=request,
        status=200 if given else 0,
        body=dump_json(body) if given else b"",
        outcome="finished" if given else "failed",
        headers={"content-type": "application/json"},
        model=campaign.target.model,
        started_at=now,
        finished_at=now,
        cost_usd=0.0,
        reason=None if given else "no_given_answer",
        retry_class=None if given else "permanent",
    )
