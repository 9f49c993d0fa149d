"""Rented answers of a large reasoning model, turned into EAGLE-3 training data that can be trusted.

Belongs here: nothing but the package's name. Follow one answer through the rooms: prompts → collect → exact → review →
corpus → states → handoff; `definitions.py` puts them into Dagster.
"""
