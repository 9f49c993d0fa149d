"""Claims about the probe: facts on real files, and a campaign that contradicts them is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.errors import ExactError
from eagle3_assets.exact.probe import probe
from eagle3_assets.review.verdicts.table import CHECKS
from eagle3_assets.targets.tokenizer import Profile, load_profile


def with_target(campaign: Campaign, **changes: Any) -> Campaign:
    return campaign.model_copy(update={"target": campaign.target.model_copy(update=changes)})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kimi-k2.5", "kimi-k2-thinking", "kimi-k2-instruct"])
def test_every_check_passes_on_kimis_real_files(name: str, tokenizers: Path) -> None:
    found = probe(load_campaign("kimi-k2.5"), load_profile(name, tokenizers))
    assert {check: result["passed"] for check, result in found["checks"].items()} == dict.fromkeys(found["checks"], True)


def test_the_probe_gives_the_checks_of_the_reviews_table(mini: Profile, campaign: Campaign) -> None:
    found = probe(campaign, mini)
    assert list(found["checks"]) == [check.name for check in CHECKS["tokenizer_probe"]]
    assert all(result["passed"] for result in found["checks"].values())


def test_the_four_findings_are_shown_as_facts(k25: Profile) -> None:
    found = probe(load_campaign("kimi-k2.5"), k25)
    facts, checks = found["facts"], found["checks"]
    assert facts["end_of_turn"] == "<|im_end|> = 163586"
    assert facts["id_163533"].startswith("the ordinary token 'chas'")
    assert (
        "does not end a turn" in checks["end_of_turn"]["message"] and checks["end_of_turn"]["numbers"]["tokenizer_eos"] == 163585
    )
    assert checks["boundaries"]["numbers"]["cases"] > 6_000 and checks["boundaries"]["numbers"]["broken"] == 0
    assert checks["boundaries"]["numbers"]["merged"] > 0
    assert facts["join_x_y"] == "encode('x') + encode('y') = [87, 88], encode('xy') = [5077]"
    assert facts["tool_markers"].count("<|tool_call_begin|>") == 2
    assert checks["template"]["numbers"] == {"conversations": 20, "differing": 0}
    assert checks["golden"]["numbers"] == {"encodings": 42, "renderings": 15, "differing": 0}


def test_163533_as_the_end_of_turn_is_refused_with_what_it_is_and_what_is_right(k25: Profile) -> None:
    campaign = with_target(load_campaign("kimi-k2.5"), end_of_turn_id=163533)
    with pytest.raises(ExactError) as caught:
        probe(campaign, k25)
    line = str(caught.value)
    assert "target.end_of_turn_id = 163533 is the ordinary token 'chas'" in line
    assert "<|im_end|> = 163586; put 163586 or remove the key" in line and "\n" not in line and "kimi-k2.5.toml" in line


@pytest.mark.parametrize(("stated", "words"), [(163585, "the control token [EOS]"), (999_999, "outside the vocabulary")])
def test_other_wrong_ends_are_refused_too(k25: Profile, stated: int, words: str) -> None:
    with pytest.raises(ExactError, match=words.replace("[", r"\[")):
        probe(with_target(load_campaign("kimi-k2.5"), end_of_turn_id=stated), k25)


def test_a_vocabulary_that_is_too_small_is_refused(mini: Profile, campaign: Campaign) -> None:
    with pytest.raises(ExactError, match=r"target\.vocab_size = 2048 is less than the 2304 ids"):
        probe(with_target(campaign, vocab_size=2048), mini)


def test_a_template_that_renders_otherwise_fails_its_check(tmp_path: Path, mini: Profile, campaign: Campaign) -> None:
    (tmp_path / "tiktoken.model").write_bytes(mini.ranks_path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m['role'] }}{% endfor %}")
    result = probe(campaign, load_profile("kimi-mini", tmp_path))["checks"]["template"]
    assert not result["passed"] and result["numbers"]["differing"] == result["numbers"]["conversations"] > 0


def test_a_recorded_encoding_that_is_not_reproduced_fails_its_check(tmp_path: Path, mini: Profile, campaign: Campaign) -> None:
    (tmp_path / "tiktoken.model").write_bytes(mini.ranks_path.read_bytes())
    ids = mini.encode("Hello")
    for recorded, passed in ((ids, True), ([*ids, 5], False)):
        case = {"text": "Hello", "ordinary": recorded, "all_special": recorded}
        (tmp_path / "golden.json").write_text(json.dumps({"encode": [case], "chat": []}))
        result = probe(campaign, load_profile("kimi-mini", tmp_path))["checks"]["golden"]
        assert result["passed"] is passed and result["numbers"]["encodings"] == 1
    (tmp_path / "golden.json").write_text("{}")
    assert not probe(campaign, load_profile("kimi-mini", tmp_path))["checks"]["golden"]["passed"]
