"""Wrong engines are refused with the distances that prove it; right ones are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from eagle3_assets.errors import StateError
from eagle3_assets.states.extractors import Captured
from eagle3_assets.states.extractors.self_test import judge_distances, probe_ids, run_self_test
from eagle3_assets.states.extractors.transformers import TransformersExtractor
from eagle3_assets.states.format.final_norm import FinalNorm, load_final_norm, normed_share, save_final_norm
from eagle3_assets_tests.states.conftest import tiny_model

LAYERS = (2, 4, 6)


class Wrong(TransformersExtractor):
    """The real engine with one defect."""

    shift = 0
    defect: Callable[[list[Captured]], list[Captured]] = staticmethod(lambda rows: rows)

    def capture(self, token_lists: Sequence[Sequence[int]], layers: Sequence[int], final: str = "prenorm") -> list[Captured]:
        return self.defect(super().capture(token_lists, [k + self.shift for k in layers], final))


def wrong(shift: int = 0, dtype: torch.dtype = torch.float32) -> Wrong:
    stored = str(dtype).removeprefix("torch.")
    engine = Wrong(tiny_model("deepseek_v3", dtype), name="tiny", revision=None, fingerprint="x", stored_dtype=stored)
    engine.shift = shift
    return engine


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_one_layer_off_is_refused_with_the_distances(shift: int, dtype: torch.dtype) -> None:
    with pytest.raises(StateError) as caught:
        run_self_test(wrong(shift, dtype), LAYERS, str(dtype).removeprefix("torch."))
    message = str(caught.value)
    for k in LAYERS:
        assert f"E_{k} is not hidden_states[{k}]: nearest is hidden_states[{k + shift}]" in message
    assert message.count(" at ") >= 6, "distances to the neighbours are in the message"
    assert "\n" not in message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm_weight_is_one", [False, True])
def test_an_engine_that_gives_post_norm_states_is_refused(dtype: torch.dtype, norm_weight_is_one: bool) -> None:
    """With a norm weight of 1 the norm is idempotent: norm(post-norm) is hidden_states[N] too, and must not pass for it."""
    engine = wrong(dtype=dtype)
    if norm_weight_is_one:
        with torch.no_grad():
            engine._loaded().norm.weight.fill_(1.0)  # type: ignore[operator,union-attr]

    def normed(rows: list[Captured]) -> list[Captured]:
        out = []
        for row in rows:
            states = row.states.clone()
            states[:, -1] = engine.final_norm().apply(states[:, -1])
            out.append(Captured(states, row.input_ids))
        return out

    engine.defect = normed
    with pytest.raises(StateError, match=r"the final state is post-norm: it is hidden_states\[N\] itself \(distance"):
        run_self_test(engine, LAYERS, str(dtype).removeprefix("torch."))


def _replace_final(rows: list[Captured]) -> list[Captured]:
    return [Captured(torch.cat([r.states[:, :3], r.states[:, 2:3]], dim=1), r.input_ids) for r in rows]


def _drop_a_row(rows: list[Captured]) -> list[Captured]:
    return [Captured(r.states[:-1], r.input_ids) for r in rows]


def _not_a_number(rows: list[Captured]) -> list[Captured]:
    rows[0].states[3, 1, 7] = float("nan")
    return rows


def _other_ids(rows: list[Captured]) -> list[Captured]:
    return [Captured(r.states, (*r.input_ids[:-1], r.input_ids[-1] ^ 1)) for r in rows]


def _shifted_position(rows: list[Captured]) -> list[Captured]:
    return [Captured(r.states.roll(1, dims=0), r.input_ids) for r in rows]


def _batch_dependent(rows: list[Captured]) -> list[Captured]:
    return [Captured(r.states * (1.0 if len(rows) == 1 else 1.05), r.input_ids) for r in rows]


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (_replace_final, r"not the input of the final norm: norm\(final\) is"),
        (_drop_a_row, r"shape \(22, 4, 64\), expected \(23, 4, 64\)"),
        (_not_a_number, "1 values are NaN or infinite, the first at token 3, slot 1"),
        (_other_ids, "ran other ids than it was sent .first difference at position 22"),
        (_shifted_position, r"E_2 is not hidden_states\[2\]"),
        (_batch_dependent, "rows captured together differ from rows captured alone by 0.05"),
    ],
)
def test_every_other_defect_is_refused_with_its_own_message(defect: Callable[..., list[Captured]], message: str) -> None:
    engine = wrong()
    engine.defect = defect
    with pytest.raises(StateError, match=message):
        run_self_test(engine, LAYERS, "float32")


def test_the_result_holds_what_a_later_judge_needs() -> None:
    result = run_self_test(wrong(), LAYERS, "float32")
    assert judge_distances(result) == []
    assert result["final"]["norm_to_postnorm"] < 1e-5 < 0.1 < result["final"]["to_postnorm"]
    for row in result["layers"]:
        k = row["layer"]
        assert row["near"][str(k)] == 0.0
        assert min(row["near"][str(k - 1)], row["near"][str(k + 1)]) > 0.05
    result["layers"][1]["nearest"] = 5
    assert "E_4 is not hidden_states[4]" in judge_distances(result)[0]


def test_a_distance_that_is_not_a_number_never_passes() -> None:
    result = run_self_test(wrong(), LAYERS, "float32")
    result["final"]["norm_to_postnorm"] = float("nan")
    result["layers"][0]["to_k"] = float("nan")
    assert len(judge_distances(result)) == 2


def test_the_probe_is_the_same_everywhere() -> None:
    assert probe_ids(512, (4,)) == [(22, 39, 284, 150)]
    assert all(0 <= i < 17 for row in probe_ids(17) for i in row)
    assert len(set(probe_ids(163_840)[0])) > 15


def test_the_norm_survives_its_file_and_equals_the_models_own(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for dtype in (torch.float32, torch.bfloat16):
        engine = wrong(dtype=dtype)
        save_final_norm(tmp_path / "final_norm.safetensors", engine.final_norm())
        norm = load_final_norm(tmp_path / "final_norm.safetensors")
        assert norm.weight.dtype == np.float32
        states = engine.capture([probe_ids(512)[0]], LAYERS)[0].states[:, -1]
        with torch.inference_mode():
            own = engine._loaded().norm(states)  # type: ignore[operator]
        assert torch.equal(norm.apply(states), own)


def test_states_that_went_through_the_norm_are_recognised_from_the_norm_alone() -> None:
    rng = np.random.default_rng(0)
    norm = FinalNorm(rng.uniform(0.5, 1.5, 64).astype(np.float32), 1e-6)
    raw = torch.from_numpy(rng.normal(0, 3, (50, 64)).astype(np.float32))
    for dtype in (torch.float32, torch.bfloat16):
        assert normed_share(norm.apply(raw.to(dtype)).float().numpy(), norm) == 1.0
    assert normed_share(raw.numpy(), norm) < 0.1


def test_kernels_of_another_library_must_be_ten_times_nearer_than_any_neighbour() -> None:
    """3e-2 from E_4 is no proof where E_5 is 0.2 away: that is a layer that rounding could have led to."""

    def measured(to_next: float) -> dict[str, Any]:
        row = {"layer": 4, "nearest": 4, "to_k": 0.025, "near": {"3": 0.9, "4": 0.025, "5": to_next}}
        final = {"to_postnorm": 0.9, "norm_to_postnorm": 0.02}
        tolerance = {"alone": 0.03, "together": 0.03, "nearer": 10.0}
        return {"reference": "whole", "layers": [row], "final": final, "together": 0.0, "tolerance": tolerance}

    assert judge_distances(measured(0.26)) == []
    assert "and 10 times nearer than any other" in judge_distances(measured(0.2))[0]
    assert judge_distances({**measured(0.26), "layers": []}) == ["no layer was compared with a reference"]
