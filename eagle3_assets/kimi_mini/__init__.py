"""Kimi-mini: the tiny target model: tokenizer files, bank of answers, weights built on the fly.

Belongs here: its data files and the commands that made them. Does not belong here: serving (`standin`), reconstruction (`exact`).
"""
