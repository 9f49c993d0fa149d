"""One convention, and the numbers that other programs give to the same tensors."""

from __future__ import annotations

import pytest

from eagle3_assets.campaign import default_layers
from eagle3_assets.errors import StateError
from eagle3_assets.states.format.layers import (
    CONVENTION,
    FINAL,
    NUMBERINGS,
    check_layers,
    numbering_of,
    require_convention,
    translate,
    translate_back,
)

KIMI = 61


def test_the_defaults_are_those_on_which_all_consumers_agree() -> None:
    assert default_layers(KIMI) == (2, 30, 58)
    assert default_layers(8) == (2, 4, 5)
    assert default_layers(36) == (2, 18, 33)


@pytest.mark.parametrize(
    ("consumer", "ids"),
    [
        ("transformers", (2, 30, 58)),
        ("eagle", (2, 30, 58)),
        ("vllm", (2, 30, 58)),
        ("speculators", (2, 30, 58)),
        ("modelopt_vllm", (2, 30, 58)),
        ("specforge", (1, 29, 57)),  # its DeepSeek-V3 configuration says 1, 29, 57
        ("sglang", (1, 29, 57)),
        ("modelopt_hf", (1, 29, 57)),
        ("torchspec", (1, 29, 57)),
        ("deepspec", (1, 29, 57)),
        ("angelslim", (1, 29, 57)),
    ],
)
def test_kimis_default_layers_in_every_consumers_numbers(consumer: str, ids: tuple[int, ...]) -> None:
    assert translate((2, 30, 58), to=consumer, num_hidden_layers=KIMI) == ids
    assert translate_back(ids, of=consumer, num_hidden_layers=KIMI) == (2, 30, 58)


def test_every_numbering_names_its_source_and_who_wants_which_final_state() -> None:
    assert all(n.source and n.means for n in NUMBERINGS.values())
    assert numbering_of("speculators").final == "prenorm"
    assert numbering_of("specforge").final == "postnorm"


def test_an_unknown_consumer_or_convention_is_refused() -> None:
    with pytest.raises(StateError, match=r"numbering of 'somebody' is unknown; known: .*specforge"):
        translate((2, 4, 5), to="somebody", num_hidden_layers=8)
    require_convention(CONVENTION, FINAL, "here")
    for convention, final in (("output_of_layer", FINAL), (CONVENTION, "postnorm"), (None, None)):
        with pytest.raises(StateError, match=r"here: layer convention .* is unknown"):
            require_convention(convention, final, "here")


def test_what_a_numbering_cannot_say_is_refused_not_guessed() -> None:
    with pytest.raises(StateError, match="E_0 has no number in specforge"):
        translate((0, 4, 5), to="specforge", num_hidden_layers=8)
    with pytest.raises(StateError, match=r"E_3 as lowest layer cannot be stated safely to sglang .*sglang#25454.* use E_2"):
        translate((3, 4, 5), to="sglang", num_hidden_layers=8)


@pytest.mark.parametrize("layers", [(2, 4, 8), (-1, 2, 3), (2, 2, 5), (5, 4, 2), ()])
def test_impossible_layers_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(StateError, match="layers"):
        check_layers(layers, 8)


def test_a_model_too_shallow_for_the_default_is_refused() -> None:
    with pytest.raises(StateError, match="rising"):
        check_layers(default_layers(4), 4)
