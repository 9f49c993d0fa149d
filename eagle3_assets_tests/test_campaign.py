"""The campaign file: every mistake is one line that says file, table, key, value and what would be right."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from eagle3_assets.campaign import BUILT_IN, CAMPAIGNS_DIR, Campaign, load_campaign
from eagle3_assets.errors import CampaignError

GOOD = """\
[campaign]
name = "tiny"
seed = 1
[target]
model = "moonshotai/kimi-k2.5"
profile = "kimi-k2.5"
weights = "moonshotai/Kimi-K2.5"
num_hidden_layers = 61
hidden_size = 7168
vocab_size = 163840
[server]
kind = "openrouter"
[routing]
max_price_completion = 2.5
[budget]
campaign_usd = 10.0
pilot_usd = 1.0
[sampling]
max_tokens = 1024
[[dataset]]
name = "b3_magicoder"
backend = "openrouter"
rows = 10
source = { kind = "jsonl", path = "rows.jsonl" }
mapping = { kind = "prompt", prompt = "problem" }
[[dataset]]
name = "b1_glaive"
backend = "openrouter"
token_budget = 35000
source = { kind = "jsonl", path = "rows.jsonl" }
mapping = { kind = "messages" }
[vocab]
draft_vocab_size = 32000
"""


def write(folder: Path, text: str, name: str = "c.toml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def load(folder: Path, *edits: tuple[str, str], name: str = "c.toml") -> Campaign:
    text = GOOD
    for old, new in edits:
        assert text.count(old) >= 1, f"the test edits {old!r}, which is not in GOOD"
        text = text.replace(old, new, 1)
    return load_campaign(str(write(folder, text, name)))


def message(folder: Path, *edits: tuple[str, str]) -> str:
    with pytest.raises(CampaignError) as caught:
        load(folder, *edits)
    return str(caught.value)


def test_a_good_file_loads_with_the_documented_defaults(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    assert campaign.name == "tiny"
    assert campaign.layers == (2, 30, 58)
    assert campaign.dataset_named("b1_glaive").n_rows == 10  # 35,000 tokens / 3,500 a row
    assert campaign.sampling_of(campaign.dataset[0]).temperature == 1.0
    assert campaign.corpus.min_p_exact == 0.95


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (('{ kind = "messages" }', '{ kind = "prompt", messages = "m" }'), ["messages = 'm'", 'kind = "prompt"', "did you mean 'prompt'"]),
        (('{ kind = "messages" }', '{ kind = "glaive", prompt = "q" }'), ["prompt = 'q'", 'kind = "glaive"', "did you mean 'messages'"]),
        (("[vocab]", "[extraction]\ntensor_parallel = 8\n[vocab]"), ["extraction.tensor_parallel = 8", 'engine = "vllm"', "remove it"]),
        (("[vocab]", '[extraction]\nengine = "vllm"\nworkers = 64\n[vocab]'), ["extraction.workers = 64", 'engine = "ray"', "remove it"]),
        (("[vocab]", '[extraction]\nengine = "ray"\nurls = ["http://a:1"]\n[vocab]'), ["extraction.urls", 'engine = "vllm"']),
        (("[vocab]", '[extraction]\nengine = "vllm"\ndevices = ["cuda:0"]\n[vocab]'), ["extraction.devices", 'engine = "transformers"']),
    ],
)  # fmt: skip
def test_a_key_of_another_kind_or_engine_is_a_mistake_and_never_ignored(
    edit: tuple[str, str], words: list[str], tmp_path: Path
) -> None:
    line = message(tmp_path, edit)
    assert "\n" not in line and all(word in line for word in words), line


def test_ray_reads_the_settings_of_the_engine_that_its_workers_run(tmp_path: Path) -> None:
    tables = '[extraction]\nengine = "ray"\nworker_engine = "vllm"\ntensor_parallel = 8\nworkers = 4\n[vocab]'
    assert load(tmp_path, ("[vocab]", tables)).extraction.tensor_parallel == 8


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_campaigns_load(name: str) -> None:
    assert load_campaign(name).name == name


def test_the_real_campaign_is_the_run_that_the_design_describes() -> None:
    campaign = load_campaign("kimi-k2.5")
    by_name = {d.name: d for d in campaign.dataset}
    assert list(by_name) == [
        "a1_deepswekimi",
        "b1_glaive",
        "b2_opencodeinstruct",
        "b3_magicoder",
        "b4_mixtureofthoughts",
        "b5_openthoughts",
        "b6_ultrachat",
        "b7_sharegpt",
        "b8_sweagent",
    ]
    paid = [d for d in campaign.dataset if d.backend == "openrouter"]
    assert [d.token_budget for d in paid] == [7_000_000] * 6
    assert (campaign.budget.campaign_usd, campaign.budget.pilot_usd, campaign.budget.approved_usd) == (100.0, 2.0, None)
    assert (campaign.sampling.temperature, campaign.sampling.top_p, campaign.sampling.max_tokens) == (1.0, 0.95, 16384)
    assert {p.lower() for p in campaign.routing.ignore} == {"fireworks", "baseten"}
    assert campaign.target.end_of_turn_id == 163586
    assert campaign.collect.in_flight == 2000
    assert all(d.licence for d in campaign.dataset)
    assert by_name["b8_sweagent"].source.path == "nebius/SWE-agent-trajectories"


# Each row: what a person got wrong, the edit, and what the one line must contain (besides the file's name).
MISTAKES = {
    "an unknown key, with the near one": ([("seed = 1", "sead = 1")], ["campaign.sead", "did you mean 'seed'"]),
    "an unknown key far from all others": ([("seed = 1", "zzzz = 1")], ["campaign.zzzz", "known keys: name, seed"]),
    "an unknown table": ([("[vocab]", "[vocabulary]")], ["vocabulary", "did you mean 'vocab'"]),
    "an unknown key of a dataset": (
        [("rows = 10", "row = 10")],
        ["dataset[0] (b3_magicoder).row", "unknown key 'row'", "did you mean 'rows'"],
    ),
    "an unknown key of a source": (
        [('path = "rows.jsonl"', 'paht = "rows.jsonl"')],
        ["dataset[0] (b3_magicoder).source.paht", "did you mean 'path'"],
    ),
    "a string where a number belongs": ([("seed = 1", 'seed = "one"')], ["campaign.seed = 'one'", "valid integer"]),
    "a number where a string belongs": ([('name = "tiny"', "name = 3")], ["campaign.name = 3", "valid string"]),
    "a number where a truth value belongs": (
        [('profile = "kimi-k2.5"', 'profile = "kimi-k2.5"\nthinking = 1')],
        ["target.thinking = 1", "valid boolean"],
    ),
    "a negative budget": (
        [("campaign_usd = 10.0", "campaign_usd = -10.0")],
        ["budget.campaign_usd = -10.0", "greater than or equal to 0"],
    ),
    "an endless budget": ([("campaign_usd = 10.0", "campaign_usd = inf")], ["budget.campaign_usd = inf", "finite"]),
    "a pilot dearer than the campaign": (
        [("pilot_usd = 1.0", "pilot_usd = 11.0")],
        ["budget.pilot_usd = 11.0", "budget.campaign_usd = 10.0"],
    ),
    "two datasets of one name": ([('name = "b1_glaive"', 'name = "b3_magicoder"')], ["dataset.name = 'b3_magicoder'", "unique"]),
    "an unknown backend": (
        [('backend = "openrouter"', 'backend = "openruoter"')],
        ["dataset[0] (b3_magicoder).backend = 'openruoter'", "'openrouter', 'engine' or 'import'"],
    ),
    "an unknown mapping": ([('kind = "prompt"', 'kind = "alpaca"')], ["mapping.kind = 'alpaca'", "'sharegpt'"]),
    "an unknown quantization": (
        [("max_price_completion = 2.5", 'max_price_completion = 2.5\nquantizations = ["int3"]')],
        ["routing.quantizations[0] = 'int3'", "int4"],
    ),
    "a missing table": ([("[budget]\ncampaign_usd = 10.0\npilot_usd = 1.0\n", "")], ["[budget] is missing"]),
    "a missing key": ([("max_price_completion = 2.5", "")], ["routing", "'max_price_completion' is missing"]),
    "a misspelt required key": (
        [("max_price_completion = 2.5", "max_price_completon = 2.5")],
        ["routing.max_price_completon", "did you mean 'max_price_completion'"],
    ),
    "rows and token_budget both": (
        [("rows = 10", "rows = 10\ntoken_budget = 10")],
        ["dataset[0] (b3_magicoder)", "either rows = N or token_budget = N"],
    ),
    "neither rows nor token_budget": ([("rows = 10\n", "")], ["dataset[0] (b3_magicoder)", "not both and not neither"]),
    "a layer outside the model": (
        [("[vocab]", "[extraction]\nlayers = [2, 30, 61]\n[vocab]")],
        ["extraction.layers holds 61", "target.num_hidden_layers = 61"],
    ),
    "answers of the stand-in asked of a real server": (
        [('kind = "openrouter"\n', 'kind = "openrouter"\nanswers = "live"\n')],
        ["server.answers", 'server.kind = "embedded" only'],
    ),
    "real money approved in the file": (
        [("pilot_usd = 1.0", "pilot_usd = 1.0\napproved_usd = 5.0")],
        ["budget.approved_usd", "eagle3 plan --approve"],
    ),
    "an engine backend without an engine": ([('backend = "openrouter"', 'backend = "engine"')], ["[[engine]]", "base_url"]),
    "an engine that is no url": (
        [("[vocab]", '[[engine]]\nkind = "vllm"\nbase_url = "gpu:8000"\n[vocab]')],
        ["engine[0].base_url = 'gpu:8000'", "http://"],
    ),
    "a larger draft than target vocabulary": (
        [("draft_vocab_size = 32000", "draft_vocab_size = 200000")],
        ["vocab.draft_vocab_size = 200000", "target.vocab_size = 163840"],
    ),
    "a hub dataset without a pin": (
        [('kind = "jsonl", path = "rows.jsonl"', 'kind = "hf", path = "a/b"')],
        ["dataset[0] (b3_magicoder).source", "revision is missing", "git ls-remote https://huggingface.co/datasets/a/b"],
    ),
    "a branch as a pin": (
        [('kind = "jsonl", path = "rows.jsonl"', 'kind = "hf", path = "a/b", revision = "main"')],
        ["revision = 'main' is not a pin", "40 hex digits", "git ls-remote"],
    ),
    "a shortened hash as a pin": (
        [('kind = "jsonl", path = "rows.jsonl"', 'kind = "hf", path = "a/b", revision = "e55fa28"')],
        ["revision = 'e55fa28' is not a pin"],
    ),
    "a revision on a local file": (
        [('path = "rows.jsonl"', 'path = "rows.jsonl", revision = "x"')],
        ["revision = 'x'", 'only for kind = "hf"'],
    ),
    "the key path": ([("[campaign]", 'path = "x"\n[campaign]')], ["unknown key 'path'", "known keys: campaign, target"]),
    "a key twice": ([("seed = 1", "seed = 1\nseed = 2")], ["not valid TOML", "line 4"]),
    "no TOML": ([("[campaign]", "{")], ["not valid TOML", "line 1"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_file_place_value_and_what_would_be_right(tmp_path: Path, mistake: str) -> None:
    edits, fragments = MISTAKES[mistake]
    line = message(tmp_path, *edits)
    assert "\n" not in line
    assert line.startswith(f"{tmp_path}/c.toml: ")
    for fragment in fragments:
        assert fragment in line
    assert "pydantic" not in line and "errors.py" not in line


def test_a_campaign_without_datasets_is_refused(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("[[dataset]]")] + GOOD[GOOD.index("[vocab]") :]
    with pytest.raises(CampaignError, match=r"c\.toml: dataset: 'dataset' is missing"):
        load_campaign(str(write(tmp_path, text)))
    with pytest.raises(CampaignError, match=r"d\.toml: dataset = \(\): .*at least 1 item"):
        load_campaign(str(write(tmp_path, "dataset = []\n" + text, "d.toml")))


def test_several_mistakes_name_the_first_and_count_the_rest(tmp_path: Path) -> None:
    assert message(tmp_path, ("seed = 1", "sead = 1"), ("campaign_usd = 10.0", "campaign_usd = -1.0")).endswith("(and 1 more)")


def test_text_that_is_not_utf8_is_named_with_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(GOOD.replace("tiny", "t\xe4ny").encode("latin-1"))
    with pytest.raises(CampaignError, match=r"latin\.toml: not UTF-8 .* at byte \d+\); save it as UTF-8"):
        load_campaign(str(path))


def test_a_folder_a_missing_file_and_an_unknown_name_say_what_can_be_given(tmp_path: Path) -> None:
    for value, text in (
        (str(tmp_path), "is not a file; set EAGLE3_CAMPAIGN to demo, kimi-k2.5 or a .toml file"),
        (str(tmp_path / "no.toml"), "no.toml: cannot be read (No such file or directory); set EAGLE3_CAMPAIGN"),
        ("dmeo", "EAGLE3_CAMPAIGN = 'dmeo': no such campaign; use demo, kimi-k2.5, or a path"),
    ):
        with pytest.raises(CampaignError) as caught:
            load_campaign(value)
        assert text in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything; run as another user to see the message")
def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    path.chmod(0)
    with pytest.raises(CampaignError, match=r"c\.toml: cannot be read \(Permission denied\)"):
        load_campaign(str(path))


def test_the_variable_chooses_the_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GOOD)
    monkeypatch.setenv("EAGLE3_CAMPAIGN", str(path))
    assert load_campaign().path == path
    monkeypatch.delenv("EAGLE3_CAMPAIGN")
    assert load_campaign().name == "demo"


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert load_campaign(str(path)).campaign.seed == 1
    write(tmp_path, GOOD.replace("seed = 1", "seed = 2"))
    os.utime(path, ns=(1, 1))  # whatever the clock's grain
    assert load_campaign(str(path)).campaign.seed == 2


FREE = {
    "budget": ("campaign_usd = 10.0", "campaign_usd = 20.0"),
    "price cap": ("max_price_completion = 2.5", "max_price_completion = 3.5"),
    "quantizations": ("max_price_completion = 2.5", 'max_price_completion = 2.5\nquantizations = ["int4"]'),
    "concurrency": ("[vocab]", "[collect]\nin_flight = 10\n[vocab]"),
    "corpus policy": ("[vocab]", "[corpus]\nmin_p_exact = 0.5\n[vocab]"),
    "extraction": ("[vocab]", "[extraction]\nbatch_tokens = 1\n[vocab]"),
    "draft vocabulary": ("draft_vocab_size = 32000", "draft_vocab_size = 1000"),
    "weights": ('weights = "moonshotai/Kimi-K2.5"', 'weights = "/models/kimi"'),
    "a dataset's money": ("rows = 10", "rows = 10\nusd = 3.0"),
    "a dataset's licence": ("rows = 10", 'rows = 10\nlicence = "mit"'),
    "a dataset's reserve": ("rows = 10", "rows = 10\nreserve = 0.5"),
    "a dataset's trust": ("rows = 10", "rows = 10\ntrusted = true"),
    "a local dataset's size": ("rows = 10", "rows = 11"),
}
LOCKED = {
    "seed": ("seed = 1", "seed = 2"),
    "model": ('model = "moonshotai/kimi-k2.5"', 'model = "moonshotai/kimi-k2"'),
    "profile": ('profile = "kimi-k2.5"', 'profile = "kimi-k2-thinking"'),
    "thinking": ('profile = "kimi-k2.5"', 'profile = "kimi-k2.5"\nthinking = false'),
    "server": ('kind = "openrouter"', 'kind = "embedded"'),
    "sampling": ("max_tokens = 1024", "max_tokens = 2048"),
    "a dataset's turns": ("rows = 10", 'rows = 10\nturns = "chain"'),
    "a dataset's source": ('path = "rows.jsonl"', 'path = "other.jsonl"'),
    "a dataset's mapping": ('prompt = "problem"', 'prompt = "question"'),
    "a dataset's backend": ('backend = "openrouter"', 'backend = "import"'),
    "a dataset's sampling": ("rows = 10", "rows = 10\nsampling = { temperature = 0.6 }"),
}


@pytest.mark.parametrize("change", FREE)
def test_what_may_change_under_paid_data_leaves_the_fingerprint_alone(tmp_path: Path, change: str) -> None:
    assert load(tmp_path, FREE[change], name="new.toml").fingerprint == load(tmp_path).fingerprint


@pytest.mark.parametrize("change", LOCKED)
def test_what_decides_paid_answers_changes_the_fingerprint(tmp_path: Path, change: str) -> None:
    assert load(tmp_path, LOCKED[change], name="new.toml").fingerprint != load(tmp_path).fingerprint


def test_the_size_of_a_hub_sample_is_locked_unless_its_scan_is_fixed(tmp_path: Path) -> None:
    """More rows read further into the stream, which changes the sample; with scan_rows a larger sample begins with the smaller one."""

    def fingerprint(rows: str, scan: str) -> str:
        hub = f'source = {{ kind = "hf", path = "a/b", revision = "{"0" * 39}1"{scan} }}'
        text = GOOD.replace('source = { kind = "jsonl", path = "rows.jsonl" }', hub).replace("rows = 10", rows)
        return load_campaign(str(write(tmp_path, text, name=f"{rows}{len(scan)}.toml"))).fingerprint

    assert fingerprint("rows = 10", "") != fingerprint("rows = 11", "")
    assert fingerprint("rows = 10", ", scan_rows = 5000") == fingerprint("rows = 11", ", scan_rows = 5000")


@pytest.mark.parametrize(
    ("backend", "turns", "words"), [("openrouter", "every", 'say "chain"'), ("import", "chain", 'say "every"')]
)
def test_turns_that_a_backend_cannot_have_are_refused_with_the_one_it_can(
    tmp_path: Path, backend: str, turns: str, words: str
) -> None:
    line = message(tmp_path, ('backend = "openrouter"', f'backend = "{backend}"'), ("rows = 10", f'rows = 10\nturns = "{turns}"'))
    assert f'turns = "{turns}"' in line and words in line and "dataset[0] (b3_magicoder)" in line


def test_an_unknown_dataset_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="no dataset named 'b9'; it has b3_magicoder, b1_glaive"):
        load(tmp_path).dataset_named("b9")


@pytest.mark.parametrize("name", ["dagster", "tokenizers", "dagster-mine", "standin_serve"])
def test_a_campaign_is_not_named_like_another_folder_of_the_data_root(tmp_path: Path, name: str) -> None:
    line = message(tmp_path, ('name = "tiny"', f'name = "{name}"'))
    assert f"campaign.name = '{name}'" in line and "give the campaign another name" in line
    assert load(tmp_path, ('name = "tiny"', 'name = "dagsters"')).name == "dagsters"


@pytest.mark.parametrize("table", ["routing", "budget"])
def test_who_rents_says_what_it_may_cost(table: str, tmp_path: Path) -> None:
    """A campaign that rents nothing may leave both out; with a rented dataset they are named as missing."""
    text = re.sub(rf"(?ms)^\[{table}\]\n.*?(?=^\[)", "", (CAMPAIGNS_DIR / "demo.toml").read_text())
    text = text.replace('path = "demo_data/', f'path = "{CAMPAIGNS_DIR}/demo_data/')
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(CampaignError, match=rf"\[{table}\] is missing: a dataset has backend = \"openrouter\""):
        load_campaign(file)
    file.write_text(text.replace('backend = "openrouter"', 'backend = "engine"').replace("approved_usd", "# approved_usd"))
    assert not load_campaign(file).rents
