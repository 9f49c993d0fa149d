"""The embedded OpenRouter and engine servers, with ground truth.

Belongs here: the servers, stand-in profiles (how a simulated provider bends and bills), the truth side file, `score`.
Does not belong here: anything of `exact`: the bender and the unbender share no code but tokenizer files.
Only tests and `standin score` read truth.
"""
