"""The wire: what a server sent, read once and by one parser, for the collector and for `exact`.

Belongs here: bodies and streams taken apart into `Fields`, the joining of pieces. Does not belong here: whether an answer is worth its
money (`collect`), what its text means for ids (`exact`).
"""
