"""More states than the disk holds: partitions are made, copied to an S3 store, leave the disk, and are read back in order.

    python -m benchmarks.tier --root /a/small/disk --remote s3://bucket/x --partitions 20 --gb 1

Prints bytes made, the most that lay on the disk at once, MB/s out and back, and whether every byte came back. Random bytes stand for states:
the tier knows files and commits only. The store is whoever AWS_ENDPOINT_URL and AWS_… name; needs the extra `s3`.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import numpy as np

from eagle3_assets.campaign import Tier, load_campaign
from eagle3_assets.store import Store, commit, digest_file
from eagle3_assets.tier.copier import Copier
from eagle3_assets.tier.moves import fetch

PARTS = 4


def make(store: Store, key: str, size: int) -> None:
    """A committed partition of `size` bytes in PARTS parts."""
    folder = store.states(key)
    folder.mkdir(parents=True)
    draw, files = np.random.default_rng(int(key)), []
    for k in range(PARTS):
        path = folder / f"part-{k:03d}.safetensors"
        with open(path, "wb") as handle:
            for _ in range(size // PARTS >> 20):
                handle.write(draw.bytes(1 << 20))
        files.append(path)
    commit(folder, files=files, inputs={"made": key})


def on_disk(store: Store) -> int:
    return sum(path.stat().st_size for path in store.root.rglob("*.safetensors"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--remote", required=True)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--gb", type=float, default=1.0, help="of one partition")
    parser.add_argument("--keep-free-gb", type=float, default=0.3)
    asked = parser.parse_args()
    tier = Tier(remote=asked.remote, keep_free_gb=asked.keep_free_gb)
    campaign = load_campaign("demo").model_copy(update={"store": tier})
    store, size = Store(asked.root / campaign.name), int(asked.gb * 1e9)
    keys, digests, most = [f"{k:05d}" for k in range(asked.partitions)], {}, 0
    print(f"disk of {shutil.disk_usage(asked.root).total / 1e9:.1f} GB, {len(keys)} partitions of {asked.gb:g} GB")
    began = time.perf_counter()
    with Copier(campaign, store) as copier:
        for key in keys:
            copier.make_way(store.root, size)
            make(store, key, size)
            most = max(most, on_disk(store))
            digests |= {path.relative_to(store.root): digest_file(path) for path in sorted(store.states(key).iterdir())}
            copier.add(store.states(key))
    out = time.perf_counter() - began
    total = sum((size // PARTS >> 20 << 20) * PARTS for _ in keys)
    print(
        f"made and copied {total / 1e9:.2f} GB in {out:.0f} s ({total / out / 1e6:.0f} MB/s); most on the disk {most / 1e9:.2f} GB"
    )
    began, fetched, wrong = time.perf_counter(), 0, []
    for name, digest in digests.items():
        path = store.root / name
        fetched += not path.exists()
        fetch(path)
        most = max(most, on_disk(store))
        if digest_file(path) != digest:
            wrong.append(str(name))
    back = time.perf_counter() - began
    print(
        f"read back {len(digests)} files, {fetched} of them fetched, in {back:.0f} s; most on the disk {most / 1e9:.2f} GB; wrong: {wrong or 'none'}"
    )


if __name__ == "__main__":
    main()
