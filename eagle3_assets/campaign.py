"""The campaign file: one TOML = one whole run.

Belongs here: the schema of the file, its validation, its fingerprint. Every mistake ends in one `CampaignError` line that
names file, table, key, value and what would be right.
Does not belong here: reading anything else at import time (this is the only file that definitions read), network, Dagster.
"""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import json
import os
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from eagle3_assets.errors import CampaignError
from eagle3_assets.grades import ADMITTED, HANDED_ON, GradeName

DEFAULT_BASE_URL = "https://openrouter.ai/api/v1"
URL_VARIABLE = "OPENROUTER_BASE_URL"
PLAY_SERVERS = ("embedded", "loopback")  # what they charge is nobody's money
CAMPAIGNS_DIR = Path(__file__).parent / "campaigns"
BUILT_IN = ("demo", "kimi-k2.5")
N_SHARDS = 16
SHARDS = tuple(f"{k:02d}" for k in range(N_SHARDS))

Quantization = Literal[
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32", "unknown"
]  # the vocabulary of OpenRouter's provider.quantizations (docs/research/openrouter-contract.md#1.2)
Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Table(BaseModel):
    """Unknown keys are mistakes, never ignored. Strict types: a string is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _changed(table: _Table, name: str) -> bool:
    """Whether the key was set to something else than its default: only then would leaving it unread be a surprise."""
    return name in table.model_fields_set and getattr(table, name) != type(table).model_fields[name].get_default()


class CampaignTable(_Table):
    """`[campaign]`."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,40}$")
    seed: int = 0
    data_collection: Literal["deny", "allow"] = "deny"
    title: str | None = Field(
        default=None, pattern=r"^[ -~]{1,100}$", description="who asks, for OpenRouter's statistics; default: eagle3_assets NAME"
    )
    url: str | None = Field(default=None, pattern=r"^https?://[!-~]{1,200}$", description="your page, sent as HTTP-Referer")
    owners: tuple[Annotated[str, Field(pattern=r"^(team:[A-Za-z0-9_.-]+|[^@\s]+@[^@\s]+)$")], ...] = Field(
        default=(), description="who answers for it, shown in Dagster: an e-mail address, or team:NAME"
    )

    @field_validator("name")
    @classmethod
    def _has_a_folder_of_its_own(cls, value: str) -> str:
        # the data root holds one folder a campaign, and these (dagster-NAME is what `assets/stage.py` suggests)
        if value in ("dagster", "tokenizers", "standin_serve") or value.startswith("dagster-"):
            raise ValueError("is the name of a folder that the data root uses for something else; give the campaign another name")
        return value


class Target(_Table):
    """`[target]`: the model whose answers and hidden states are wanted."""

    model: str = Field(description="the slug that OpenRouter serves it under, e.g. moonshotai/kimi-k2.5")
    profile: str = Field(description="tokenizer profile, a folder of eagle3_assets/targets/profiles")
    thinking: bool = True
    end_of_turn_id: int | None = Field(
        default=None, ge=0, description="only to state it a second time; tokenizer_probe refuses a wrong one"
    )
    weights: str = Field(description="'embedded' (kimi-mini), or a local folder / hub id for extraction")
    num_hidden_layers: int = Field(ge=4)
    hidden_size: int = Field(ge=1)
    vocab_size: int = Field(ge=2)
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"


class Server(_Table):
    """`[server]`: who answers prompts of datasets with backend = "openrouter"."""

    kind: Literal["openrouter", "embedded"] = "openrouter"
    standin_profiles: str | None = Field(default=None, description="embedded only: stand-in profiles TOML")
    answers: Literal["bank", "live"] | None = Field(
        default=None,
        description="embedded only: answers replayed from a bank, or sampled live from kimi-mini (default: the profiles')",
    )


