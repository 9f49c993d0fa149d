"""Dagster resources: configured access to what assets need (the server of answers, the device of extraction).

Belongs here: thin `ConfigurableResource`s. Does not belong here: protocols (`collect`), engines (`states`).
"""
