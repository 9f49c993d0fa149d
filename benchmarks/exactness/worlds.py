"""The leading space: a model that writes it or not, behind a provider that strips it, injects one, or does neither. Six worlds.

Belongs here: the worlds, their answers, what the platform may and must say in each. Does not belong here: the general run.

In most answers a space in front of a field changes no count. A world's answers are chosen so that none of them decides (neither of
the reasoning nor of the content, by the count of either reading); then the platform must leave every row at C1 or below. What decides
is added in three ways: the pilot's own probes at that provider; another provider, verbatim, whose ordinary answers decide by their
bills; rows of the same model with ids from a server. Then rows must be B1, and right. Where the model writes the space and the server
joins a second one, the wire shows two, which decides by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.exactness import rebuild
from benchmarks.exactness.judge import HIGH, judge
from benchmarks.exactness.purchase import Purchase, buy
from benchmarks.exactness.questions import Question, make_questions
from eagle3_assets.collect.pilot import probes
from eagle3_assets.collect.servers.endpoint import Endpoint
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.wire_answer import WireAnswer
from kimi_mini.bank import prompt_key
from openrouter_standin.answers.replay import Maker, ReplayAnswer
from openrouter_standin.answers.replay_habits import Traits
from openrouter_standin.answers.replay_passages import Texts, read_texts
from openrouter_standin.answers.source import Bank
from openrouter_standin.profiles import Profiles
from openrouter_standin.schema.provider import Provider
from openrouter_standin.schema.source import Cut, Habits, Replay
from openrouter_standin.vocabulary import Vocabulary, take_apart

BENDS: dict[str, dict[str, Any]] = {
    "neither": {},
    "injects": {"inject_reasoning_leading": True, "inject_content_leading": True},
    "strips": {"strip_reasoning": "both", "strip_content": "both"},
}
CONDITIONS = ("nothing decides", "probes", "a verbatim provider", "rows with ids")
_ENDPOINT = Endpoint("world", "world", "int4", 1e-6, 1e-6, 0.0, 0, 100.0, ("tools",), 262_144, None)
# How the thought behind a probe begins: a model thinks in the language that it is asked in.
_CHINESE, _ENGLISH = "用户想知道“{word}”，直接回答就好。", "The user wants {word}. I answer with just that."
_QUIET: dict[str, Any] = {
    **dict.fromkeys(("non_canonical", "literal_markers", "split_characters", "empty_reasoning", "implicit_end"), 0.0),
    **dict.fromkeys(("no_content", "odd_tool_ids"), 0.0),
    "reasoning_trailing": {},
    "content_trailing": {},
    "cut": Cut(reasoning=0, content=0, arguments=0),
}


@dataclass(frozen=True)
class World:
    """What the platform said in one world under one condition. `high`: rows of B1 or better, `wrong_high` of them wrong."""

    writes: bool
    bends: str
    condition: str
    rows: int
    high: int
    wrong_high: int
    exact: int
    said: str

    @property
    def shows_two_spaces(self) -> bool:
        return self.writes and self.bends == "injects"

    @property
    def holds(self) -> bool:
        """Without deciding data no B1 (two spaces decide); with it nearly every row B1, and none of them wrong."""
        if self.condition == CONDITIONS[0] and not self.shows_two_spaces:
            return self.high == 0
        return self.wrong_high == 0 and self.high >= 0.95 * self.rows


def run(profile: Profile, profiles: Profiles, vocabulary: Vocabulary, root: Path, *, answers: int, seed: int) -> list[World]:
    """All worlds under all conditions."""
    out = []
    for writes in (True, False):
        made, neutral = _banks(vocabulary, writes, max(400, 6 * answers), seed)
        questions = [
            replace(question, tools=(), thinking=True, max_tokens=16_384)
            for question in make_questions(3 * answers, seed + 1)
            if question.turn == 0
        ][:answers]
        words = probes.choose_words(lambda text: len(vocabulary.encode_text(text)))
        asked = [_question(probe) for probe in probes.probes_for(_ENDPOINT, words) if probe.word is not None]
        probed = [_answer(vocabulary, probe, writes) for probe in probes.probes_for(_ENDPOINT, words) if probe.word is not None]
        other = _buy(
            profiles, vocabulary, made, {"neither": {}}, questions, root / f"{writes}-verbatim", seed, per_engine=answers
        )
        bent = _buy(profiles, vocabulary, neutral, BENDS, questions, root / f"{writes}-bent", seed)
        pilot = _buy(profiles, vocabulary, probed, BENDS, asked, root / f"{writes}-pilot", seed)
        helping = {"a verbatim provider": _renamed(other.answers("neither")), "rows with ids": other.answers("(engine)")}
        for bends in BENDS:
            ordinary = bent.answers(bends)
            for condition in CONDITIONS:
                more = pilot.answers(bends) if condition == "probes" else helping.get(condition, [])
                out.append(_world(profile, bent, writes, bends, condition, ordinary, [*ordinary, *more]))
    return out


def _world(
    profile: Profile, purchase: Purchase, writes: bool, bends: str, condition: str, answers: Sequence[WireAnswer], known: Sequence[WireAnswer]
) -> World:  # fmt: skip
    learned = rebuild.learn(profile, known)
    rows = judge(bends, rebuild.rows_of(profile, answers, learned), purchase.truths, purchase.vocabulary)
    high = [row for row in rows if row.grade in HIGH]
    entry = (learned.get("providers") or {}).get(bends) or {}
    return World(
        writes, bends, condition, len(rows), len(high), sum(not row.exact for row in high), sum(row.exact for row in rows), str(entry.get("why", ""))
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- answers
def _banks(v: Vocabulary, writes: bool, answers: int, seed: int) -> tuple[list[ReplayAnswer], list[ReplayAnswer]]:
    """(all answers of the model, those that decide nothing)."""
    lead = {" ": 1.0} if writes else {}
    habits = Habits(**{**_QUIET, "reasoning_leading": lead, "content_leading": lead})
    settings = Replay(
        seed=seed, answers=answers, mean_tokens=150, sigma=0.5, max_tokens=2_048, instant=0.0, tool_answers=0.0, habits=habits
    )
    maker = Maker(settings, v, _texts())
    made = [maker.make(n) for n in range(answers)]
    return made, [answer for answer in made if _is_neutral(answer, v)]


def _texts() -> Texts:
    return read_texts((), Path())


def _is_neutral(answer: ReplayAnswer, v: Vocabulary) -> bool:
    """Whether neither front says by its count if a space stands there."""
    parts = take_apart(answer.ids, True, v)
    fronts = (v.text(parts.reasoning), v.text(parts.content))
    return all(text and _costs_nothing(text.removeprefix(" "), v) for text in fronts)


def _costs_nothing(text: str, v: Vocabulary) -> bool:
    return len(v.encode_text(text)) == len(v.encode_text(f" {text}"))


# ---------------------------------------------------------------------------------------------------- probes
def _question(probe: probes.Probe) -> Question:
    return Question(probe.messages, probe.tools or (), True, probes.MOST_TOKENS, stream=probe.form.stream)


def _answer(v: Vocabulary, probe: probes.Probe, writes: bool) -> ReplayAnswer:
    """The word that is asked for, behind a thought."""
    word, lead = probe.word or "", " " if writes else ""
    thought = (_CHINESE if not word.isascii() else _ENGLISH).format(word=word)
    ids = (*v.encode_text(lead + thought), v.close_think, *v.encode_text(lead + word), v.im_end)
    return ReplayAnswer(ids, True, (), Traits(), prompt=prompt_key(probe.messages, probe.tools, thinking=True))


# ---------------------------------------------------------------------------------------------------- buying
def _buy(
    profiles: Profiles,
    v: Vocabulary,
    answers: Sequence[ReplayAnswer],
    bends: dict[str, dict[str, Any]],
    questions: Sequence[Question],
    root: Path,
    seed: int,
    per_engine: int = 0,
) -> Purchase:
    providers = tuple(
        Provider.model_validate({"name": name, "tag": name, "price_prompt": 0.5, "price_completion": 2.5, "text": text})
        for name, text in bends.items()
    )
    asked = profiles.model_copy(update={"provider": providers})
    source = Bank(answers, v, profiles.source), v
    return buy(asked, root, questions, beside=root, seed=seed, per_engine=per_engine, source=source)


def _renamed(answers: Sequence[WireAnswer]) -> list[WireAnswer]:
    """The verbatim provider under a name of its own: it is another one than the world's."""
    return [
        replace(answer, provider="verbatim", body=answer.body.replace(b'"provider":"neither"', b'"provider":"verbatim"'))
        for answer in answers
    ]