class Routing(_Table):
    """`[routing]`: OpenRouter's `provider` object, and what we require of an endpoint. Prices: USD per million tokens."""

    ignore: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    quantizations: tuple[Quantization, ...] = ()
    sort: Literal["price", "throughput", "latency"] = "price"
    max_price_prompt: Usd | None = None
    max_price_completion: Usd
    min_status: int = Field(default=0, le=0, description="endpoint status 0 is normal, lower is worse")
    min_uptime: float = Field(default=0.0, ge=0, le=100, description="percent over 30 minutes; unknown passes")
    require_parameters: bool = True
    parameters: tuple[str, ...] = Field(default=(), description="names that an endpoint must list besides those always sent")
    leave_out_inexact: bool = Field(
        default=False,
        description="do not ask providers whose wire profile says that no reading of their text fits their bills; "
        "false: they are only named",
    )
    allow_fallbacks: bool = True


class Budget(_Table):
    """`[budget]`, all in USD. `approved_usd` is allowed for the embedded stand-in only: real money is approved by a person."""

    campaign_usd: Usd
    pilot_usd: Usd = 2.0
    dataset_usd: Usd | None = Field(default=None, description="cap for each dataset; a dataset may state its own")
    approved_usd: Usd | None = None


# A stream shows its first token after queueing and prefill; half a minute is long, five minutes is nobody there.
STREAM_SILENCE_S = 300.0


class Collect(_Table):
    """`[collect]`: how requests are sent."""

    in_flight: int = Field(default=2000, ge=1, le=10_000)
    attempts: int = Field(default=4, ge=1, le=20, description="tries per prompt, transport and server faults together")
    timeout_s: float = Field(default=900.0, gt=0, description="the longest that one request may take")
    silence_s: float | None = Field(
        default=None,
        gt=0,
        description="a request that brings nothing but keep-alives for so long hangs; default 300 for streams, timeout_s for whole "
        "answers, which are silent until they are done",
    )
    stop_grace_s: float = Field(default=20.0, ge=0)
    stream: Literal["auto", "never", "always"] = Field(
        default="never", description="auto: when the pilot saw every eligible endpoint stream token by token"
    )

    def silence_of(self, stream: bool) -> float:
        """Seconds without a byte of an answer after which a request counts as hung."""
        return min(self.timeout_s, self.silence_s or (STREAM_SILENCE_S if stream else self.timeout_s))


class Sampling(_Table):
    """`[sampling]`: always sent explicitly (docs/design.md#rule-11)."""

    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=0.95, gt=0, le=1)
    max_tokens: int = Field(default=16_384, ge=1)


class Source(_Table):
    """`[dataset.source]`: where rows come from. `hf` streams a pinned revision of a hub dataset."""

    kind: Literal["hf", "jsonl", "parquet"]
    path: str = Field(description="hub id, or file/folder/glob; relative paths start at the campaign file")
    revision: str | None = None
    subset: str | None = None
    split: str = "train"
    data_files: str | None = Field(default=None, description="hf: one file or glob of the repository instead of all of the split")
    scan_rows: int | None = Field(
        default=None, ge=1, description="hf: rows of the stream looked at; default max(20 x (rows + reserve), 20000)"
    )

    @model_validator(mode="after")
    def _hub_is_pinned(self) -> Source:
        how = f"take the hash from `git ls-remote https://huggingface.co/datasets/{self.path} HEAD`"
        if self.kind == "hf" and not self.revision:
            raise ValueError(f"revision is missing: a hub dataset must be pinned to a commit; {how}")
        # A branch moves; the hub resolves full hashes only (huggingface_hub: "it must be the full-length hash").
        if self.kind == "hf" and not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
            raise ValueError(f"revision = {self.revision!r} is not a pin: expected a commit hash of 40 hex digits; {how}")
        for key in ("revision", "subset", "data_files", "scan_rows"):
            if self.kind != "hf" and getattr(self, key) is not None:
                raise ValueError(f'{key} = {getattr(self, key)!r} is only for kind = "hf"; remove it')
        return self


