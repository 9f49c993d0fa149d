"""One run: prompts that wait, requests in flight, answers that are filed.

Belongs here: the collector and what it is made of. Does not belong here: money (`money/`), what a request says (`servers/`).
"""
