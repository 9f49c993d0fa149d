"""The catalogues of all roots, opened when they are asked for, and the reading that goes on behind them.

Belongs here: one place that a request asks for a root's tables, and the thread that reads journals and texts. Does not belong here: what
is asked of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from eagle3_assets.errors import Eagle3Error, UsageError
from eagle3_assets.exact.show import visible
from eagle3_assets.view.calls import Calls
from eagle3_assets.view.catalogue import Catalogue, open_catalogue
from eagle3_assets.view.roots import Root
from eagle3_assets.view.texts import fill_texts

log = logging.getLogger(__name__)
LOOK_AGAIN_S = 5.0


class Reader:
    """Reads one root's journals and texts until it is stopped; looks for new ones every LOOK_AGAIN_S."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue, self._calls = catalogue, Calls(catalogue)
        self.state = {"journals": 0, "journals_of": 0, "texts": 0, "texts_of": 0, "ready": False}
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._go, name=f"reader of {catalogue.root.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; returns when it has."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def wait(self) -> None:
        """Until everything that is there was read once."""
        self._ready.wait()

    def _go(self) -> None:
        while not self._stop.is_set():
            try:
                self._read_once()
                self.catalogue.problems.pop("reader", None)
            except Eagle3Error as error:
                self.catalogue.problems["reader"] = str(error)
            except Exception as error:  # a page without search is better than no page
                log.exception("reading %s", self.catalogue.root.store.root)
                self.catalogue.problems["reader"] = (
                    f"journals and texts could not be read ({error}); the rows can still be looked at"
                )
            self.state["ready"] = True
            self._ready.set()
            self._stop.wait(LOOK_AGAIN_S)

    def _read_once(self) -> None:
        state = self.state
        if not state["ready"]:
            state["journals_of"] = len(self._calls.folders())
        self._calls.fill(self._stop, lambda: self._count("journals"))
        self.catalogue.refresh()
        lacking = "SELECT count(DISTINCT file) FROM facts WHERE file NOT IN (SELECT DISTINCT file FROM texts)"
        if not state["ready"]:
            state["texts_of"] = self.catalogue.ask(lacking)[0][0]
        fill_texts(self.catalogue, self._stop, lambda: self._count("texts"))

    def _count(self, what: str) -> None:
        if not self.state["ready"]:
            self.state[what] += 1


class Library:
    """Root names → catalogues."""

    def __init__(self, roots: Mapping[str, Root]) -> None:
        self.roots = roots
        self._open: dict[str, Reader] = {}
        self._opening = threading.Lock()

    @property
    def first(self) -> str:
        return next(iter(self.roots))

    def reader(self, name: str = "") -> Reader:
        """The reader of a root by name ("" is the campaign that was asked for), up to date. Raises UsageError for another name."""
        root = self.roots.get(name or self.first)
        if root is None:
            raise UsageError(f"{visible(name)!r} is none of the campaigns that can be seen here: {', '.join(self.roots)}")
        with self._opening:
            if root.name not in self._open:
                self._open[root.name] = Reader(open_catalogue(root))
                self._open[root.name].start()
            found = self._open[root.name]
        found.catalogue.refresh()
        return found

    def catalogue(self, name: str = "") -> Catalogue:
        return self.reader(name).catalogue

    def state(self, name: str = "") -> dict[str, Any]:
        """What a page asks for again and again: {version, rows, reading, roots}."""
        reader = self.reader(name)
        rows = reader.catalogue.ask("SELECT count(*) FROM rows")[0][0]
        return {
            "version": reader.catalogue.version,
            "rows": rows,
            "reading": dict(reader.state),
            "roots": list(self.roots),
            "root": name or self.first,
        }

    def close(self) -> None:
        for reader in self._open.values():
            reader.stop()
