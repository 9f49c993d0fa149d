"""Rows as columns, and the invariants each of them must hold.

Belongs here: one rule a function, quarantine, the admission policy's SQL.
Does not belong here: whether a shard passes (`verdicts/`).
"""
