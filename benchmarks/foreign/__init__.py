"""A model, a template and providers that nobody here tuned to: truth by construction, sharing no code with the stand-in or room `exact`.

Belongs here: texts (`texts`), ids and prompts from the tokenizer's files alone (`model`), conversations (`cases`), what a provider sends
(`sent`), habits (`habits`) and mechanisms outside every hypothesis (`bills`, `rewriting`). Does not belong here: any import of
`eagle3_assets` (the commands beside this folder make the calls).
"""
