"""The page of `kvbench report html` over results folders that may be written: its cells, its samples and their history.

Of several folders all cells are on one page; the cell X of the first folder is "0.X", so that a cell which two folders
have is two lines, and their answers can be read side by side.
"""

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.extras.view.history import history_page
from kvbench.extras.view.live_folder import LiveFolder, Snapshot
from kvbench.extras.view.page import environments_of, looks_of
from kvbench.extras.view.query import Query
from kvbench.extras.view.rendered import rendered
from kvbench.extras.view.samples import FolderSidecars, Samples
from kvbench.report.frames import place_of
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.quantity import count_noun


@dataclass(frozen=True)
class _State:
    version: str
    snapshots: tuple[Snapshot, ...]
    samples: Samples


class LivePage:
    """Answers of a server about folders, which are read here for the first time.

    Several threads may call its methods; `html` and `cells` read again what has changed.
    Raises UserError for a folder that is named twice, MissingFile for one that does not exist.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        for source in sources:
            if not Path(source).exists():
                raise MissingFile(f"results folder {source!r} does not exist; name the folder of a run")
            if sources.count(source) > 1:
                raise UserError(f"{source} is named twice: name each folder once")
        self.sources = sources
        names = [Path(source).resolve().name for source in sources]
        self.names = names if len({*names}) == len(names) else list(sources)
        self._folders = [LiveFolder(source) for source in sources]
        self._sidecars = [FolderSidecars(Path(source)) for source in sources]
        self._lock = threading.Lock()
        self._last: _State | None = None
        self._history: tuple[str, str] | None = None
        self._refreshed()

    def html(self) -> str:
        """Return the page, with the cells of now; its script asks for all samples, and for the cells of later."""
        state = self._refreshed()
        environments: list[dict[str, Any]] = []
        for source, snapshot in zip(self.sources, state.snapshots, strict=True):
            place = place_of(source)
            names = set(snapshot.rows["environment"].unique().to_pylist())
            environments += environments_of(place, names) if place is not None else []
        return rendered(
            "page",
            self._data(state),
            served=True,
            live=True,
            server="kvbench view",
            title=", ".join(self.names),
            environments=environments,
            has_history=len(self.sources) > 1,
        )

    def cells(self, version: str = "") -> dict[str, Any] | None:
        """Return the data of the page; None if they still belong to this version."""
        state = self._refreshed()
        return None if version == state.version else self._data(state)

    def samples(self, query: Query) -> dict[str, Any]:
        """Return a page of samples, as `kvbench.extras.view.samples.Samples.page`."""
        return self._state().samples.page(query)

    def history(self) -> str:
        """Return the page of `kvbench report history`, with the folders in the order in which they are named.

        Raises what that raises.
        """
        state = self._state()
        with self._lock:
            if self._history is None or self._history[0] != state.version:
                self._history = state.version, history_page(self.sources, lambda text: None, served=True)[1]
            return self._history[1]

    def _refreshed(self) -> _State:
        for folder in self._folders:
            folder.refresh()
        return self._state()

    def _state(self) -> _State:
        snapshots = tuple(folder.snapshot for folder in self._folders)
        version = hashlib.sha256(json.dumps([snapshot.version for snapshot in snapshots]).encode()).hexdigest()[:16]
        with self._lock:
            if self._last is None or self._last.version != version:
                named = zip(self.names, snapshots, strict=True)
                cells = [
                    cell | {"folder": name, "cell": f"{number}.{cell['cell']}"}
                    for number, (name, snapshot) in enumerate(named)
                    for cell in snapshot.cells
                ]
                self._last = _State(
                    version, snapshots, Samples([snapshot.rows for snapshot in snapshots], cells, self._sidecars)
                )
            return self._last

    def _data(self, state: _State) -> dict[str, Any]:
        cells = state.samples.cells
        rows = sum(snapshot.rows.num_rows for snapshot in state.snapshots)
        errors = sum(cell["errors"] for cell in cells)
        facts = [
            f"{count_noun(len(cells), 'cell')}, {count_noun(rows, 'row')}",
            *([f"{errors} failed"] if errors else []),
        ]
        return {
            "cells": cells,
            "looks": looks_of(cells),
            "live": state.version,
            "facts": ", ".join(facts),
            "notes": [note for snapshot in state.snapshots for note in snapshot.notes],
        }
