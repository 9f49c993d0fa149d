"""Claims about the pilot's probes: what is asked of whom, and that the answers of servers with known habits show these habits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_assets.campaign import Campaign
from eagle3_assets.collect.money.ledger import Ledger
from eagle3_assets.collect.pilot import pilot, probes
from eagle3_assets.collect.run.collector import Servers
from eagle3_assets.collect.servers.endpoint import Endpoint, read_endpoint
from eagle3_assets.collect.servers.openrouter import ApiKey
from eagle3_assets.collect.servers.routing import resolve, routing_table
from eagle3_assets.exact.providers.wire_profiles import learn
from eagle3_assets.targets.tokenizer import load_profile
from eagle3_assets.wire import journal
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets_tests.collect.samples import QUICK, a_campaign, a_dataset, a_prompt, an_answer, an_endpoint
from eagle3_assets_tests.conftest import shared_data
from eagle3_assets_tests.standin.conftest import KEY, SLUG, FakeAnswer, MakeStandin, connected, settings, spell
from eagle3_assets_tests.standin.conftest import answers as answers
from eagle3_assets_tests.standin.conftest import make_standin as make_standin
from eagle3_assets_tests.standin.conftest import vocabulary as vocabulary
from kimi_mini.bank import prompt_key
from openrouter_standin.profiles import Profiles
from openrouter_standin.request import read_request
from openrouter_standin.vocabulary import Vocabulary

CAMPAIGN = a_campaign(
    a_dataset(),
    target={"model": SLUG, "profile": "kimi-mini", "thinking": True},
    routing={"quantizations": ("int4", "fp8", "bf16")},
)


def endpoint(*parameters: str, tag: str = "chutes/int4") -> Endpoint:
    raw = an_endpoint("Chutes", tag, supported_parameters=["temperature", "top_p", "max_tokens", "reasoning", *parameters])
    return read_endpoint(raw)[0]


def mini_count(text: str) -> int:
    return len(load_profile("kimi-mini").encoding.encode_ordinary(text))


# ---------------------------------------------------------------------------------------------------- what is asked
def test_every_chosen_word_costs_another_number_of_tokens_behind_a_space() -> None:
    words = probes.choose_words(mini_count)
    assert len(words) == probes.WORDS and all(mini_count(word) != mini_count(f" {word}") for word, _ in words)


def test_for_kimi_the_words_of_the_contract_are_among_them() -> None:
    folder = shared_data() / "tokenizers"
    if not (folder / "kimi-k2.5").exists():
        pytest.skip(f"{folder} is absent: set EAGLE3_SHARED_DATA to the shared data folder")
    encoding = load_profile("kimi-k2.5", folder).encoding
    words = [word for word, _ in probes.choose_words(lambda text: len(encoding.encode_ordinary(text)))]
    assert len(words) == probes.WORDS and {"1", "Oi!", "用户"} <= set(words)


def test_a_vocabulary_without_such_words_gives_no_word_probes_and_the_history_is_asked_all_the_same() -> None:
    assert probes.choose_words(lambda text: len(text.split())) == []
    assert {p.name.split(":")[0] for p in probes.probes_for(endpoint("tools"), [])} == {"history"}


WORDS = [("Oi!", "Say Oi!"), ("1", "Say 1"), ("42", "Say 42")]


def test_an_endpoint_is_asked_only_what_it_takes() -> None:
    def kinds(*parameters: str) -> set[str]:
        return {p.name.rsplit(":", 1)[1] for p in probes.probes_for(endpoint(*parameters), WORDS) if p.word}

    assert kinds() == {"plain", "stream"}
    assert kinds("tools") == {"plain", "stream", "tools"}
    assert kinds("tools", "logprobs") == {"plain", "stream", "tools", "logprobs"}
    assert not any(p.tools for p in probes.probes_for(endpoint(), WORDS))
    silent = read_endpoint(an_endpoint(supported_parameters=None))[0]
    assert {p.name.rsplit(":", 1)[1] for p in probes.probes_for(silent, WORDS) if p.word} == {"plain", "stream", "tools"}


def test_a_few_dozen_at_most_and_every_one_has_a_name_and_an_id_of_its_own() -> None:
    asked = probes.probes_for(endpoint("tools", "logprobs"), probes.choose_words(mini_count))
    assert len({p.name for p in asked}) == len(asked) <= 24
    ids = [p.prompt(e, "pilot").sample_id for e in (endpoint(), endpoint(tag="other/int4")) for p in asked]
    assert len(set(ids)) == len(ids) and all(len(i) == 32 for i in ids)
    again = probes.probes_for(endpoint("tools", "logprobs"), probes.choose_words(mini_count))
    assert [p.prompt(endpoint(), "pilot").sample_id for p in again] == ids[: len(asked)]


def test_the_forms_of_the_history_differ_in_nothing_but_the_replay() -> None:
    history = [p for p in probes.probes_for(endpoint("tools"), []) if p.name.startswith("history:")]
    assert [p.form.replay for p in history] == ["none", "reasoning", "reasoning_content", "reasoning_details"]
    assert len({json.dumps([p.messages, p.tools]) for p in history}) == 1


# ---------------------------------------------------------------------------------------------------- what is seen
def an_event(**delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


def test_deltas_are_pieces_of_text_and_nothing_else() -> None:
    call = {"index": 0, "function": {"name": "f", "arguments": '{"a'}}
    body = (
        b": OPENROUTER PROCESSING\n\n"
        + an_event(role="assistant", content="")
        + an_event(reasoning=" Hm", reasoning_details=[{"type": "reasoning.text", "text": " Hm"}])
        + an_event(content="O")
        + an_event(tool_calls=[call, {**call, "index": 1}])
        + an_event(tool_calls=[{"index": 0, "id": "x"}])
        + b'data: {"choices": [], "usage": {}}\n\ndata: [DONE]\n\n'
    )
    assert probes.count_deltas(body) == 4


@given(st.binary(max_size=200) | st.lists(st.sampled_from([b"data:", b"{", b'"choices":[3]}', b"[DONE]", b"\n"])).map(b"".join))
def test_counting_deltas_survives_any_bytes(body: bytes) -> None:
    assert probes.count_deltas(body) >= 0


def an_answered(probe: probes.Probe, message: dict[str, Any] | None, **usage: Any) -> Any:
    body = {"choices": [{"index": 0, "finish_reason": "stop", "message": message}], **usage}
    return an_answer(0, json.dumps(body).encode(), shard=probe.shard)


def test_an_answer_whose_first_word_costs_the_same_behind_a_space_decides_nothing() -> None:
    plain = next(p for p in probes.probes_for(endpoint(), WORDS) if p.word == "1")
    costs = {"1": 1, " 1": 2, "The": 1, " The": 1, " Hm": 1, "": 0}

    def seen(content: str | None) -> dict[str, Any]:
        record = an_answered(plain, {"content": content, "reasoning": " Hm"}, usage={"completion_tokens": 4})
        (line,) = probes.findings(endpoint(), [plain], [record], costs.__getitem__)["first_words"]
        return dict(line)

    assert [seen(text)["decides"] for text in ("1", " 1", "The", " The", None)] == [True, True, False, False, False]
    assert [seen(text)["is_the_word"] for text in ("1", " 1", "The", None)] == [True, True, False, False]
    assert (seen(" 1")["text_tokens"], seen(" 1")["billed"], seen(" 1")["reasoning_starts_with_space"]) == (3, 4, True)
    assert seen(None)["content_starts_with_space"] is None


def test_answers_of_odd_shapes_are_findings_too() -> None:
    asked = probes.probes_for(endpoint("tools", "logprobs"), WORDS)
    odd: list[tuple[Any, Any]] = [(None, 3), ({"content": [1]}, None), ({}, {})]
    records = [an_answered(p, message, usage=usage) for p, (message, usage) in zip(asked, odd, strict=False)]
    found = probes.findings(endpoint("tools", "logprobs"), asked, records, len)
    assert len(found["answered"]) == 3 and len(found["missing"]) == len(asked) - 3
    assert found["history"] == {"none": None, "reasoning": None, "reasoning_content": None, "reasoning_details": None}
    assert found["history_reaches_model"] == [] and found["stream"]["token_by_token"] is None
    assert found["logprobs"]["given"] is None


def test_probes_ask_for_short_answers_and_otherwise_as_the_campaign_does() -> None:
    long = pilot.probe_dataset(a_campaign(sampling={"temperature": 0.7, "max_tokens": 16_384}))
    assert (long.sampling.max_tokens, long.sampling.temperature) == (probes.MOST_TOKENS, 0.7)  # type: ignore[union-attr]
    assert pilot.probe_dataset(a_campaign(sampling={"max_tokens": 160})).sampling.max_tokens == 160  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------------- against servers with habits
def habits() -> Profiles:
    """Verbatim streams by token and gives log-probabilities; Injector joins spaces and loses the history's reasoning; Stripper
    batches.
    """
    profiles = settings()
    verbatim, *others = profiles.provider
    source = profiles.source.model_copy(update={"synthetic_logprobs": True, "tool_share_after_user": 0.0})
    return profiles.model_copy(update={"provider": (verbatim.model_copy(update={"logprobs": True}), *others), "source": source})


def bank(v: Vocabulary, campaign: Campaign) -> Sequence[FakeAnswer]:
    """A model that says the word that is asked for, and to everything else something that decides nothing."""
    out = [FakeAnswer(spell(v, " Think.", "The answer is here."))]
    for word, asked in probes.choose_words(mini_count):
        for tools in (None, [probes._TOOL]):
            body = {"model": SLUG, "messages": [{"role": "user", "content": asked}], **({"tools": tools} if tools else {})}
            request = read_request(json.dumps(body).encode())
            key = prompt_key(request.messages, request.tools, thinking=True)
            out.append(FakeAnswer(spell(v, " The user wants this, so I say it at once.", f"{word} and more"), prompt=key))
    return out


def run(make_standin: MakeStandin, v: Vocabulary, tmp_path: Path, cap: float = 1.0) -> tuple[dict[str, Any], Any]:
    standin = make_standin(habits(), folder=tmp_path / "server", bank=bank(v, CAMPAIGN))

    async def story() -> tuple[dict[str, Any], Any]:
        async with connected(standin) as client:
            _, snapshot = await client.get(f"/api/v1/models/{SLUG}/endpoints")
            with Ledger(tmp_path / "ledger.sqlite", 1.0, caps={"pilot": cap}) as ledger:
                found = await pilot.run_pilot(
                    CAMPAIGN,
                    {"b3_magicoder": [a_prompt(f"question {n}", n) for n in range(12)]},
                    servers=Servers(f"{client.origin}/api/v1", ApiKey(KEY)),
                    ledger=ledger,
                    routing=resolve(CAMPAIGN, snapshot),
                    folder=tmp_path / "pilot",
                    stop=asyncio.Event(),
                    count_tokens=mini_count,
                    pace=QUICK,
                )
            return found, snapshot

    return asyncio.run(asyncio.wait_for(story(), 60))


def test_the_habits_of_three_servers_are_seen(make_standin: MakeStandin, vocabulary: Vocabulary, tmp_path: Path) -> None:
    found, snapshot = run(make_standin, vocabulary, tmp_path)
    seen = found["probes"]
    assert set(seen) == {"verbatim/int4", "injector/fp8", "stripper"} and not any(of["missing"] for of in seen.values())
    verbatim, injector, stripper = seen["verbatim/int4"], seen["injector/fp8"], seen["stripper"]
    # streams
    assert [of["stream"]["token_by_token"] for of in (verbatim, injector, stripper)] == [True, True, False]
    # log-probabilities: listed by one, and no other is asked
    assert verbatim["logprobs"]["given"] and verbatim["logprobs"]["entries"] == verbatim["logprobs"]["billed"] > 0
    assert verbatim["logprobs"]["with_bytes"] == verbatim["logprobs"]["entries"]
    assert injector["logprobs"] == {"listed": False, "entries": 0, "with_bytes": 0, "billed": 0, "given": None}
    # history: one hands all three fields on, two lose them
    assert verbatim["history_reaches_model"] == ["reasoning", "reasoning_content", "reasoning_details"]
    assert len({verbatim["history"][how] for how in verbatim["history_reaches_model"]}) == 1
    assert injector["history_reaches_model"] == stripper["history_reaches_model"] == []
    assert len(set(injector["history"].values())) == 1
    # first words: every answer begins with its word, a space stands before it at one server, and the bill says that it is no
    # token of the model's: text (with that space) + </think> + end of turn is one more than billed
    for of, space in ((verbatim, False), (injector, True), (stripper, False)):
        assert len(of["first_words"]) >= probes.WORDS + probes.STREAMED + probes.WITH_TOOLS
        assert all(line["is_the_word"] and line["decides"] for line in of["first_words"])
        assert {line["content_starts_with_space"] for line in of["first_words"]} == {space}
    assert {line["text_tokens"] + 2 - line["billed"] for line in verbatim["first_words"]} == {0}
    assert all(line["text_tokens"] + 2 - line["billed"] >= 1 for line in injector["first_words"])
    # lengths are those of real prompts alone, money is that of all
    assert found["answers"] == 18 and set(found["lengths"]) == {"b3_magicoder"}
    assert found["lengths"]["b3_magicoder"]["n"] == 18 and {of["tokens"]["n"] for of in found["endpoints"].values()} == {6}
    everything = list(journal.read(tmp_path / "pilot"))
    assert found["spent_usd"] == pytest.approx(sum(a.cost_usd or 0 for a in everything))
    assert found["spent_usd"] == pytest.approx(sum(of["cost_usd"] for of in found["endpoints"].values()))
    json.dumps(found, allow_nan=False)
    table = {row["tag"]: row for row in routing_table(resolve(CAMPAIGN, snapshot, pilot=found), found)}
    assert (table["stripper"]["streams_by_token"], table["verbatim/int4"]["gives_logprobs"]) == (False, True)


def test_a_streamed_answer_is_kept_as_received_and_read_by_collector_and_reconstructor_alike(
    make_standin: MakeStandin, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    run(make_standin, vocabulary, tmp_path)
    streamed = [a for a in journal.read(tmp_path / "pilot") if a.request["stream"]]
    assert len(streamed) == 3 * probes.STREAMED
    for answer in streamed:
        assert answer.content_type.startswith("text/event-stream") and answer.body.rstrip().endswith(b"data: [DONE]")
        assert answer.outcome == "finished" and answer.cost_usd is not None and answer.cost_usd > 0
        fields = parse_fields(answer.body, answer.content_type)
        assert not fields.problems and fields.content and len(fields.deltas) == probes.count_deltas(answer.body)
        assert fields.cost_usd == answer.cost_usd


def test_probes_are_told_from_real_prompts_and_none_is_bought_twice(
    make_standin: MakeStandin, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    found, _ = run(make_standin, vocabulary, tmp_path)
    records = list(journal.read(tmp_path / "pilot"))
    of_probes = [a for a in records if probes.is_probe(a)]
    assert {a.shard.removeprefix("probe:") for a in of_probes} == {n for of in found["probes"].values() for n in of["answered"]}
    assert {a.dataset for a in of_probes} == {probes.DATASET}
    assert {(a.dataset, a.shard) for a in records if not probes.is_probe(a)} == {("b3_magicoder", "pilot")}
    assert all(a.request["max_tokens"] <= probes.MOST_TOKENS and a.request["provider"]["max_price"] for a in of_probes)
    make_standin_again = make_standin
    again, _ = run(make_standin_again, vocabulary, tmp_path)
    assert again == found and len(list(journal.read(tmp_path / "pilot"))) == len(records)


@pytest.mark.slow
def test_the_probes_decide_the_leading_space_that_six_real_prompts_leave_open(
    make_standin: MakeStandin, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    run(make_standin, vocabulary, tmp_path)
    records = list(journal.read(tmp_path / "pilot"))
    profile = load_profile("kimi-mini")
    with_probes = learn(profile, records)["providers"]
    without = learn(profile, [a for a in records if not probes.is_probe(a)])["providers"]
    assert not without["Injector"]["decided"] and not without["Verbatim"]["decided"]
    assert (with_probes["Injector"]["decided"], with_probes["Injector"]["spacing"]) == (True, "injected")
    assert (with_probes["Verbatim"]["decided"], with_probes["Verbatim"]["spacing"]) == (True, "verbatim")


def test_a_cap_that_ends_the_pilot_leaves_probes_missing_by_name(
    make_standin: MakeStandin, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    found, _ = run(make_standin, vocabulary, tmp_path, cap=0.003)
    assert "limit 0.003 USD for pilot" in found["stopped"] and 0 < found["spent_usd"] <= 0.003
    assert any(of["missing"] for of in found["probes"].values())
    json.dumps(found, allow_nan=False)
