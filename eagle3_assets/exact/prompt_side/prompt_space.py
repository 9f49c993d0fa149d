"""The forms of one request, and its turns in them: the finite space of prompts (docs/research/prompt-side.md#rows).

Belongs here: which forms can matter in a conversation, and the table of all prompts that they lead to. Does not belong here: rendering
itself (`render.py`), the forms (`prompt_forms.py`), asking for prompts (`hypotheses.py`).

A prompt is a declaration of tools, the turns of a history, and a stub; the forms of the first and of the second are independent. Forms that
change nothing in a conversation are left out of its table.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.prompt_forms import (
    USUAL,
    ArgumentStyle,
    PromptForm,
    prior_of_tools,
    prior_of_word,
    tool_forms,
)
from eagle3_assets.exact.prompt_side.prompt_table import NO_TOOLS, NOTHING, Part, PromptTable, WholeTable
from eagle3_assets.exact.prompt_side.render import (
    bend_message,
    default_form,
    generation_turn,
    history_arguments,
    kept_reasoning,
    message_turn,
    render_text,
    system_turn,
    tools_turn,
)
from eagle3_assets.exact.prompt_side.request_facts import declared_tools, keeps_all_thinking, prefilled, reasoning_of
from eagle3_assets.exact.prompt_side.segments import EMPTY, Segment, Turn, digest_of, encode_turn, encode_whole, joins
from eagle3_assets.targets.tokenizer import Profile

ASKED_FOR = 30.0  # how much likelier a form is that the request itself asks for (tool_choice "none", `partial`, `thinking.keep`)
MOST_DECLARATIONS, LIKELIEST = 64, 8
Messages = Sequence[Mapping[str, Any]]


def prompt_table(profile: Profile, request: Mapping[str, Any], *, thinking: bool) -> PromptTable:
    """Every prompt of `request`. Raises ExactError where no template is known or a message cannot be rendered."""
    if not profile.renders:
        raise ExactError(f"no template for {profile.name}")
    try:
        return _table(profile, request, thinking)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ExactError(
            f"the request's messages or tools have not the shape of a chat ({error!r:.120}): they have no prompt"
        ) from None


def _table(profile: Profile, request: Mapping[str, Any], thinking: bool) -> PromptTable:
    space = Space(profile, request, thinking, _asked_for(request))
    if profile.facts.template.kind == "jinja":
        return space.rendered_whole()
    table = space.table()
    longest = max(table.tools, key=lambda p: p.count), max(table.histories, key=lambda p: p.count)
    if joins(profile, [s for part in longest for s in part.segments]):
        return table
    return space.rendered_whole()


def _asked_for(request: Mapping[str, Any]) -> dict[str, float]:
    """{word: how much likelier the request itself makes it}."""
    asked = {}
    if request.get("tool_choice") == "none" or (request.get("functions") and not request.get("tools")):
        asked["omitted"] = ASKED_FOR
    if keeps_all_thinking(request):
        asked["reasoning_all"] = ASKED_FOR
    messages = request.get("messages") or []
    if prefilled(messages) and any(messages[-1].get(key) is True for key in ("partial", "prefix")):
        asked["prefill_open"] = ASKED_FOR
    return asked


@dataclass
class Space:
    """The forms of one request, and its turns in them."""

    profile: Profile
    request: Mapping[str, Any]
    thinking: bool
    asked: Mapping[str, float]
    _turns: dict[tuple[Any, ...], Segment] = field(default_factory=dict)
    _moved: dict[str, list[bool]] = field(default_factory=dict)
    _alike: dict[str, str] = field(default_factory=dict)  # a style that changes nothing in this request -> the one it equals

    @cached_property
    def messages(self) -> Messages:
        return list(self.request.get("messages") or [])

    @cached_property
    def own(self) -> PromptForm:
        return replace(default_form(self.profile), strict=False)

    def table(self) -> PromptTable:
        """The two halves, each distinct one once."""
        tools = self._tools()
        histories = self._parts([(form.history, self.turns(form)) for form in self.forms()], self._history_prior)
        if any(segment.controls > markers for segment, markers in self._controls()):
            text = [replace(form, control="text") for form in self.forms()]
            known = [(words, part.segments) for part in histories for words in part.words]
            histories = self._parts([*known, *((form.history, self.turns(form)) for form in text)], self._history_prior)
        return PromptTable(tools, histories)

    def rendered_whole(self) -> PromptTable:
        """The same where ids are not those of the turns: each form is rendered and encoded as a whole. Declaration and history stay in one
        part, and its words name both."""
        tools = declared_tools(self.request)
        jinja = self.profile.facts.template.kind == "jinja"
        declared = [self.own] if not tools else self._by_template() if jinja else self._likeliest()
        out: dict[int, list[tuple[tuple[str, ...], Segment]]] = {}
        for history in self.forms():
            for form in declared:
                full = history.changed(**{name: getattr(form, name) for name in _TOOL_FIELDS})
                segment = encode_whole(self.profile, render_form(self.profile, self.messages, tools, self.thinking, full))
                out.setdefault(segment.digest, []).append(((form.tools if tools else NO_TOOLS, *history.history), segment))
        parts = tuple(
            Part(
                (found[0][1],),
                tuple(words for words, _ in found),
                sum(self._tool_prior(words[0]) * self._history_prior(words[1:]) for words, _ in found),
                digest,
                found[0][1].count,
                frozenset(self.asked),
                _silent([form.history for form in self.forms()]),
            )
            for digest, found in out.items()
        )
        return WholeTable((NOTHING,), parts)

    def _by_template(self) -> list[PromptForm]:
        """The declarations that a model's own template can be made to write: it writes what it is given, in its own style."""
        forms = tool_forms(self.own)
        return [f for f in forms if f.tool_style == "omitted" or (f.tool_style == "spaced_json" and not f.escaped)]

    def _likeliest(self) -> list[PromptForm]:
        """The declarations that a text as long as a book is tried with: each is encoded as a whole."""
        return sorted(tool_forms(self.own), key=lambda form: -self._tool_prior(form.tools))[:LIKELIEST]

    # ------------------------------------------------------------------------------------------ tools
    def _tools(self) -> tuple[Part, ...]:
        tools = declared_tools(self.request)
        if not tools:
            return (Part((), ((NO_TOOLS,),), 1.0, 0, 0),)
        key = (self.profile.tokenizer_sha256, self.own.tool_style, json.dumps(tools), frozenset(self.asked))
        found = _DECLARATIONS.get(key)
        if found is None:
            listed = [((form.tools,), self.declared(form)) for form in tool_forms(self.own)]
            found = self._parts(listed, lambda words: self._tool_prior(words[0]))
            _DECLARATIONS[key] = found
            if len(_DECLARATIONS) > MOST_DECLARATIONS:
                _DECLARATIONS.popitem(last=False)
        return found

    def declared(self, form: PromptForm) -> tuple[Segment, ...]:
        tools = declared_tools(self.request)
        return (self._encode(tools_turn(self.profile, tools, form), form, lines=True),) if tools else ()

    def _tool_prior(self, word: str) -> float:
        return 1.0 if word == NO_TOOLS else prior_of_tools(word, self.own.tool_style) * self.asked.get(word, 1.0)

    # ------------------------------------------------------------------------------------------ history
    def forms(self) -> list[PromptForm]:
        """The forms of the history that can matter in this conversation, the usual one first."""
        forms = [self.own]
        for attribute, values in self._values().items():
            forms += [form.changed(**{attribute: value}) for value in values for form in forms]
        return forms

    def _values(self) -> dict[str, list[str]]:
        """Of each factor, the unusual values that can matter."""
        history = [m for m in self.messages if m.get("role") == "assistant"]
        found: dict[str, list[str]] = {}
        if any(reasoning_of(m) for m in history) and self.profile.opened_by != "never":
            everywhere = not all(kept_reasoning(self.messages, self.thinking, self.own.changed(history_reasoning="kept")))
            jinja = self.profile.facts.template.kind == "jinja"
            values = ["kept", "dropped", "all"] if everywhere and not jinja else ["kept", "dropped"]
            found["history_reasoning"] = [value for value in values if value != self.own.history_reasoning]
        arguments = [_arguments(call) for m in history for call in m.get("tool_calls") or ()]
        if arguments:
            # Where one style differs all are listed: a word that is left out because it changes nothing here would leave "as sent" to stand for
            # it, and be ruled out with it at a provider that writes arguments anew.
            styles = [style for style in get_args(ArgumentStyle) if style != "as_sent"]
            self._alike |= {s: "as_sent" for s in styles if all(history_arguments(a, s) == _as_sent(a) for a in arguments)}
            found["arguments"] = styles if any(style not in self._alike for style in styles) else []
            numbered = ["renumbered", "local"]
            self._alike |= {style: "as_sent" for style in numbered if self._numbered(style) == self.messages}
            found["tool_ids"] = numbered if any(style not in self._alike for style in numbered) else []
        if any(m.get("name") for m in self.messages):
            found["names"] = ["dropped", "prefixed"]
        if any(m.get("role") == "developer" for m in self.messages):
            found["developer"] = ["system", "user"]
        if prefilled(self.messages) and self.profile.facts.template.kind != "jinja":
            found["prefill"] = ["open"]
        template = self.profile.facts.template
        if (
            template.kind == "kimi"
            and template.default_system
            and not (self.messages and self.messages[0].get("role") == "system")
        ):
            found["system"] = ["none", *(["old"] if template.old_system else [])]
        return found

    def _history_prior(self, words: tuple[str, ...]) -> float:
        share = 1.0
        for word, own, usual in zip(words, self.own.history, USUAL, strict=True):
            share *= 1.0 if word == own else prior_of_word(word) * self.asked.get(word, 1.0) / prior_of_word(usual)
        return share

    def _numbered(self, style: str) -> Messages:
        if style not in self._ids:
            self._ids[style] = number_calls(self.profile, self.messages, anew=style == "local")
        return self._ids[style]

    @cached_property
    def _ids(self) -> dict[str, Messages]:
        return {"as_sent": self.messages}

    def turns(self, form: PromptForm) -> tuple[Segment, ...]:
        """The segments of everything behind the tools."""
        form = form.changed(
            arguments=self._alike.get(form.arguments, form.arguments), tool_ids=self._alike.get(form.tool_ids, form.tool_ids)
        )
        messages, renamed = self._numbered(form.tool_ids), self._renamed(form.tool_ids)
        keeps = kept_reasoning(messages, self.thinking, form)
        first = [bend_message(message, form) for message in messages[:1]]  # a developer's message may be the system's
        varies, out = self._varies, [self._encode(system_turn(self.profile, first, form), form)]
        for k, message in enumerate(messages):
            # what changes nothing in a message gives it no second key: most turns of a long history are the same in all its forms
            calls, reasons, speaks = varies[k]
            key = (
                k,
                keeps[k] and reasons,
                form.arguments if calls else "as_sent",
                form.tool_ids if renamed[k] else "as_sent",
                (form.names, form.developer) if speaks else None,
                form.control,
            )
            if key not in self._turns:
                bent = bend_message(message, form)
                turn = message_turn(self.profile, bent, keep_reasoning=keeps[k], arguments=form.arguments)
                self._turns[key] = self._encode(turn, form)
            out.append(self._turns[key])
        if form.prefill == "open":
            bent = bend_message(messages[-1], form)
            turn = message_turn(self.profile, bent, keep_reasoning=keeps[-1], arguments=form.arguments)
            out[-1] = self._encode(turn[:-1], form)
        else:
            out.append(self._encode(generation_turn(self.profile, self.thinking), form))
        return tuple(out)

    @cached_property
    def _varies(self) -> list[tuple[bool, bool, bool]]:
        """Of each message, whether the form of its arguments, of its reasoning, and of its name or role can change its turn."""
        return [
            (bool(m.get("tool_calls")), bool(reasoning_of(m)), bool(m.get("name")) or m.get("role") == "developer")
            for m in self.messages
        ]

    def _renamed(self, style: str) -> list[bool]:
        """Of each message, whether its ids of calls differ in this style of numbering."""
        if style not in self._moved:
            pairs = zip(self._numbered(style), self.messages, strict=True)
            self._moved[style] = [new is not old and new != old for new, old in pairs]
        return self._moved[style]

    def _encode(self, turn: Turn, form: PromptForm, *, lines: bool = False) -> Segment:
        return encode_turn(self.profile, turn, control_text=form.control == "text", lines=lines) if turn else EMPTY

    def _controls(self) -> Iterator[tuple[Segment, int]]:
        """The turns of the usual form, each with the number of markers that the template wrote into it."""
        for message, keeps in zip(self.messages, kept_reasoning(self.messages, self.thinking, self.own), strict=True):
            turn = message_turn(self.profile, message, keep_reasoning=keeps, arguments="as_sent")
            yield self._encode(turn, self.own), sum(marker for _, marker in turn)

    def _parts(
        self, listed: Sequence[tuple[tuple[str, ...], tuple[Segment, ...]]], prior: Callable[[tuple[str, ...]], float]
    ) -> tuple[Part, ...]:
        """Equal ids are one part under several words."""
        out: dict[int, tuple[list[tuple[str, ...]], tuple[Segment, ...]]] = {}
        for words, segments in listed:
            out.setdefault(digest_of(segments), ([], segments))[0].append(words)
        silent = _silent([words for words, _ in listed])
        return tuple(
            Part(
                segments,
                tuple(sorted(words, key=prior, reverse=True)),
                sum(map(prior, words)),
                digest,
                sum(s.count for s in segments),
                frozenset(self.asked),
                silent,
            )
            for digest, (words, segments) in out.items()
        )


