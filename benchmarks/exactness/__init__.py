"""How right the rebuilt token ids are: bought from the stand-in, which knows the truth, rebuilt by the platform, compared.

Belongs here: buying, comparing, figures. Does not belong here: anything that the platform could read. Run `python -m
benchmarks.exactness --help`.
"""
