"""A campaign's files → pages that a person looks at: the campaign, all rows, one row, providers, two sides compared.

Belongs here: reading what other rooms wrote (through their functions), tables for fast questions, the local server, the static export,
links into both. Does not belong here: writing below a data root, judging or counting by rules of its own, Dagster, the front end's
source (`viewer/` in the repository; `static/` holds what `make viewer` built of it).
"""
