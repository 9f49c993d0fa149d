"""What the trainers' tests stand on: a greedy campaign with its states, a verifier folder, and a clear word where the trainers are not.

Run by `make test-trainers` in the trainers' own environment; the default run leaves these tests out.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling costs minutes on a CPU, and shows nothing here
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from eagle3_assets.installed import kimi_mini_weights
from eagle3_assets_tests.handoff.answers import Place
from eagle3_assets_tests.handoff.conftest import greedy  # noqa: F401  # a fixture


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in ("speculators", "hs_connectors", "specforge") if importlib.util.find_spec(name) is None]
    for item in items:
        if missing and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"{', '.join(missing)} not installed here; run: make test-trainers"))


@pytest.fixture(scope="session")
def verifier(greedy: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """kimi-mini's config and weights with a tokenizer that the trainers can load (they show a sample with it, and tokenize nothing)."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = Path(tmp_path_factory.mktemp("verifier"))
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(kimi_mini_weights() / name, folder / name)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(greedy.campaign.target.vocab_size)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", eos_token="t1", pad_token="t2").save_pretrained(folder)
    return folder
