"""Where the target model's weights lie, and a fingerprint that tells one model from another without loading it.

Belongs here: resolving `target.weights`, the fingerprint (no torch: `eagle3 run` asks for it before it decides to skip a stage).
Does not belong here: loading a model (`extractors/`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import xxhash

from eagle3_assets.campaign import Campaign
from eagle3_assets.errors import StateError
from eagle3_assets.installed import kimi_mini_weights

EMBEDDED = "embedded"
WEIGHT_SUFFIXES = (".safetensors",)
SAMPLE_BLOCKS, BLOCK_BYTES, HEAD_BYTES = 64, 4096, 1 << 16
_HUB_ID = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?$")


def weights_folder(campaign: Campaign) -> Path:
    """The local folder with the target's config.json and safetensors files; a hub id is taken from the local cache, or fetched.
    'embedded' is Kimi-mini, of the package beside this one.

    A relative path starts at the campaign file. A hub id may be pinned as `org/name@revision`. Raises StateError.
    """
    weights = campaign.target.weights
    if weights == EMBEDDED:
        return kimi_mini_weights()
    folder = campaign.path.parent / Path(weights).expanduser()
    where = f"{campaign.path}: target.weights = {weights!r}"
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise StateError(f"{where}: {folder} holds no config.json; expected a folder in transformers' format")
        return folder
    match = _HUB_ID.match(weights)
    if not match:
        raise StateError(f"{where}: no such folder ({folder}); give 'embedded', a model folder or a hub id org/name@revision")
    return _hub_snapshot(match["repo"], match["revision"], where)


def _hub_snapshot(repo: str, revision: str | None, where: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors"]  # no code and no pickles
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    except HFValidationError as error:
        raise StateError(f"{where}: is no hub id ({_first_line(error)})") from None
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub's client, its HTTP library and its cache each raise their own
        raise StateError(
            f"{where}: neither a folder beside the campaign file nor a hub model that can be fetched ({_first_line(error)}); "
            "give 'embedded', a model folder or a hub id org/name@revision"
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def model_fingerprint(campaign: Campaign) -> str:
    """Identity of the target's weights: xxh3-128, hex. Milliseconds a file, no torch.

    Of config.json and every weight file its name, size, first 64 KiB (the tensor table) and 64 evenly spaced 4 KiB blocks: another
    checkpoint or a fine-tune differs in all of them. `target.dtype` is part of it: it decides the states as well.
    """
    hasher = xxhash.xxh3_128()
    hasher.update(f"dtype={campaign.target.dtype}\n".encode())
    folder = weights_folder(campaign)
    files = sorted(f for f in folder.iterdir() if f.suffix in WEIGHT_SUFFIXES)
    if not files:
        raise StateError(f"{campaign.path}: target.weights = {campaign.target.weights!r}: {folder} holds no .safetensors file")
    _hash_sampled(hasher, [folder / "config.json", *files])
    return hasher.hexdigest()


def _hash_sampled(hasher: xxhash.xxh3_128, files: list[Path]) -> None:
    for file in files:
        size = file.stat().st_size
        hasher.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as handle:
            hasher.update(handle.read(HEAD_BYTES))
            step = max(BLOCK_BYTES, size // SAMPLE_BLOCKS)
            for offset in range(HEAD_BYTES, size, step):
                hasher.update(os.pread(handle.fileno(), BLOCK_BYTES, offset))