class Mapping(_Table):
    """`[dataset.mapping]`: how one source row becomes a prompt. Which keys count depends on `kind` (`prompts/mapping.py`).

    Values name columns; a dot reaches into a nested one (`meta.question`). `messages` defaults to the column that each kind
    has in the wild: `messages`, `conversations` (sharegpt), `trajectory` (swe), `chat` (glaive).
    """

    kind: Literal["prompt", "messages", "sharegpt", "swe", "glaive"]
    prompt: str = "prompt"
    messages: str = "messages"
    system: str | None = None
    tools: str | None = None
    output_ids: str | None = Field(default=None, description="import: column with the ids the model sampled")
    prompt_ids: str | None = None
    finish_reason: str | None = None

    @model_validator(mode="after")
    def _names_the_column_of_its_kind(self) -> Mapping:
        other, own = ("messages", "prompt") if self.kind == "prompt" else ("prompt", "messages")
        if _changed(self, other):
            raise ValueError(f'{other} = {getattr(self, other)!r} is not read with kind = "{self.kind}"; did you mean {own!r}?')
        return self


class Dataset(_Table):
    """`[[dataset]]`: one B-dataset (or A1)."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{1,40}$")
    backend: Literal["openrouter", "engine", "import"]
    source: Source
    mapping: Mapping
    licence: str = ""
    rows: int | None = Field(default=None, ge=1)
    token_budget: int | None = Field(default=None, ge=1, description="output tokens; rows = budget / mean length")
    mean_tokens: int = Field(default=3500, ge=1, description="expected output tokens a row, until the pilot knows")
    reserve: float = Field(default=0.1, ge=0, description="extra sampled rows, as a share of rows")
    turns: Literal["last", "first", "chain", "every"] = "last"
    max_chars: int = Field(
        default=400_000, ge=1, description="longer prompts are set aside; Kimi's encoder cuts text at 400,000 characters"
    )
    usd: Usd | None = None
    trusted: bool = Field(default=False, description="handoff admits grade I of this import by name")
    sampling: Sampling | None = None

    @model_validator(mode="after")
    def _one_size(self) -> Dataset:
        if (self.rows is None) == (self.token_budget is None):
            raise ValueError("say either rows = N or token_budget = N (output tokens), not both and not neither")
        return self

    @model_validator(mode="after")
    def _turns_fit_backend(self) -> Dataset:
        if self.turns == "every" and self.backend != "import":
            raise ValueError(
                'turns = "every" takes every answer that an import has; to have every turn answered anew, say "chain"'
            )
        if self.turns == "chain" and self.backend == "import":
            raise ValueError('turns = "chain" asks a model, and an import asks nobody; to take every answer it has, say "every"')
        return self

    @property
    def n_rows(self) -> int:
        """Selected rows (without the reserve)."""
        if self.rows is not None:
            return self.rows
        assert self.token_budget is not None
        return max(1, round(self.token_budget / self.mean_tokens))


class Engine(_Table):
    """`[[engine]]`: a vLLM/SGLang server that returns token ids; `base_url = "embedded"` is the stand-in's."""

    kind: Literal["vllm", "sglang"]
    base_url: str
    model: str | None = None

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value != "embedded" and not re.match(r"^https?://", value):
            raise ValueError('must be "embedded" or start with http:// or https://')
        return value


