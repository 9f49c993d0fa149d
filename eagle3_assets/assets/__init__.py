"""The asset graph: one file a stage, each a thin face over its room.

Belongs here: asset definitions (key, group, kinds, owners, dependencies, metadata), recording of finished shards.
No `from __future__ import annotations` in these files: Dagster inspects the annotation of `context` at run time.
Does not belong here: logic (rooms), what inputs an artifact has (`lineage`), whether it may go on (`gate`).
"""
