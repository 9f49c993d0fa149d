"""Which candidate the model sampled: on Kimi-mini's own answers against other spellings of the same text, and the grade rule."""

from __future__ import annotations

import numpy as np
import pytest
import tiktoken
import torch

from eagle3_assets.campaign import load_campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.states.extractors import open_extractor
from eagle3_assets.states.target.target_head import load_head
from eagle3_assets.states.target.token_figures import RowStatistics
from eagle3_assets.states.verdict.choice import REASONS, Choice, candidates, choose, final_grade
from kimi_mini.model import load_model
from kimi_mini.sampler import Ask, sample_all
from kimi_mini.tokenizer import load_encoding, special_tokens
from kimi_mini_workshop.evaluate import questions


def pack(ids: tuple[int, ...], prompt_len: int, grade: str = "C1") -> Pack:
    mask = np.zeros(len(ids), dtype=np.uint8)
    mask[prompt_len:] = 1
    return Pack(0, "s", 0, "b3", grade, "00000", np.array(ids, dtype=np.uint32), mask)


def statistics(edges: tuple[int, ...] = (), log10_e: float = 0.0) -> RowStatistics:
    return RowStatistics(9, -0.1, 0.1, 0.0, 1.0, 0.0, log10_e, 0, edges, 0.1, 0.9)


# ---------------------------------------------------------------------------------------------------- candidates
def test_a_survivor_with_the_same_prompt_is_masked_behind_it() -> None:
    found = candidates(pack((1, 2, 3, 4, 7, 8), 4), [(1, 2, 3, 4, 9), (1, 2, 3, 4, 7, 8, 8)], 4)
    assert [c.loss_mask.tolist() for c in found[1:]] == [[0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 1, 1]]


def test_a_survivor_with_another_prompt_is_masked_behind_the_same_last_ids() -> None:
    found = candidates(pack((5, 1, 2, 3, 4, 7, 8), 5), [(6, 6, 1, 2, 3, 4, 7, 8)], 5)
    assert found[1].loss_mask.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_a_survivor_whose_prompt_cannot_be_found_is_left_out() -> None:
    assert len(candidates(pack((5, 1, 2, 3, 4, 7, 8), 5), [(6, 6, 6, 7, 8)], 5)) == 1
    assert len(candidates(pack((1, 2, 3, 4, 7), 4), [(1, 2, 3, 4)], 4)) == 1, "a survivor without an answer is none"


# ---------------------------------------------------------------------------------------------------- posterior and grade
def test_the_posterior_is_prior_times_likelihood() -> None:
    got = choose([-10.0, -12.0], 0.5)
    assert got.winner == 0 and got.posterior == pytest.approx(1 / (1 + np.exp(-2)))
    assert choose([-10.0, -5.0], 0.9).winner == 1
    assert choose([-10.0, -9.0], 0.99).winner == 0, "a strong prior is not overruled by one nat"
    assert choose([-10.0, -1000.0], 0.0).winner == 0, "no prior is so strong that the model may not overrule it"
    assert choose([-3.0], 0.2) == Choice(0, 1.0, (-3.0,))


def test_c1_goes_up_or_out() -> None:
    sure, unsure, alone = Choice(1, 0.999, (-9.0, -1.0)), Choice(0, 0.9, (-1.0, -3.0)), Choice(0, 1.0, (-1.0,))
    assert final_grade("C1", sure, statistics()) == ("B2", ())
    assert final_grade("C1", unsure, statistics()) == ("Q", ("undecided",))
    assert final_grade("C1", sure, statistics(edges=(7,))) == ("Q", ("edge_tokens",))
    assert final_grade("C1", alone, statistics()) == ("C1", ("open",))
    assert final_grade("C1", Choice(0, 1.0, ()), statistics()) == ("C1", ("open",)), "not asked about: with ray"


