"""Anyone's logs of chat completions → exchanges: a request, the body that answered it, what else is known.

Belongs here: the shapes in which people keep such logs, each one small reader (`shapes.py`), and the files that hold them (`files.py`).
Does not belong here: what a body means (`wire.py`), rebuilding (`reconstruct.py`), learning (`log_learning.py`), printing
(`cli/reconstruct.py`).
"""

from eagle3_assets.exact.logs.exchange import LoggedExchange
from eagle3_assets.exact.logs.files import records_of
from eagle3_assets.exact.logs.halves import read_request
from eagle3_assets.exact.logs.shapes import read_record

__all__ = ["LoggedExchange", "read_record", "read_request", "records_of"]
