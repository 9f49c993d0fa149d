"""The pilot: a few dozen paid answers an endpoint, and the probes that make its habits visible.

Belongs here: which probes are asked, and what is read from them at once.
Does not belong here: learning a wire profile (`exact/providers/`).
"""
