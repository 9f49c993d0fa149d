"""Target models: tokenizer, grammar of a turn, facts; one folder of facts a model under `profiles/`.

Belongs here: what is true of the model whoever serves it.
Does not belong here: what servers do to text (`exact/`, `wire/`).
"""
