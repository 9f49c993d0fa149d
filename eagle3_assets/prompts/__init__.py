"""Sources → `Prompt`: what is asked, pinned.

Belongs here: readers of source rows, mappings, the turns policy, reasons for setting a row aside, the seeded sample, the file.
Does not belong here: rendering to ids (`exact`), sending (`collect`).
"""
