"""An endpoint that becomes another one in mid-run, and the tables that say so."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from openrouter_standin.errors import StandinError
from openrouter_standin.profiles import DEFAULT_PROFILES, load_profiles
from openrouter_standin.schema.provider import Provider

BASE = {"name": "P", "tag": "p/int4", "price_prompt": 0.5, "price_completion": 2.0, "quantization": "int4"}
CHANGES = [
    {"after_answers": 10, "text": {"strip_content": "both"}, "latency": {"tokens_per_s": 5.0}},
    {"at_s": 60.0, "price_completion": 2.5, "text": {"tool_ids": "call_hex", "stream": {"tokens_per_delta": 3}}},
    {"after_answers": 12, "at_s": 90.0, "status": -5, "quantization": "fp8"},
]


def provider(**more: object) -> Provider:
    text = {"strip_reasoning": "left", "stream": {"strip_reasoning": "none"}}
    return Provider.model_validate({**BASE, "text": text, "change": CHANGES, **more})


def test_changes_come_in_order_each_on_top_of_those_before() -> None:
    p = provider()
    assert [p.at(*when).version for when in ((0, 0.0), (9, 1e9), (10, 0.0), (10, 60.0), (12, 89.9), (12, 90.0), (99, 1e6))] == [
        0, 0, 1, 2, 2, 3, 3,
    ]  # fmt: skip
    assert p.at(0, 0.0) is p and p.at(10, 0.0) is p.at(11, 59.0)
    second = p.at(11, 60.0)
    assert (second.text.strip_content, second.text.strip_reasoning, second.text.tool_ids) == ("both", "left", "call_hex")
    streamed = second.text.rules(streamed=True)
    assert (streamed.strip_reasoning, streamed.tokens_per_delta, streamed.tool_ids) == ("none", (3, 3), "call_hex")
    assert (second.latency.tokens_per_s, second.latency.ttft_median_s) == (5.0, p.latency.ttft_median_s)
    assert (second.price_prompt, second.price_completion) == (Decimal("0.5"), Decimal("2.5"))
    assert (second.prompt_pico, second.completion_pico) == (500_000, 2_500_000)
    last = p.at(12, 90.0)
    assert (last.status, last.quantization, last.price_completion, last.tag) == (-5, "fp8", Decimal("2.5"), p.tag)
    assert (p.status, p.quantization, p.text.strip_content) == (0, "int4", "none")


def test_a_changed_copy_has_versions_of_its_own() -> None:
    p = provider()
    assert p.at(10, 0.0).price_prompt == Decimal("0.5")
    dear = p.model_copy(update={"price_prompt": Decimal("9")})
    assert dear.at(10, 0.0).price_prompt == Decimal("9") and dear.at(0, 0.0) is dear
    text = p.text.model_copy(update={"strip_content": "right"})
    assert text.rules(streamed=True).strip_content == "right" and p.text.rules(streamed=True).strip_content == "none"


def test_an_endpoint_without_changes_is_itself_for_ever() -> None:
    plain = provider(change=[])
    assert plain.at(10**9, 1e12) is plain and plain.version == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("change = [{ text = { strip_content = 'both' } }]", ["change[0]", "expected after_answers or at_s"]),
        ("change = [{ at_s = 3.0 }]", ["change[0]", "changes nothing"]),
        ("change = [{ at_s = 3.0, tag = 'x' }]", ["change[0].tag", "unknown key"]),
        ("change = [{ at_s = 3.0, price_prompt = 0.12345678 }]", ["change[0].price_prompt", "six decimals"]),
        ("change = [{ at_s = -3.0, status = -1 }]", ["change[0].at_s", "greater than or equal to 0"]),
        ("outages = [[5.0, 5.0]]", ["outages", "from < to"]),
        ("capacity = 0", ["capacity", "greater than or equal to 1"]),
        ("text = { tokens_per_delta = [4, 2] }", ["text.tokens_per_delta", "low <= high"]),
        ("text = { tokens_per_delta = 0 }", ["text.tokens_per_delta", "low <= high"]),
        ("text = { tokens_per_delta = true }", ["text.tokens_per_delta"]),
        ("text = { stream = { stream = {} } }", ["text.stream.stream", "unknown key"]),
        ("text = { strip = true }", ["text.strip", "unknown key", "strip_reasoning"]),
        ("text = { arguments = 'pretty' }", ["text.arguments", "pretty"]),
        ("billing = { count_noise = 1.0 }", ["billing.count_noise", "less than 1"]),
    ],
)
def test_a_mistake_in_the_tables_is_one_line(line: str, words: list[str], tmp_path: Path) -> None:
    text = DEFAULT_PROFILES.read_text()
    key = line.split(" = ")[0]
    old = next((row for row in text[text.index("[[provider]]") :].splitlines() if row.startswith(f"{key} = ")), "text = {}")
    path = tmp_path / "my.toml"
    path.write_text(text.replace(old, line, 1))
    with pytest.raises(StandinError) as caught:
        load_profiles(path)
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in ["provider[0] (Verbatim)", *words]), message


def test_every_setting_is_described() -> None:
    """The schema and the page are made from the descriptions."""
    from openrouter_standin.schema.bending import Billing, PromptBending, Text

    for table in (Text, PromptBending, Billing):
        assert not [key for key, field in table.model_fields.items() if not field.description], table
    assert Provider.model_json_schema()["properties"]["text"]
