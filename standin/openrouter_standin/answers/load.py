"""The source that a profiles file asks for. torch is imported for a live one, never else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openrouter_standin.answers.replay import load_replay
from openrouter_standin.answers.sampled import AnswerSource
from openrouter_standin.answers.source import Bank
from openrouter_standin.schema.source import Source
from openrouter_standin.vocabulary import Vocabulary


def load_source(settings: Source, beside: Path = Path()) -> tuple[AnswerSource, Vocabulary]:
    """The source that the profiles ask for and the tokenizer that it samples from: the committed bank, the model itself (loads
    torch), or a replay bank, whose files are relative to `beside`, the profiles file's folder. Raises StandinError."""
    from kimi_mini import bank, tokenizer

    if settings.kind == "replay":
        made, vocabulary = load_replay(settings.replay, beside)
        return Bank(made, vocabulary, settings, renames=True), vocabulary
    vocabulary = Vocabulary.of(tokenizer.load_encoding())
    if settings.kind == "live":
        from openrouter_standin.answers.live import Live

        return Live.load(settings.slots), vocabulary
    # answers that no client can read are for the live model to give
    answers: list[Any] = [answer for answer in bank.load_bank() if answer.grammar or answer.truncated]
    return Bank(answers, vocabulary, settings), vocabulary