class Corpus(_Table):
    """`[corpus]`: what is admitted and how it is cut."""

    grades: tuple[GradeName, ...] = ADMITTED
    min_p_exact: float = Field(default=0.95, ge=0, le=1)
    max_length: int | None = Field(default=None, ge=2, description="ids of a row; longer ones meet too_long")
    too_long: Literal["drop", "cut"] = Field(
        default="drop", description="drop (reason: too_long), or cut at max_length and flag the row as truncated"
    )
    near_duplicates: float = Field(
        default=0.8, ge=0, le=1, description="Jaccard index of responses from which on a row repeats another; 0 turns it off"
    )
    join_turns: bool = Field(
        default=False,
        description="turns of a conversation become one row with several loss spans where the later prompt holds the earlier ids",
    )
    validation_share: float = Field(default=0.0, ge=0, lt=1, description="share of the groups on the validation side")
    weights: dict[str, float] = Field(default={}, description="dataset -> share of its conversations that stays (seeded draw)")
    additions: tuple[tuple[str, ...], ...] = Field(
        default=(), description="datasets that joined after hidden states existed, a list each time: they get parts of their own"
    )
    shards: int = Field(default=80, ge=1, le=1000, description="partitions of hidden_states, cut by token budget")

    @field_validator("weights")
    @classmethod
    def _a_weight_is_a_share(cls, weights: dict[str, float]) -> dict[str, float]:
        for name, weight in weights.items():
            if not 0 < weight <= 1:
                what = "more of its rows (dataset.rows), or let the trainer repeat it" if weight > 1 else "it out of [[dataset]]"
                raise ValueError(
                    f"{name} = {weight:g}: a weight is the share that stays, above 0 and at most 1 (a corpus never holds a row twice: its "
                    f"hidden states would be stored twice); {'take' if weight > 1 else 'leave'} {what}"
                )
        return weights

    @model_validator(mode="after")
    def _cut_where(self) -> Corpus:
        if self.too_long == "cut" and self.max_length is None:
            raise ValueError('too_long = "cut" needs max_length = N: where rows are cut')
        if not self.near_duplicates or self.near_duplicates >= 0.5:
            return self
        raise ValueError(
            f"near_duplicates = {self.near_duplicates:g}: below 0.5 responses only have something in common; 0 turns it off"
        )


class Vocab(_Table):
    """`[vocab]`."""

    draft_vocab_size: int = Field(ge=2)


class Handoff(_Table):
    """`[handoff]`: the final grade policy; copies of the states in a trainer's own format, only where they are asked for."""

    grades: tuple[GradeName, ...] = HANDED_ON
    files: tuple[Literal["speculators", "specforge"], ...] = Field(
        default=(), description="trainers that get files of their own; without them they read the states in place"
    )
    file_bytes: int | None = Field(
        default=None, ge=1, description="confirms the size of such files, a trainer: at most so many bytes"
    )


# What of `[extraction]` one engine alone reads. Ray reads its own and those of the engine that its workers run.
ENGINE_SETTINGS: dict[str, tuple[str, ...]] = {
    "transformers": ("devices",),
    "vllm": ("urls", "vllm_python", "exchange", "in_flight", "timeout_s", "tensor_parallel", "reference"),
    "ray": ("worker_engine", "workers", "gpus_per_worker", "ray_address"),
}


def default_layers(num_hidden_layers: int) -> tuple[int, int, int]:
    """(low, mid, high) as E_k: E_2, E_(N//2), E_(N-3), on which all consumers' defaults agree under different numbers.

    Kimi K2.5 (N = 61): (2, 30, 58). A model too shallow to have three different ones in order is refused by `states` (`check_layers`).
    """
    return 2, num_hidden_layers // 2, num_hidden_layers - 3


