"""Every endpoint of the built-in profiles does what its settings say, by an oracle that shares no code with the bending.

Parametrised over the files: a new profile is tested as soon as it stands in one.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets_tests.standin.bending_oracle import V, completions, counts, decode, expected, ordinary, read
from kimi_mini.bank import load_bank
from openrouter_standin.bending.bend import Bent, bend_answer
from openrouter_standin.bending.bill import make_bill
from openrouter_standin.bending.render_prompt import render_prompt
from openrouter_standin.openrouter.wire_stream import stream_chunks
from openrouter_standin.profiles import DEFAULT_PROFILES, load_profiles
from openrouter_standin.schema.provider import Provider
from openrouter_standin.vocabulary import Vocabulary, take_apart

CATALOGUE = DEFAULT_PROFILES.with_name("catalogue.toml")
Sample = tuple[tuple[int, ...], bool]


def versions() -> Iterator[tuple[str, Provider]]:
    """Each endpoint of both files, and what becomes of it in mid-run."""
    for path in (DEFAULT_PROFILES, CATALOGUE):
        for provider in load_profiles(path).provider:
            for version, later in enumerate(provider.versions):
                yield f"{path.stem}-{provider.name}#{version}", later


PROVIDERS = dict(versions())
every_profile = pytest.mark.parametrize("name", PROVIDERS)
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])


def bend(sample: Sample, provider: Provider, *, streamed: bool, salt: str = "s", calls_so_far: int = 2) -> Bent:
    ids, thinking = sample
    parts = take_apart(ids, thinking, V)
    return bend_answer(ids, parts, provider.text, V, salt=salt, thinking=thinking, streamed=streamed, calls_so_far=calls_so_far)


def lossless(provider: Provider) -> Provider:
    """The same endpoint, no delta lost."""
    rules = provider.text.stream.model_copy(update={"drop_delta_rate": 0.0})
    return provider.model_copy(update={"text": provider.text.model_copy(update={"stream": rules, "drop_delta_rate": 0.0})})


def check_text(sample: Sample, provider: Provider, *, streamed: bool, salt: str) -> Bent:
    """The returned fields are what the settings make of the truth."""
    bent = bend(sample, provider, streamed=streamed, salt=salt)
    leaked = "leaked:tool_section" in bent.edits
    rate = provider.text.rules(streamed=streamed).leak_rate
    if rate in (0.0, 1.0):
        assert leaked == (rate == 1.0 and read(*sample).section)
    want = expected(*sample, provider, streamed=streamed, leaked=leaked, calls_so_far=2)
    assert (bent.reasoning_text, bent.content_text) == (want.reasoning, want.content)
    assert bent.finish_reason == want.finish_reason
    assert [(c.name, "".join(c.arguments)) for c in bent.calls] == [(name, args) for _, name, args in want.calls]
    for call, (pattern, _, _) in zip(bent.calls, want.calls, strict=True):
        assert re.fullmatch(pattern, call.id), (call.id, pattern)
    if provider.text.rules(streamed=streamed).tool_ids in ("call_hex", "chatcmpl"):
        assert len({c.id for c in bent.calls}) == len(bent.calls)
    return bent


def check_edits(sample: Sample, bent: Bent) -> None:
    """Each change is named, and nothing else is."""
    true = read(*sample)
    edits = set(bent.edits)
    assert len(edits) == len(bent.edits)
    leaked, unparsed = "leaked:tool_section" in edits, "unparsed:reasoning" in edits
    text_edits = {e for e in edits if e.split(":")[0] in ("inject_leading", "inject_trailing", "strip")}
    on_reasoning = {e for e in text_edits if e.endswith(":reasoning")}
    if leaked or unparsed:
        assert bent.content_text != (true.content or None) or bent.reasoning_text != (true.reasoning or None)
    else:
        assert bool(on_reasoning) == (bent.reasoning_text != (true.reasoning or None))
        on_content = {e for e in text_edits if e.endswith(":content")} | edits & {"empty_content", "dropped:blank_content"}
        assert bool(on_content) == (bent.content_text != (true.content or None))
    verbatim = "length" if not true.ended else "tool_calls" if true.calls else "stop"
    assert any(e.startswith("finish_reason:") for e in edits) == (bent.finish_reason != verbatim)
    if leaked:
        return
    shown = [*true.calls, *([true.cut] if true.cut and len(bent.calls) > len(true.calls) else [])]
    assert ("lost:call" in edits) == (len(bent.calls) < len(shown))
    assert ("dropped:stray_tool_text" in edits) == bool(true.stray or (true.cut and len(shown) == len(true.calls)))
    if len(bent.calls) == len(shown):
        pairs = list(zip(bent.calls, shown, strict=True))
        assert any(e.startswith("tool_ids:") for e in edits) == any(c.id != header for c, (header, _) in pairs)
        on_arguments = {e for e in edits if e.startswith(("arguments:", "empty_arguments")) or e == "strip:arguments"}
        assert bool(on_arguments) == any("".join(c.arguments) != args for c, (_, args) in pairs)


def check_bill(sample: Sample, prompt: tuple[int, ...], provider: Provider, bent: Bent, salt: str) -> None:
    """The convention applied to the truth, and money that is exactly tokens times price."""
    ids, thinking = sample
    bill = make_bill(prompt, ids, take_apart(ids, thinking, V), bent, provider, V, salt=salt)
    completion, asked, thought = counts(ids, thinking, prompt, provider, bent)
    assert (bill.prompt_tokens, bill.reasoning_tokens) == (asked, thought)
    assert bill.completion_tokens in completion
    money = asked * provider.price_prompt + bill.completion_tokens * provider.price_completion
    assert bill.total_pico == money * 10**6 and isinstance(bill.total_pico, int)
    assert bill == make_bill(prompt, ids, take_apart(ids, thinking, V), bent, provider, V, salt=salt)


def joined_stream(sample: Sample, provider: Provider, bent: Bent) -> tuple[dict[str, Any], dict[str, int]]:
    """What a client puts together from the deltas, and how many text deltas each run had."""
    ids = sample[0]
    bill = make_bill((1,), ids, take_apart(*sample, V), bent, provider, V, salt="s")
    generation: Any = SimpleNamespace(
        id="g", created=1, model="m", provider="p", bent=bent, bill=bill, logprobs=tuple({"place": k} for k in range(len(ids))), completion_ids=ids,
        request=SimpleNamespace(show_reasoning=True),
    )  # fmt: skip
    out: dict[str, Any] = {"reasoning": "", "content": "", "calls": {}, "places": []}
    deltas: dict[str, int] = defaultdict(int)
    for event in stream_chunks(generation):
        choice = json.loads(event.removeprefix(b"data: "))["choices"][0]
        delta = choice["delta"]
        out["places"] += [entry["place"] for entry in (choice["logprobs"] or {"content": []})["content"]]
        for key in ("reasoning", "content"):
            out[key] += delta.get(key) or ""
            deltas[key] += bool(delta.get(key))
        for call in delta.get("tool_calls", ()):
            entry = out["calls"].setdefault(call["index"], ["", "", ""])
            entry[0] += call.get("id", "")
            entry[1] += call["function"].get("name", "")
            entry[2] += call["function"]["arguments"]
            deltas[f"arguments:{call['index']}"] += bool(call["function"]["arguments"])
        out["finish"] = choice["finish_reason"]
    return out, deltas


def check_stream(sample: Sample, provider: Provider, bent: Bent) -> None:
    out, deltas = joined_stream(sample, provider, bent)
    assert (out["reasoning"] or None) == bent.reasoning_text
    assert (out["content"] or None) == (bent.content_text or None)
    assert list(out["calls"].values()) == [[c.id, c.name, "".join(c.arguments)] for c in bent.calls]
    assert out["finish"] == bent.finish_reason
    assert out["places"] == list(range(len(sample[0])))  # the entry of each id once, in order
    low, high = provider.text.rules(streamed=True).tokens_per_delta
    runs = {
        "reasoning": bent.reasoning,
        "content": bent.content,
        **{f"arguments:{k}": c.arguments for k, c in enumerate(bent.calls)},
    }
    for run, pieces in runs.items():
        sizes = [end - begin for begin, end in bent.deltas.spans(run, len(pieces))]
        assert sum(sizes) == len(pieces) and all(low <= size <= high for size in sizes[:-1]) and all(0 < s <= high for s in sizes)
        told = deltas[run] - (run == "content" and bool(bent.no_content) and not any(pieces))
        assert told <= len(sizes)
        if all(pieces):
            assert told == len(sizes)


@pytest.mark.slow
@every_profile
@both_ways
@given(sample=completions(), salt=st.sampled_from("abcdef"), prompt=st.lists(ordinary, min_size=1, max_size=20).map(tuple))
@settings(max_examples=80, deadline=None)
def test_text_edits_and_bill_obey_the_settings(
    name: str, streamed: bool, sample: Sample, salt: str, prompt: tuple[int, ...]
) -> None:
    provider = lossless(PROVIDERS[name])
    bent = check_text(sample, provider, streamed=streamed, salt=salt)
    check_edits(sample, bent)
    check_bill(sample, prompt, provider, bent, salt)
    if streamed:
        check_stream(sample, provider, bent)


@pytest.mark.slow
@every_profile
@both_ways
def test_the_committed_bank_is_returned_and_billed_as_the_settings_say(name: str, streamed: bool) -> None:
    provider = lossless(PROVIDERS[name])
    for k, answer in enumerate(load_bank()[:: 17 if streamed else 13]):
        sample = answer.ids, answer.thinking
        bent = check_text(sample, provider, streamed=streamed, salt=str(k))
        check_edits(sample, bent)
        check_bill(sample, answer.ids[:9], provider, bent, str(k))
        if streamed:
            check_stream(sample, provider, bent)


@every_profile
def test_streamed_and_whole_answers_are_the_same_text_unless_the_profile_says_otherwise(name: str) -> None:
    provider = lossless(PROVIDERS[name])
    if provider.text.stream.model_fields_set - {"drop_delta_rate"}:
        pytest.skip("its stream has rules of its own; they are tested against the oracle")
    for k, answer in enumerate(load_bank()[::29]):
        sample = answer.ids, answer.thinking
        assert bend(sample, provider, streamed=True, salt=str(k)) == bend(sample, provider, streamed=False, salt=str(k))


@pytest.mark.parametrize("name", [n for n, p in PROVIDERS.items() if p.text.rules(streamed=True).drop_delta_rate])
def test_lost_deltas_are_missing_whole_and_named_and_the_rest_is_untouched(name: str) -> None:
    provider, lost, seen = PROVIDERS[name], 0, 0
    rate = provider.text.rules(streamed=True).drop_delta_rate
    for k, answer in enumerate(load_bank()[::3]):
        sample = answer.ids, answer.thinking
        whole = bend(sample, lossless(provider), streamed=True, salt=str(k))
        bent = bend(sample, provider, streamed=True, salt=str(k))
        assert (
            bend(sample, provider, streamed=False, salt=str(k)).edits
            == bend(sample, lossless(provider), streamed=False, salt=str(k)).edits
        )
        check_stream(sample, provider, bent)
        for run, before, after in (
            ("reasoning", whole.reasoning, bent.reasoning),
            ("content", whole.content, bent.content),
            *((f"arguments:{j}", a.arguments, b.arguments) for j, (a, b) in enumerate(zip(whole.calls, bent.calls, strict=True))),
        ):
            gone = 0
            for begin, end in bent.deltas.spans(run, len(before)):
                if not any(before[begin:end]):
                    continue
                seen += 1
                if after[begin:end] != before[begin:end]:
                    assert not any(after[begin:end])
                    gone += 1
            lost += gone
            assert (f"lost_deltas:{run}" in bent.edits) == bool(gone)
    assert 0.5 * rate < lost / seen < 2 * rate


@every_profile
def test_a_share_of_leaks_is_the_rate_of_the_profile(name: str) -> None:
    rate = PROVIDERS[name].text.leak_rate
    sample = next((a.ids, a.thinking) for a in load_bank() if a.tool_names and a.grammar)
    leaks = sum("leaked:tool_section" in bend(sample, PROVIDERS[name], streamed=False, salt=str(k)).edits for k in range(300))
    assert abs(leaks / 300 - rate) < 0.09


def test_the_catalogue_has_the_rows_of_the_contract_and_more() -> None:
    providers = load_profiles(CATALOGUE).provider
    names = [p.name for p in providers]
    assert all(any(re.match(rf"P{k} ", name) for name in names) for k in range(11))
    (baseten,) = (p for p in providers if p.slug == "baseten")
    assert (baseten.status, baseten.quantization) == (-5, "fp4")
    assert len(names) == len(set(names))
    (reference,) = (p for p in providers if p.name == "P0 Reference")
    assert reference.text == type(reference.text)() and reference.billing == type(reference.billing)()
    used = defaultdict(set)
    for provider in PROVIDERS.values():
        for table in (provider.text, provider.text.stream, provider.prompt, provider.billing):
            for key in type(table).model_fields.keys() - {"stream"}:
                used[key].add(getattr(table, key))
    never = {key for key, values in used.items() if len(values) < 2}
    assert not never, f"no profile uses {never}"


def test_every_choice_of_a_setting_is_some_profiles_habit() -> None:
    from typing import get_args

    from openrouter_standin.schema.bending import Billing, PromptBending, TextRules

    for table, of in (
        (TextRules, lambda p: (p.text, p.text.stream)),
        (PromptBending, lambda p: (p.prompt,)),
        (Billing, lambda p: (p.billing,)),
    ):
        for key, field in table.model_fields.items():
            choices = {c for c in get_args(field.annotation) if isinstance(c, str)}
            used = {getattr(t, key) for p in PROVIDERS.values() for t in of(p)}
            assert choices <= used, (key, choices - used)


def test_the_oracle_reads_what_was_written() -> None:
    ids = (
        *V.encode_text(" r "),
        V.close_think,
        *V.encode_text("c"),
        V.section_begin,
        V.call_begin,
        *V.encode_text("functions.f:0"),
    )
    ids = (*ids, V.argument_begin, *V.encode_text('{"a": 1}'), V.call_end, V.call_begin, *V.encode_text("functions.f:1"))
    ids = (*ids, V.argument_begin, *V.encode_text('{"b"'))
    true = read(ids, True)
    assert (true.reasoning, true.content, true.calls) == (" r ", "c", [("functions.f:0", '{"a": 1}')])
    assert true.cut == ("functions.f:1", '{"b"') and not true.ended and not true.stray
    assert decode(ids[:2]) == V.encoding.decode(list(ids[:2]))


@pytest.mark.parametrize("row", ["tool#0", "tool#1", "simple#0"])
def test_p1_returns_and_bills_what_was_recorded(row: str, recorded: dict[str, dict[str, Any]], kimi: Vocabulary) -> None:
    """The ids behind a recorded answer (its text without the boundary spaces), bent by P1: the recorded text and usage, to the token
    and, where P1 has that provider's price (Chutes), to the picodollar."""
    body = json.loads(recorded[row]["response_body"])
    said, usage = body["choices"][0]["message"], body["usage"]
    ids = [*kimi.encode_text(said["reasoning"].removeprefix(" ")), kimi.close_think]
    ids += kimi.encode_text((said["content"] or "").removeprefix(" "))
    if said.get("tool_calls"):
        ids.append(kimi.section_begin)
        for call in said["tool_calls"]:
            ids += [kimi.call_begin, *kimi.encode_text(call["id"]), kimi.argument_begin]
            ids += [*kimi.encode_text(call["function"]["arguments"]), kimi.call_end]
        ids.append(kimi.section_end)
    completion = (*ids, kimi.im_end)
    request = recorded[row]["request"]
    provider = PROVIDERS["catalogue-P1 SGLang 4#0"]
    prompt = render_prompt(request["messages"], request.get("tools"), kimi, bending=provider.prompt)
    parts = take_apart(completion, True, kimi)
    bent = bend_answer(completion, parts, provider.text, kimi, salt="s")
    bill = make_bill(prompt, completion, parts, bent, provider, kimi, salt="s")
    assert (bent.reasoning_text, bent.content_text) == (said["reasoning"], said["content"])
    assert [(c.id, c.name, "".join(c.arguments)) for c in bent.calls] == [
        (c["id"], c["function"]["name"], c["function"]["arguments"]) for c in said.get("tool_calls") or ()
    ]
    assert bent.finish_reason == body["choices"][0]["finish_reason"]
    told = usage["completion_tokens_details"]["reasoning_tokens"]
    assert (bill.prompt_tokens, bill.completion_tokens, bill.reasoning_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
        told,
    )
    if body["provider"] == "Chutes":
        assert bill.total_pico == round(usage["cost"] * 10**12)
