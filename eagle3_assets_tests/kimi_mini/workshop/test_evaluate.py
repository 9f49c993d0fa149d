"""The model card's figures, measured again on a fixed subset; counting is right; the command says what it must."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kimi_mini import model as kimi_mini_model
from kimi_mini import tokenizer
from kimi_mini.errors import KimiMiniError
from kimi_mini_workshop import card, evaluate, spelling
from kimi_mini_workshop.__main__ import main
from kimi_mini_workshop.families import FAMILIES

CARD = json.loads((kimi_mini_model.MODEL_FOLDER / "evaluation.json").read_text())
SUBSET = 120


@pytest.fixture(scope="module")
def measured():
    """The first conversations of the card's own draw, greedy and at T = 1."""
    return evaluate.evaluate(kimi_mini_model.load_model(), SUBSET, (0.0, 1.0))["temperatures"]


def test_the_card_meets_what_it_was_made_for():
    greedy, warm = CARD["temperatures"]["0.0"], CARD["temperatures"]["1.0"]
    assert warm["grammar"] / warm["turns"] >= 0.98
    assert greedy["right"] / greedy["turns"] >= 0.80
    assert greedy["by_type"].keys() == FAMILIES.keys()
    assert all(counts["right"] / counts["turns"] >= 0.60 for counts in greedy["by_type"].values())
    assert sum(c["turns"] for c in greedy["by_turn"].values()) == greedy["turns"]
    assert CARD["temperatures"].keys() == {"0.0", "0.6", "1.0", "1.3"}


def test_the_card_prints_exactly_what_was_measured_for_these_weights():
    assert card.section(card.CARD.read_text(encoding="utf-8")) == card.current_section()


def test_figures_of_other_weights_are_refused(tmp_path: Path):
    for name in ("model.safetensors", card.EVALUATION_FILE, card.TRAINING_FILE):
        (tmp_path / name).write_bytes((kimi_mini_model.MODEL_FOLDER / name).read_bytes())
    assert card.read_figures(tmp_path)[0] == CARD
    (tmp_path / "model.safetensors").write_bytes(b"other")
    with pytest.raises(KimiMiniError, match="belongs to other weights"):
        card.read_figures(tmp_path)


@pytest.mark.slow
def test_a_fixed_subset_gives_the_cards_figures_within_bounds(measured):
    """Bounds: three standard deviations of a share over the subset's turns, at the card's share (held to 2 % from either end)."""
    for temperature, counts in measured.items():
        card = CARD["temperatures"][temperature]
        for name in ("grammar", "right", "non_canonical"):
            share = card[name] / card["turns"]
            spread = 3 * (max(share * (1 - share), 0.02) / counts["turns"]) ** 0.5
            assert abs(counts[name] / counts["turns"] - share) <= spread, (temperature, name, counts[name], counts["turns"])
    assert measured["1.0"]["grammar"] / measured["1.0"]["turns"] >= 0.96
    assert measured["0.0"]["right"] / measured["0.0"]["turns"] >= 0.75


@pytest.mark.slow
def test_greedy_answers_are_the_same_again(measured):
    again = evaluate.evaluate(kimi_mini_model.load_model(), SUBSET, (0.0,))["temperatures"]["0.0"]
    counts = ("turns", "tokens", "grammar", "right", "non_canonical", "by_type")
    assert {name: again[name] for name in counts} == {name: measured["0.0"][name] for name in counts}


def test_the_tally_counts_what_was_put_in():
    asked = evaluate.questions(12)
    encoding = tokenizer.load_encoding()
    right = [spelling.spell_turn(encoding, q.episode.steps[q.step].turn, first_call=q.first_call) for q in asked]
    counts = evaluate.tally(asked, right)
    assert counts["turns"] == counts["grammar"] == counts["right"] == len(asked)
    assert counts["non_canonical"] == 0 and counts["tokens"] == sum(map(len, right))
    wrong = [[*ids[:-1]] for ids in right]
    counts = evaluate.tally(asked, wrong)
    assert counts["grammar"] == counts["right"] == 0
    split = [_split_one(ids) for ids in right]
    counts = evaluate.tally(asked, split)
    assert counts["non_canonical"] == counts["longer"] == len(asked) == counts["right"]


def _split_one(ids: list[int]) -> list[int]:
    """The same text with one token cut in two."""
    ranks = tokenizer.load_ranks()
    words = {rank: token for token, rank in ranks.items()}
    for place, token in enumerate(ids):
        word = words.get(token, b"")
        for cut in range(1, len(word)):
            if word[:cut] in ranks and word[cut:] in ranks:
                changed = [*ids[:place], ranks[word[:cut]], ranks[word[cut:]], *ids[place + 1 :]]
                if not spelling.is_canonical(tokenizer.load_encoding(), changed):
                    return changed
    raise AssertionError("nothing to split")


@pytest.mark.slow
def test_the_command_prints_its_figures(capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", "--conversations", "3", "--json"]) == 0
    said = capsys.readouterr()
    figures = json.loads(said.out)
    assert figures["conversations"] == 3 and figures["model_sha256"] == kimi_mini_model.weights_sha256()
    assert said.err.count("tokens/s") == 4 and "grammar" in said.err
    assert main(["evaluate", "--conversations", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["type", "T=0.0", "T=0.6", "T=1.0", "T=1.3"]


def test_the_command_says_what_is_wrong_with_a_folder(capsys: pytest.CaptureFixture[str], tmp_path):
    assert main(["evaluate", "--model", str(tmp_path)]) == 1
    assert "cannot be loaded as Kimi-mini" in capsys.readouterr().err
