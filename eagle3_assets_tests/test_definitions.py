"""Claims about the definitions: the graph is as designed, loads light, and says what a person wants to know; a bad campaign fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from eagle3_assets import definitions, stages
from eagle3_assets.campaign import SHARDS, Campaign
from eagle3_assets_tests.conftest import REPOSITORY

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
def test_a_bad_campaign_fails_to_validate_with_its_line_last(tmp_path: Path) -> None:
    """CI that runs `dagster definitions validate` must not pass over a campaign that cannot be read."""
    bad = tmp_path / "bad.toml"
    bad.write_text("[campaign]\nname = 'x'\nseeed = 3\n")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "dagster"), "definitions", "validate", "-m", "eagle3_assets.definitions"],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "EAGLE3_CAMPAIGN": str(bad), "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode != 0
    assert f"{bad}: campaign.seeed: unknown key 'seeed'; did you mean 'seed'?" in (done.stdout + done.stderr).splitlines()[-1]


def test_groups_are_nested_in_the_order_of_the_flow(campaign: Campaign) -> None:
    specs = definitions.build_definitions(campaign).resolve_all_asset_specs()
    folders = {spec.tags["stage"]: str(spec.group_name).partition("/")[0] for spec in specs}
    assert list(dict.fromkeys(folders[s.name] for s in stages.STAGES if s.name in folders)) == [
        "1_prepare", "2_collect", "3_judge", "4_merge", "5_extract", "6_handoff", "7_train",
    ][: len(set(folders.values()))]  # fmt: skip


def test_jobs_are_what_a_person_wants_and_hold_every_asset_once(campaign: Campaign) -> None:
    defs = definitions.build_definitions(campaign)
    jobs = [defs.resolve_job_def(intent.name) for intent, its in stages.intents() if any(s.datasets(campaign) for s in its)]
    held = [key for job in jobs for key in job.asset_layer.executable_asset_keys]
    assert sorted(held) == sorted(spec.key for spec in defs.resolve_all_asset_specs())
    assert all(job.description for job in jobs)


def test_the_launchpad_says_what_a_run_of_answers_may_choose(campaign: Campaign) -> None:
    job = definitions.build_definitions(campaign).resolve_job_def("collect")
    fields = job.get_node_named("answers").definition.config_field.config_type.fields  # type: ignore[union-attr]
    assert set(fields) == {"in_flight", "attempts", "stop_grace_s", "budget_usd", "dry_run"}
    assert all(field.description for field in fields.values())


def test_the_columns_of_every_table_are_described_as_the_files_have_them() -> None:
    from eagle3_assets.assets.description import columns_of
    from eagle3_assets.exact.sample_row import SCHEMA
    from eagle3_assets.states.verdict import on_policy_table

    for stage, schema in (("tokens", SCHEMA), ("hidden_states", on_policy_table.SCHEMA)):
        assert set(columns_of(stage)) == set(schema.names), stage
    assert all(kind and words for s in stages.STAGES for kind, words in columns_of(s.name).values())


def test_an_assets_definition_has_columns_lineage_folder_code_tags_and_a_page(campaign: Campaign) -> None:
    specs = {s.key.to_user_string(): s for s in definitions.build_definitions(campaign).resolve_all_asset_specs()}
    answers, tokens, corpus = specs["answers/b3_magicoder"], specs["tokens/b3_magicoder"], specs["corpus"]
    assert "costs_money" in answers.tags and "costs_money" not in specs["answers/b1_glaive"].tags  # an engine of one's own
    assert answers.tags["backend"] == "openrouter" and tokens.tags["stage"] == "tokens"
    lineage = corpus.metadata["dagster/column_lineage"].deps_by_column["input_ids"]
    assert {d.asset_key for d in lineage} == {s.key for s in specs.values() if s.key.path[0] == "tokens"}
    for spec in specs.values():
        assert {"dagster/uri", "dagster/code_references", "docs"} <= set(spec.metadata), spec.key
        (reference,) = spec.metadata["dagster/code_references"].code_references
        assert f"/{spec.tags['stage']}.py" in reference.file_path
        assert (REPOSITORY / str(spec.metadata["docs"].value)).is_file()


def test_what_costs_nothing_may_be_automated_and_every_switch_is_off(campaign: Campaign) -> None:
    defs = definitions.build_definitions(campaign)
    automated = {s.tags["stage"] for s in defs.resolve_all_asset_specs() if s.automation_condition is not None}
    assert {"tokens", "report", "corpus"} <= automated and not {"pilot", "answers", "hidden_states", "drafter"} & automated
    assert {s.name for s in defs.sensors or []} == {"automation", "notices", "failed_runs"}
    assert all(s.default_status is dg.DefaultSensorStatus.STOPPED for s in defs.sensors or [])  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["demo", "kimi-k2.5"])
def test_built_in_campaigns_make_valid_definitions(name: str) -> None:
    from eagle3_assets.campaign import load_campaign

    dg.Definitions.validate_loadable(definitions.build_definitions(load_campaign(name)))
