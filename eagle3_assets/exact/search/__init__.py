"""From one answer and one request to ids, their rivals and a grade.

Belongs here: fields to frames, readings, edges, witnesses, the bill's verdict, the choice among survivors.
Does not belong here: learning over many answers (`providers/`), files (`exact/rows.py`).
"""
