"""What the definition of an asset says beside its dependencies: columns, where its files lie, the code that makes it, tags, pages of the docs.

Belongs here: Dagster's metadata of definitions (docs/dagster.md has the table of its conventions). Does not belong here: figures of what was
made (`build.py`), any stage.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg

from eagle3_assets import stages
from eagle3_assets.campaign import Campaign
from eagle3_assets.review.verdicts.table import ALL
from eagle3_assets.stage import Artifact, Per, Stage
from eagle3_assets.store import Store

REPOSITORY = Path(__file__).parents[2]
DEFAULT_OWNERS = ("team:eagle3",)
# The page that says how to read what a stage makes.
PAGES = {
    "tokenizer_probe": "tokenizers", "endpoints": "plan", "prompts": "plan", "pilot": "plan", "plan": "plan", "answers": "imports",
    "wire_profiles": "exactness", "tokens": "exactness", "report": "review", "corpus": "corpus", "vocab_map": "corpus",
    "hidden_states": "states", "handoff_tokens": "handoff", "handoff_speculators": "handoff", "handoff_specforge": "handoff",
    "drafter": "drafter", "acceptance": "acceptance",
}  # fmt: skip
# Columns that a stage takes over one to one from the tables of the stage named.
TAKEN_OVER = {"corpus": "tokens"}


def metadata_of(campaign: Campaign, stage: Stage, dataset: str) -> dict[str, Any]:
    """For the asset's page: `dagster/column_schema`, `dagster/column_lineage`, `dagster/uri`, code references, the page of the docs."""
    found: dict[str, Any] = {"dagster/uri": dg.MetadataValue.url(folder_of(campaign, stage, dataset).as_uri())}
    if columns := columns_of(stage.name):
        described = [dg.TableColumn(name, kind, description=words) for name, (kind, words) in columns.items()]
        found["dagster/column_schema"] = dg.TableSchema(described)
    if stage.name in TAKEN_OVER:
        found["dagster/column_lineage"] = _lineage(campaign, stage)
    if stage.name in PAGES:
        page = REPOSITORY / "docs" / f"{PAGES[stage.name]}.md"
        found["docs"] = dg.MetadataValue.path(str(page.relative_to(REPOSITORY)))
    file = Path(stages.__file__).parent / f"{stage.name}.py"
    if file.exists():
        reference = dg.LocalFileCodeReference(file_path=str(file), line_number=1, label=f"stage {stage.name}")
        found["dagster/code_references"] = dg.CodeReferencesMetadataValue(code_references=[reference])
    return found


def tags_of(campaign: Campaign, stage: Stage, dataset: str) -> dict[str, str]:
    """To filter by in the UI: `tag:stage=tokens`, `tag:backend=openrouter`, `tag:costs_money`."""
    tags = {"stage": stage.name, "campaign": _label(campaign.name), "target": _label(campaign.target.profile)}
    if dataset != ALL:
        facts = campaign.dataset_named(dataset)
        tags |= {"dataset": dataset, "backend": facts.backend, "licence": _label(facts.licence or "none")}
    if spends(campaign, stage, dataset):
        tags["costs_money"] = ""
    return tags


def spends(campaign: Campaign, stage: Stage, dataset: str) -> bool:
    """Whether materializing this asset may pay somebody: engines of one's own and imports cost nothing."""
    return stage.costs_money and (dataset == ALL or campaign.dataset_named(dataset).backend == "openrouter")


def folder_of(campaign: Campaign, stage: Stage, dataset: str) -> Path:
    """Where the asset's files lie: the artifact, or the folder of its partitions."""
    store = Store.of(campaign)
    if stage.per is Per.SHARD:
        return stage.path(Artifact(stage, campaign, store, dataset, "00")).absolute().parent
    if stage.per is Per.PART:
        return stage.path(Artifact(stage, campaign, store, dataset, "00000")).absolute().parent
    return stage.path(Artifact(stage, campaign, store, dataset)).absolute()


@cache
def _tables() -> dict[str, dict[str, tuple[str, str]]]:
    raw = tomllib.loads((Path(stages.__file__).parent / "columns.toml").read_text(encoding="utf-8"))
    return {stage: {name: (kind, words) for name, (kind, words) in columns.items()} for stage, columns in raw.items()}


def columns_of(stage: str) -> dict[str, tuple[str, str]]:
    """Column -> (type, meaning) of the table that a stage writes; empty for one that writes none."""
    return _tables().get(stage, {})


def _lineage(campaign: Campaign, stage: Stage) -> dg.TableColumnLineage:
    source = next(s for s in stages.STAGES if s.name == TAKEN_OVER[stage.name])
    keys = [dg.AssetKey(source.asset_key(name)) for name in source.datasets(campaign)]
    shared = [name for name in columns_of(stage.name) if name in columns_of(source.name)]
    return dg.TableColumnLineage({name: [dg.TableColumnDep(key, name) for key in keys] for name in shared})


def _label(value: str) -> str:
    """Tag values hold letters, digits, `.`, `_` and `-`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", value).strip("-_.")[:63]
