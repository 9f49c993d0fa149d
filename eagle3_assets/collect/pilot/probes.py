"""Probes: short questions that make the habits of an endpoint's wire visible, and what their answers say.

Belongs here: the questions, which of them an endpoint can be asked, the plain findings (counts as billed, text as returned).
Does not belong here: sending (`pilot.py`), what the findings mean for token ids (`exact` reads the same journal).

A probe's record is told from a real prompt's by its shard, "probe:" and the probe's name. Four things are looked for:
- a space before the first word: most words cost the same number of tokens with and without one, and a bill decides nothing. Words
  are asked for that do not, in the target's own vocabulary (docs/research/openrouter-contract.md#6;
  docs/research/exactness.md#2b), plain and beside declared tools, which go through another parser;
- streams: does a delta come for each token (docs/research/openrouter-contract.md#0.7);
- log-probabilities, where the endpoint lists them (docs/research/openrouter-contract.md#0.8);
- history: which of the three fields for replayed reasoning reaches the model (docs/research/prompt-side.md#history). The same
  tool conversation goes out once with each and once without reasoning: the billed prompt tells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_assets.collect.servers.endpoint import Endpoint
from eagle3_assets.collect.servers.routing import RequestForm
from eagle3_assets.prompts.prompt import Prompt
from eagle3_assets.prompts.sample import canonical
from eagle3_assets.wire.chunks import is_stream
from eagle3_assets.wire.completion import as_dict, completion_tokens, first_choice, parse_completion, reasoning_text, usage_of
from eagle3_assets.wire.journal import load_json
from eagle3_assets.wire.values import as_count
from eagle3_assets.wire.wire_answer import WireAnswer

DATASET = "(probes)"  # no dataset of a campaign can have this name
MOST_TOKENS = 1024  # for an answer of a word or a line, thinking included
EXPECTED_TOKENS = 100
WORDS = 6
# Of the words, the first so many are asked again in another form.
WITH_TOOLS, STREAMED, WITH_LOGPROBS = 2, 2, 1
# A stream is token by token when its deltas make up this part of the billed tokens that have text of their own: all but the end
# of turn and `</think>`. A character of several tokens comes as one delta (docs/research/openrouter-contract.md#0.7: 5 of 6
# channels equal, one merged two).
TOKEN_BY_TOKEN, MARKERS = 0.9, 2

# (first word of the answer, question). Words are taken in this order, those that decide something in the target's vocabulary.
_EXACTLY = "Answer with exactly this and nothing else: "
_GREETING = "How do I say "
CANDIDATES: tuple[tuple[str, str], ...] = (
    ("谢谢", f'{_GREETING}"thank you" to Klara in Chinese?'),
    ("欢迎", f'{_GREETING}"welcome" to Sven in Chinese?'),
    ("Danke", f'{_GREETING}"thank you" to Mia in German?'),
    ("Bonjour", f'{_GREETING}"good morning" to Ana in French?'),
    ("Merci", f'{_GREETING}"thank you" to Leo in French?'),
    ("Guten", f'{_GREETING}"good morning" to Rosa in German?'),
    ("Oi!", f"{_EXACTLY}Oi!"),
    ("用户", f"{_EXACTLY}用户"),
    ("1", f"{_EXACTLY}1"),
    ("42", f"{_EXACTLY}42"),
    ("你好", f"{_EXACTLY}你好"),
    ("100", f"{_EXACTLY}100"),
    ("Hello", f"{_EXACTLY}Hello"),
    ("はい", f"{_EXACTLY}はい"),
    ("Yes", f"{_EXACTLY}Yes"),
    ("red", f"{_EXACTLY}red"),
)

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# Compact arguments: a server that writes them again spaced shows it (docs/research/prompt-side.md#4).
_CALL = {"id": "functions.get_weather:0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
_CONVERSATION: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "What is the weather in Oslo?"},
    {"role": "assistant", "content": None, "reasoning_content": " I look up the weather in Oslo.", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": '{"city": "Oslo", "sky": "rain", "degrees": 7}'},
)
_HISTORY: tuple[RequestForm, ...] = tuple(
    RequestForm(replay=how) for how in ("none", "reasoning", "reasoning_content", "reasoning_details")
)

_PREFIX = "probe:"
Count = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Probe:
    """One question in one form. `word` is the first word that the answer should have, None where that is not the question."""

    name: str
    messages: tuple[dict[str, Any], ...]
    form: RequestForm
    tools: tuple[dict[str, Any], ...] | None = None
    word: str | None = None

    @property
    def shard(self) -> str:
        """What the journal's records say in place of a shard."""
        return _PREFIX + self.name

    def prompt(self, endpoint: Endpoint, scope: str) -> Prompt:
        """The probe as a sample of its own at one endpoint; another question under the same name is another sample."""
        content = canonical([list(self.messages), list(self.tools) if self.tools else None])
        identity = f"{scope}\0{endpoint.tag}\0{self.shard}\0".encode() + content
        return Prompt(
            sample_id=hashlib.sha256(identity).hexdigest()[:32],
            dataset=DATASET,
            turn=sum(m["role"] == "assistant" for m in self.messages),
            shard=self.shard,
            rank=0,
            messages=self.messages,
            tools=self.tools,
            expected_tokens=EXPECTED_TOKENS,
        )


def is_probe(answer: WireAnswer) -> bool:
    """Whether a record of the pilot's journal answers a probe."""
    return answer.shard.startswith(_PREFIX)


def choose_words(count: Count, most: int = WORDS) -> list[tuple[str, str]]:
    """(word, question) of the first candidates whose word costs another number of tokens behind a space. `count` is the target's
    own tokenizer.
    """
    return [(word, question) for word, question in CANDIDATES if count(word) != count(f" {word}")][:most]


