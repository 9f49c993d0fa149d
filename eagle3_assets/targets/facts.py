"""What is true of one target model, typed: the schema of `profile.toml` (docs/tokenizers.md says what each key means).

Belongs here: the tables of a profile, what each form of tools, template and tokenizer needs, contradictions between tables. Does not
belong here: where profiles lie (`profile_facts.py`), the tokenizer's own files (`vocabulary_files.py`), what is done with the facts.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

Normalizer = Literal["none", "nfc"]
OpenedBy = Literal["prompt", "model", "never"]
ToolStyle = Literal["typescript", "typescript_flat", "typescript_loose", "compact_json", "spaced_json", "headed_json"]
HabitPlace = Literal["reasoning_lead", "reasoning_trail", "content_lead", "content_trail", "content_seam"]
# Where a model has habits of whitespace: the edges of its two texts, and between a text (or the end of reasoning) and a tool section
HABIT_PLACES: tuple[str, ...] = get_args(HabitPlace)


class Table(BaseModel):
    """One table of a profile: frozen, and a key that nobody reads is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ---------------------------------------------------------------------------------------------------- the tokenizer
class RanksFacts(Table):
    """A byte-level BPE that tiktoken runs: ordinary ids first, in the order of their merges, control ids behind them."""

    encoder: Literal["tiktoken"] = "tiktoken"
    folders: tuple[str, ...] = Field(min_length=1)
    package_folder: str | None = None
    ranks_file: str
    ranks_sha256: str | None = None
    n_base: int = Field(ge=1)
    n_special: int = Field(ge=0)
    reserved_name: str | None = None
    pattern: str
    normalizer: Normalizer
    chunk_chars: int | None = Field(default=None, ge=1)
    chunk_run: int | None = Field(default=None, ge=1)
    eos: str
    special: Mapping[str, int]

    @property
    def n_vocab(self) -> int:
        return self.n_base + self.n_special

    @model_validator(mode="after")
    def _chunks_are_whole(self) -> RanksFacts:
        if (self.chunk_chars is None) != (self.chunk_run is None):
            raise ValueError("tokenizer.chunk_chars and tokenizer.chunk_run are one rule: give both or neither")
        return self


class HubFacts(Table):
    """A tokenizer.json of any kind, run by the `tokenizers` library: `special` names its control tokens, wherever their ids are."""

    encoder: Literal["tokenizers"]
    folders: tuple[str, ...] = Field(min_length=1)
    package_folder: str | None = None
    ranks_file: str = "tokenizer.json"
    ranks_sha256: str | None = None
    n_vocab: int = Field(ge=1)
    eos: str
    special: Mapping[str, int]

    @property
    def reserved_name(self) -> None:
        return None

    @property
    def chunk_chars(self) -> None:
        return None

    @property
    def chunk_run(self) -> None:
        return None

    @property
    def normalizer(self) -> str:
        return "the file's own"


def _encoder(value: Any) -> str:
    """Which encoder a table names: tiktoken where it says nothing."""
    named = value.get("encoder", "tiktoken") if isinstance(value, Mapping) else getattr(value, "encoder", "tiktoken")
    return str(named)


TokenizerFacts = Annotated[
    Annotated[RanksFacts, Tag("tiktoken")] | Annotated[HubFacts, Tag("tokenizers")], Discriminator(_encoder)
]


# ---------------------------------------------------------------------------------------------------- a turn
class TurnFacts(Table):
    """What ends a turn (and one with calls, where that is another token); for `template.kind = "kimi"` also the words around one."""

    end: str
    end_after_calls: str | None = None
    user: str | None = None
    assistant: str | None = None
    other: str | None = None
    middle: str | None = None


class ReasoningFacts(Table):
    """Who writes the opening marker, which markers there are, and whether thinking can be turned off (`instant`)."""

    opened_by: OpenedBy
    open: str | None = None
    close: str | None = None
    instant: bool = False


class NoTools(Table):
    """A model that was not taught to call tools: it needs no control tokens for them."""

    form: Literal["none"]

    @property
    def ends_reasoning(self) -> bool:
        return False

    @property
    def markers(self) -> dict[str, str]:
        return {}


