"""Claims about the definitions: the asset graph is as designed, loads light, and a bad campaign still loads with its line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from eagle3_assets import definitions, stages
from eagle3_assets.campaign import SHARDS, Campaign

GRAPH = {
    "tokenizer_probe": [],
    "endpoints": [],
    "prompts/{ds}": [],
    "pilot": ["endpoints", "tokenizer_probe", "prompts/{paid}"],
    "plan": ["pilot", "endpoints", "prompts/{ds}"],
    "wire_profiles": ["pilot", "tokenizer_probe", "answers/{ds}"],
    "corpus": ["report/{ds}"],
    "vocab_map": ["corpus"],
    "handoff/tokens": ["corpus"],
    "hidden_states": ["corpus"],
    "handoff/speculators": ["hidden_states", "vocab_map"],
    "handoff/specforge": ["hidden_states", "vocab_map"],
}
DRAFTED = {"drafter": {"handoff/speculators"}, "acceptance": {"drafter", "hidden_states"}}  # where the campaign has a [drafter]


def _graph(defs: dg.Definitions) -> dict[str, set[str]]:
    return {
        spec.key.to_user_string(): {dep.asset_key.to_user_string() for dep in spec.deps}
        for spec in defs.resolve_all_asset_specs()
    }


def test_the_asset_graph_is_the_designs(campaign: Campaign) -> None:
    names = [d.name for d in campaign.dataset]
    paid = [d.name for d in campaign.dataset if d.backend == "openrouter"]
    expected: dict[str, set[str]] = {}
    for key, deps in GRAPH.items():
        filled = {dep.format(ds=n, paid=n) for dep in deps for n in (paid if "{paid}" in dep else names)}
        for n in names if "{ds}" in key else [""]:
            expected[key.format(ds=n)] = filled
    for n in names:
        expected[f"answers/{n}"] = {f"prompts/{n}"} | ({"plan"} if n in paid else set())
        expected[f"tokens/{n}"] = {f"answers/{n}", "wire_profiles", "tokenizer_probe"}
        expected[f"report/{n}"] = {f"tokens/{n}"}
    expected |= DRAFTED if campaign.drafter is not None else {}
    assert _graph(definitions.build_definitions(campaign)) == expected


def test_every_asset_has_description_owner_kind_and_single_run(campaign: Campaign) -> None:
    defs = definitions.build_definitions(campaign)
    for asset in defs.assets or []:
        assert isinstance(asset, dg.AssetsDefinition)
        assert asset.backfill_policy == dg.BackfillPolicy.single_run(), asset.keys
        for spec in asset.specs:
            assert spec.description and spec.owners and spec.kinds and spec.group_name, spec.key


def test_answers_are_one_step_over_shared_shards(campaign: Campaign) -> None:
    assets = [a for a in definitions.build_definitions(campaign).assets or [] if isinstance(a, dg.AssetsDefinition)]
    (answers,) = [a for a in assets if any(k.path[0] == "answers" for k in a.keys)]
    assert answers.can_subset and len(answers.keys) == len(campaign.dataset)
    assert answers.partitions_def is not None and answers.partitions_def.get_partition_keys() == list(SHARDS)


def test_every_check_of_the_table_is_a_separate_asset_check_and_a_partition_has_one_result(campaign: Campaign) -> None:
    defs = definitions.build_definitions(campaign)
    specs = [spec for check in defs.asset_checks or [] for spec in check.check_specs]
    found = {(spec.asset_key.path[0], spec.name) for spec in specs}
    partitioned = {s.asset_key("")[0] for s in stages.STAGES if s.per.partitioned}
    expected = {(s.asset_key("")[0], c.name) for s in stages.STAGES for c in s.checks}
    assert found == expected | {(key, "verdict") for key in partitioned}
    assert partitioned == {"answers", "tokens", "hidden_states"}
    assert all((spec.partitions_def is not None) == (spec.name == "verdict") for spec in specs)


@pytest.mark.slow
def test_definitions_load_without_torch_transformers_or_datasets() -> None:
    code = (
        "import sys, eagle3_assets.definitions\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'matplotlib', 'tokenizers', 'duckdb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_no_stage_and_no_command_but_run_loads_dagster() -> None:
    code = (
        "import importlib, sys\n"
        "from eagle3_assets.cli.main import COMMANDS\n"
        "import eagle3_assets.stages, eagle3_assets.gate, eagle3_assets.answering\n"
        "for name in COMMANDS:\n"
        "    if name != 'run': importlib.import_module('eagle3_assets.cli.' + name.replace('-', '_'))\n"
        "print('dagster' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_asset_carries_the_code_version_of_its_stage(campaign: Campaign) -> None:
    specs = definitions.build_definitions(campaign).resolve_all_asset_specs()
    told = {tuple(spec.key.path): spec.code_version for spec in specs}
    expected = {s.asset_key(d): s.code_version_of(campaign, d) for s in stages.STAGES for d in s.datasets(campaign)}
    assert told == expected


@pytest.mark.slow
def test_a_bad_campaign_still_loads_one_asset_that_carries_the_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[campaign]\nname = 'x'\nseeed = 3\n")
    code = (
        "from eagle3_assets.definitions import defs\n"
        "spec, = defs.resolve_all_asset_specs()\nprint(spec.key.to_user_string(), '|', spec.description)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True, text=True, check=True, env={"EAGLE3_CAMPAIGN": str(bad), "PATH": ""},
    )  # fmt: skip
    key, line = done.stdout.strip().split(" | ")
    assert key == "campaign_error"
    assert line.startswith(f"{bad}: campaign.seeed: unknown key 'seeed'; did you mean 'seed'?")


@pytest.mark.parametrize("name", ["demo", "kimi-k2.5"])
def test_built_in_campaigns_make_valid_definitions(name: str) -> None:
    from eagle3_assets.campaign import load_campaign

    dg.Definitions.validate_loadable(definitions.build_definitions(load_campaign(name)))