def probes_for(endpoint: Endpoint, words: Sequence[tuple[str, str]]) -> list[Probe]:
    """What this endpoint is asked. One that lists its parameters is asked about tools and log-probabilities only when it lists
    them; one that lists none is asked about tools.
    """
    listed = endpoint.supported_parameters
    takes_tools, takes_logprobs = not listed or "tools" in listed, "logprobs" in listed
    plain = RequestForm()

    def about(
        words: Sequence[tuple[str, str]], how: str, form: RequestForm, tools: tuple[dict[str, Any], ...] | None = None
    ) -> list[Probe]:
        return [Probe(f"word:{word}:{how}", ({"role": "user", "content": asked},), form, tools, word) for word, asked in words]

    probes = about(words, "plain", plain) + about(words[:STREAMED], "stream", RequestForm(stream=True))
    if takes_logprobs:
        probes += about(words[:WITH_LOGPROBS], "logprobs", RequestForm(logprobs=True))
    if takes_tools:
        probes += about(words[:WITH_TOOLS], "tools", plain, (_TOOL,))
        probes += [Probe(f"history:{form.replay}", _CONVERSATION, form, (_TOOL,)) for form in _HISTORY]
    return probes


# ---------------------------------------------------------------------------------------------------- findings
def findings(endpoint: Endpoint, probes: Sequence[Probe], records: Iterable[WireAnswer], count: Count) -> dict[str, Any]:
    """What the records of one endpoint's probes say, as plain JSON. `records` are those of its finished probes.

    answered / missing: names; first_words: one line an answer; stream: {answers, deltas, billed, token_by_token}; logprobs:
    {listed, entries, with_bytes, billed, given}; history: {replay: billed prompt tokens, None without an answer}, and
    `history_reaches_model`: the fields with which the prompt was longer than without reasoning.
    """
    asked = {probe.shard: probe for probe in probes}
    answers = {asked[a.shard].name: a for a in records if a.shard in asked}
    read = {name: parse_completion(a.body, a.content_type) for name, a in answers.items()}
    history = {p.form.replay: _billed_prompt(read.get(p.name)) for p in probes if p.name.startswith("history:")}
    bare = history.get("none")
    return {
        "answered": sorted(read),
        "missing": sorted(p.name for p in probes if p.name not in read),
        "first_words": [_first_word(p, read[p.name], count) for p in probes if p.word is not None and p.name in read],
        "stream": _streams([answers[p.name] for p in probes if p.form.stream and p.name in answers]),
        "logprobs": {
            "listed": "logprobs" in endpoint.supported_parameters,
            **_logprobs([read[p.name] for p in probes if p.form.logprobs and p.name in read]),
        },
        "history": history,
        "history_reaches_model": sorted(how for how, n in history.items() if n is not None and bare is not None and n > bare),
    }


def _first_word(probe: Probe, completion: Mapping[str, Any], count: Count) -> dict[str, Any]:
    """The answer's edges as returned, the bill, and the tokens of its text as it stands and with one space more or less in front
    of the content: where the two differ, the bill speaks about that space.
    """
    message = as_dict((first_choice(dict(completion)) or {}).get("message"))
    content, reasoning = message.get("content"), reasoning_text(message) or ""
    content = content if isinstance(content, str) else ""
    other = content[1:] if content.startswith(" ") else f" {content}"
    counted = count(content)
    return {
        "probe": probe.name,
        "begins": content[:20],
        "is_the_word": content.lstrip().startswith(probe.word or ""),
        "content_starts_with_space": content.startswith(" ") if content else None,
        "reasoning_starts_with_space": reasoning.startswith(" ") if reasoning else None,
        "billed": completion_tokens(dict(completion)),
        "text_tokens": count(reasoning) + counted,
        "decides": bool(content) and counted != count(other),
    }


def _billed_prompt(completion: Mapping[str, Any] | None) -> int | None:
    billed = usage_of(dict(completion or {})).get("prompt_tokens")
    return as_count(billed)


def _streams(answers: Sequence[WireAnswer]) -> dict[str, Any]:
    deltas = sum(count_deltas(a.body) for a in answers if is_stream(a.body, a.content_type))
    billed = sum(completion_tokens(parse_completion(a.body, a.content_type)) for a in answers)
    with_text = billed - MARKERS * len(answers)
    by_token = with_text > 0 and TOKEN_BY_TOKEN * with_text <= deltas <= billed
    return {"answers": len(answers), "deltas": deltas, "billed": billed, "token_by_token": by_token if answers else None}


def count_deltas(body: bytes) -> int:
    """Pieces of text (reasoning, content, tool arguments) in an SSE transcript; one event may hold several."""
    deltas = 0
    for line in body.split(b"\n"):
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        try:
            delta = as_dict((first_choice(as_dict(load_json(line[5:]))) or {}).get("delta"))
        except ValueError:
            continue
        calls = delta.get("tool_calls")
        arguments = [as_dict(as_dict(call).get("function")).get("arguments") for call in calls] if isinstance(calls, list) else []
        deltas += sum(bool(piece) for piece in (reasoning_text(delta), delta.get("content"), *arguments))
    return deltas


def _logprobs(completions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    entries: list[Any] = []
    for completion in completions:
        content = as_dict((first_choice(completion) or {}).get("logprobs")).get("content")
        entries += content if isinstance(content, list) else []
    return {
        "entries": len(entries),
        "with_bytes": sum(isinstance(as_dict(entry).get("bytes"), list) for entry in entries),
        "billed": sum(completion_tokens(completion) for completion in completions),
        "given": bool(entries) if completions else None,
    }
