"""The forms in which a server may turn a request into its prompt: factors, their words, and how likely each is beforehand.

Belongs here: `PromptForm` (one value of each factor), its name and back, and the one table of priors. Does not belong here: rendering
(`render.py`), which forms a request leaves apart (`hypotheses.py`), what bills say about them (`prompt_learning.py`).

A name is the form's words joined by "/": the declaration of tools first (`compact_json+unwrapped+typed`), then one word a factor, those
of the usual value left out behind the third. Each word belongs to one factor, so that a list of words (what is ruled out, what was
learned) needs no factor names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, cast, get_args

ToolStyle = Literal["typescript", "typescript_flat", "typescript_loose", "compact_json", "spaced_json", "headed_json", "omitted"]
HistoryReasoning = Literal["kept", "dropped", "all"]
ArgumentStyle = Literal["as_sent", "spaced", "compact"]
ToolIdStyle = Literal["as_sent", "renumbered", "local"]
KeyOrder = Literal["as_sent", "typed", "sorted"]
Strict = Literal[False, True, "added"]
NameStyle = Literal["kept", "dropped", "prefixed"]
DeveloperStyle = Literal["kept", "system", "user"]
ControlStyle = Literal["ids", "text"]
PrefillStyle = Literal["closed", "open"]
SystemStyle = Literal["own", "none", "old"]


@dataclass(frozen=True, slots=True)
class PromptForm:
    """How a server turned a request into its prompt; each field is a finding of docs/research/prompt-side.md#rows or of
    docs/research/recorded-traffic.md#3.

    `tool_style`, `strict` (the `strict` key of a tool: left out, as sent, or added as false), `tool_keys`, `wrapped` (False: an engine
    passes the `function` objects only, SGLang), `escaped` (Go writes `<`, `>` and `&` as \\u003c …): the declaration of tools. "typed"
    is the key order of engines that parse tools into typed objects first (type, function: name, description, parameters).
    `history_reasoning`: "kept" as the template asks, lost between gateway and engine, or "all" (K2.6 `preserve_thinking`).
    `arguments`: history arguments as sent, or parsed and written again. `tool_ids`: ids of the history's calls as sent, renumbered over
    the conversation (SGLang serving_chat.py), or "local" from 0 in each turn. `names`: a message's `name` in the place of its role (the
    template), dropped, or in front of its content (OpenRouter). `developer`: that role as itself, as system, as user. `control`: the
    text of a control token in a message becomes that token, or stays text. `prefill`: a last assistant message is a turn of its own, or
    is left open and continued. `system`: the default system message where a request has none: the template's, none, its first edition's.
    """

    tool_style: ToolStyle
    strict: Strict = False
    tool_keys: KeyOrder = "as_sent"
    wrapped: bool = True
    escaped: bool = False
    history_reasoning: HistoryReasoning = "kept"
    arguments: ArgumentStyle = "as_sent"
    tool_ids: ToolIdStyle = "as_sent"
    names: NameStyle = "kept"
    developer: DeveloperStyle = "kept"
    control: ControlStyle = "ids"
    prefill: PrefillStyle = "closed"
    system: SystemStyle = "own"

    @property
    def tools(self) -> str:
        """The word of the tool declaration."""
        marks = {
            "unwrapped": not self.wrapped,
            "strict_added": self.strict == "added",
            "strict": self.strict is True,
            self.tool_keys: self.tool_keys != "as_sent",
            "escaped": self.escaped,
        }
        return "+".join([self.tool_style, *(mark for mark, there in marks.items() if there)])

    @property
    def history(self) -> tuple[str, ...]:
        """The words of all other factors, in the order of `FACTORS`."""
        return tuple(f"{prefix}_{getattr(self, attribute)}" for prefix, attribute in _ATTRIBUTES.items())

    @property
    def name(self) -> str:
        return form_name(self.tools, self.history)

    def changed(self, **values: Any) -> PromptForm:
        """The form with other values of some of its factors."""
        return replace(self, **values)


_ATTRIBUTES = {
    "reasoning": "history_reasoning",
    "arguments": "arguments",
    "ids": "tool_ids",
    "name": "names",
    "developer": "developer",
    "control": "control",
    "prefill": "prefill",
    "system": "system",
}
FACTORS = ("tools", *_ATTRIBUTES)
USUAL = PromptForm("spaced_json").history
_ALWAYS_NAMED = 2  # reasoning and arguments are in every name


def form_name(tools: str, history: tuple[str, ...]) -> str:
    shown = [word for k, word in enumerate(history) if k < _ALWAYS_NAMED or word != USUAL[k]]
    return "/".join([tools, *shown])


@cache
def form_of(name: str) -> PromptForm | None:
    """The form that is called `name`; None for a name that no form has (of another edition of this table)."""
    tools, *words = name.split("/")
    form = _tools_of(tools)
    for word in words:
        prefix, _, value = word.partition("_")
        if form is None or prefix not in _ATTRIBUTES or value not in _VALUES[prefix]:
            return None
        form = form.changed(**{_ATTRIBUTES[prefix]: value})
    return form


def _tools_of(word: str) -> PromptForm | None:
    style, *marks = word.split("+")
    if style not in get_args(ToolStyle) or not {"unwrapped", "strict_added", "strict", "typed", "sorted", "escaped"}.issuperset(
        marks
    ):
        return None
    strict: Strict = "added" if "strict_added" in marks else "strict" in marks
    keys: KeyOrder = "typed" if "typed" in marks else "sorted" if "sorted" in marks else "as_sent"
    return PromptForm(cast(ToolStyle, style), strict, keys, "unwrapped" not in marks, "escaped" in marks)


def factor_of(word: str) -> str:
    """The factor that a word belongs to."""
    prefix = word.partition("_")[0]
    return prefix if prefix in _ATTRIBUTES and "+" not in word and word not in get_args(ToolStyle) else "tools"


# ---------------------------------------------------------------------------------------------------- priors
# Shares of requests in which a provider that nothing is known of uses a value; only their ratios matter. "rows" are recorded ones of
# docs/research/recorded-traffic.md#2 (Kimi K2-0905: 686 of 12 providers; K2.5 and later: 103) counted by the form that explains
# most of a provider's month.
PRIORS: dict[str, dict[str, float]] = {
    "style": {
        "own": 8.0,  # what the model's own template does: 11 of 11 OpenRouter rows of K2.5
        "compact_json": 1.2,  # SGLang, Moonshot until 2025-10, Azure K2.5 (12 of 12), Avian
        "spaced_json": 0.8,  # DeepInfra, Fireworks, SiliconFlow 2025-12
        "headed_json": 0.5,  # the first edition of K2's template: Groq, BaseTen, Together, Chutes 2025-09 ("\n  # Tools\n  ": +6)
        "typescript": 0.5,  # Moonshot and Novita from 2025-11 on, for K2 as well
        "typescript_flat": 0.4,  # the same encoder on arrays of objects: one id less in 86 of 86 rows with such an array
        "typescript_loose": 0.1,  # the other spelling that is one id shorter; seen nowhere else
        "omitted": 0.02,  # a tool declaration that is not there at all
    },
    "wrapped": {"True": 1.0, "False": 0.5},  # unwrapped: SGLang (Parasail 71, Chutes 149, AtlasCloud 53 rows), Azure
    "strict": {"False": 1.0, "True": 0.7, "added": 0.2},  # dropped by OpenRouter; as sent: SGLang; added: Azure (pydantic)
    "tool_keys": {"as_sent": 1.0, "typed": 0.8, "sorted": 0.4},  # typed: vLLM's and SGLang's models; sorted: Azure, Go maps
    "escaped": {"False": 1.0, "True": 0.15},  # Moonshot and Novita 2025-10 (95 of 95 rows): encoding/json of Go
    # dropped: OpenRouter K2.5 (docs/research/prompt-side.md#rows); all: K2.6 on request
    "reasoning": {"kept": 1.0, "dropped": 0.8, "all": 0.03},
    "arguments": {"as_sent": 1.0, "spaced": 0.8, "compact": 0.1},  # spaced: SGLang and vLLM parse; compact: seen in no provider
    "ids": {
        "as_sent": 1.0,
        "renumbered": 0.5,
        "local": 0.003,
    },  # renumbered: SGLang, Moonshot; local: clients do (llxprt#712), no server
    "name": {"kept": 1.0, "dropped": 1.0, "prefixed": 0.3},  # autogen#6034, stdapi.ai#258; prefixed: OpenRouter's API page
    "developer": {"kept": 0.5, "system": 1.0, "user": 0.3},  # oh-my-pi#843, pi#5117
    "control": {"ids": 1.0, "text": 1.0},  # transformers#47822, OWASP AISVS#930: engines differ
    "prefill": {"closed": 1.0, "open": 0.7},  # the template closes; Moonshot's `partial`, vLLM's continue_final_message
    "system": {"own": 1.0, "none": 0.1, "old": 0.1},  # the first edition said "You are a helpful assistant" (llama.cpp's copy)
}


@cache
def prior_of_tools(word: str, own_style: str) -> float:
    """How likely a tool declaration is beforehand; `own_style` is that of the model's own template."""
    form = _tools_of(word)
    if form is None:
        return 0.0
    style = PRIORS["style"]["own" if form.tool_style == own_style else form.tool_style]
    if form.tool_style.startswith("typescript") or form.tool_style == "omitted":
        return style
    rest = (
        (str(form.wrapped), "wrapped"),
        (str(form.strict), "strict"),
        (form.tool_keys, "tool_keys"),
        (str(form.escaped), "escaped"),
    )
    for value, table in rest:
        style *= PRIORS[table][value] / sum(PRIORS[table].values())
    return style


