"""Claims about witnesses: an entry that is no byte string of the vocabulary says nothing, and deltas say what they cut."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from eagle3_assets.exact.search.offpath import offpath_arguments
from eagle3_assets.exact.search.proofs import SURELY_ALIGNED, aligned_share
from eagle3_assets.exact.search.witnesses import (
    agree,
    alignment_nats,
    channels_of,
    entry_ids,
    open_holes,
    stream_channels,
    whole_completions,
)
from eagle3_assets.targets.grammar import CallParts, Ids, Parts, assemble
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields, ToolCall


def entry(profile: Profile, token: int) -> dict[str, Any]:
    data = profile.encoding.decode_single_token_bytes(token)
    return {"token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": -0.1}


# ---------------------------------------------------------------------------------------------------- entries
NO_EVIDENCE: list[dict[str, Any]] = [
    {},
    {"token": "", "bytes": None},
    {"token": "", "bytes": []},
    {"token": None, "bytes": None},
    {"token": "Great", "bytes": []},
    {"token": "\ufffd", "bytes": [239, 191, 189]},
    {"token": "\ufffd", "bytes": None},
    {"token": "a\ufffd", "bytes": list("a\ufffd".encode())},
    {"token": "ĠGreat", "bytes": None},
    {"token": "ĠGreat", "bytes": list("ĠGreat".encode())},
    {"token": "<redacted>", "bytes": None},
    {"token": "***REDACTED***", "bytes": list(b"***REDACTED***")},
    {"token": "token_id:99999999", "bytes": None},
    {"token": "token_id:17", "bytes": list(b"Great")},
    {"token": "token_id:-1", "bytes": None},
    {"token_id": -1},
    {"token_id": 99999999, "token": " the"},
    {"token": " of", "bytes": list(b" the")},
    {"token": "x", "bytes": [300]},
    {"token": "x", "bytes": "x"},
    {"token": "\ud83c", "bytes": None},
    {"bytes": list(b" the river of the market")},
]


@pytest.mark.parametrize("damaged", NO_EVIDENCE, ids=str)
def test_an_entry_that_is_no_byte_string_of_the_vocabulary_is_a_hole(mini: Profile, damaged: dict[str, Any]) -> None:
    good = entry(mini, mini.encode(" the")[0])
    assert entry_ids(mini, [good, damaged, good])[1] is None


def test_an_id_is_read_from_bytes_from_text_and_from_its_own_number(mini: Profile) -> None:
    (token,) = mini.encode(" the")
    ways: list[dict[str, Any]] = [
        {"token": " the", "bytes": list(b" the")},
        {"bytes": list(b" the")},
        {"token": " the", "bytes": None},
        {"token": " the"},
        {"token": f"token_id:{token}", "bytes": None},
        {"token": f"token_id:{token}", "bytes": list(b" the")},
        {"token": f"token_id:{token}", "bytes": list(f"token_id:{token}".encode())},
        {"token_id": token, "token": " the"},
    ]
    assert entry_ids(mini, ways) == [token] * len(ways)
    part = mini.encode("😀")[0]
    assert entry_ids(mini, [entry(mini, part)]) == [part], "a part of a character has bytes of its own"
    assert entry_ids(mini, [{"token": "<|im_end|>"}]) == [mini.end_id]


def test_text_alone_says_nothing_of_a_space_in_front_while_no_entry_shows_one(mini: Profile) -> None:
    """A server that takes the whitespace from each token's text writes `the` for ` the` as well."""
    bare = [{"token": text, "bytes": None} for text in ("a", "b", "</think>")]
    assert entry_ids(mini, bare) == [None, None, mini.think_close]
    (a,), (market,) = mini.encode("a"), mini.encode(" market")
    assert entry_ids(mini, [{"token": "a"}, {"token": " market"}]) == [a, market]


def test_entries_are_completed_by_the_end_of_turn_only_where_they_lack_it(mini: Profile) -> None:
    end = mini.end_id
    assert whole_completions(mini, [], ended=True) == []
    assert whole_completions(mini, [1, end], ended=True) == [(1, end)]
    assert whole_completions(mini, [1, 2], ended=True) == [(1, 2, end)]
    assert whole_completions(mini, [1, 2], ended=False) == [(1, 2)]
    assert whole_completions(mini, [1, None], ended=True) == [(1, None), (1, None, end)]


# ---------------------------------------------------------------------------------------------------- holes
def turn(profile: Profile, reasoning: str, content: str, *arguments: str) -> Ids:
    calls = tuple(
        CallParts(tuple(profile.encode(f"functions.f:{k}")), tuple(profile.encode(text))) for k, text in enumerate(arguments)
    )
    texts = tuple(profile.encode(reasoning)), tuple(profile.encode(content))
    return assemble(profile, Parts(*texts, calls=calls, closed=True, section=True if calls else None, ended=True))


