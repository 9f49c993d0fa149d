"""The model's own tokens and prompts, from its `tiktoken.model` alone: encoding, control tokens, its chat template, sampling off the path.

Belongs here: a second, independent writing of what the model does. Does not belong here: anything a provider does.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import tiktoken

PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END, USER, ASSISTANT, SYSTEM, MIDDLE = 163586, 163587, 163588, 163594, 163601
SECTION, SECTION_END, CALL, ARGUMENT, CALL_END = 163595, 163596, 163597, 163598, 163599
THINK, THINK_END = 163606, 163607
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Model:
    """The vocabulary. Merges from rank `older_below` on are unknown to a tokenizer one version older, from `other_below` on to another model's."""

    ranks: Mapping[bytes, int]
    older_below: int = 110_000
    other_below: int = 40_000

    @cached_property
    def encoding(self) -> tiktoken.Encoding:
        return tiktoken.Encoding("foreign", pat_str=PATTERN, mergeable_ranks=dict(self.ranks), special_tokens={})

    @cached_property
    def older(self) -> tiktoken.Encoding:
        """The same model with a tokenizer one version older: no merges of the highest ranks."""
        kept = {token: rank for token, rank in self.ranks.items() if rank < self.older_below}
        return tiktoken.Encoding("older", pat_str=PATTERN, mergeable_ranks=kept, special_tokens={})

    @cached_property
    def other(self) -> tiktoken.Encoding:
        """Some other model's tokenizer: a smaller vocabulary, another pattern."""
        kept = {token: rank for token, rank in self.ranks.items() if rank < self.other_below}
        return tiktoken.Encoding("other", pat_str=GPT2_PATTERN, mergeable_ranks=kept, special_tokens={})

    def encode(self, text: str) -> list[int]:
        return self.encoding.encode_ordinary(text)

    def off_path(self, ids: Sequence[int], rate: float, rng: Random) -> list[int]:
        """`ids` with some tokens sampled as two, or two tokens cut at another place: the same bytes."""
        out: list[int] = []
        position = 0
        while position < len(ids):
            data = self.encoding.decode_single_token_bytes(ids[position])
            step = 1
            if rate and rng.random() < rate:
                if rng.random() < 0.25 and position + 1 < len(ids):
                    data, step = data + self.encoding.decode_single_token_bytes(ids[position + 1]), 2
                cuts = [cut for cut in range(1, len(data)) if data[:cut] in self.ranks and data[cut:] in self.ranks]
                cuts = [cut for cut in cuts if step == 1 or self.ranks[data[:cut]] != ids[position]]
                if cuts:
                    cut = rng.choice(cuts)
                    out += [self.ranks[data[:cut]], self.ranks[data[cut:]]]
                    position += step
                    continue
            out.append(ids[position])
            position += 1
        return out


def load(folder: Path) -> Model:
    lines = (folder / "tiktoken.model").read_bytes().splitlines()
    pairs = (line.split() for line in lines if line)
    return Model({base64.b64decode(token): int(rank) for token, rank in pairs})


# ---------------------------------------------------------------------------------------------------- tools
def typescript(tools: Sequence[Message]) -> str:
    """Flat schemas (strings, numbers, booleans, enums) as the model's own tokenizer declares them."""
    blocks = []
    for tool in tools:
        function = tool["function"]
        schema = function["parameters"]
        required = set(schema.get("required", ()))
        names = sorted(schema["properties"], key=lambda name: (name not in required, name))
        lines = []
        for name in names:
            value = schema["properties"][name]
            words = {"integer": "number"}.get(value["type"], value["type"])
            if "enum" in value:
                words = " | ".join(f'"{word}"' for word in value["enum"])
            comment = f"  // {value['description']}\n" if "description" in value else ""
            lines.append(f"{comment}  {name}{'' if name in required else '?'}: {words}")
        body = "{\n" + ",\n".join(lines) + "\n}" if lines else "{}"
        blocks.append(f"// {function['description']}\ntype {function['name']} = (_: {body}) => any;")
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(blocks) + "\n}\n"


# ---------------------------------------------------------------------------------------------------- template
@dataclass(frozen=True)
class Template:
    """How a server lays messages out. The defaults are the model's own; a foreign one has other roles, or no system turn."""

    user: str = "user"
    assistant: str = "assistant"
    system: str | None = "system"
    more_system: str = ""
    declared: str | None = None  # the text of the tool declaration where it is not TypeScript
    keeps_last: int | None = None  # messages; None: all


def prompt_ids(
    model: Model,
    messages: Sequence[Message],
    tools: Sequence[Message],
    *,
    thinking: bool = True,
    template: Template | None = None,
) -> list[int]:
    """The prompt up to and with what opens (or skips) the reasoning."""
    how = template or Template()
    if how.keeps_last is not None:
        messages = messages[-how.keeps_last :]
    encode = model.encode
    ids: list[int] = []
    if tools:
        declared = typescript(tools) if how.declared is None else how.declared
        ids += [SYSTEM, *encode("tool_declare"), MIDDLE, *encode(declared), END]
    if how.more_system:
        ids += [SYSTEM, *encode("system"), MIDDLE, *encode(how.more_system), END]
    closed_turns = [k for k, m in enumerate(messages) if m["role"] == "assistant" and not m.get("tool_calls")]
    loop = closed_turns[-1] + 1 if closed_turns else 0
    for k, message in enumerate(messages):
        ids += _turn(model, message, how, keeps=k >= loop and thinking)
    return [*ids, ASSISTANT, *encode(how.assistant), MIDDLE, THINK, *([] if thinking else [THINK_END])]


def _turn(model: Model, message: Message, how: Template, *, keeps: bool) -> list[int]:
    encode, role, content = model.encode, message["role"], message.get("content") or ""
    if role == "user":
        return [USER, *encode(how.user), MIDDLE, *encode(content), END]
    if role == "system":
        return [] if how.system is None else [SYSTEM, *encode(how.system), MIDDLE, *encode(content), END]
    if role == "tool":
        return [SYSTEM, *encode("tool"), MIDDLE, *encode(f"## Return of {message['tool_call_id']}\n{content}"), END]
    thought = encode(message.get("reasoning", "")) if keeps else []
    ids = [ASSISTANT, *encode(how.assistant), MIDDLE, THINK, *thought, THINK_END, *encode(content)]
    if message.get("tool_calls"):
        ids.append(SECTION)
        for call in message["tool_calls"]:
            ids += [CALL, *encode(call["id"]), ARGUMENT, *encode(call["function"]["arguments"]), CALL_END]
        ids.append(SECTION_END)
    return [*ids, END]


def unwrapped(tools: Sequence[Message]) -> str:
    """The tools as an engine that knows `function` objects only declares them: compact JSON (sglang)."""
    return json.dumps([tool["function"] for tool in tools], ensure_ascii=False, separators=(",", ":"))