class Extraction(_Table):
    """`[extraction]`: hidden states. Layers are E_k = input of decoder layer k (docs/design.md#layers)."""

    engine: Literal["transformers", "vllm", "ray"] = "transformers"
    layers: tuple[int, int, int] | None = Field(default=None, description="default E_2, E_(N//2), E_(N-3)")
    device: str = "cpu"
    devices: tuple[str, ...] = Field(default=(), description="transformers: spread the layers over these instead of `device`")
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    batch_tokens: int = Field(default=8192, ge=1, description="tokens of one forward pass")
    part_bytes: int = Field(default=2 * 2**30, ge=1 << 16)
    compress: Literal["none", "lossless"] = Field(
        default="none", description="lossless: a third fewer bytes, 0.4 GB a CPU second to write, and no zero-copy reading"
    )
    verdict_share: float = Field(
        default=1.0, ge=0, le=1, description="rows whose ids the model judges (rows with survivors always); 0: no head is loaded"
    )
    low_water_gb: float = Field(
        default=0.5, ge=0, allow_inf_nan=False, description="extraction stops cleanly before the disk has less free"
    )
    urls: tuple[str, ...] = Field(
        default=(),
        description="vllm: servers that hold the model, e.g. http://127.0.0.1:8000; none: one is started and stopped here",
    )
    vllm_python: str | None = Field(
        default=None, description="vllm: Python of the environment that has it; default: `vllm serve` from PATH"
    )
    exchange: str = Field(default="/dev/shm/eagle3_states", description="vllm: folder that server and client both see")
    in_flight: int = Field(default=32, ge=1, le=1024, description="vllm: requests on their way, over all servers")
    timeout_s: float = Field(default=600.0, gt=0, description="vllm: the longest that one row may take")
    tensor_parallel: int = Field(default=1, ge=1, description="vllm: GPUs of one server")
    reference: Literal["whole", "partial"] = Field(
        default="whole",
        description="vllm: what the self-test compares with: the whole target in transformers, or, where that cannot be loaded here, its "
        "first layers and its head",
    )
    worker_engine: Literal["transformers", "vllm"] = Field(default="transformers", description="ray: what each worker runs")
    workers: int = Field(default=1, ge=1, le=1024, description="ray: actors, each with the model loaded")
    gpus_per_worker: float = Field(default=0.0, ge=0, description="ray: GPUs that each worker asks for")
    ray_address: str | None = Field(default=None, description="ray: an address or 'auto'; default: a cluster in this process")

    @model_validator(mode="after")
    def _settings_are_of_its_engine(self) -> Extraction:
        running = {self.engine, self.capture_engine}
        for engine, names in ENGINE_SETTINGS.items():
            foreign = [name for name in names if _changed(self, name)]
            if foreign and engine not in running:
                raise ValueError(
                    f'extraction.{foreign[0]} = {getattr(self, foreign[0])!r} is only read with engine = "{engine}", and engine is '
                    f'"{self.engine}"; remove it, or did you mean engine = "{engine}"?'
                )
        return self

    @property
    def capture_engine(self) -> str:
        """The engine that runs the model: what decides the states. Ray only says where."""
        return self.worker_engine if self.engine == "ray" else self.engine

    @property
    def all_devices(self) -> tuple[str, ...]:
        return self.devices or (self.device,)

    @model_validator(mode="after")
    def _urls_are_servers(self) -> Extraction:
        for url in self.urls:
            if not re.match(r"^https?://[^/]+/?$", url):
                raise ValueError(f"extraction.urls holds {url!r}: expected http://host:port")
        return self


class DrafterTable(_Table):
    """`[drafter]`: who trains a drafter from the hand-off, and the drafts that its acceptance is counted for. Without it both are left out."""

    trainer: Literal["eagle3", "speculators", "specforge"] = Field(
        description="eagle3: the small trainer of this package, for a CPU and a tiny target"
    )
    python: str | None = Field(default=None, description="Python of the trainer's environment; default: this one")
    launcher: tuple[str, ...] = Field(
        default=(), description="words before it, e.g. srun and its options: what keeps the environment and sees the same folders"
    )
    arguments: tuple[str, ...] = Field(
        default=(), description="of speculators or SpecForge, behind those that the hand-off gives"
    )
    settings: dict[str, float | int] = Field(default={}, description="of the small trainer, e.g. epochs = 4")
    chain: int = Field(default=3, ge=1, le=32, description="drafts of a chain")
    tree: tuple[int, int, int] | None = Field(default=(4, 3, 12), description="topk, steps, nodes of a tree of drafts; [] = none")
    device: str = Field(default="cpu", description="where acceptance is computed")

    @model_validator(mode="before")
    @classmethod
    def _no_tree(cls, raw: Any) -> Any:
        return {**raw, "tree": None} if isinstance(raw, dict) and raw.get("tree") == [] else raw

    @model_validator(mode="after")
    def _numbers_of_a_tree(self) -> DrafterTable:
        if self.tree is not None and min(self.tree) < 1:
            raise ValueError(f"drafter.tree = {list(self.tree)}: expected topk, steps and nodes, each 1 or more")
        return self


