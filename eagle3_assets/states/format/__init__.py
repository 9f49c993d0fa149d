"""The part file: `hidden_states` [tokens, layers, H] bf16, ids, masks, offsets; planes, layers, manifest, the final norm.

Belongs here: bytes on disk and what they mean. Enough, alone, to read a part.
Does not belong here: who makes states (`extractors/`).
"""
