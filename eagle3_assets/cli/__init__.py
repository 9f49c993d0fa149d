"""The `eagle3` command: one file a command, each a thin face over the rooms.

Belongs here: options, tables, progress lines, exit codes. Does not belong here: logic that a library user would miss.
"""
