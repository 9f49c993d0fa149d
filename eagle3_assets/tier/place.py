"""Where the files of an artifact lie beside the data root: one small JSON an artifact, `<root>/tier/<artifact>.json`.

Belongs here: that record, found from a path alone (a reader of states knows no campaign). Does not belong here: moving anything.
This module is below `store`: a manifest whose file is missing asks here whether the tier holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "tier"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Place:
    """`artifact`: path below the campaign's root. `url`: the remote folder that mirrors the folder of its manifest. `files`: name relative
    to that folder → `bytes`, `xxh3`, and `proof` (how the store was seen to hold these bytes). `keep_free`: bytes of the disk that stay free.
    """

    root: Path
    artifact: Path
    url: str
    files: Mapping[str, Mapping[str, Any]]
    keep_free: int

    @property
    def record(self) -> Path:
        return record_path(self.root, self.root / self.artifact)

    @property
    def folder(self) -> Path:
        """The folder that the names in `files` are relative to."""
        return (self.root / self.artifact).parent

    def proven(self, name: str, facts: Mapping[str, Any]) -> bool:
        """Whether the tier holds exactly the bytes that a manifest's `facts` describe."""
        found = self.files.get(name)
        return found is not None and all(found.get(key) == facts[key] for key in ("bytes", "xxh3")) and bool(found.get("proof"))


def record_path(root: Path, artifact: Path) -> Path:
    relative = artifact.relative_to(root)
    return root / FOLDER / relative.with_name(relative.name + ".json")


def read_place(root: Path, artifact: Path) -> Place | None:
    """The record of `artifact`; None where there is none, or none that can be read (the tier is then not believed)."""
    try:
        raw = json.loads(record_path(root, artifact).read_bytes())
        if raw["version"] != VERSION:
            return None
        files = {str(name): dict(facts) for name, facts in raw["files"].items()}
        return Place(root, artifact.relative_to(root), str(raw["url"]), files, int(raw["keep_free"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def place_of(path: Path) -> tuple[Place, str] | None:
    """The record that speaks of `path` (a file of an artifact), and the name of the file in it."""
    path = path.absolute()
    for root in path.parents[:5]:
        if not (root / FOLDER).is_dir():
            continue
        for artifact in (path, *path.parents):
            if artifact == root:
                break
            place = read_place(root, artifact)
            if place is not None and path.is_relative_to(place.folder):
                name = str(path.relative_to(place.folder))
                if name in place.files:
                    return place, name
    return None


def is_elsewhere(path: Path, facts: Mapping[str, Any]) -> bool:
    """Whether the file that is not at `path` is proven to lie in the tier, with the bytes of `facts` ({"bytes", "xxh3"})."""
    found = place_of(path)
    return found is not None and found[0].proven(found[1], facts)


def places(root: Path) -> Iterator[Place]:
    """Every record below `root`, in the order of their names."""
    folder = root / FOLDER
    for record in sorted(folder.rglob("*.json")) if folder.is_dir() else ():
        relative = record.relative_to(folder)
        place = read_place(root, root / relative.with_name(relative.name.removesuffix(".json")))
        if place is not None:
            yield place