class Tier(_Table):
    """`[store]`: an object store beside the data root. Credentials come from the environment (AWS_ACCESS_KEY_ID, …), never from here."""

    remote: str | None = Field(
        default=None, description="where finished artifacts are copied to, e.g. s3://bucket/prefix (any fsspec URL)"
    )
    keep_free_gb: float = Field(
        default=10.0,
        ge=0,
        allow_inf_nan=False,
        description="parts of states that are in the remote leave the disk when less is free",
    )

    @field_validator("remote")
    @classmethod
    def _names_a_place_and_no_secret(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if not parts.scheme or not (parts.netloc or parts.path.strip("/")):
            raise ValueError(f"is {value!r}: expected scheme://bucket/prefix, e.g. s3://states/kimi")
        if "@" in parts.netloc or parts.query:
            raise ValueError("holds a credential: remove it here and put it into the environment (AWS_ACCESS_KEY_ID, …)")
        return value


class Execution(_Table):
    """`[execution]`: how the work of this machine is spread. Changes no byte of what is made."""

    workers: int | None = Field(
        default=None,
        ge=1,
        description="processes for exact ids, `recheck` and reports; as many as there are cores where it is left out",
    )


class Campaign(_Table):
    """The whole file, validated. Build with `load_campaign`."""

    campaign: CampaignTable
    target: Target
    server: Server = Server()
    routing: Routing = Routing(
        max_price_completion=0.0
    )  # these two may be left out where nothing is rented, and allow nothing then
    budget: Budget = Budget(campaign_usd=0.0, pilot_usd=0.0)
    collect: Collect = Collect()
    sampling: Sampling
    dataset: tuple[Dataset, ...] = Field(min_length=1)
    engine: tuple[Engine, ...] = ()
    corpus: Corpus = Corpus()
    vocab: Vocab
    handoff: Handoff = Handoff()
    extraction: Extraction = Extraction()
    drafter: DrafterTable | None = None
    store: Tier = Tier()
    execution: Execution = Execution()
    path: Path = Field(default=Path(), description="where it was read from (set by load_campaign)")

    @model_validator(mode="after")
    def _hangs_together(self) -> Campaign:
        names = [d.name for d in self.dataset]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"dataset.name = {name!r} appears {names.count(name)} times: names must be unique")
        for table in ("routing", "budget"):
            if self.rents and table not in self.model_fields_set:
                raise ValueError(
                    f'[{table}] is missing: a dataset has backend = "openrouter", and the table says what its answers may cost'
                )
        if any(d.backend == "engine" for d in self.dataset) and not self.engine:
            raise ValueError('a dataset has backend = "engine" but there is no [[engine]] table with its base_url')
        if self.budget.approved_usd is not None and self.server.kind != "embedded":
            raise ValueError(
                "budget.approved_usd is for the embedded stand-in only: approve real money with `eagle3 plan --approve USD`"
            )
        for key in ("standin_profiles", "answers"):
            if getattr(self.server, key) is not None and self.server.kind != "embedded":
                raise ValueError(f'server.{key} is for server.kind = "embedded" only: remove it, real servers answer as they do')
        if self.budget.pilot_usd > self.budget.campaign_usd:
            raise ValueError(
                f"budget.pilot_usd = {self.budget.pilot_usd} is more than budget.campaign_usd = {self.budget.campaign_usd}"
            )
        if self.vocab.draft_vocab_size > self.target.vocab_size:
            raise ValueError(
                f"vocab.draft_vocab_size = {self.vocab.draft_vocab_size} is more than "
                f"target.vocab_size = {self.target.vocab_size}"
            )
        listed = [name for joined in self.corpus.additions for name in joined]
        for key, found in (("weights", list(self.corpus.weights)), ("additions", listed)):
            for name in found:
                if name not in names:
                    raise ValueError(f"corpus.{key} names {name!r}: no such dataset; there are {', '.join(names)}")
                if found.count(name) > 1:
                    raise ValueError(f"corpus.{key} names {name!r} twice")
        if set(names) == set(listed):
            raise ValueError("corpus.additions names every dataset: those of the first time are not listed")
        for k in self.layers:
            if not 0 <= k < self.target.num_hidden_layers:
                raise ValueError(
                    f"extraction.layers holds {k}: E_k needs 0 <= k < target.num_hidden_layers = {self.target.num_hidden_layers}"
                )
        return self

    @property
    def name(self) -> str:
        return self.campaign.name

    @property
    def rents(self) -> bool:
        """Whether any dataset is answered through OpenRouter. Where none is, nobody is listed, piloted or paid, and no key is read."""
        return any(d.backend == "openrouter" for d in self.dataset)

    @property
    def server_address(self) -> str | None:
        """Who answers rented prompts: `openrouter.ai` (or another host that OPENROUTER_BASE_URL names), `loopback` for a server on this
        machine (the stand-in; its port says nothing), `embedded`; None where nothing is rented. It decides what answers, prices and
        profiles mean, so it is locked with what was paid for, although the campaign file never names it."""
        if not self.rents:
            return None
        if self.server.kind == "embedded":
            return "embedded"
        host = urlsplit(os.environ.get(URL_VARIABLE) or DEFAULT_BASE_URL).hostname or "?"
        try:
            is_loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_loopback = host == "localhost"
        return "loopback" if is_loopback else host

    @property
    def is_play_money(self) -> bool:
        """Whether what answers cost is stand-in money."""
        return self.server_address in PLAY_SERVERS

    @property
    def layers(self) -> tuple[int, int, int]:
        """(low, mid, high) as E_k."""
        return self.extraction.layers or default_layers(self.target.num_hidden_layers)

    def dataset_named(self, name: str) -> Dataset:
        for d in self.dataset:
            if d.name == name:
                return d
        raise CampaignError(f"{self.path}: no dataset named {name!r}; it has {', '.join(d.name for d in self.dataset)}")

    def sampling_of(self, dataset: Dataset) -> Sampling:
        return dataset.sampling or self.sampling

    @property
    def fingerprint(self) -> str:
        """sha256 of what the file says that must not change under data already paid for (`locked_facts` but the server's address, which an
        approval names beside it)."""
        facts = {name: value for name, value in self.locked_facts().items() if name != "server.address"}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def locked_facts(self) -> dict[str, Any]:
        """What decides the content of paid answers: target, server, seed, sampling, and each dataset's selection.

        Budgets, routing, concurrency, corpus and extraction settings may change freely. So may the number of rows: a larger sample
        begins with the smaller one. Only a hub source without `scan_rows` reads further for more rows, which changes the sample.
        """
        facts: dict[str, Any] = {
            "campaign.seed": self.campaign.seed,
            "target.model": self.target.model,
            "target.profile": self.target.profile,
            "target.thinking": self.target.thinking,
            "server.kind": self.server.kind,
            "sampling": self.sampling.model_dump(mode="json"),
        }
        if self.server_address is not None:
            facts["server.address"] = self.server_address
        for d in self.dataset:
            free = {"name", "usd", "trusted", "licence", "reserve", "rows", "token_budget", "mean_tokens"}
            for key, value in d.model_dump(mode="json", exclude=free).items():
                facts[f"dataset.{d.name}.{key}"] = value
            if d.source.kind == "hf" and d.source.scan_rows is None:
                facts[f"dataset.{d.name}.rows"] = d.n_rows
        return facts