def test_a_lone_c1_row_says_why_the_model_cannot_raise_it_and_still_goes_out_on_what_cannot_be() -> None:
    lone = Choice(0, 0.97, (), lone=True)
    assert final_grade("C1", lone, statistics()) == ("C1", ("lone",)) and "no other sequence" in REASONS["lone"]
    assert final_grade("C1", lone, statistics(edges=(7,))) == ("Q", ("edge_tokens", "lone"))
    assert final_grade("C1", lone, statistics(log10_e=9.0))[0] == "Q"


def test_figures_that_are_no_numbers_choose_nothing_and_prove_nothing() -> None:
    nan = float("nan")
    got = choose([-1.0, nan], 0.5)
    assert (got.winner, got.posterior) == (0, 0.0) and final_grade("C1", got, statistics()) == ("Q", ("undecided",))
    assert final_grade("B1", Choice(0, 1.0, ()), statistics(log10_e=nan)) == ("Q", ("on_policy",))


def test_proven_ids_stay_and_the_others_go_out_on_what_cannot_be() -> None:
    alone = Choice(0, 1.0, ())
    assert final_grade("A0", alone, statistics(edges=(7,), log10_e=9.0)) == ("A0", ("edge_tokens", "on_policy"))
    assert final_grade("B1", alone, statistics()) == ("B1", ())
    assert final_grade("B1", alone, statistics(edges=(7,)))[0] == "Q"
    assert final_grade("I", alone, statistics(log10_e=7.0)) == ("Q", ("on_policy",))


# ---------------------------------------------------------------------------------------------------- the rate
WINDOW = 3


def splits(encoding: tiktoken.Encoding, text: bytes, n: int) -> list[tuple[int, ...]]:
    """Every way to spell `text` in exactly `n` ids."""
    if n == 1:
        try:
            return [(encoding.encode_single_token(text),)]
        except KeyError:
            return []
    return [
        (head[0], *rest)
        for cut in range(1, len(text) - n + 2)
        for head in splits(encoding, text[:cut], 1)
        for rest in splits(encoding, text[cut:], n - 1)
    ]


@pytest.mark.slow
def test_of_two_spellings_of_equal_length_the_model_picks_the_one_it_sampled() -> None:
    """Pairs with equal text and equal count: no bill can tell them apart. The true ids against other splits of three neighbours."""
    torch.set_num_threads(1)
    campaign, encoding, markers = load_campaign("demo"), load_encoding(), set(special_tokens().values())
    extractor = open_extractor(campaign)
    head = load_head(campaign, extractor.final_norm())
    asked = questions(20)
    samples = sample_all(load_model(), [Ask(q.prompt, 1.0, 0.95, 50 + k, 120) for k, q in enumerate(asked)], slots=32)
    pairs = []
    for question, sample in zip(asked, samples, strict=True):
        for k in range(len(sample.ids) - WINDOW + 1):
            mine = sample.ids[k : k + WINDOW]
            others = (
                [] if markers & set(mine) else [o for o in splits(encoding, encoding.decode_bytes(mine), WINDOW) if o != mine]
            )
            pairs += [(question, sample.ids, (*sample.ids[:k], *o, *sample.ids[k + WINDOW :])) for o in others[:1]]
    pairs = pairs[:: max(1, len(pairs) // 50)]
    assert len(pairs) >= 20
    right = 0
    for question, true, other in pairs:
        log_probs = []
        rows = [(*question.prompt, *ids) for ids in (true, other)]
        for row, captured in zip(rows, extractor.capture(rows, campaign.layers), strict=True):
            mask = np.zeros(len(row), dtype=np.uint8)
            mask[len(question.prompt) :] = 1
            log_probs.append(
                float(head.score(captured.states[:, -1], np.array(row), mask, temperature=1.0, top_p=1.0).logprob.sum())
            )
        choice = choose(log_probs, 0.5)
        right += choice.winner == 0 and choice.posterior > 0.99
    assert right / len(pairs) > 0.97, f"{right} of {len(pairs)}"
