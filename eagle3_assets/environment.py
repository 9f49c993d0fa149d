"""The environment variables that this project reads, in one table, and the refusal of one that it does not know.

Belongs here: their names and what each says. Does not belong here: reading them (each where it is used).

A misspelt `EAGLE3_CAMPAIGNS=kimi-k2.5` would run the demo campaign without a word, so a name of ours that is not in the table is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from eagle3_assets.errors import UsageError

PREFIX = "EAGLE3_"
VARIABLES = {
    "EAGLE3_CAMPAIGN": "the campaign: demo, kimi-k2.5 or a .toml file (default: campaign.toml of the current folder, else demo)",
    "EAGLE3_DATA": "the data root (default: data)",
    "EAGLE3_VIEW_URL": "where `eagle3 view` is reached from a browser, for links in reports and in Dagster",
    "EAGLE3_WEBHOOK": "an address that is told of budget stops, drift and failed checks (docs/dagster.md)",
    "EAGLE3_LAST_WORD": "internal: the file through which a child process hands on the line that a person needs",
    "EAGLE3_SHARED_DATA": "tests: the folder of real tokenizers and recorded traffic",
    "EAGLE3_SHARED_RESEARCH": "tests: the folder of research notes",
    "EAGLE3_SCREENSHOTS": "tests: the folder that keeps pictures of pages",
    "EAGLE3_VLLM_PYTHON": "tests: the interpreter of an environment with vLLM",
    "EAGLE3_STATES": "where the hidden states of a hand-off lie now, when they were moved",
    "EAGLE3_BENCH_DIR": "benchmarks: where they write",
    "EAGLE3_KILLS": "tests: how often a writer is killed",
    "EAGLE3_CLUSTER_LOGS": "tests: the folder that keeps the logs of the cluster",
    "EAGLE3_PG_HOST": "deploy: PostgreSQL's host, in dagster.yaml",
    "EAGLE3_PG_PORT": "deploy: its port",
    "EAGLE3_PG_DB": "deploy: its database",
    "EAGLE3_PG_USER": "deploy: its user",
    "EAGLE3_PG_PASSWORD": "deploy: its password",
}


def refuse_unknown(names: Iterable[str]) -> None:
    """Raises UsageError for a variable of ours that nobody reads, with the one that was probably meant."""
    for name in sorted(names):
        if name.startswith(PREFIX) and name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, n=1)
            hint = (
                f"did you mean {near[0]}?" if near else "known are EAGLE3_CAMPAIGN, EAGLE3_DATA, EAGLE3_VIEW_URL, EAGLE3_WEBHOOK."
            )
            raise UsageError(f"the environment sets {name}, which nothing reads; {hint} Unset it to go on")
