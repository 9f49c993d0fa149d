"""Money: what was promised, held and paid.

Belongs here: the ledger and its journal of payments, amounts, reservations leased across processes, look-ups of late bills.
Does not belong here: sending anything (`run/`, `servers/`), prices of a plan (`estimate/`).
"""
