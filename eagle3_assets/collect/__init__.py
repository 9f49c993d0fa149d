"""`Prompt` → `WireAnswer`: the verbatim bytes of every paid answer, never lost, never bought twice.

Belongs here: the collector, the journal, the ledger of money, routing, clients of OpenRouter and engines, imports.
Does not belong here: what the bytes mean (`exact`).
"""