class SectionCalls(Table):
    """One section of calls behind the content; each call is a head (its id) and raw arguments."""

    form: Literal["sections"]
    ends_reasoning: bool
    section_begin: str
    section_end: str
    call_begin: str
    argument_begin: str
    call_end: str
    id_format: str
    id_pattern: str

    @property
    def markers(self) -> dict[str, str]:
        return {key: getattr(self, key) for key in ("section_begin", "section_end", "call_begin", "argument_begin", "call_end")}

    @field_validator("id_pattern")
    @classmethod
    def _names_the_function(cls, value: str) -> str:
        return _pattern(value, "name")


class JsonCalls(Table):
    """Each call is one JSON object between two markers, with a separator between calls; the model writes no id."""

    form: Literal["json"]
    ends_reasoning: bool
    call_begin: str
    call_end: str
    separator: str
    body_format: str
    body_pattern: str
    id_format: Literal[""] = ""
    id_pattern: str = "(?!)"

    @property
    def markers(self) -> dict[str, str]:
        return {"call_begin": self.call_begin, "call_end": self.call_end}

    @field_validator("body_pattern")
    @classmethod
    def _names_both(cls, value: str) -> str:
        return _pattern(value, "name", "arguments")


class ParameterCalls(Table):
    """Each call is a name and one element a parameter between two markers (Qwen3-Coder, GLM-4.5 and later). In the formats `{name}`,
    `{key}` and `{value}` stand for the call's own texts, everything else as it is written."""

    form: Literal["parameters"]
    ends_reasoning: bool
    call_begin: str
    call_end: str
    separator: str
    head_format: str
    parameter_format: str
    tail: str

    @property
    def markers(self) -> dict[str, str]:
        return {"call_begin": self.call_begin, "call_end": self.call_end}

    @model_validator(mode="after")
    def _formats_have_their_fields(self) -> ParameterCalls:
        for key, fields in (("head_format", ("{name}",)), ("parameter_format", ("{key}", "{value}"))):
            lacking = [field for field in fields if getattr(self, key).count(field) != 1]
            if lacking:
                raise ValueError(f"tools.{key} is {getattr(self, key)!r}, expected {' and '.join(lacking)} in it once")
        return self


class BareJsonCalls(Table):
    """One call is one JSON object that is the whole content, without a marker (Llama 3.1 and later)."""

    form: Literal["bare_json"]
    body_format: str
    body_pattern: str

    @property
    def ends_reasoning(self) -> bool:
        return False

    @property
    def markers(self) -> dict[str, str]:
        return {}

    @field_validator("body_pattern")
    @classmethod
    def _names_both(cls, value: str) -> str:
        return _pattern(value, "name", "arguments")


ToolFacts = Annotated[NoTools | SectionCalls | JsonCalls | ParameterCalls | BareJsonCalls, Field(discriminator="form")]


# ---------------------------------------------------------------------------------------------------- prompts
class KimiTemplate(Table):
    """Our own renderer of the Kimi family (`render.py`)."""

    kind: Literal["kimi"]
    tool_style: ToolStyle = "spaced_json"
    default_system: str
    old_system: str = ""
    history: Literal["open_tool_loop", "all"] = "open_tool_loop"
    sha256: str | None = None

    @property
    def switch(self) -> str:
        return "thinking"


class JinjaTemplate(Table):
    """The model's own template beside its tokenizer, in a sandbox; `switch` is its variable that turns thinking off."""

    kind: Literal["jinja"]
    switch: str | None = None
    arguments: Literal["text", "object"] = "text"
    variables: Mapping[str, str | bool | int] = Field(default_factory=dict)
    generation_suffix: str = ""
    sha256: str | None = None


class NoTemplate(Table):
    """No template is known: prompts cannot be rendered."""

    kind: Literal["none"]
    sha256: str | None = None

    @property
    def switch(self) -> None:
        return None


TemplateFacts = Annotated[KimiTemplate | JinjaTemplate | NoTemplate, Field(discriminator="kind")]


# ---------------------------------------------------------------------------------------------------- the whole
class QuotedId(Table):
    """An id that is widely quoted as something that it is not."""

    id: int
    text: str
    claim: str


class HubFile(Table):
    """One file that `eagle3 fetch-tokenizer` takes; `sha256` pins it, `optional` allows the hub not to have it."""

    name: str
    sha256: str | None = None
    optional: bool = False


class TargetFacts(Table):
    """One profile. Build with `read_facts`; `changed` gives a variant."""

    name: str
    base: str | None = None
    models: tuple[str, ...]
    hub: str | None = None
    tokenizer: TokenizerFacts
    turn: TurnFacts
    reasoning: ReasoningFacts
    tools: ToolFacts
    template: TemplateFacts
    habits: Mapping[HabitPlace, Mapping[str, float]] = Field(default_factory=dict)
    quoted: tuple[QuotedId, ...] = ()
    files: tuple[HubFile, ...] = ()

    @field_validator("models")
    @classmethod
    def _are_patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_pattern(pattern) for pattern in value)

    @field_validator("habits", mode="before")
    @classmethod
    def _are_habits(cls, value: Any) -> Any:
        tables = value.items() if isinstance(value, Mapping) else [("", None)]
        for place, table in tables:
            if place not in HABIT_PLACES or not _is_habit(table):
                raise ValueError(
                    f"[habits] expects tables of shares of whitespace, {{'\\n' = 0.9, '' = 0.1}}, at {', '.join(HABIT_PLACES)}"
                )
        return value

    @model_validator(mode="after")
    def _markers_are_control_tokens(self) -> TargetFacts:
        """Every marker that the grammar names is a control token of the tokenizer."""
        named: dict[str, str | None] = {f"tools.{key}": name for key, name in self.tools.markers.items()}
        named |= {"turn.end": self.turn.end, "tokenizer.eos": self.tokenizer.eos}
        named |= {"turn.end_after_calls": self.turn.end_after_calls} if self.turn.end_after_calls else {}
        if self.reasoning.opened_by != "never":
            named |= {"reasoning.open": self.reasoning.open, "reasoning.close": self.reasoning.close}
        unknown = [f"{where} = {name!r}" for where, name in named.items() if name not in self.tokenizer.special]
        if unknown:
            raise ValueError(f"{', '.join(unknown)} is no name of [tokenizer.special]")
        return self

    @model_validator(mode="after")
    def _kimi_has_its_words(self) -> TargetFacts:
        lacking = [key for key in ("user", "assistant", "other", "middle") if getattr(self.turn, key) is None]
        if self.template.kind == "kimi" and lacking:
            raise ValueError(f'turn lacks {", ".join(lacking)}, which template.kind = "kimi" writes around a turn')
        return self

    @cached_property
    def turn_markers(self) -> tuple[str, ...]:
        """The names of the control tokens that the model may write in a turn."""
        named = [
            *self.tools.markers.values(),
            self.reasoning.open,
            self.reasoning.close,
            self.turn.end,
            self.turn.end_after_calls,
        ]
        return tuple(dict.fromkeys(name for name in named if name))

    def changed(self, **tables: Mapping[str, Any]) -> TargetFacts:
        """These facts with keys of some tables replaced, `changed(template={"history": "all"})`; checked as a file is. A table whose
        `form`, `kind` or `encoder` is given starts anew."""
        return TargetFacts.model_validate(merged(self.model_dump(exclude_unset=True), tables))


DISCRIMINATORS = {"tools": "form", "template": "kind", "tokenizer": "encoder"}


def merged(base: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` over `base`, table by table. A table of another form than the base's has nothing of the base."""
    out = dict(base)
    for key, value in facts.items():
        below = base.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            form = DISCRIMINATORS.get(key, "")
            value = {**below, **value} if value.get(form, below.get(form)) == below.get(form) else value
        out[key] = value
    return out


def _is_habit(table: Any) -> bool:
    return isinstance(table, Mapping) and all(
        not run.strip() and type(share) in (int, float) and 0 <= share <= 1 for run, share in table.items()
    )


def _pattern(text: str, *groups: str) -> str:
    """`text` where it is a regular expression with these groups."""
    try:
        found = re.compile(text, re.DOTALL)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression ({error})") from None
    lacking = [name for name in groups if name not in found.groupindex]
    if lacking and text != "(?!)":
        raise ValueError(f"{text!r} has no group {' and '.join(f'(?P<{name}>…)' for name in lacking)}")
    return text


# ---------------------------------------------------------------------------------------------------- what is wrong with a file
def fault_of(error: ValidationError, facts: Mapping[str, Any]) -> str:
    """One line about the first thing that is wrong: which key, what it is, what was expected."""
    faults = error.errors()
    # an unknown key first: a misspelt key is also one that is missing, and this line says how it is spelt
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where, key = _place(first["loc"])
    kind, context = first["type"], first.get("ctx") or {}
    if kind in ("missing", "union_tag_not_found"):
        if kind == "union_tag_not_found":
            return f"{key} lacks {str(context['discriminator']).strip(chr(39))}"
        lacking = [_place(f["loc"])[1] for f in faults if f["type"] == "missing" and _place(f["loc"])[0] == where]
        return f"{where or 'the top'} lacks {', '.join(lacking)}"
    if kind == "union_tag_invalid":
        tag = DISCRIMINATORS.get(key, "form")
        return f"{key}.{tag} is {context['tag']!r}, expected one of {context['expected_tags']}"
    dotted = f"{where}.{key}" if where else key
    if kind == "extra_forbidden":
        return f"{dotted} is not read{_hint(where, key, facts)}"
    if kind == "literal_error":
        return f"{dotted} is {first['input']!r}, expected {context['expected']}"
    if kind == "value_error":
        text = str(context["error"])
        return text if not dotted or dotted in text or text.startswith("[") else f"{dotted}: {text}"
    if kind in ("model_type", "model_attributes_type", "dict_type", "mapping_type"):
        return f"[{dotted}] is not a table"
    return f"{dotted} is {first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def _place(loc: tuple[int | str, ...]) -> tuple[str, str]:
    """(table, key) of a place, without the word that pydantic puts in for the form of a table."""
    parts = [str(part) for part in loc]
    if len(parts) > 2 and parts[0] in DISCRIMINATORS and parts[1] in _FORMS:
        del parts[1]
    return ".".join(parts[:-1]), parts[-1] if parts else ""


_TABLES: dict[str, tuple[type[Table], ...]] = {
    "": (TargetFacts,),
    "tokenizer": (RanksFacts, HubFacts),
    "turn": (TurnFacts,),
    "reasoning": (ReasoningFacts,),
    "tools": (NoTools, SectionCalls, JsonCalls, ParameterCalls, BareJsonCalls),
    "template": (KimiTemplate, JinjaTemplate, NoTemplate),
}


def _forms() -> dict[str, type[Table]]:
    """The word that names a form in a file → its table."""
    out = {}
    for section, tag in DISCRIMINATORS.items():
        for table in _TABLES[section]:
            (word,) = get_args(table.model_fields[tag].annotation)
            out[str(word)] = table
    return out


_FORMS = _forms()


def keys_of(section: str) -> tuple[str, ...]:
    """Every key that a table of the file may have, in all its forms ("" is the top)."""
    return tuple(dict.fromkeys(key for table in _TABLES[section] for key in table.model_fields))


SECTIONS = tuple(_TABLES)


def _hint(where: str, key: str, facts: Mapping[str, Any]) -> str:
    table = facts.get(where, {}) if where else facts
    form = table.get(DISCRIMINATORS.get(where, "")) if isinstance(table, Mapping) else None
    shape = _FORMS.get(str(form)) if form else None
    known = tuple(shape.model_fields) if shape else keys_of(where) if where in _TABLES else ()
    near = difflib.get_close_matches(key, known, n=1)
    of_form = f" with {DISCRIMINATORS[where]} = {form!r}" if shape else ""
    return f"{of_form}; did you mean {near[0]!r}?" if near else f"{of_form}; known keys: {', '.join(known)}" if known else ""
