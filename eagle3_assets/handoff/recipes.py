"""What a drafter of this target looks like and how published ones were trained: the numbers of the printed commands, with their sources.

Belongs here: the table of published recipes, the shape that follows from a target's configuration, what a cut at the recipe's length loses.
Does not belong here: a trainer's own words for them (`speculators_export.py`, `specforge_export.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Recipe:
    """`length`: ids of a training sequence; longer rows are cut. `intermediate`: the drafter's feed-forward width, None: the target's."""

    length: int
    ttt_steps: int
    learning_rate: float
    epochs: int
    source: str
    intermediate: int | None = None


# examples/configs/qwen3-8b-eagle3-offline.yaml of SpecForge: ttt_length 7, 1e-4, 10 epochs
DEFAULT: Final = Recipe(8192, 7, 1e-4, 10, "SpecForge's example of Qwen3-8B; length: speculators' default")
# (model type, hidden size, vocabulary) of a flat configuration -> how a published drafter of that target was trained
PUBLISHED: Final[Mapping[tuple[str, int, int], Recipe]] = {
    ("deepseek_v3", 7168, 163_840): Recipe(
        20_000, 4, 5e-5, 3, "TorchSpec configs/sglang_kimi_k25_2node.yaml, draft_models/kimi_k25_eagle3.json (lightseekorg/kimi-k2.5-eagle3)", 12_288
    ),
}  # fmt: skip
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")


def recipe_of(config: Mapping[str, Any]) -> Recipe:
    """The published recipe of a target (its flat configuration), else `DEFAULT`."""
    return PUBLISHED.get((config["model_type"], config["hidden_size"], config["vocab_size"]), DEFAULT)


def draft_layer(config: Mapping[str, Any]) -> dict[str, Any]:
    """The drafter's decoder layer as a Llama configuration: written, not guessed by a trainer from a `head_dim` that means something else.

    An MLA target's `head_dim` is its rope part (64 for Kimi K2.5); its heads carry values of `v_head_dim` (128), which published drafters take.
    """
    heads = int(config["num_attention_heads"])
    mla = "kv_lora_rank" in config
    head_dim = int(config["v_head_dim"] if mla else config.get("head_dim") or config["hidden_size"] // heads)
    return {
        "model_type": "llama",
        "hidden_size": config["hidden_size"],
        "intermediate_size": recipe_of(config).intermediate or config["intermediate_size"],
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if mla else int(config.get("num_key_value_heads") or heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config["rms_norm_eps"],
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": config["vocab_size"],
        "tie_word_embeddings": False,
        **{name: config[name] for name in _ROPE if config.get(name) is not None},
    }


@dataclass(frozen=True, slots=True)
class Cut:
    """What cutting rows at `length` loses: rows that are longer, tokens behind the cut, of how many."""

    length: int
    rows: int
    lost: int
    tokens: int

    @property
    def words(self) -> str:
        if not self.rows:
            return f"No row is longer than {self.length:,} ids: nothing is cut."
        share = self.lost / self.tokens
        return f"At {self.length:,} ids {self.rows:,} rows are cut, which loses {self.lost:,} of {self.tokens:,} tokens ({share:.1%})."


def cut_of(lengths: Iterable[int], length: int) -> Cut:
    known = list(lengths)
    longer = [n - length for n in known if n > length]
    return Cut(length, len(longer), sum(longer), sum(known))
