"""Exports that were normed twice, not at all, taken a layer or a position off are measured and refused; right ones pass."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from eagle3_assets.handoff import head_probe
from eagle3_assets.handoff.head_probe import Measured, Positions, Reading, measure, refusal_of
from eagle3_assets.handoff.mapped_rows import MappedRows
from eagle3_assets.handoff.speculators_export import export_speculators
from eagle3_assets.handoff.verify_export import Trainer, final_of, judge_export, judge_predictions, sample_positions
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.target.target_head import load_head
from eagle3_assets_tests.handoff.answers import Place, mini_campaign, sampled_rows, with_states

pytestmark = pytest.mark.slow  # its worlds take seconds

ALL = 100_000
Final = Callable[[MappedRows, int], torch.Tensor]


def norm_of(rows: MappedRows) -> FinalNorm:
    return FinalNorm(np.load(rows.folder / "final_norm.npy"), rows.table["final_norm_eps"])


def measured(place: Place, trainer: Trainer, final: Final | None = None, positions: int = ALL) -> Measured:
    rows = MappedRows(place.store.handoff(trainer))
    chosen = sample_positions(place.campaign, rows, final or final_of(trainer), positions)
    return measure(chosen, load_head(place.campaign, norm_of(rows), "cpu").weight.float(), norm_of(rows))


WRONG: dict[str, Final] = {
    "normed twice": lambda rows, i: rows.post_norm(rows.post_norm(rows[i].hidden_states[:, 3])),
    "not normed": lambda rows, i: rows[i].hidden_states[:, 3],
    "an earlier layer": lambda rows, i: rows.post_norm(rows[i].hidden_states[:, 2]),
    "a position late": lambda rows, i: torch.cat([(f := rows.post_norm(rows[i].hidden_states[:, 3]))[:1], f[:-1]]),
    "a position early": lambda rows, i: torch.cat([(f := rows.post_norm(rows[i].hidden_states[:, 3]))[1:], f[-1:]]),
}


@pytest.mark.parametrize("trainer", ["speculators", "specforge"])
def test_greedy_answers_are_predicted_by_every_exported_row(greedy: Place, trainer: Trainer) -> None:
    found = measured(greedy, trainer)
    e = found.exported
    supervised = sum(int(r.loss_mask.sum()) for r in map(MappedRows(greedy.store.handoff(trainer)).__getitem__, range(80)))
    assert e.positions > 1500 and e.positions >= min(supervised, 80 * head_probe.POSITIONS_A_ROW) * 0.9
    assert e.share >= 0.99 and e.clear_share >= 0.999 and e.clear > 0.9 * e.positions and found.normed == 1.0
    assert refusal_of(found) is None
    # the other readings say which mistake would be which
    assert all(other.right < e.right for other in found.others.values())
    assert found.others["a_position_later"].share < 0.1 and found.others["a_position_earlier"].share < 0.1


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_exports_fall_below_and_are_refused(greedy: Place, mistake: str) -> None:
    found = measured(greedy, "speculators", WRONG[mistake])
    e = found.exported
    right = measured(greedy, "speculators").exported
    assert e.right < right.right and e.clear_share < 0.999
    reason = refusal_of(found)
    assert reason is not None
    said = {"normed twice": "read with a norm less", "not normed": "went through the final norm once", "an earlier layer": "%",
            "a position late": "read a position later", "a position early": "read a position earlier"}  # fmt: skip
    assert said[mistake] in reason, reason


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Answers at temperature 1, top_p 0.95: as a real campaign's."""
    campaign = mini_campaign(sampling={"temperature": 1.0, "top_p": 0.95})
    place = with_states(Path(tmp_path_factory.mktemp("sampled")) / "demo", campaign, sampled_rows(40, 1.0, seed=6))
    export_speculators(campaign, place.store)
    return place


def test_sampled_answers_are_predicted_as_often_as_the_states_forecast(sampled: Place) -> None:
    found = measured(sampled, "speculators")
    e = found.exported
    forecast = e.forecast / e.forecast_of
    assert e.forecast_of == e.positions > 1500 and 0.8 < forecast < 0.995 and abs(e.share - forecast) < 0.02
    assert not found.greedy and refusal_of(found) is None


