"""The asset graph: one file a stage, each a thin face over its room.

Belongs here: asset definitions (key, group, kinds, owners, dependencies, metadata), recording of finished shards.
Does not belong here: logic (rooms), what inputs an artifact has (`lineage`), whether it may go on (`gate`).
"""
