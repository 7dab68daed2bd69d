"""The samples of a live page, of the cells that it asks for: the worst first, a page of them at a time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvbench.extras.view.line_index import LineIndex
from kvbench.extras.view.query import Query
from kvbench.extras.view.shown_samples import ShownPrompt, sample_data
from kvbench.records import COLUMNS, KeptSets, PromptRecord, Row
from kvbench.records.own_lines import are_of, sidecar_of
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

PAGE = 20
"""Samples of a page."""
LONGEST = 20_000
"""Characters of a prediction; of a sample that is shown alone, all of them."""


class FolderSidecars:
    """Kept sets and prompts of the rows of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept, self._prompts = LineIndex(folder, KeptSets), LineIndex(folder, PromptRecord)

    def scan(self) -> None:
        """Take in what was written since."""
        self._kept.scan()
        self._prompts.scan()

    def kept(self, row: Row, file: str) -> KeptSets | None:
        """Return the kept sets of a row of this rows file, if they belong to the row."""
        try:
            sets = sidecar_of(self.folder, self._kept.find(row.cell, row.sample), Path(file).stem)
        except UserError:  # lines that differ: reports refuse them, and a page can do without
            return None
        return sets if sets and are_of(row.kept_sha256, sets, self.folder, lambda text: None) else None

    def prompt(self, prompt_sha256: str | None) -> ShownPrompt | None:
        """Return the shown part of a prompt, if it was recorded."""
        records = self._prompts.find(prompt_sha256).values() if prompt_sha256 else ()
        return next(map(ShownPrompt.of, records), None)