def _silent(listed: Sequence[tuple[str, ...]]) -> frozenset[str]:
    """The words that stand alone in their factor."""
    columns = [set(column) for column in zip(*listed, strict=True)]
    return frozenset().union(*(column for column in columns if len(column) == 1))


_TOOL_FIELDS = ("tool_style", "strict", "tool_keys", "wrapped", "escaped")
_DECLARATIONS: OrderedDict[tuple[str, str, str, frozenset[str]], tuple[Part, ...]] = OrderedDict()


def _arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function.get("arguments", "") if isinstance(function, Mapping) else ""


def _as_sent(arguments: Any) -> str:
    return history_arguments(arguments, "as_sent")


def render_form(
    profile: Profile, messages: Messages, tools: Sequence[Mapping[str, Any]] | None, thinking: bool, form: PromptForm
) -> str:
    if form.tool_ids != "as_sent":
        messages = number_calls(profile, messages, anew=form.tool_ids == "local")
    return render_text(profile, messages, tools, thinking=thinking, form=form)


def number_calls(profile: Profile, messages: Messages, *, anew: bool = False) -> Messages:
    """The messages with ids counted over the conversation (`anew`: from 0 in each turn), those of the results renamed with them."""
    names: dict[Any, str] = {}
    out: list[Mapping[str, Any]] = []
    number = 0
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list | tuple) and calls:
            number = 0 if anew else number
            renamed: list[dict[str, Any]] = []
            for call in calls:
                function = call.get("function") if isinstance(call, Mapping) else None
                name = function.get("name") if isinstance(function, Mapping) else None
                if not isinstance(name, str):
                    return list(messages)
                # every call counts, under whatever id it came
                names[str(call.get("id"))] = profile.tool_id(name, number)
                renamed.append({**call, "id": profile.tool_id(name, number)})
                number += 1
            message = {**message, "tool_calls": renamed}
        elif message.get("role") == "tool" and str(message.get("tool_call_id")) in names:
            message = {**message, "tool_call_id": names[str(message["tool_call_id"])]}
        out.append(message)
    return out