FOLDERS_OWN = "campaign.toml"


def campaign_path(name_or_path: str | None = None) -> Path:
    """Where a campaign's TOML lies. `None` reads EAGLE3_CAMPAIGN (default: `campaign.toml` of this folder, as `eagle3 init` writes it,
    else `demo`)."""
    value = name_or_path or os.environ.get("EAGLE3_CAMPAIGN") or (FOLDERS_OWN if Path(FOLDERS_OWN).is_file() else "demo")
    if value in BUILT_IN:
        return CAMPAIGNS_DIR / f"{value}.toml"
    path = Path(value)
    if not path.exists() and path.suffix != ".toml":
        raise CampaignError(
            f"EAGLE3_CAMPAIGN = {value!r}: no such campaign; use {', '.join(BUILT_IN)}, or a path to a .toml file"
        )
    return path


@lru_cache(maxsize=8)
def _load(path: Path, mtime_ns: int) -> Campaign:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise CampaignError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise CampaignError(f"{path}: not valid TOML: {error}") from None
    if "path" in raw:  # a field of the model, not of the file
        raise CampaignError(f"{path}: unknown key 'path'; known keys: {', '.join(_known_keys(()))}")
    try:
        return Campaign.model_validate({**_tuples(raw), "path": path})
    except ValidationError as error:
        raise CampaignError(f"{path}: {_first_mistake(error, raw)}") from None