@dataclass(frozen=True)
class Samples:
    """The rows of all folders, and the cells to which they belong.

    ``rows``: a table of each folder, with the places of its rows. ``cells``: as the page has them, where the cell X of
    folder 0 is "0.X". ``sidecars``: of each folder.
    """

    rows: Sequence[pa.Table]
    cells: Sequence[Mapping[str, Any]]
    sidecars: Sequence[FolderSidecars]

    def page(self, query: Query) -> dict[str, Any]:
        """Return the samples of one page, as values for JSON.

        ``total``: how many are left without "wrong only"; ``wrong``: how many of them are not fully right. ``entries``:
        each with its cells and an answer, or null, of each. ``prompts``: what is shown of theirs, by hash.
        """
        cells = [self._numbers[cell] for cell in query.cells if cell in self._numbers]
        selected = np.isin(self._cell, cells)
        if query.sample is not None:
            selected &= self._sample == query.sample
        if query.text:
            selected &= self._with_text(query.text)
        places = np.flatnonzero(selected)
        groups: Sequence[Sequence[int]] | np.ndarray
        if query.side_by_side:
            groups = self._side_by_side(places)
            wrong_groups = [group for group in groups if self._is_wrong[[*group]].any()]
        else:
            groups = self._worst_first(places)[:, None]
            wrong_groups = groups[self._is_wrong[groups[:, 0]]]
        shown = wrong_groups if query.only_wrong else groups
        pages = max(1, -(-len(shown) // PAGE))
        page = min(max(1, query.page), pages)
        page_groups = shown[PAGE * (page - 1) : PAGE * page]
        beside, longest = cells if query.side_by_side else (), LONGEST if query.sample is None else None
        return {
            "total": len(groups),
            "wrong": len(wrong_groups),
            "page": page,
            "pages": pages,
            **self._entries(page_groups, beside, longest),
        }

    def _entries(self, groups: Iterable[Iterable[int]], beside: Sequence[int], longest: int | None) -> dict[str, Any]:
        prompts: dict[str, Any] = {}
        entries = []
        for sidecars in self.sidecars:
            sidecars.scan()
        for group in groups:
            answers = {}
            for place in group:
                row, file, sidecars = self._row(place)
                prompt = sidecars.prompt(row.prompt_sha256)
                if prompt is not None:
                    prompts[row.prompt_sha256 or ""] = prompt.data
                text = len(row.prediction or "") if longest is None else longest
                answers[int(self._cell[place])] = sample_data(row, sidecars.kept(row, file), prompt, text)
            cells = beside or [*answers]
            entries.append(
                {"cells": [self.cells[cell]["cell"] for cell in cells], "answers": [*map(answers.get, cells)]}
            )
        return {"entries": entries, "prompts": prompts}

    def _side_by_side(self, places: np.ndarray) -> list[tuple[int, ...]]:
        """Return the places of answers to one prompt together, those with the lowest mean first."""
        prompts, tasks = self._table["prompt_sha256"].take(places), self._table["task"].take(places)
        keys = zip(prompts.to_pylist(), tasks.to_pylist(), self._sample[places].tolist(), strict=True)
        groups = grouped(
            zip(keys, places.tolist(), strict=True), lambda answer: (answer[0][0] or answer[0][1], answer[0][2])
        ).values()

        def worst(group: Sequence[tuple[object, int]]) -> tuple[bool, float, int]:
            members = [place for _, place in group]
            return not any(self._failed[members]), float(self._goodness[members].mean()), int(self._sample[members[0]])

        return [tuple(place for _, place in group) for group in sorted(groups, key=worst)]

    def _worst_first(self, places: np.ndarray) -> np.ndarray:
        order = np.lexsort((self._cell[places], self._sample[places], self._goodness[places], ~self._failed[places]))
        return places[order]

    def _with_text(self, text: str) -> np.ndarray:
        """Return which answers, or errors, hold a text, in letters of any size."""
        held = np.zeros(len(self._cell), bool)
        for column in ("prediction", "error"):
            options = pc.MatchSubstringOptions(text, ignore_case=True)
            matches = pc.call_function("match_substring", [self._table[column]], options)
            held |= matches.fill_null(False).to_numpy()
        return held

    def _row(self, place: int) -> tuple[Row, str, FolderSidecars]:
        folder = int(np.searchsorted(self._starts, place, "right")) - 1
        (values,) = self.rows[folder].slice(place - int(self._starts[folder]), 1).to_pylist()
        row = Row(**{name: value for name, value in values.items() if name in COLUMNS and value == value})
        return row, values["file"], self.sidecars[folder]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {cell["cell"]: number for number, cell in enumerate(self.cells)}

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0, *(rows.num_rows for rows in self.rows)])

    @cached_property
    def _table(self) -> pa.Table:
        return pa.concat_tables([rows.select(["task", "prompt_sha256", "prediction", "error"]) for rows in self.rows])

    @cached_property
    def _cell(self) -> np.ndarray:
        """The number of the cell of each row, -1 of one that the page does not have."""
        parts = []
        for folder, rows in enumerate(self.rows):
            codes = rows["cell"].combine_chunks().dictionary_encode()
            numbers = [self._numbers.get(f"{folder}.{cell}", -1) for cell in codes.dictionary.to_pylist()]
            parts.append(np.array(numbers, np.int64)[codes.indices.to_numpy()])
        return np.concatenate(parts)

    @cached_property
    def _sample(self) -> np.ndarray:
        return np.concatenate([rows["sample"].to_numpy() for rows in self.rows])

    @cached_property
    def _value(self) -> np.ndarray:
        return np.concatenate([rows["value"].to_numpy().astype(float) for rows in self.rows])

    @cached_property
    def _failed(self) -> np.ndarray:
        return np.concatenate([rows["error"].is_valid().to_numpy() for rows in self.rows])

    @cached_property
    def _goodness(self) -> np.ndarray:
        """Values, larger where an answer is better; the lowest of all where there is none."""
        signs = np.array([1.0 if cell["higher"] else -1.0 for cell in self.cells] or [1.0])[self._cell]
        return np.where(np.isnan(self._value), -np.inf, self._value * signs)

    @cached_property
    def _is_wrong(self) -> np.ndarray:
        """Which rows failed, have no value, or have one of a rate that is not its best."""
        rates = np.array([cell["rate"] for cell in self.cells] or [False])[self._cell]
        best = np.array([float(cell["higher"]) for cell in self.cells] or [1.0])[self._cell]
        return self._failed | np.isnan(self._value) | (rates & (self._value != best))