@pytest.mark.parametrize("mistake", ["not normed", "a position late", "a position early"])
def test_wrong_exports_of_sampled_answers_are_refused_too(sampled: Place, mistake: str) -> None:
    assert refusal_of(measured(sampled, "speculators", WRONG[mistake])) is not None


def test_answers_sampled_colder_than_stated_miss_their_forecast(greedy: Place) -> None:
    found = measured(greedy, "speculators")
    hot = [dataclasses.replace(p, temperature=2.0, top_p=1.0) for p in _positions(greedy)]
    again = measure(hot, load_head(greedy.campaign, norm_of(_rows(greedy)), "cpu").weight.float(), norm_of(_rows(greedy)))
    assert refusal_of(found) is None and "the states themselves forecast" in str(refusal_of(again))


def _rows(place: Place) -> MappedRows:
    return MappedRows(place.store.handoff("speculators"))


def _positions(place: Place) -> list[Positions]:
    return sample_positions(place.campaign, _rows(place), final_of("speculators"), 500)


def test_imports_of_unknown_temperature_are_probed_without_a_forecast(greedy: Place) -> None:
    rows = _rows(greedy)
    imported = {**greedy.campaign.dataset[0].model_dump(), "backend": "import", "turns": "last"}
    campaign = greedy.campaign.model_validate({**greedy.campaign.model_dump(exclude={"path"}), "dataset": (imported,)})
    chosen = sample_positions(campaign, rows, final_of("speculators"), 300)
    assert all(p.temperature is None for p in chosen)
    found = measure(chosen, load_head(campaign, norm_of(rows), "cpu").weight.float(), norm_of(rows))
    assert found.exported.forecast_of == 0 and not found.greedy and refusal_of(found) is None
    shifted = sample_positions(campaign, rows, WRONG["a position late"], 300)
    assert refusal_of(measure(shifted, load_head(campaign, norm_of(rows), "cpu").weight.float(), norm_of(rows))) is not None


def test_the_check_shows_its_figures_and_blocks(greedy: Place, tmp_path: Path) -> None:
    passed = judge_export(greedy.campaign, greedy.store, "specforge")[2]
    assert passed.check == "exported_states_predict" and passed.passed and passed.numbers["predicted"] >= 0.99
    assert "are the head's best" in passed.message and passed.numbers["positions"] >= 1500
    # a hand-off whose norm is another model's: every state it serves to SpecForge is wrong
    folder = greedy.store.handoff("specforge")
    for name in ("rows.json", "final_norm.npy"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    table = json.loads((tmp_path / "rows.json").read_bytes())
    (tmp_path / "rows.json").write_text(json.dumps({**table, "states": str(greedy.store.hidden_states)}))
    weight = np.load(tmp_path / "final_norm.npy")
    np.save(tmp_path / "final_norm.npy", weight * np.random.default_rng(0).choice([-1.0, 1.0], len(weight)).astype(np.float32))
    failed = judge_predictions(greedy.campaign, "handoff_specforge", "specforge", MappedRows(tmp_path))
    assert failed.stops and failed.numbers["predicted"] < 0.5


def test_where_the_weights_are_not_the_check_says_so_and_does_not_pass(greedy: Place, tmp_path: Path) -> None:
    gone = greedy.campaign.model_copy(update={"target": greedy.campaign.target.model_copy(update={"weights": str(tmp_path)})})
    found = judge_predictions(gone, "handoff_speculators", "speculators", _rows(greedy))
    assert found.stops and "could not be measured" in found.message and str(tmp_path) in found.message


def test_chance_is_not_taken_for_a_better_reading() -> None:
    fair = Measured(exported=Reading(1000, 900, 950, 900, 1000, 900, 905.0, 80.0), normed=1.0, greedy=False)
    fair.others = {"with_a_norm_more": Reading(1000, 904, better=9, worse=5)}
    assert refusal_of(fair) is None
    fair.others = {"with_a_norm_more": Reading(1000, 920, better=22, worse=2)}
    assert "read with a norm more they predict better: 22 positions more are right and 2 fewer" in str(refusal_of(fair))
    assert refusal_of(Measured()) == "there is no supervised position to look at"
