"""What a server may have made of a request before the model saw it.

Belongs here: renderers, the forms a prompt may take (a table and its space), tool declarations, facts of the request.
Does not belong here: which form a provider uses (`providers/`), the answer's ids (`search/`).
"""
