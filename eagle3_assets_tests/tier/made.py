"""A committed partition of hidden states in miniature: real names, real commits, random bytes."""

from __future__ import annotations

import json
import random
from pathlib import Path

from eagle3_assets.store import Manifest, Store, commit


def partition(store: Store, key: str, parts: int = 2, size: int = 5_000) -> Manifest:
    folder = store.states(key)
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(key)
    files = []
    for k in range(parts):
        path = folder / f"part-{k:03d}.safetensors"
        path.write_bytes(draw.randbytes(size + k))
        files.append(path)
    record = folder / "manifest.json"
    record.write_text(json.dumps({"shard": key}))
    return commit(folder, files=[*files, record], inputs={"made": key})


def part(store: Store, key: str, k: int = 0) -> Path:
    return store.states(key) / f"part-{k:03d}.safetensors"
