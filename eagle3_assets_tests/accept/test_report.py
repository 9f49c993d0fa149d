"""The document of a checkpoint, its checks, its page, and `eagle3 accept`."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from eagle3_assets.accept.acceptance import WAYS, Decoding
from eagle3_assets.accept.checkpoint import save_checkpoint
from eagle3_assets.accept.drafts import Tree
from eagle3_assets.accept.page import draw, render_html, render_markdown
from eagle3_assets.accept.report import build_acceptance, judge_acceptance, read_acceptance, write_acceptance
from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets_tests.accept.conftest import Trained
from eagle3_assets_tests.accept.test_checkpoint import VERIFIER


@pytest.fixture(scope="module")
def checkpoint(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("drafter")) / "checkpoint"
    save_checkpoint(folder, trained.drafter, layers=trained.place.campaign.layers, verifier=VERIFIER, tokens=3)
    return folder


@pytest.fixture(scope="module")
def document(trained: Trained, checkpoint: Path) -> dict[str, object]:
    return build_acceptance(trained.place.campaign, trained.place.store, checkpoint, Decoding(3, Tree(4, 3, 12)))


@pytest.mark.slow
def test_groups_add_up_and_every_way_is_there(document: dict[str, object], trained: Trained) -> None:
    ways = document["ways"]
    assert list(ways) == list(WAYS) and document["rows"] == len(trained.validation)
    for found in ways.values():
        for facet, groups in found["groups"].items():
            verifications = sum(group["verifications"] for group in groups.values())
            assert verifications == pytest.approx(found["all"]["verifications"]), facet
        assert found["all"]["low"] <= found["all"]["tau"] <= found["all"]["high"]
    # a tree holds its chain, and drawing drafts cannot beat taking the best where the target is as sure as here
    assert ways["sampled_tree"]["all"]["tau"] > ways["sampled_chain"]["all"]["tau"] > ways["sampled_chain_drawn"]["all"]["tau"]


@pytest.mark.slow
def test_a_trained_drafter_is_above_an_untrained_one_and_shuffled_states_are_not(
    document: dict[str, object], trained: Trained, checkpoint: Path
) -> None:
    assert all(v.passed for v in judge_acceptance(document) if v.check == "above_untrained")
    untrained = checkpoint.with_name("untrained")
    save_checkpoint(untrained, trained.untrained, layers=trained.place.campaign.layers, verifier=VERIFIER, tokens=3)
    plain = build_acceptance(trained.place.campaign, trained.place.store, untrained, Decoding(3))
    verdict = next(v for v in judge_acceptance(plain) if v.check == "above_untrained")
    assert not verdict.passed and verdict.severity == "ERROR"


@pytest.mark.slow
def test_a_dataset_below_the_mean_by_more_than_its_interval_is_named(document: dict[str, object]) -> None:
    worse = copy.deepcopy(document)
    group = copy.deepcopy(next(iter(worse["ways"]["sampled_chain"]["groups"]["dataset"].values())))
    worse["ways"]["sampled_chain"]["groups"]["dataset"]["behind"] = {**group, "tau": 1.1, "low": 1.05, "high": 1.2}
    verdict = next(v for v in judge_acceptance(worse) if v.check == "no_dataset_behind")
    assert not verdict.passed and verdict.severity == "WARN" and verdict.examples == ("behind",)
    assert next(v for v in judge_acceptance(document) if v.check == "no_dataset_behind").passed


@pytest.mark.slow
def test_the_page_is_whole_escapes_what_it_is_given_and_loads_nothing(document: dict[str, object], tmp_path: Path) -> None:
    hostile = {**document, "campaign": "<script>alert(1)</script>"}
    page = render_html(hostile, [], draw(document))
    assert "<script>" not in page and "default-src 'none'" in page and "http" not in page.replace("http-equiv", "")
    assert draw(document) == draw(document)
    tau = f"{document['ways']['sampled_chain']['all']['tau']:.2f}"
    assert tau in page and tau in render_markdown(document)
    paths = write_acceptance(tmp_path, document)
    assert [p.name for p in paths] == ["acceptance.json", "acceptance.html", "acceptance.png"]
    assert read_acceptance(tmp_path) == json.loads(json.dumps(document))


def test_what_cannot_be_measured_is_said_in_one_line(trained: Trained, checkpoint: Path, tmp_path: Path) -> None:
    campaign, store = trained.place.campaign, trained.place.store
    raw = json.loads((checkpoint / "config.json").read_bytes())
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes())
    (other / "config.json").write_text(json.dumps({**raw, "eagle_aux_hidden_state_layer_ids": [1, 4, 5]}))
    with pytest.raises(StateError, match="reads E_1, E_4, E_5, stored are E_2, E_4, E_5"):
        build_acceptance(campaign, store, other, Decoding(3))
    with pytest.raises(StateError, match=r"set corpus\.validation_share"):
        build_acceptance(campaign, store, checkpoint, Decoding(3), split="nowhere")


def test_a_campaign_says_what_is_drafted(trained: Trained) -> None:
    raw = trained.place.campaign.model_dump(exclude={"path"})
    plain = Campaign.model_validate({**raw, "drafter": {"trainer": "speculators", "tree": []}})
    assert plain.drafter is not None and plain.drafter.tree is None and plain.drafter.chain == 3
    with pytest.raises(ValueError, match="topk, steps and nodes"):
        Campaign.model_validate({**raw, "drafter": {"trainer": "speculators", "tree": (0, 1, 2)}})
