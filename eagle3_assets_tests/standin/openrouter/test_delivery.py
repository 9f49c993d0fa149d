"""How an answer gets out, and what a client that leaves in the middle of a stream pays."""

from __future__ import annotations

import asyncio

import pytest

from eagle3_assets_tests.standin.conftest import KEY, FakeAnswer, MakeStandin, chat, connected, only, settings, spell
from openrouter_standin.vocabulary import Vocabulary


@pytest.mark.parametrize("cancels", [True, False])
def test_a_stream_that_is_left_is_billed_for_what_went_out_where_the_provider_can_cancel(
    cancels: bool, make_standin: MakeStandin, vocabulary: Vocabulary
) -> None:
    """2,000 ids at 60 a second are 33 simulated seconds; the client leaves after the first text."""
    answer = FakeAnswer(spell(vocabulary, " a" * 2000, "b"))
    profiles = settings(time_scale=0.1)
    first = profiles.provider[0].model_copy(update={"cancels_streams": cancels})
    standin = make_standin(profiles.model_copy(update={"provider": (first,)}), bank=(answer,))
    settle = standin.ledger.settle

    async def run() -> None:
        settled = asyncio.Event()
        standin.ledger.settle = lambda generation: (settle(generation), settled.set())  # type: ignore[method-assign, assignment]
        async with connected(standin) as client:
            headers = {"Authorization": f"Bearer {KEY}"}
            url = client.origin + "/api/v1/chat/completions"
            async with client.session.post(url, json=chat(stream=True, **only("verbatim")), headers=headers) as response:
                async for line in response.content:
                    if line.startswith(b"data: "):
                        break
                response.close()
            await asyncio.wait_for(settled.wait(), 60)

    asyncio.run(run())
    (generation_id,) = standin.ledger.generations
    truth = standin.ledger.truth_of(generation_id)
    assert truth is not None
    told = tuple(truth["completion_ids"])
    assert told == answer.ids[: len(told)]
    assert (len(told) < len(answer.ids)) == cancels
    by_hand = len(truth["prompt_ids"]) * first.prompt_pico + len(told) * first.completion_pico
    assert standin.ledger.spent_pico == truth["cost_pico"] == by_hand > 0
