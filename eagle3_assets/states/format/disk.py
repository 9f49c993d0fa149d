"""Room on the disk: asked before a run and all along it, so that extraction stops where it can go on.

Belongs here: the two guards. Does not belong here: deleting anything (`prune.py`), what may leave the disk (`tier`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from eagle3_assets.errors import StateError
from eagle3_assets.tier.moves import make_room


def require_room(folder: Path, planned_bytes: int, low_water_bytes: int) -> None:
    """Raises StateError when `planned_bytes` more would leave less than the low water mark; nothing has been written then."""
    free = _room(folder, planned_bytes + low_water_bytes)
    if free < planned_bytes + low_water_bytes:
        raise StateError(
            f"{folder}: extraction needs {planned_bytes / 1e9:.3f} GB and {free / 1e9:.3f} GB are free "
            f"(extraction.low_water_gb keeps {low_water_bytes / 1e9:.3f}); nothing was started: free space (`eagle3 prune` shows what "
            "is old), set extraction.compress, or point EAGLE3_DATA at a larger disk"
        )


def _room(folder: Path, wanted: int) -> int:
    """Free bytes, after parts that the remote tier holds have left the disk for as much as is needed."""
    free = shutil.disk_usage(folder).free
    return free if free >= wanted else max(free, make_room(folder, wanted))


def require_low_water(folder: Path, low_water_bytes: int) -> None:
    """Raises StateError when less than the low water mark is free: others write to this disk too."""
    free = _room(folder, low_water_bytes)
    if free < low_water_bytes:
        raise StateError(
            f"{folder}: stopped at low water: {free / 1e9:.3f} GB are free, extraction.low_water_gb keeps "
            f"{low_water_bytes / 1e9:.3f}; free space and run again, it goes on at this part"
        )
