"""A profiles file is data with a schema: mistakes end in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from openrouter_standin.errors import StandinError
from openrouter_standin.profiles import DEFAULT_PROFILES, load_profiles
from openrouter_standin.schema.faults import Faults, drawn


def test_the_built_in_file_has_three_habits_and_one_endpoint_to_refuse() -> None:
    profiles = load_profiles()
    by_name = {p.name: p for p in profiles.provider}
    assert set(by_name) == {"Verbatim", "Injector", "Stripper", "BaseTen"}
    assert (by_name["BaseTen"].status, by_name["BaseTen"].quantization) == (-5, "fp4")
    assert not by_name["Stripper"].billing.counts_end
    assert len(profiles.sha256) == 64


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("shed_rate = 0.4", "shed_rat = 0.4", ["provider[1] (Injector).shed_rat", "unknown key", "shed_rate"]),
        (
            'text = { strip_reasoning = "both"',
            'text = { strip_reasonin = "both"',
            ["provider[2] (Stripper).text.strip_reasonin", "unknown key"],
        ),
        ("429 = 0.02", "429 = 2.0", ["server.faults.rates.429", "2.0", "less than or equal to 1"]),
        ("429 = 0.02", "429 = 0.995", ["server.faults", "add up to 1.005"]),
        ('tag = "stripper"', 'tag = "verbatim/int4"', ["'verbatim/int4'", "unique"]),
        ("price_prompt = 0.44", "price_prompt = 0.12345678", ["provider[1] (Injector).price_prompt", "six decimals"]),
        ('slug = "eagle3/kimi-mini"', "", ["model.slug", "missing"]),
        ("[model]", "[model", ["not valid TOML"]),
        ("credit_usd = 25.0", "credit_usd = inf", ["server.credit_usd", "finite"]),
        ("time_scale = 0.02", "time_scale = 1e300", ["server.time_scale", "1000"]),
        ("seed = 0", '"a\\nb" = 0', ["unknown key server.'a\\nb'"]),
        (
            "rates = { 429 = 0.02, 502 = 0.01 }",
            'schedule = [{ from_s = 0, to_s = 1, rates = { 429 = 0.5 }, providers = ["nobody"] }]',
            ["server.faults.schedule", "'nobody'", "verbatim/int4"],
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_file_key_and_value(old: str, new: str, words: list[str], tmp_path: Path) -> None:
    text = DEFAULT_PROFILES.read_text()
    assert old in text
    path = tmp_path / "my.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(StandinError) as caught:
        load_profiles(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert all(word in message for word in words), message


def test_an_absent_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StandinError, match=r"absent\.toml: cannot be read"):
        load_profiles(tmp_path / "absent.toml")


def test_a_draw_falls_on_a_fault_as_often_as_its_rate_says() -> None:
    rates = Faults(rates={"429": 0.25, "502": 0.25}).rates
    assert [drawn([rates], k / 8) for k in range(8)] == ["429", "429", "502", "502", None, None, None, None]
