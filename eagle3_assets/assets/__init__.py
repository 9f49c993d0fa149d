"""The asset graph, made of `stages.STAGES`: thin faces of Dagster.

Belongs here: how a stage becomes an asset (`build.py`), the frame around its work (`frame.py`), what Dagster is told so that it calls
outdated what `eagle3 status` calls outdated (`provenance.py`).
Does not belong here: logic (rooms), what is true of a stage (`stages/`), whether an artifact may go on (`gate`).
"""
