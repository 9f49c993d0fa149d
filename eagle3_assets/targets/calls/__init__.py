"""How a model family writes tool calls: one file a family, each a `CallForm` (`targets/grammar.py`).

Belongs here: what stands between the content and the end of a turn, as ids and as text. Does not belong here: reasoning, content and
the end of a turn (`marked_turns.py`), how servers rewrite calls (`exact/search/`).
"""
