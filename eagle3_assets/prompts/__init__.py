"""Sources → `Prompt`: what is asked, pinned.

Belongs here: readers of source rows, mappings, the seeded sample, the turns policy, reasons for setting a row aside, the prompts file.
Does not belong here: rendering to ids (`exact`), sending (`collect`).
"""
