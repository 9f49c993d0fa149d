"""One run of the collector: thousands of requests in flight, each attempt judged, filed and billed.

Belongs here: dispatch, concurrency, attempts and their outcomes, a shard's work list, stopping, progress.
Does not belong here: what a server's request looks like (`servers/`), money (`money/`).
"""
