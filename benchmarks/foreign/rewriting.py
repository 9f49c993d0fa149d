"""Worlds outside the hypotheses, part two: text, calls or whitespace are rewritten on the way; the bill is of what the model wrote.

Belongs here: one small function a mechanism. Does not belong here: other bills (`bills`), learnable habits (`habits`).
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from benchmarks.foreign import texts
from benchmarks.foreign.habits import Mechanism
from benchmarks.foreign.sent import Call, Scene, Sent, verbatim

Rewrite = Callable[[str], str]
_SMART = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'", "—": "-", "–": "-", "…": "..."})
_SYNONYMS = {"damn": "darn", "stupid": "foolish", "killer": "attacker", "bomb": "device", "poison": "toxin", "hack": "trick"}
_FILTERED = re.compile(r"\b(" + "|".join(texts.FILTERED) + r")\b")
_EMOJI = re.compile("[\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff\u2600-\u27bf\u200d\ufe0f]+")
_FENCE = re.compile(r"^```\w*\n?", re.MULTILINE)


def _texts(rewrite: Rewrite, *, reasoning: bool = True, content: bool = True) -> Mechanism:
    """A world that rewrites the texts, each by itself."""

    def world(scene: Scene) -> Sent:
        sent = verbatim(scene)
        thought = rewrite(sent.reasoning) if reasoning else sent.reasoning
        return replace(sent, reasoning=thought, content=rewrite(sent.content) if content else sent.content)

    return world


def _calls(rewrite: Callable[[Call, int], Call]) -> Mechanism:
    def world(scene: Scene) -> Sent:
        sent = verbatim(scene)
        return replace(sent, calls=tuple(rewrite(call, k) for k, call in enumerate(sent.calls)))

    return world


def _arguments(rewrite: Callable[[Any], str]) -> Mechanism:
    return _calls(lambda call, _: replace(call, arguments=rewrite(json.loads(call.arguments))))


def _json_sorted(text: str) -> str:
    """JSON blocks of a text with their keys sorted."""

    def anew(block: re.Match[str]) -> str:
        try:
            return f"```json\n{json.dumps(json.loads(block[1]), ensure_ascii=False, indent=2, sort_keys=True)}\n```"
        except ValueError:
            return block[0]

    try:
        return (
            json.dumps(json.loads(text), ensure_ascii=False, sort_keys=True)
            if text.lstrip().startswith("{")
            else _in_blocks(anew, text)
        )
    except ValueError:
        return _in_blocks(anew, text)


def _in_blocks(anew: Callable[[re.Match[str]], str], text: str) -> str:
    return re.sub(r"```json\n(.*?)\n```", anew, text, flags=re.DOTALL)


def _first_sentence_off(text: str) -> str:
    return re.sub(r"^\s*[^.!?]*[.!?]\s*", "", text, count=1)


def _trimmed_end(text: str) -> str:
    return text[:-1] if text.endswith((".", "!", "?", ":")) else text


def _curly(text: str) -> str:
    return re.sub(r'"([^"\n]*)"', "“\\1”", text).replace("'", "’")


def _last_token_eaten(scene: Scene) -> Sent:
    """A stop string is taken out of the text with the token that held it; the bill still has it."""
    sent, case, model = verbatim(scene), scene.case, scene.model
    if case.calls or case.cut or not case.content_ids:
        return sent
    return replace(sent, content=model.encoding.decode(list(case.content_ids[:-1])))


def _summarised(scene: Scene) -> Sent:
    sent = verbatim(scene)
    return replace(
        sent, reasoning=f"**{scene.rng.choice(texts.NOUNS).title()}**\n\n{texts.sentence(scene.rng)}" if sent.reasoning else ""
    )


def _break_moved(scene: Scene) -> Sent:
    """The whitespace in front of the content is returned at the end of the reasoning."""
    sent = verbatim(scene)
    bare = sent.content.lstrip()
    if not sent.reasoning or not bare:
        return sent
    return replace(sent, reasoning=sent.reasoning + sent.content[: len(sent.content) - len(bare)], content=bare)


def _numbers_from_one(call: Call, k: int) -> Call:
    return replace(call, id=f"functions.{call.name}:{k + 1}")


def _ids_ahead(call: Call, _: int) -> Call:
    """Each id one ahead of the conversation's count."""
    number = int(call.id.rpartition(":")[2])
    return replace(call, id=f"functions.{call.name}:{number + 1}")


