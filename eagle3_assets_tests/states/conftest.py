"""Tiny models, packs and campaigns for the states room. One thread; everything seeded."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

from eagle3_assets.campaign import Campaign, load_campaign
from eagle3_assets.corpus.pack import Pack
from eagle3_assets.states.extractors import Captured
from eagle3_assets.states.format.final_norm import FinalNorm
from eagle3_assets.states.format.layers import check_layers
from eagle3_assets.store import Store

N, H, V = 9, 64, 512  # layers, hidden size, vocabulary of all tiny models


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_model(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A random ...ForCausalLM: llama, qwen3 or deepseek_v3 (MLA + MoE, first layer dense).

    Norm weights are not 1, and all others have unit gain, so that neighbouring layers differ as a trained model's do.
    """
    from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig, Qwen3Config

    common: dict[str, Any] = {
        "vocab_size": V,
        "hidden_size": H,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 512,
        "num_hidden_layers": N,
    }
    configs: dict[str, Any] = {
        "llama": lambda: LlamaConfig(**{**common, **changes}),
        "qwen3": lambda: Qwen3Config(**{**common, "head_dim": 16, **changes}),
        "deepseek_v3": lambda: DeepseekV3Config(
            **{**common, "num_key_value_heads": 4},
            moe_intermediate_size=32,
            n_routed_experts=8,
            num_experts_per_tok=2,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            num_mtp_layers=0,
            q_lora_rank=32,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=16,
        ),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(configs[kind](), dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.normal_(0.0, 1.0 if "embed" in name else parameter.shape[-1] ** -0.5)
    return model.to(dtype)


def make_packs(lengths: Sequence[int], seed: int = 0, vocab: int = V) -> list[Pack]:
    rng = np.random.default_rng(seed)
    return [
        Pack(
            index=100 + i,
            sample_id=f"s{i:04d}",
            turn=i % 3,
            dataset="b3_magicoder",
            grade="B1",
            part="00000",
            input_ids=rng.integers(0, vocab, n).astype(np.uint32),
            loss_mask=(np.arange(n) >= n // 2).astype(np.uint8),
        )
        for i, n in enumerate(lengths)
    ]


CampaignMaker = Callable[..., Campaign]


@pytest.fixture
def make_campaign(tmp_path: Path) -> CampaignMaker:
    """`make_campaign(weights=..., part_bytes=..., dtype=..., ...)`: a real campaign file, read by the real loader."""

    def make(name: str = "tiny", **settings: Any) -> Campaign:
        s = {
            "weights": "model", "hidden_size": H, "num_hidden_layers": N, "vocab_size": V, "model_dtype": "float32",
            "device": "cpu", "dtype": "float32", "batch_tokens": 256, "part_bytes": 1 << 16, "layers": "", "more": "", "max_length": 0, **settings,
        }  # fmt: skip
        layers = f"layers = {s['layers']}\n" if s["layers"] else ""
        corpus = f"[corpus]\nmax_length = {s['max_length']}\n" if s["max_length"] else ""
        path = tmp_path / f"{name}.toml"
        path.write_text(
            f"""
[campaign]
name = "tiny"
[target]
model = "eagle3/tiny"
profile = "kimi-mini"
weights = "{s["weights"]}"
num_hidden_layers = {s["num_hidden_layers"]}
hidden_size = {s["hidden_size"]}
vocab_size = {s["vocab_size"]}
dtype = "{s["model_dtype"]}"
[server]
kind = "embedded"
[routing]
max_price_completion = 1.0
[budget]
campaign_usd = 1.0
pilot_usd = 0.0
[sampling]
[[dataset]]
name = "b3_magicoder"
backend = "openrouter"
rows = 1
source = {{ kind = "jsonl", path = "x.jsonl" }}
mapping = {{ kind = "prompt" }}
[vocab]
draft_vocab_size = 16
{corpus}[extraction]
device = "{s["device"]}"
dtype = "{s["dtype"]}"
batch_tokens = {s["batch_tokens"]}
part_bytes = {s["part_bytes"]}
{layers}{s["more"]}low_water_gb = 0.001
"""
        )
        return load_campaign(str(path))

    return make


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data" / "tiny")


@dataclasses.dataclass
class FormulaEngine:
    """An `Extractor` whose states are a formula of id, position and layer: exact, quick, and countable.

    For tests of files and resume; the transformers engine has its own. `on_capture` runs before each capture (to kill, to fail).
    """

    stored_dtype: torch.dtype = torch.float32
    fingerprint: str = "formula-1"
    captured: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    on_capture: Callable[[int], None] = lambda number: None
    calls: int = 0

    def describe(self) -> dict[str, Any]:
        return {
            "engine": "formula", "model": "formula", "revision": None, "fingerprint": self.fingerprint, "dtype": "float32",
            "num_hidden_layers": N, "hidden_size": H, "vocab_size": V, "attention": None, "device": "cpu", "batching": "none",
            "versions": {},
        }  # fmt: skip

    def states_of(self, ids: Sequence[int], k: int) -> torch.Tensor:
        """[T, H] of E_k; k = N is the pre-norm final state."""
        token = torch.tensor(list(ids), dtype=torch.float32)[:, None]
        position = torch.arange(len(ids), dtype=torch.float32)[:, None]
        channel = torch.arange(H, dtype=torch.float32)[None]
        return torch.sin(token * 0.37 + position * 0.11 + channel * 0.7 + k * 1.9) * (2.0 + k)

    def capture(self, token_lists: Sequence[Sequence[int]], layers: Sequence[int], final: str = "prenorm") -> list[Captured]:
        check_layers(layers, N)
        self.on_capture(self.calls)
        self.calls += 1
        self.captured += [tuple(ids) for ids in token_lists]
        return [
            Captured(torch.stack([self.states_of(ids, k) for k in [*layers, N]], dim=1).to(self.stored_dtype), tuple(ids))
            for ids in token_lists
        ]

    def reference_states(self, token_ids: Sequence[int]) -> torch.Tensor:
        inner = [self.states_of(token_ids, k) for k in range(N)]
        return torch.stack([*inner, self.final_norm().apply(self.states_of(token_ids, N))])

    def final_norm(self) -> FinalNorm:
        return FinalNorm(np.linspace(0.5, 1.5, H, dtype=np.float32), 1e-6)

    def close(self) -> None:
        pass
