"""A whole campaign in the tier: what is there and where, copied, compared, brought back to an empty disk.

Belongs here: the loops over a campaign's artifacts, and the small files that have no commit (lock, approval, verdicts). Does not belong
here: one artifact (`moves.py`), printing (`cli/tier.py`, `cli/pull.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from eagle3_assets.errors import StoreError
from eagle3_assets.store import (
    MANIFEST_SUFFIX,
    Manifest,
    Store,
    manifest_path,
    parse_manifest,
    read_manifest,
    write_bytes,
)
from eagle3_assets.tier.moves import PART_SUFFIX, STATES_FOLDER, fetch, is_uploaded, upload, write_place
from eagle3_assets.tier.place import read_place
from eagle3_assets.tier.remote import Remote

# Small files without a commit that a campaign cannot be judged without. The ledger is counted anew from the journals.
LOOSE = (
    "campaign.lock",
    "approval.json",
    "audit.json",
    "verdicts/**/*.json",
    "answers/*/closed.json",
    "reports/*.html",
    "reports/*.md",
)
Where = Literal["here", "both", "tier", "partly here", "nowhere"]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where the bytes of one artifact lie: `local` and `remote` of `bytes`."""

    artifact: Path
    bytes: int
    local: int
    remote: int

    @property
    def where(self) -> Where:
        if self.remote < self.bytes:
            return "here" if self.local == self.bytes else "nowhere"
        return "both" if self.local == self.bytes else ("tier" if not self.local else "partly here")


def whereabouts(store: Store, artifacts: Iterable[Path]) -> Iterator[Whereabouts]:
    """Of every committed artifact, from the records alone: nothing is asked of the store."""
    for artifact in artifacts:
        manifest = _sound_manifest(artifact)
        if manifest is None:
            continue
        place, base = read_place(store.root, artifact), manifest.path.parent
        total = local = remote = 0
        for name, facts in manifest.files.items():
            total += facts["bytes"]
            local += facts["bytes"] if (base / name).exists() else 0
            remote += facts["bytes"] if place is not None and place.proven(name, facts) else 0
        yield Whereabouts(artifact, total, local, remote)


def copy_all(
    remote: Remote,
    store: Store,
    artifacts: Iterable[Path],
    *,
    keep_free: int,
    on_artifact: Callable[[Path], None] = lambda artifact: None,
) -> int:
    """Copy every committed artifact that is not in the tier yet, then the loose files. Returns the bytes of what was copied.

    Raises StoreError at the first that cannot be copied; what was copied by then is recorded, and not sent again.
    """
    copied = 0
    for artifact in artifacts:
        on_artifact(artifact)
        manifest = read_manifest(artifact)
        if manifest is None or is_uploaded(store.root, artifact, manifest):
            continue
        place = upload(remote, store.root, artifact, keep_free=keep_free)
        copied += sum(int(facts["bytes"]) for facts in place.files.values())
    for pattern in LOOSE:
        for path in sorted(store.root.glob(pattern)):
            remote.put_bytes(path.relative_to(store.root).as_posix(), path.read_bytes())
    return copied


def compare(store: Store, artifacts: Iterable[Path]) -> Iterator[str]:
    """What the store no longer holds as it did: one line a file. Objects are compared by ETag where the file is here too, else read."""
    for artifact in artifacts:
        manifest = _sound_manifest(artifact)
        place = read_place(store.root, artifact)
        if manifest is None or place is None:
            continue
        remote = Remote(place.url)
        for name, facts in manifest.files.items():
            path = place.folder / name
            if place.proven(name, facts) and not remote.holds(path, name, facts["bytes"], facts["xxh3"]):
                here = "copy it again: eagle3 tier --copy" if path.exists() else "it is gone here, too: materialize it again"
                yield f"{remote.at(name)}: is not the object that was copied; {here}"


def _sound_manifest(artifact: Path) -> Manifest | None:
    """The committed manifest, or None; damage counts as none."""
    try:
        return read_manifest(artifact)
    except StoreError:
        return None


def pull(
    remote: Remote,
    store: Store,
    *,
    keep_free: int,
    partitions: Sequence[str] = (),
    on_file: Callable[[str, int], None] = lambda name, size: None,
) -> tuple[int, int]:
    """Bring a campaign back: every commit of the tier that is not here, its files, and the loose files; of hidden states only the records,
    and the parts of `partitions` ("all": every one). Returns (artifacts, bytes fetched).

    A commit that is here already is left alone, whatever the tier holds. Raises StoreError.
    """
    commits = remote.names(MANIFEST_SUFFIX)
    if not commits:
        raise StoreError(f"{remote.url}: holds no campaign; copy one there first: eagle3 tier --copy")
    states = {
        name.removeprefix(f"{STATES_FOLDER}/").removesuffix(MANIFEST_SUFFIX) for name in commits if name.startswith(STATES_FOLDER)
    }
    unknown = [key for key in partitions if key != "all" and key not in states]
    if unknown:
        raise StoreError(f"{remote.url}: holds no partition {', '.join(unknown)}; it holds {', '.join(sorted(states)) or 'none'}")
    artifacts = fetched = 0
    for name in commits:
        path = store.root / name
        if path.exists():
            continue
        artifacts += 1
        fetched += _pull_artifact(remote, store, name, path, keep_free, on_file)
    for name in (n for suffix in (".json", ".lock", ".html", ".md") for n in remote.names(suffix)):
        path = store.root / name
        if not path.exists() and any(fnmatch(name, pattern) for pattern in LOOSE):
            write_bytes(path, remote.read_bytes(name) or b"")
    for key in sorted(states) if "all" in partitions else partitions:
        fetched += _fetch_parts(store, key, on_file)
    return artifacts, fetched


def _pull_artifact(
    remote: Remote, store: Store, name: str, path: Path, keep_free: int, on_file: Callable[[str, int], None]
) -> int:
    """The files of one commit, then the commit. Parts of states stay where they are, with a record of it."""
    data = remote.read_bytes(name) or b""
    manifest = parse_manifest(path, data)
    artifact = path.with_name(path.name.removesuffix(MANIFEST_SUFFIX))
    folder = path.parent.relative_to(store.root).as_posix()
    url = remote.url if folder == "." else f"{remote.url}/{folder}"
    below, fetched = Remote(url), 0
    for file, facts in manifest.files.items():
        if name.startswith(f"{STATES_FOLDER}/") and file.endswith(PART_SUFFIX) and Path(file).name.startswith("part-"):
            continue
        on_file(f"{folder}/{file}", int(facts["bytes"]))
        below.get(file, path.parent / file, int(facts["bytes"]), str(facts["xxh3"]))
        fetched += int(facts["bytes"])
    # the store holds what its commit says: the commit was written there last, after each file was proven
    files = {file: {**facts, "proof": "commit"} for file, facts in manifest.files.items()}
    write_place(store.root, artifact, url, files, keep_free)
    write_bytes(manifest_path(artifact), data)
    return fetched


def _fetch_parts(store: Store, key: str, on_file: Callable[[str, int], None]) -> int:
    manifest, fetched = read_manifest(store.states(key)), 0
    for name, facts in manifest.files.items() if manifest is not None else ():
        path = store.hidden_states / name
        if not path.exists():
            on_file(name, int(facts["bytes"]))
            fetch(path)
            fetched += int(facts["bytes"])
    return fetched