def holed(ids: Ids, *holes: int) -> list[int | None]:
    return [None if k in holes else token for k, token in enumerate(ids)]


def test_a_hole_at_the_edge_of_a_text_is_open_and_one_inside_is_pinned(mini: Profile) -> None:
    reasoning = mini.encode(" the market of the river")
    ids = turn(mini, " the market of the river", "Answer.")
    size = len(reasoning)
    assert open_holes(mini, ids, holed(ids)) == []
    assert open_holes(mini, ids, holed(ids, 0)) == [0], "a space in front may be the server's"
    assert open_holes(mini, ids, holed(ids, size - 1)) == [size - 1], "and one behind, too"
    assert open_holes(mini, ids, holed(ids, 1, 2)) == []
    assert open_holes(mini, ids, holed(ids, *range(len(ids)))) == list(range(len(ids)))


def test_whitespace_alone_in_front_of_a_hole_pins_nothing(mini: Profile) -> None:
    ids = turn(mini, "\n\n\n the market of the river", "Answer.")
    visible = next(k for k, token in enumerate(ids) if mini.decode([token]).strip())
    assert open_holes(mini, ids, holed(ids, visible)) == ([visible] if visible else [0])
    assert open_holes(mini, ids, holed(ids, visible + 1)) == []


def test_a_marker_is_pinned_by_named_neighbours_where_only_it_can_stand(mini: Profile) -> None:
    plain = turn(mini, " the market", " Answer.")
    close = plain.index(mini.think_close or -1)
    assert open_holes(mini, plain, holed(plain, close)) == []
    assert open_holes(mini, plain, holed(plain, len(plain) - 1)) == [len(plain) - 1], (
        "whitespace that a server took may stand there"
    )
    assert open_holes(mini, plain, holed(plain, close - 1, close)) == [close - 1, close]
    calling = turn(mini, " the market", "", '{"who": "blue"}')
    close = calling.index(mini.think_close or -1)
    assert open_holes(mini, calling, holed(calling, close)) == [close], "a line break of the reasoning may stand there"
    assert open_holes(mini, calling, holed(calling, close + 1, close + 2)) == []


def test_ids_of_calls_and_joints_of_json_are_never_filled(mini: Profile) -> None:
    arguments = '{"who": "alpha river market", "list": "seven"}'
    ids = turn(mini, " so", "yes", arguments)
    begin = ids.index(mini.tool_ids["argument_begin"])
    head = range(ids.index(mini.tool_ids["call_begin"]) + 1, begin)
    assert open_holes(mini, ids, holed(ids, head[1])) == [head[1]]
    texts = {k: mini.decode([ids[k]]) for k in range(begin + 1, ids.index(mini.tool_ids["call_end"]))}
    joint = next(k for k, text in texts.items() if '":' in text)
    word = next(k for k, text in texts.items() if "river" in text)
    assert open_holes(mini, ids, holed(ids, joint)) == [joint]
    assert open_holes(mini, ids, holed(ids, word)) == []


# ---------------------------------------------------------------------------------------------------- streams
TEXT = " the market of the river wants a list of words, and seven stones to the user of a blue time"


def streamed(deltas: list[tuple[str, str]], reasoning: str | None = None, content: str | None = None, *arguments: str) -> Fields:
    calls = tuple(ToolCall(f"functions.f:{k}", "f", text) for k, text in enumerate(arguments))
    return Fields(reasoning, content, calls, "stop", deltas=tuple(deltas))


def of_text(profile: Profile, text: str) -> Parts:
    return Parts(content=tuple(profile.encode(text)), ended=True)


def test_deltas_of_one_or_more_whole_ids_are_aligned_and_those_cut_by_characters_are_not(mini: Profile) -> None:
    parts = of_text(mini, TEXT)
    pieces = [mini.decode([token]) for token in parts.content]
    pairs = ["".join(pieces[k : k + 2]) for k in range(0, len(pieces), 2)]
    for deltas, single in ((pieces, True), (pairs, False)):
        channels = stream_channels(mini, parts, streamed([("content", d) for d in deltas], content=TEXT))
        assert channels and aligned_share(channels) > SURELY_ALIGNED
        assert (channels[0].single, channels[0].off, channels[0].ids) == (single, 0, parts.content)
    for size in (2, 3, 4, 5, 7):
        deltas = [TEXT[k : k + size] for k in range(0, len(TEXT), size)]
        channels = stream_channels(mini, parts, streamed([("content", d) for d in deltas], content=TEXT))
        assert channels and aligned_share(channels) < 0.01, size


