"""The figure that counts: τ simulated from stored states is the τ of a real draft-and-verify walk, verification by verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from eagle3_assets.accept.acceptance import Decoding, figures, measure
from eagle3_assets.accept.batch import Row, make_batch
from eagle3_assets.accept.drafts import Tree, chain_hits, starts_of, target_of, tree_hits
from eagle3_assets.accept.stored_rows import StoredRow
from eagle3_assets.accept.walk import Verified, walk_drawn, walk_greedy, walk_text
from eagle3_assets.states.extractors.transformers import TransformersExtractor
from eagle3_assets_tests.accept.conftest import Trained
from eagle3_assets_tests.accept.decoding import CachedTarget, PlainDrafter, Walked, decode_chain, decode_tree
from kimi_mini.tokenizer import special_tokens
from kimi_mini_workshop.evaluate import questions

# LIMIT: ids of an answer. Figures of whole answers (LIMIT 48, nine minutes): docs/acceptance.md.
CHAIN, LIMIT, TOP_P, CONVERSATIONS = 3, 12, 0.95, 200
TREE = Tree(topk=3, steps=3, nodes=8)


def walk_for_real(
    trained: Trained, decode: Callable[..., Walked], count: int, temperature: float, **settings: object
) -> list[StoredRow]:
    """Decode so many conversations; the texts as rows with the states of the campaign's own engine. Walks are kept beside them."""
    campaign, plain = trained.place.campaign, PlainDrafter(trained.drafter)
    asked, rng = questions(count, 11)[:count], np.random.default_rng(0)
    end = special_tokens()["<|im_end|>"]
    walks = [
        decode(
            CachedTarget(trained.model, campaign.layers, trained.head), plain, question.prompt, temperature=temperature, top_p=TOP_P,
            end=end, limit=LIMIT, rng=rng, **settings,
        )
        for question in asked
    ]  # fmt: skip
    engine = TransformersExtractor(trained.model, name="kimi-mini", revision=None, fingerprint="", stored_dtype="float32")
    captured = engine.capture([walk.ids for walk in walks], campaign.layers)
    rows = []
    for k, (question, walk, one) in enumerate(zip(asked, walks, captured, strict=True)):
        mask = np.arange(len(walk.ids)) >= len(question.prompt)
        row = Row(np.array(walk.ids, dtype=np.int64), mask, one.states)
        rows.append(StoredRow(f"{k:04d}", 0, "walked", "A0", (temperature, TOP_P), row))
    WALKS[id(rows)] = walks
    return rows


WALKS: dict[int, list[Walked]] = {}


def accepted_by(verified: Verified) -> list[int]:
    visited = verified.tested[:, 0] > 0
    return [int(n) for n in verified.accepted[visited].sum(1)]


def plain_tau(walks: Sequence[Walked]) -> float:
    """What a server reports: one, and the accepted drafts of a verification."""
    return 1 + sum(sum(w.accepted) for w in walks) / sum(len(w.accepted) for w in walks)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_chain_is_accepted_as_a_real_walk_accepts_it(trained: Trained, temperature: float) -> None:
    rows = walk_for_real(trained, decode_chain, CONVERSATIONS, temperature, chain=CHAIN, drawn=False)
    walks = WALKS[id(rows)]
    assert len(rows) >= 200 and 1.3 < plain_tau(walks) < CHAIN + 1
    for stored, walk in zip(rows, walks, strict=True):
        batch = make_batch([stored.row])
        target = target_of(trained.head, batch, [stored.sampling])
        hits, _ = chain_hits(trained.drafter, batch, target, CHAIN, [stored.sampling])
        starts = starts_of(batch)
        on_text = (target.choice[starts] == batch.ids[starts + 1]).numpy()
        found = walk_greedy(hits, on_text) if temperature == 0 else walk_text(hits)
        assert accepted_by(found) == walk.accepted, stored.sample_id
    way = "greedy_chain" if temperature == 0 else "sampled_chain"
    whole = figures(measure(trained.drafter, rows, trained.head, Decoding(CHAIN)))[way]["all"]
    assert whole["verifications"] == sum(len(w.accepted) for w in walks)
    assert whole["tau"] == pytest.approx(plain_tau(walks), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_is_accepted_as_a_real_walk_accepts_it(trained: Trained, temperature: float) -> None:
    count = CONVERSATIONS
    rows = walk_for_real(trained, decode_tree, count, temperature, topk=TREE.topk, steps=TREE.steps, nodes=TREE.nodes)
    walks = WALKS[id(rows)]
    for stored, walk in zip(rows, walks, strict=True):
        batch = make_batch([stored.row])
        hits = tree_hits(trained.drafter, batch, target_of(trained.head, batch, [stored.sampling]), TREE)
        assert accepted_by(walk_text(hits)) == walk.accepted, stored.sample_id
    way = "greedy_tree" if temperature == 0 else "sampled_tree"
    whole = figures(measure(trained.drafter, rows, trained.head, Decoding(CHAIN, TREE)))[way]["all"]
    assert whole["tau"] == pytest.approx(plain_tau(walks), abs=1e-12)


@pytest.mark.slow
def test_drawn_drafts_are_accepted_as_often_as_the_simulation_says(trained: Trained) -> None:
    """Chance decides each draft, so its probability is compared for every draft that was put to the test, and the sums within their error."""
    rows = walk_for_real(trained, decode_chain, CONVERSATIONS, 1.0, chain=CHAIN, drawn=True)
    walks = WALKS[id(rows)]
    verifications, expected = [], []
    for stored, walk in zip(rows, walks, strict=True):
        batch = make_batch([stored.row])
        target = target_of(trained.head, batch, [stored.sampling])
        _, share = chain_hits(trained.drafter, batch, target, CHAIN, [stored.sampling])
        at = 0
        for accepted, chances in zip(walk.accepted, walk.chances, strict=True):
            # the text up to the first refused draft is what that verification saw
            assert share[at, : len(chances)] == pytest.approx(chances, abs=2e-3)
            at += accepted + 1
        verifications.append(len(walk.accepted))
        expected.append(walk_drawn(share).tested[:, 0].sum())
    difference = np.array(verifications) - np.array(expected)
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(len(difference))
    whole = figures(measure(trained.drafter, rows, trained.head, Decoding(CHAIN)))["sampled_chain_drawn"]["all"]
    assert whole["verifications"] == pytest.approx(sum(expected))


@pytest.mark.slow
def test_bf16_states_as_a_campaign_stores_them_change_little(trained: Trained) -> None:
    rows = walk_for_real(trained, decode_chain, 60, 1.0, chain=CHAIN, drawn=False)
    rounded = [
        StoredRow(
            s.sample_id, s.turn, s.dataset, s.grade, s.sampling, Row(s.row.ids, s.row.generated, s.row.states.to(torch.bfloat16))
        )
        for s in rows
    ]
    whole, stored = (
        figures(measure(trained.drafter, some, trained.head, Decoding(CHAIN)))["sampled_chain"]["all"] for some in (rows, rounded)
    )
    assert stored["tau"] == pytest.approx(whole["tau"], abs=0.02)
