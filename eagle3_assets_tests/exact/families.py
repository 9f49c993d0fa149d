"""Made models of known families: a small vocabulary of our own and templates of the families' form, in our own words.

Belongs here: what a publisher's folder looks like. Does not belong here: claims.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GPT2_LIKE = [
    {"type": "Digits", "individual_digits": True},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
]
ONE_SPLIT = [
    {"type": "Split", "pattern": {"Regex": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"},
     "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
]  # fmt: skip
ARGUMENTS_AS_JSON = "{{ a if a is string else a | tojson }}"


@dataclass(frozen=True)
class Family:
    """One made model: control tokens in the order of their ids, the first `special` ones so marked; what a right profile says."""

    name: str
    tokens: tuple[str, ...]
    template: str
    stops: tuple[str, ...]
    says: dict[str, str | bool]
    in_front: bool = False  # control ids stand in front of the others, as SmolLM2's
    special: int = 99
    splits: tuple[dict[str, Any], ...] = tuple(ONE_SPLIT)  # type: ignore[arg-type]


CHATML = Family(
    "chatml", ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>"),
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ("<|im_end|>",), {"turn.end": "<|im_end|>", "tools.form": "none", "reasoning.opened_by": "never", "tokenizer.encoder": "tokenizers"},
    in_front=True, splits=tuple(GPT2_LIKE),
)  # fmt: skip
BARE = Family(
    "bare", ("<|begin|>", "<|start_header|>", "<|end_header|>", "<|eot|>", "<|eom|>"),
    "{{ bos_token }}{% for m in messages %}<|start_header|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header|>\n\n"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call a turn') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments | tojson }}}"
    "{% else %}{{ m.content | trim }}{% endif %}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header|>assistant<|end_header|>\n\n{% endif %}",
    ("<|eot|>", "<|eom|>"),
    {"turn.end": "<|eot|>", "tools.form": "bare_json", "template.arguments": "object", "tokenizer.encoder": "tiktoken"},
)  # fmt: skip
CODER = Family(
    "coder", ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}{{ '\n' }}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ("<|im_end|>", "<|endoftext|>"),
    {"turn.end": "<|im_end|>", "tools.form": "parameters", "tools.separator": "\n", "template.arguments": "object"}, special=3,
)  # fmt: skip
DEEP = Family(
    "deep", ("<｜begin｜>", "<｜end｜>", "<｜User｜>", "<｜Assistant｜>", "<｜calls▁begin｜>", "<｜calls▁end｜>", "<｜call▁begin｜>",
             "<｜call▁end｜>", "<｜sep｜>", "<｜out▁begin｜>", "<｜out▁end｜>", "<think>", "</think>"),
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'tool' %}"
    "<｜out▁begin｜>{{ m.content }}<｜out▁end｜>{% elif m.role == 'system' %}{{ m.content }}{% else %}<｜Assistant｜></think>{{ m.content }}"
    "{% if m.tool_calls %}<｜calls▁begin｜>{% for c in m.tool_calls %}<｜call▁begin｜>{{ c.function.name }}<｜sep｜>"
    "{{ '' + c.function.arguments }}<｜call▁end｜>{% endfor %}<｜calls▁end｜>{% endif %}<｜end｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{{ '<think>' if thinking else '</think>' }}{% endif %}",
    ("<｜end｜>",),
    {"turn.end": "<｜end｜>", "tools.form": "sections", "tools.id_format": "{name}", "reasoning.opened_by": "prompt",
     "reasoning.instant": True, "template.switch": "thinking"}, special=2,
)  # fmt: skip
GLM = Family(
    "glm", ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>", "<tool_call>",
            "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n{{ m.content }}{% elif m.role != 'assistant' %}"
    "<|{{ m.role }}|>\n{{ m.content }}{% else %}<|assistant|>\n<think>{{ m.reasoning_content or '' }}</think>\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}"
    "\n<think></think>{% endif %}{% endif %}",
    ("<|endoftext|>", "<|user|>", "<|observation|>"),
    {"turn.end": "<|user|>", "turn.end_after_calls": "<|observation|>", "tools.form": "parameters", "reasoning.opened_by": "model",
     "template.switch": "enable_thinking"}, special=5,
)  # fmt: skip
FAMILIES = {family.name: family for family in (CHATML, BARE, CODER, DEEP, GLM)}


def publish(family: Family, folder: Path, texts: list[str]) -> Path:
    """A publisher's folder of the family: a vocabulary trained on `texts` and the files that publishers ship."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    folder.mkdir(parents=True)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False))
    raw = json.loads(learner.to_str())
    vocabulary = sorted(raw["model"]["vocab"], key=raw["model"]["vocab"].get)
    shift = len(family.tokens) if family.in_front else 0
    ids = {piece: k + shift for k, piece in enumerate(vocabulary)}
    control = {name: k if family.in_front else len(ids) + k for k, name in enumerate(family.tokens)}
    added = [
        {"id": k, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": n < family.special}
        for n, (name, k) in enumerate(control.items())
    ]  # fmt: skip
    raw["added_tokens"] = added
    raw["model"] |= {"vocab": {**control, **ids} if family.in_front else ids, "type": "BPE"}
    raw |= {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(family.splits)}, "decoder": GPT2_LIKE[1]}
    (folder / "tokenizer.json").write_text(json.dumps(raw, ensure_ascii=False), encoding="utf-8")
    config = {"bos_token": family.tokens[0], "eos_token": family.stops[0], "chat_template": family.template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [control[name] for name in family.stops]}))
    return folder


TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {}}}} for n in ("look", "find_it")
]
WORDS = ["Where is it?", "  two\n\nlines ", "汉字 and é", "x = 1", "<b>tag</b>", "'s 😀", "a" * 40, "1234567"]


def conversations(family: str, n: int, seed: int = 7) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]:
    """`n` seeded conversations: system messages, several turns, reasoning, calls with their results."""
    source = random.Random(seed)
    for _ in range(n):
        calls_tools = source.random() < 0.6 and family != "chatml"
        messages: list[dict[str, Any]] = [{"role": "system", "content": source.choice(WORDS)}] * (source.random() < 0.4)
        for _ in range(source.randint(0, 3)):
            messages.append({"role": "user", "content": source.choice(WORDS)})
            if calls_tools and source.random() < 0.6:
                count = 1 if family == "bare" else source.randint(1, 2)
                calls = [_call(source, k) for k in range(count)]
                messages.append({"role": "assistant", "content": source.choice(["", "Let me see."]), "tool_calls": calls})
                if source.random() < 0.5:
                    messages[-1]["reasoning_content"] = source.choice(WORDS)
                messages += [{"role": "tool", "tool_call_id": c["id"], "content": source.choice(WORDS)} for c in calls]
            messages.append({"role": "assistant", "content": source.choice(WORDS), "reasoning_content": source.choice(WORDS)})
        messages.append({"role": "user", "content": source.choice(WORDS)})
        yield messages, TOOLS if calls_tools else None


def _call(source: random.Random, k: int) -> dict[str, Any]:
    arguments = {"city": source.choice(WORDS), "n": source.randint(0, 99)}
    name = source.choice(TOOLS)["function"]["name"]  # type: ignore[index]
    return {
        "id": f"call_{k}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }
