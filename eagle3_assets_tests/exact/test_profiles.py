"""Claims about profiles as data: what one must hold, where it may lie, and Qwen3 against the library that its publisher uses."""

from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.probe import conversations
from eagle3_assets.exact.prompt_side.render import PromptForm, render_prompt, render_text
from eagle3_assets.targets.profile_facts import PROFILES_DIR, profile_facts, profile_for_model, profile_names
from eagle3_assets.targets.tokenizer import Profile, load_profile

NAMES = {"kimi-k2.5", "kimi-k2-thinking", "kimi-k2-instruct", "kimi-mini", "qwen3", "qwen3-instruct-2507", "qwen3-thinking-2507"}


@pytest.fixture(scope="module")
def qwen(tokenizers: Path) -> Profile:
    return load_profile("qwen3", tokenizers)


@pytest.fixture(scope="module")
def reference(tokenizers: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tokenizers / "qwen3" / "tokenizer.json"))


# ---------------------------------------------------------------------------------------------------- data
def test_every_folder_is_a_profile_with_all_its_facts() -> None:
    assert set(profile_names()) == {path.name for path in PROFILES_DIR.iterdir()} == NAMES
    assert all(profile_facts(name).name == name for name in profile_names())


@pytest.mark.parametrize(
    ("model", "name"),
    [("qwen/qwen3-32b", "qwen3"), ("qwen/qwen3-235b-a22b:free", "qwen3"), ("qwen/qwen3-coder", None), ("qwen/qwen3-max", None)],
)
def test_a_qwen_slug_names_the_profile_only_where_the_grammar_is_its(model: str, name: str | None) -> None:
    assert profile_for_model(model) == name


def laid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str] = ("", ""), name: str = "mine") -> Path:
    """A copy of kimi-mini's profile under another name in a data root."""
    monkeypatch.setenv("EAGLE3_DATA", str(tmp_path))
    folder = tmp_path / "tokenizers" / name
    folder.mkdir(parents=True)
    text = (PROFILES_DIR / "kimi-mini" / "profile.toml").read_text().replace('name = "kimi-mini"', f'name = "{name}"')
    text = text.replace('folders = ["kimi-mini"]', f'folders = ["{name}"]').replace("(?i)kimi-mini", "my-model")
    assert not change[0] or change[0] in text
    (folder / "profile.toml").write_text(text.replace(*change))
    return folder


def test_a_folder_under_the_data_root_is_a_new_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mini: Profile) -> None:
    folder = laid(tmp_path, monkeypatch)
    shutil.copy(mini.ranks_path, folder)
    found = load_profile("mine")
    assert found.encode("The user") == mini.encode("The user") and found.ranks_path.parent == folder
    assert profile_for_model("a/my-model") == "mine" and "mine" in profile_names()


def test_a_profile_of_the_package_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid(tmp_path, monkeypatch, ("<|im_end|>", "<|im_fin|>"), name="kimi-mini")
    assert profile_facts("kimi-mini").turn.end == "<|im_end|>"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (('normalizer = "none"', 'normalizer = "nfkc"'), "normalizer is 'nfkc'"),
        (('form = "sections"', 'form = "xml"'), "tools.form is 'xml'"),
        (('call_end = "<|tool_call_end|>"', ""), "tools lacks call_end"),
        (('close = "</think>"', 'close = "</thinking>"'), "reasoning.close = '</thinking>' is no name"),
        (('opened_by = "prompt"', 'opened_by = "user"'), "opened_by is 'user'"),
        (('default_system = ""', ""), "template lacks default_system"),
        (("[turn]", "[habits]\ncontent_end = { '' = 1.0 }\n[turn]"), "[habits] expects"),
        (("[turn]", "[habits]\ncontent_seam = { 'a' = 1.0 }\n[turn]"), "[habits] expects"),
        (("[turn]", "[habits]\ncontent_seam = 'none'\n[turn]"), "[habits] expects"),
        (("[turn]", "[turn"), "is not TOML"),
        (
            ("ends_reasoning = true", "end_reasoning = true"),
            "tools.end_reasoning is not read with form = 'sections'; did you mean 'ends_reasoning'?",
        ),
        (('kind = "kimi"', 'kind = "jinja"'), "template.tool_style is not read with kind = 'jinja'; known keys: kind, switch"),
        (('form = "sections"', ""), "tools lacks form"),
        (("n_base = 2048", 'n_base = "many"'), "tokenizer.n_base is 'many': input should be a valid integer"),
        (("models = ['my-model']", "models = ['(']"), "models: '(' is no regular expression"),
        (("(?P<name>.+)", "(.+)"), "has no group (?P<name>"),
        (("[turn]", "[turns]"), "turns is not read; did you mean 'turn'?"),
        (('middle = "<|im_middle|>"', ""), "turn lacks middle"),
        (("chunk_run = 25000", ""), "give both or neither"),
        (('name = "mine"', 'name = "yours"'), "name is 'yours', the folder's is 'mine'"),
    ],
)
def test_a_profile_that_lacks_a_fact_is_one_line_with_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], line: str
) -> None:
    folder = laid(tmp_path, monkeypatch, change)
    with pytest.raises(ExactError) as caught:
        profile_facts("mine")
    assert line in str(caught.value) and str(folder / "profile.toml") in str(caught.value) and "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------- Qwen3