def load_campaign(name_or_path: str | None = None) -> Campaign:
    """Read and validate a campaign file. Raises CampaignError with one line."""
    path = campaign_path(name_or_path)
    try:
        mtime = path.stat().st_mtime_ns
    except OSError as error:
        raise CampaignError(
            f"{path}: cannot be read ({error.strerror}); set EAGLE3_CAMPAIGN to demo, kimi-k2.5 or a .toml file"
        ) from None
    if not path.is_file():
        raise CampaignError(f"{path}: is not a file; set EAGLE3_CAMPAIGN to demo, kimi-k2.5 or a .toml file")
    try:
        return _load(path, mtime)
    except OSError as error:
        raise CampaignError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def _tuples(value: Any) -> Any:
    """TOML arrays are lists; strict pydantic wants tuples."""
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _first_mistake(error: ValidationError, raw: dict[str, Any]) -> str:
    """One line: [table] key = value: what is wrong; what would be right."""
    # an unknown key first: misspelling a required key gives two mistakes, and this one says what to do
    first = next((e for e in error.errors() if e["type"] == "extra_forbidden"), error.errors()[0])
    loc = [str(part) for part in first["loc"]]
    where = _where(first["loc"], raw)
    kind, message = first["type"], first["msg"].removeprefix("Value error, ")
    more = f" (and {len(error.errors()) - 1} more)" if len(error.errors()) > 1 else ""
    if kind == "extra_forbidden":
        known = _known_keys(first["loc"][:-1])
        near = difflib.get_close_matches(loc[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"{where}: unknown key {loc[-1]!r}; {hint}{more}"
    if kind == "missing":
        return f"{where}: {loc[-1]!r} is missing{more}"
    if kind == "value_error":
        value = f" = {_shown(first['input'])}" if isinstance(first["input"], str | int | float) else ""
        return f"{where}{value}: {message}{more}" if where else f"{message}{more}"
    for ours, theirs in (("list", "valid tuple"), ("table", "valid dictionary")):  # TOML knows neither tuples nor dictionaries
        message = message.replace(theirs, ours)
    return f"{where} = {_shown(first['input'])}: {message[0].lower()}{message[1:]}{more}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _where(loc: tuple[int | str, ...], raw: Any) -> str:
    """`dataset[2] (b3_magicoder).source.kind` for a pydantic location."""
    out, here = "", raw
    for part in loc:
        if isinstance(part, int):
            here = here[part] if isinstance(here, list) and part < len(here) else None
            name = here.get("name") if isinstance(here, dict) else None
            out += f"[{part}]" + (f" ({name})" if name else "")
        else:
            here = here.get(part) if isinstance(here, dict) else None
            out += ("." if out else "") + part
    return out


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    """The keys that the table at `loc` knows, from the models themselves."""
    model: Any = Campaign
    for part in loc:
        if isinstance(part, str) and isinstance(model, type) and issubclass(model, BaseModel):
            annotation = model.model_fields[part].annotation
            candidates = [annotation, *getattr(annotation, "__args__", ())]
            model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    # `path` of the whole file is set by load_campaign; a source's path is a key like any other
    return [k for k in model.model_fields if not (model is Campaign and k == "path")] if model else []
