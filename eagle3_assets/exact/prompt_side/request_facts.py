"""What a request says, beside its messages: whether the model is to think, and what gateways are known to treat oddly.

Belongs here: reading request fields in all the spellings that people use. Does not belong here: prompts (`render.py`), answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3_assets.targets.tokenizer import Profile

Message = Mapping[str, Any]

# How sure a statement makes us of the mode; the bill decides, for both differ by one id in prompt and completion.
NOTHING_SAID = 0.9  # of the campaign's or the provider's default: instant answers come unasked (faults 06)
OWN_SWITCH = 0.97  # the model's own word, or OpenRouter's
OTHER_SWITCH = 0.6  # another model's word: K2.5 knows `thinking`, and ignores `enable_thinking` (cloudflare/workers-sdk#13239, privatemode#7)
JSON_ASKED = 0.6  # response_format turned thinking off in 2 of 2 rows (Fireworks K2.6, prompt ids of the server)


def _sources(request: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """The places that may hold a switch, most explicit first, and whether it goes to the template by its own name: the request, what SDK
    logs keep under `extra_body`, and `chat_template_kwargs` in either."""
    outer = [request]
    if isinstance(request.get("extra_body"), Mapping):
        outer.append(request["extra_body"])
    for place in outer:
        yield place, False
    for place in outer:
        if isinstance(place.get("chat_template_kwargs"), Mapping):
            yield place["chat_template_kwargs"], True


def _stated(place: Mapping[str, Any]) -> tuple[bool, str] | None:
    """What one place says, and by which word."""
    reasoning = place.get("reasoning")
    if isinstance(reasoning, bool):
        return reasoning, "reasoning"
    if isinstance(reasoning, Mapping):
        if isinstance(reasoning.get("enabled"), bool):
            return reasoning["enabled"], "reasoning"
        if reasoning.get("effort") == "none" or reasoning.get("max_tokens") == 0:
            return False, "reasoning"
        if reasoning.get("effort") or reasoning.get("max_tokens"):
            return True, "reasoning"
    effort = place.get("reasoning_effort")
    if isinstance(effort, str) and effort:
        return effort.lower() not in ("none", "off", "disabled"), "reasoning_effort"
    for word in ("thinking", "enable_thinking"):  # Kimi's and Qwen's names
        value = place.get(word)
        if isinstance(value, bool):
            return value, word
        if isinstance(value, Mapping) and value.get("type") in ("enabled", "disabled"):
            return value["type"] == "enabled", word
    return None


def thinking_prior(request: Mapping[str, Any], profile: Profile, default: bool = True) -> tuple[tuple[bool, float], ...]:
    """((mode, probability), …), most likely first: what a request makes us expect before its bill is looked at. One entry where the
    model has one mode only."""
    if profile.opened_by == "never":
        return ((False, 1.0),)
    if not profile.instant:
        return ((True, 1.0),)
    mode, share = default, NOTHING_SAID
    for place, to_template in _sources(request):
        stated = _stated(place)
        if stated is not None:
            mode, word = stated
            share = OWN_SWITCH if _is_own(profile, word, to_template) else OTHER_SWITCH
            break
    if _asks_for_json(request) and mode:
        share = min(share, JSON_ASKED)
    return ((mode, share), (not mode, 1.0 - share))


def _is_own(profile: Profile, word: str, to_template: bool) -> bool:
    """Whether whoever reads `word` knows it: gateways translate theirs, a template knows its own variable alone."""
    own = profile.facts.template.switch or "thinking"
    return word == own if to_template or word in ("thinking", "enable_thinking") else True


def _asks_for_json(request: Mapping[str, Any]) -> bool:
    form = request.get("response_format")
    return isinstance(form, Mapping) and form.get("type") in ("json_object", "json_schema")


def wants_thinking(request: Mapping[str, Any], default: bool = True) -> bool:
    """The likelier mode, by what the request says alone; `default` where it says nothing."""
    return next((stated[0] for place, _ in _sources(request) if (stated := _stated(place)) is not None), default)


def keeps_all_thinking(request: Mapping[str, Any]) -> bool:
    """Whether the request asks for all history reasoning: K2.6's `thinking.keep: "all"` (kimi-code PR#1417), `preserve_thinking`."""
    for place, _ in _sources(request):
        thinking = place.get("thinking")
        if place.get("preserve_thinking") is True or (isinstance(thinking, Mapping) and thinking.get("keep") == "all"):
            return True
    return False


def declared_tools(request: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The tools of a request; those of the legacy `functions` are wrapped as everybody's server wraps them."""
    tools = request.get("tools")
    if tools:
        return list(tools)
    functions = request.get("functions")
    if isinstance(functions, Sequence) and not isinstance(functions, str) and functions:
        return [{"type": "function", "function": function} for function in functions if isinstance(function, Mapping)]
    return None


def prefilled(messages: Sequence[Message]) -> bool:
    """Whether the request ends with the beginning of an answer."""
    return bool(messages) and messages[-1].get("role") == "assistant" and not messages[-1].get("tool_calls")


def request_oddities(request: Mapping[str, Any]) -> list[str]:
    """What gateways are known to treat in more ways than one, in words that a reason can end with."""
    found = []
    messages = request.get("messages") or []
    reasoning = request.get("reasoning")
    if request.get("tool_choice") == "none" and declared_tools(request):
        found.append('tool_choice "none": some servers leave the tools out of the prompt')
    if (isinstance(reasoning, Mapping) and reasoning.get("exclude") is True) or request.get("include_reasoning") is False:
        found.append("reasoning is excluded from the answer: it was billed and cannot be rebuilt")
    if prefilled(messages):
        found.append("the last message is the beginning of the answer: servers continue it or answer it")
    if request.get("functions") and not request.get("tools"):
        found.append("legacy functions: servers declare them as tools or leave them out")
    if _asks_for_json(request):
        found.append("response_format asks for JSON: servers turn thinking off or put the schema into the prompt")
    if any(message.get("name") for message in messages if isinstance(message, Mapping)):
        found.append("a message has a name: gateways drop it or put it in front of the content")
    if any(message.get("role") == "developer" for message in messages if isinstance(message, Mapping)):
        found.append("a message of role developer: gateways make it system or user")
    if any(
        isinstance(message.get("content"), list | tuple) and any(_is_media(p) for p in message["content"]) for message in messages
    ):
        found.append("a message holds an image: its ids cannot be rebuilt")
    return found


def _is_media(part: Any) -> bool:
    return isinstance(part, Mapping) and not isinstance(part.get("text"), str)


def reasoning_of(message: Message) -> str:
    """The reasoning of a history message: `reasoning_details` texts, else `reasoning`, else `reasoning_content`, else ""."""
    details = message.get("reasoning_details")
    if isinstance(details, Sequence) and not isinstance(details, str):
        texts = [d["text"] for d in details if isinstance(d, Mapping) and isinstance(d.get("text"), str)]
        if texts:
            return "".join(texts)
    for key in ("reasoning", "reasoning_content"):
        if isinstance(message.get(key), str):
            return str(message[key])
    return ""