@cache
def prior_of_word(word: str) -> float:
    """How likely a word of another factor is beforehand."""
    factor, _, value = word.partition("_")
    return PRIORS[factor][value]


# ---------------------------------------------------------------------------------------------------- tool declarations
def tool_forms(own: PromptForm) -> tuple[PromptForm, ...]:
    """Every declaration of tools, the model's own (without the `strict` key, which most gateways take out) first."""
    return _tool_forms(own.tool_style)


@cache
def _tool_forms(own_style: ToolStyle) -> tuple[PromptForm, ...]:
    # TypeScript shows neither the strict key, nor the order of keys, nor what wraps a function
    typescript: tuple[ToolStyle, ...] = ("typescript", "typescript_flat", "typescript_loose")
    json_styles: tuple[ToolStyle, ...] = ("compact_json", "spaced_json", "headed_json")
    strict: tuple[Strict, ...] = (False, True, "added")
    forms = [PromptForm(own_style), PromptForm(own_style, strict=True), *(PromptForm(style) for style in typescript)]
    forms += [
        PromptForm(style, strict=s, tool_keys=keys, wrapped=wrapped, escaped=escaped)
        for escaped in (False, True)
        for style in json_styles
        for wrapped in (True, False)
        for s in strict
        for keys in get_args(KeyOrder)
        if not escaped or (wrapped and style != "headed_json")  # a Go gateway hands typed, wrapped tools on
    ]
    return tuple(dict.fromkeys([*forms, PromptForm("omitted")]))


_VALUES: dict[str, tuple[str, ...]] = {
    "reasoning": get_args(HistoryReasoning),
    "arguments": get_args(ArgumentStyle),
    "ids": get_args(ToolIdStyle),
    "name": get_args(NameStyle),
    "developer": get_args(DeveloperStyle),
    "control": get_args(ControlStyle),
    "prefill": get_args(PrefillStyle),
    "system": get_args(SystemStyle),
}
