"""The schema of a stand-in profiles file, one module for each table of it.

Belongs here: types, bounds, one description for each key. Does not belong here: reading the file (`profiles`), behaviour.
"""
