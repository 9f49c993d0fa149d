"""Kimi-mini: the tiny target model: tokenizer, trained weights, its world, sampler, bank of answers, model card (README.md).

Belongs here: its data files and the commands that made them. Does not belong here: serving (`standin`), reconstruction (`exact`).
"""