def test_edges_at_random_characters_are_hardly_ever_taken_for_edges_of_ids(k25: Profile) -> None:
    rng, taken = random.Random(5), 0
    parts = of_text(k25, TEXT)
    for _ in range(300):
        cuts = sorted({0, len(TEXT), *rng.sample(range(1, len(TEXT)), 14)})
        deltas = [TEXT[a:b] for a, b in pairwise(cuts)]
        channels = stream_channels(k25, parts, streamed([("content", d) for d in deltas], content=TEXT))
        assert channels
        taken += aligned_share(channels) > SURELY_ALIGNED
    assert taken == 0


def test_a_stream_says_nothing_where_it_is_one_piece_or_another_text(mini: Profile) -> None:
    parts = of_text(mini, TEXT)
    assert stream_channels(mini, parts, streamed([("content", TEXT)], content=TEXT)) is None
    assert stream_channels(mini, parts, streamed([("content", "other"), ("content", " words")], content=TEXT)) is None
    assert stream_channels(mini, parts, streamed([("reasoning", "so"), ("reasoning", " so")], content=TEXT)) is None


def test_the_edges_of_a_text_are_those_of_the_candidate(mini: Profile) -> None:
    parts = of_text(mini, TEXT)
    pieces = [mini.decode([token]) for token in parts.content]
    stripped = [pieces[0].lstrip(), *pieces[1:]]
    channels = stream_channels(mini, parts, streamed([("content", d) for d in stripped], content=TEXT.strip()))
    assert channels and channels[0].single and channels[0].ids == parts.content


def test_a_character_that_deltas_cut_is_no_edge(k25: Profile) -> None:
    text = "so 🌟🎉 yes"
    parts = of_text(k25, text)
    deltas = [("content", d) for d in ("so", " ", "\ud83c", "\udf1f", "🎉", " yes")]
    assert channels_of(streamed(deltas))["content"] == ["so", " ", "🌟", "🎉", " yes"]
    channels = stream_channels(k25, parts, streamed(deltas, content=text))
    assert channels and channels[0].off == 0 and channels[0].ids == parts.content


CHUTES = [
    # deltas as recorded, their ids spelled, the places off the encoder's path
    (['{"pattern', '":', '"', "*.", "go", '"}'], ['{"', "pattern", '":', '"', "*.", "go", '"}'], 1),
    (['{"path', '":', '"."', "}"], ['{"', "path", '":', '"."', "}"], 1),
    (['{"query', '":', "\"'", "func", "'\"", "}"], ['{"', "query", '":', "\"'", "func", "'\"", "}"], 1),
]


@pytest.mark.parametrize(("deltas", "spelled", "joints"), CHUTES)
def test_arguments_that_were_sampled_off_the_path_are_read_from_their_deltas(
    k25: Profile, deltas: list[str], spelled: list[str], joints: int
) -> None:
    text = "".join(deltas)
    parts = Parts(calls=(CallParts((), tuple(k25.encode(text))),), section=True, ended=True)
    channels = stream_channels(k25, parts, streamed([("tool:0", d) for d in deltas], None, None, text))
    assert channels is not None
    (channel,) = channels
    assert channel.refutes and channel.joints == joints and not channel.single
    assert [k25.decode([token]) for token in channel.ids] == spelled


def test_off_path_spellings_of_compact_arguments_decode_to_them(k25: Profile) -> None:
    text = json.dumps({"pattern": "*.go", "path": ".", "n": 3}, separators=(",", ":"))
    first, *others = offpath_arguments(k25, text)
    assert [k25.decode([t]) for t in first.ids][:4] == ['{"', "pattern", '":', '"'] and first.places == 1
    assert all(k25.decode(other.ids) == text and other.ids != tuple(k25.encode(text)) for other in (first, *others))
    assert first.share > 0.9 and sum(other.share for other in (first, *others)) == pytest.approx(1)
    equal = offpath_arguments(k25, '{"path":"."}')[0]
    assert len(equal.ids) == len(k25.encode('{"path":"."}')), "the quote joins what follows: no bill shows it"
    assert offpath_arguments(k25, '{"path": "."}') == offpath_arguments(k25, "{}") == offpath_arguments(k25, '{"n":3}') == []


def test_no_edges_say_nothing(mini: Profile) -> None:
    assert alignment_nats([]) == 0.0
    assert agree((1, 2), [None, 2]) and not agree((1, 2), [1]) and not agree((1, 2), [1, 3])
