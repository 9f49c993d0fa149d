"""The remote tier: finished artifacts in an object store beside the data root, and big files only there when the disk is low.

Belongs here: where a file lies (`place.py`), the store itself (`remote.py`), moving files there and back (`moves.py`), a whole campaign
(`campaign_copy.py`). Does not belong here: what is in the files; when a stage runs.

The data root stays the truth: it has renames and locks, an object store has neither. A copy is written file by file, its commit last, and
every object is held against checksums before the local file may go.
"""
