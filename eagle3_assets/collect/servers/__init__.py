"""Who can be asked, and how: OpenRouter, engines, endpoints, routing, one HTTP exchange.

Belongs here: a prompt as a request body, headers, facts of an endpoint, the choice among providers.
Does not belong here: retries and filing (`run/`), what an answer's ids are (`exact/`).
"""
