"""A request -> the prompt that a provider's server really rendered, and its ids: the truth that prompt_tokens is billed from.

Belongs here: a provider's bending of the prompt. Does not belong here: the chat format itself (`kimi_mini.chat`: the model that the
stand-in serves), or anything of room `exact`.
Facts: research note prompt-side (bending).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_assets.kimi_mini import chat
from eagle3_assets.standin.schema.provider import PromptBending
from eagle3_assets.standin.vocabulary import Ids, Vocabulary


def render_text(
    messages: Sequence[chat.Message],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    thinking: bool = True,
    bending: PromptBending | None = None,
    generation_prompt: bool = True,
) -> str:
    """The prompt as one string with markers, bent as this provider bends it."""
    bending = bending or PromptBending()
    return chat.render_text(
        messages,
        tools,
        thinking=thinking,
        keep_reasoning=bending.history_reasoning == "kept",
        typescript_tools=bending.tools == "typescript",
        generation_prompt=generation_prompt,
    )


def render_prompt(
    messages: Sequence[chat.Message],
    tools: Sequence[Mapping[str, Any]] | None,
    vocabulary: Vocabulary,
    *,
    thinking: bool = True,
    bending: PromptBending | None = None,
) -> Ids:
    """Prompt ids as the server saw them."""
    return vocabulary.encode_prompt(render_text(messages, tools, thinking=thinking, bending=bending))