PIECES = [
    "e\u0301",
    "é",
    "\u212b",
    "한국어",
    "日本",
    "नमस्ते",
    "กำ",
    ">",
    "\u0338",
    " ",
    "\n",
    "'s",
    "12",
    "<|im_end|>",
    "</think>",
    "👩‍👩‍👧",
    "\r\n",
]


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(PIECES) | st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=4), max_size=8).map(
        "".join
    )
)
@settings(max_examples=300, deadline=None)
def test_prompt_ids_are_those_of_the_publishers_own_tokenizer(tokenizers: Path, reference: Any, text: str) -> None:
    assert load_profile("qwen3", tokenizers).encode_prompt(text) == reference.encode(text, add_special_tokens=False).ids


def test_a_real_document_has_the_publishers_ids(qwen: Profile, reference: Any) -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert qwen.encode_prompt(text) == reference.encode(text, add_special_tokens=False).ids


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
@settings(max_examples=200, deadline=None)
def test_what_the_model_wrote_is_never_normalized_and_doubted_where_it_is_not_nfc(tokenizers: Path, text: str) -> None:
    profile = load_profile("qwen3", tokenizers)
    assert profile.decode(profile.encode(text)) == text
    assert (profile.doubts(text) is not None) == (unicodedata.normalize("NFC", text) != text)
    assert profile.decode(profile.encode_prompt("e\u0301")) == "é"


def test_a_mark_behind_a_control_token_does_not_join_it(qwen: Profile, reference: Any) -> None:
    """NFC of the whole string would make "≯" of ">" and the mark, and the control token would be gone."""
    text = "a<|im_end|>\u0338b"
    assert qwen.encode_prompt(text) == reference.encode(text, add_special_tokens=False).ids
    assert qwen.end_id in qwen.encode_prompt(text)


def test_kimi_has_no_normalizer_and_no_doubts(k25: Profile) -> None:
    assert k25.doubts("e\u0301") is None and k25.decode(k25.encode_prompt("e\u0301")) == "e\u0301"


def test_prompts_are_rendered_as_transformers_renders_them(qwen: Profile, tokenizers: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    template = json.loads((tokenizers / "qwen3" / "tokenizer_config.json").read_text())["chat_template"]
    tried = 0
    for name, messages, tools in conversations():
        if any(not isinstance(message.get("content"), str) for message in messages):
            continue  # the template itself cannot: engines give it texts
        for thinking in (True, False):
            (theirs,), _ = render_jinja_template(
                [messages], tools=tools, chat_template=template, add_generation_prompt=True, enable_thinking=thinking
            )
            assert render_text(qwen, messages, tools, thinking=thinking) == theirs, (name, thinking)
            tried += 1
    assert tried >= 14


def test_history_bends_by_the_form_with_a_template_of_the_models_own(qwen: Profile) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": None, "reasoning": "why", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "r"},
    ]
    form = PromptForm("spaced_json")
    assert '"arguments": {"a":1}' in render_text(qwen, messages, form=form) and "why" in render_text(qwen, messages, form=form)
    bent = PromptForm("spaced_json", arguments="spaced", history_reasoning="dropped")
    assert '"arguments": {"a": 1}' in render_text(qwen, messages, form=bent) and "why" not in render_text(
        qwen, messages, form=bent
    )
    assert render_prompt(qwen, messages, thinking=False)[-3:] == [
        qwen.encode("\n\n")[0],
        qwen.think_close,
        qwen.encode("\n\n")[0],
    ]


@pytest.mark.slow
def test_another_tokenizer_json_is_refused(tokenizers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3_assets.targets.vocabulary_files import read_ranks

    facts = profile_facts("qwen3")
    raw = json.loads((tokenizers / "qwen3" / "tokenizer.json").read_text(encoding="utf-8"))
    path = tmp_path / "tokenizer.json"

    def refused(**changes: Any) -> str:
        with pytest.raises(ExactError) as caught:
            read_ranks(path, json.dumps({**raw, **changes}).encode(), facts.tokenizer)
        return str(caught.value)

    assert "normalizer is not the profile's" in refused(normalizer=None)
    assert "special is not the profile's" in refused(added_tokens=raw["added_tokens"][:-1])
    assert "decoder None" in refused(decoder=None)
    merges = raw["model"]["merges"]
    swapped = {**raw["model"], "merges": [merges[1], merges[0], *merges[2:]]}
    assert "do not come in the order of their ids" in refused(model=swapped)
    assert "is not a tokenizer.json" in refused(model={"type": "BPE"})


def test_the_docs_name_every_profile_and_every_key_that_code_reads() -> None:
    from eagle3_assets.targets.facts import SECTIONS, keys_of

    text = (Path(__file__).parents[2] / "docs" / "tokenizers.md").read_text(encoding="utf-8")
    keys = {key for section in SECTIONS for key in keys_of(section)} - {"special"}
    assert [
        n for n in sorted(NAMES | keys) if not any(f"{left}{n}{right}" in text for left, right in ("``", "[]", (" ", "`"), "` "))
    ] == []


def test_a_template_that_renders_is_named_by_its_own_hash(qwen: Profile, tokenizers: Path) -> None:
    import hashlib

    assert qwen.template_sha256 == hashlib.sha256((tokenizers / "qwen3" / "tokenizer_config.json").read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_template_that_is_not_there_is_one_line_that_says_how_to_get_it(tokenizers: Path, tmp_path: Path) -> None:
    shutil.copy(tokenizers / "qwen3" / "tokenizer.json", tmp_path)
    with pytest.raises(ExactError, match="fetch-tokenizer qwen3"):
        render_prompt(load_profile("qwen3", tmp_path), [{"role": "user", "content": "q"}])