REWRITING: dict[str, Mechanism] = {
    "words ***": _texts(lambda text: _FILTERED.sub("***", text)),
    "words by synonyms": _texts(lambda text: _FILTERED.sub(lambda word: _SYNONYMS[word[0]], text)),
    "smart quotes to ASCII": _texts(lambda text: text.translate(_SMART)),
    "ASCII quotes to smart": _texts(_curly, reasoning=False),
    "NFKC": _texts(lambda text: unicodedata.normalize("NFKC", text)),
    "NFD": _texts(lambda text: unicodedata.normalize("NFD", text)),
    "emoji dropped": _texts(lambda text: _EMOJI.sub("", text)),
    "accents dropped": _texts(lambda text: text.translate(str.maketrans("éïüöçřŠóí", "eiuocrSoi"))),
    "double spaces collapsed": _texts(lambda text: re.sub(r"(?<=\S) {2,}(?=\S)", " ", text)),
    "all whitespace collapsed": _texts(lambda text: re.sub(r"\s+", " ", text), content=False),
    "tabs to 4 spaces": _texts(lambda text: text.replace("\t", "    ")),
    "CRLF": _texts(lambda text: text.replace("\n", "\r\n")),
    "blank lines halved": _texts(lambda text: text.replace("\n\n", "\n")),
    "leading break halved": _texts(lambda text: re.sub(r"^\n\n", "\n", text)),
    "lines trimmed": _texts(lambda text: re.sub(r"[ \t]+(?=\n)", "", text)),
    "trailing punctuation trimmed": _texts(_trimmed_end, reasoning=False),
    "fences stripped": _texts(lambda text: _FENCE.sub("", text), reasoning=False),
    "bullets rewritten": _texts(lambda text: re.sub(r"^[-*•] ", "– ", text, flags=re.MULTILINE)),
    "bold removed": _texts(lambda text: text.replace("**", ""), reasoning=False),
    "thousands separators removed": _texts(lambda text: re.sub(r"(?<=\d),(?=\d{3})", "", text)),
    "HTML escaped": _texts(html.escape),
    "URL encoded": _texts(lambda text: quote(text, safe=" \n"), reasoning=False),
    "JSON keys sorted in content": _texts(_json_sorted, reasoning=False),
    "first letter capitalised": _texts(lambda text: re.sub(r"^(\s*)(\w)", lambda m: m[1] + m[2].upper(), text)),
    "newline added at the end": _texts(lambda text: f"{text}\n" if text else text, reasoning=False),
    "newline added at the front": _texts(lambda text: f"\n{text}" if text else text, reasoning=False),
    "zero-width space by paragraph": _texts(lambda text: text.replace("\n\n", "\n\n\u200b")),
    "first sentence of reasoning off": _texts(_first_sentence_off, content=False),
    "reasoning cut at 400": _texts(lambda text: text[:400], content=False),
    "reasoning summarised": _summarised,
    "last token eaten": _last_token_eaten,
    "break moved to the reasoning": _break_moved,
    "call ids from 1": _calls(_numbers_from_one),
    "call ids one ahead": _calls(_ids_ahead),
    "call ids toolu": _calls(lambda call, k: replace(call, id=f"toolu_{k:04d}")),
    "argument keys sorted": _arguments(lambda value: json.dumps(value, ensure_ascii=False, sort_keys=True)),
    "arguments ASCII escaped": _arguments(json.dumps),
    "arguments indented": _arguments(lambda value: json.dumps(value, ensure_ascii=False, indent=2)),
    "arguments without nulls and false": _arguments(
        lambda value: json.dumps({key: found for key, found in value.items() if found}, ensure_ascii=False)
    ),
    "argument numbers as text": _arguments(
        lambda value: json.dumps({k: str(v) if type(v) is int else v for k, v in value.items()}, ensure_ascii=False)
    ),
}
